"""Activations that a library applies to a product, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.reference import run_graph
from ingot.graph.passes import run_passes
from ingot.graph.passes.pipeline import LIBRARY_PASSES
from ingot.loops.ir import Library, LoopGraph
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from tests.graph.test_margins import traced
from tests.oracle import copies


def hidden(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def lowered(fn: Callable[..., Any], *args: Tensor) -> LoopGraph:
    aten = traced(fn, *args)
    run_passes(aten, LIBRARY_PASSES)
    graph = lower(aten, target=GPU)
    verify(graph)
    return graph


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def rectified(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b).relu()


JOINED = [(hidden, torch.bfloat16), (rectified, torch.bfloat16), (rectified, torch.float16)]


@pytest.mark.parametrize("rows", [(6,), (2, 3)], ids=str)
@pytest.mark.parametrize("fn, dtype", JOINED)
def test_an_activation_is_part_of_the_product(
    fn: Callable[..., Tensor], dtype: torch.dtype, rows: tuple[int, ...]
) -> None:
    args = [drawn(*rows, 16, dtype=dtype), drawn(24, 16, dtype=dtype), drawn(24, dtype=dtype)]
    graph = lowered(fn, *args)
    assert [node.function for node in graph.nodes if isinstance(node, Library)] == [
        torch._addmm_activation
    ]
    assert len(graph.nodes) == 1
    for result, expected in zip(run_graph(graph, copies(args)), (fn(*args),), strict=True):
        assert result.shape == expected.shape and result.stride() == expected.stride()
        torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


def both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.gelu(y, approximate="tanh")


APART: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "what eager rounds to infinity": (hidden, {"dtype": torch.float16}),
    "sums of few elements are slower": (hidden, {"dtype": torch.float32}),
    "relu of them": (rectified, {"dtype": torch.float32}),
    "another GELU": (lambda x, w, b: F.gelu(F.linear(x, w, b)), {}),
    "the product is wanted": (both, {}),
    "no bias": (lambda x, w, b: F.gelu(F.linear(x, w), approximate="tanh") + b, {}),
    "a row": (hidden, {"rows": 1}),
}


@pytest.mark.parametrize("name", APART)
def test_what_stays_apart(name: str) -> None:
    fn, options = APART[name]
    rows, dtype = options.get("rows", 6), options.get("dtype", torch.bfloat16)
    graph = lowered(fn, *(drawn(*shape, dtype=dtype) for shape in ((rows, 16), (24, 16), (24,))))
    called = [node.function for node in graph.nodes if isinstance(node, Library)]
    assert torch._addmm_activation not in called and len(graph.nodes) > len(called)
