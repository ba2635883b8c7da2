"""The inputs of a captured graph: which there are, in which order, and what they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot.capture import Request, capture_call
from ingot.capture.guards import Quantity
from ingot.capture.sources import ArgSource
from ingot.options import Options


def placeholders(function: Callable[..., Any], *args: Any, **request: Any) -> list[str]:
    captured = capture_call(function, args, {}, Request(Options(), **request))
    names = [node.name for node in captured.graph_module.graph.find_nodes(op="placeholder")]
    assert len(names) == len(captured.inputs)
    return names


def test_an_integer_comes_after_the_tensors() -> None:
    n = Quantity(ArgSource(0, "n"), "value")
    assert placeholders(lambda n, x: x * n, 3, torch.ones(2), symbols=frozenset({n})) == ["x", "n"]


def test_an_argument_that_no_operation_uses_is_no_input() -> None:
    assert placeholders(lambda x, y: x + y.dim(), torch.ones(2), torch.ones(2)) == ["x"]


def test_a_tensor_on_two_paths_is_one_input() -> None:
    x = torch.ones(2)
    assert placeholders(lambda x, pair: x + pair[0], x, (x,)) == ["x"]


def test_names_that_mean_something_else_in_the_code_of_a_graph() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    assert placeholders(lambda inf, pair: inf + pair[0], x, (y,)) == ["inf_", "pair_0"]


def test_an_input_that_is_first_used_behind_an_operation() -> None:
    assert placeholders(lambda x, y: x.sin() + y, torch.ones(2), torch.ones(2)) == ["x", "y"]
