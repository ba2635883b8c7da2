"""Sums of matrix products that become one, and windows that are seen through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.graph import AtenGraph
from ingot.graph.passes.dead_code import remove_dead_code
from ingot.graph.passes.products import join_products
from ingot.graph.passes.verify import verify
from ingot.graph.passes.windows import see_through_joins
from tests.graph.tracing import assert_traced, traced
from tests.oracle import Close

aten = torch.ops.aten


def joined(function: Callable[..., Any], *args: Tensor) -> AtenGraph:
    """The graph after the pass, which computes the same."""
    graph = traced(function, *args)
    for step in (join_products, see_through_joins, remove_dead_code, verify):
        step(graph)
    return assert_traced(function, *args, graph=graph, numbers=Close(1e-4, 1e-4))


def recurrence(steps: int, rows: int, width: int, height: int) -> list[Tensor]:
    return [torch.randn(steps, rows, width), torch.randn(steps, rows, height)]


def test_products_of_the_steps_of_a_recurrence() -> None:
    def gradients(xs: Tensor, errors: Tensor) -> Any:
        weight, bias = torch.zeros(()), torch.zeros(())
        for k in reversed(range(8)):
            x, error = xs[k].tanh(), errors[k].sin()
            product, rows = error.t() @ x, error.sum(0)
            weight, bias = (product, rows) if k == 7 else (weight + product, bias + rows)
        return weight, bias

    graph = joined(gradients, *recurrence(8, 4, 32, 48))
    assert len(graph.nodes_of(aten.mm.default)) == 1 and not graph.nodes_of(aten.addmm.default)
    assert len(graph.nodes_of(aten.sum.dim_IntList)) == 1


def test_products_of_nothing() -> None:
    def gradient(xs: Tensor, errors: Tensor) -> Tensor:
        return sum(errors[k].sin().t() @ xs[k].tanh() for k in range(8))

    for width, height, products in ((32, 48, 2), (0, 48, 8), (32, 0, 8), (0, 0, 8)):
        graph = joined(gradient, *recurrence(8, 4, width, height))
        assert len(graph.nodes_of(aten.mm.default)) == products


def test_stacks_are_no_larger_than_two_products() -> None:
    def gradient(xs: Tensor, errors: Tensor) -> Tensor:
        total = errors[0].sin().t() @ xs[0]
        for k in range(1, 12):
            total = total + errors[k].sin().t() @ xs[k]
        return total

    graph = joined(gradient, *recurrence(12, 8, 32, 32))
    stacks = [node.meta["val"].shape[0] for node in graph.nodes_of(aten.cat.default)]
    assert len(stacks) > 2 and max(stacks) <= 32
    assert len(graph.nodes_of(aten.mm.default)) == 1
    assert len(graph.nodes_of(aten.addmm.default)) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.t() @ b + 1,  # one product
        lambda a, b: (a.t() @ b + a.sin().t() @ b) * (a.t() @ b),  # one that is used twice
        lambda a, b: a @ b.t() + a.sin() @ b.t(),  # other operands are transposed
        # rounded apart
        lambda a, b: (
            a.bfloat16().t() @ b.bfloat16() + a.sin().bfloat16().t() @ b.bfloat16()
        ).float(),
    ],
)
def test_what_is_left(function: Callable[..., Tensor]) -> None:
    args = torch.randn(4, 16), torch.randn(4, 16)
    graph = traced(function, *args)
    before = len(graph.nodes_of(aten.mm.default))
    join_products(graph)
    remove_dead_code(graph)
    assert len(graph.nodes_of(aten.mm.default)) == before and not graph.nodes_of(aten.cat.default)


def test_long_products_are_left() -> None:
    """What is added moves less memory than joined operands would."""

    def gradient(a: Tensor, b: Tensor) -> Tensor:
        return a.t() @ b + a.sin().t() @ b.cos()

    graph = joined(gradient, torch.randn(64, 4), torch.randn(64, 4))
    assert len(graph.nodes_of(aten.mm.default)) == 2


def test_other_terms_are_added() -> None:
    def gradient(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a.t() @ b + c + (a.sin().t() @ b + c.cos())

    graph = joined(gradient, torch.randn(2, 16), torch.randn(2, 16), torch.randn(16, 16))
    assert len(graph.nodes_of(aten.mm.default)) == 1


# -- windows ---------------------------------------------------------------------------------------


def test_a_part_that_was_written_is_known() -> None:
    def gates(x: Tensor) -> Tensor:
        x = x * 2
        parts = x.split(2, 1)
        first, second, third = parts[0], parts[1], parts[2]
        first.sigmoid_()
        second.tanh_()
        return first * second + third

    assert not assert_traced(gates, torch.randn(3, 6)).nodes_of(aten.slice_scatter.default)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 1:4].sin(),  # partly written
        lambda x: x[:, ::2].sin(),  # with steps
        lambda x: x[1:].sin(),  # along another dimension
    ],
)
def test_other_windows_read_the_whole(function: Callable[[Tensor], Tensor]) -> None:
    def written(x: Tensor) -> Tensor:
        x = x + 1
        x[:, 2:5] = x[:, :3].cos()
        return function(x)

    assert len(assert_traced(written, torch.randn(3, 6)).nodes_of(aten.slice_scatter.default)) == 1


def test_windows_on_windows() -> None:
    def written(x: Tensor) -> Any:
        x = x + 1
        x[:, 1:5] = x[:, 1:5].cos()
        x[:, 2:3] = 0
        return x[:, 3:5] * 2, x[:, :1] * 2, x[:, 5:].exp(), x[:, 4:4].sum()

    assert not assert_traced(written, torch.randn(3, 6)).nodes_of(aten.slice_scatter.default)


def test_all_parts_in_order_are_the_whole() -> None:
    x = torch.randn(3, 4, 5)
    for function, count in (
        (lambda x: torch.cat([x[0], x[1], x[2]]) + 1, 0),
        (lambda x: torch.cat([x[1], x[0], x[2]]) + 1, 1),
        (lambda x: torch.cat([x[0], x[1]]) + 1, 1),
        (lambda x: torch.cat([x[:, 0], x[:, 1]]) + 1, 1),
        (lambda x: torch.cat([x[0], x[1], x[2]], 1) + 1, 1),
    ):
        assert len(joined(function, x).nodes_of(aten.cat.default)) == count
    turned = x.permute(2, 1, 0)
    assert (
        len(
            joined(lambda x: torch.cat([x[k] for k in range(5)]) + 1, turned).nodes_of(
                aten.cat.default
            )
        )
        == 1
    )


TERMS = {
    "a product twice": (lambda g, x: [(g[0], x[0]), (g[0], x[0])]),
    "a product twice and another": (lambda g, x: [(g[0], x[0]), (g[0], x[0]), (g[1], x[1])]),
    "one left operand": (lambda g, x: [(g[0], x[0]), (g[0], x[1])]),
    "one left operand, and others": (
        lambda g, x: [(g[0], x[0]), (g[1], x[1]), (g[0], x[2]), (g[2], x[0])]
    ),
    "one right operand": (lambda g, x: [(g[0], x[0]), (g[1], x[0])]),
    "all of all": (lambda g, x: [(a, b) for a in g for b in x]),
    "a sum twice": (lambda g, x: [(g[0], x[0]), (g[1], x[1]), (g[0], x[0]), (g[1], x[1])]),
}


@pytest.mark.parametrize("rows", ["of the same", "of each once", "of none", "of one more"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", TERMS)
def test_terms_that_occur_more_than_once(name: str, nested: bool, rows: str) -> None:
    def gradients(given: Tensor, inputs: Tensor) -> Any:
        g, x = [given[k].sin() for k in range(3)], [inputs[k].cos() for k in range(3)]
        terms = TERMS[name](g, x)
        same = [a for a, _ in terms]
        lefts = {"of the same": same, "of each once": g, "of none": [], "of one more": [*g, g[0]]}[
            rows
        ]
        weight = [a.t() @ b for a, b in terms]
        total = weight[0]
        for term in weight[1:]:
            total = total + term
        bias = [a.sum(0) for a in lefts]
        result = torch.zeros(()) if not bias else bias[0]
        for term in bias[1:]:
            result = result + term
        return (total + total, result + result) if nested else (total, result)

    joined(gradients, torch.randn(3, 2, 6), torch.randn(3, 2, 5))
