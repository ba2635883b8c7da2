"""Products of the steps of a sequence that become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.graph import AtenGraph
from ingot.graph.passes.cse import share_common_subexpressions
from ingot.graph.passes.dead_code import remove_dead_code
from ingot.graph.passes.steps import MOST_ROWS, join_steps
from ingot.graph.passes.verify import verify
from tests.graph.tracing import assert_traced, traced
from tests.oracle import Close

aten = torch.ops.aten


def joined(function: Callable[..., Any], *args: Tensor) -> AtenGraph:
    """The graph after the pass, which computes the same."""
    graph = traced(function, *args)
    for step in (share_common_subexpressions, join_steps, remove_dead_code, verify):
        step(graph)
    return assert_traced(function, *args, graph=graph, numbers=Close(1e-4, 1e-4))


def steps(xs: Tensor, count: int, dim: int = 0) -> list[Tensor]:
    return [xs.select(dim, k) for k in range(count)]


def products(graph: AtenGraph) -> int:
    return len(graph.nodes_of(aten.mm.default)) + len(graph.nodes_of(aten.addmm.default))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
def test_a_recurrence_has_one_product_of_its_inputs(dim: int, biased: bool) -> None:
    def fn(xs: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
        h = torch.zeros(4, 6)
        for x in steps(xs, 5, dim):
            h = ((torch.addmm(b, x, w) if biased else x @ w) + h @ u).tanh()
        return h

    xs = torch.randn((5, 4, 8) if dim == 0 else (4, 5, 8))
    assert products(joined(fn, xs, torch.randn(8, 6), torch.randn(6, 6), torch.randn(6))) == 1 + 5


def test_two_matrices_are_two_products() -> None:
    def fn(xs: Tensor, w: Tensor, u: Tensor) -> Tensor:
        return sum((x @ w).sin() + (x @ u).cos() for x in steps(xs, 5))

    assert products(joined(fn, torch.randn(5, 4, 8), torch.randn(8, 6), torch.randn(8, 6))) == 2


def test_what_stays_as_it_is() -> None:
    def some(xs: Tensor, w: Tensor) -> Tensor:
        return xs[0] @ w + xs[2] @ w

    def results(xs: Tensor, w: Tensor) -> list[Tensor]:
        return [x @ w for x in steps(xs, 3)]

    def every(xs: Tensor, w: Tensor) -> Tensor:
        return sum(x @ w for x in steps(xs, 3))

    w = torch.randn(8, 6)
    assert products(joined(some, torch.randn(3, 4, 8), w)) == 2
    assert products(joined(results, torch.randn(3, 4, 8), w)) == 3
    assert products(joined(every, torch.randn(3, MOST_ROWS + 1, 8), w)) == 3
    # its rows are no matrix
    assert products(joined(every, torch.randn(8, 4, 3).permute(2, 1, 0), w)) == 3
    assert products(joined(every, torch.randn(3, 0, 8), w)) == 3
