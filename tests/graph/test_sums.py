"""Sums of gradients: products that become one, and writes into the rest of the sum."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.graph.passes.dead_code import remove_dead_code
from ingot.graph.passes.products import join_products
from ingot.graph.passes.sums import write_into_sums
from tests.graph.tracing import traced

aten = torch.ops.aten


def summed(function, *inputs: Tensor):
    """The graph of a function after the pass, which gives what the function gives."""
    graph = traced(function, *inputs)
    for step in (join_products, write_into_sums, remove_dead_code):
        step(graph)
    for found, expected in zip(graph.function()(*inputs), [function(*inputs)], strict=True):
        torch.testing.assert_close(found, expected)
    return graph


def steps(count: int, inner: int) -> list[Tensor]:
    return [torch.randn(inner, 20) for _ in range(2 * count)]


def test_products_over_few_rows_become_one() -> None:
    def total(a, b, c, d, e, f, x):
        return a.t() @ b + x + c.t() @ d + e.t() @ f

    graph = summed(total, *steps(3, 4), torch.randn(20, 20))
    assert len(graph.nodes_of(aten.mm.default)) == 1
    assert len(graph.nodes_of(aten.add.Tensor)) == 1


def test_products_over_many_rows_stay() -> None:
    graph = summed(lambda a, b, c, d: a.t() @ b + c.t() @ d, *steps(2, 50))
    assert len(graph.nodes_of(aten.mm.default)) == 2


def test_a_product_that_is_read_elsewhere_stays() -> None:
    def total(a, b, c, d):
        product = a.t() @ b
        return (product + c.t() @ d) * product.sum()

    assert len(summed(total, *steps(2, 4)).nodes_of(aten.mm.default)) == 2


def test_a_write_goes_into_the_rest_of_the_sum() -> None:
    def total(x, places, values):
        return torch.zeros(9, 3).index_put([places], values, accumulate=True) + x.exp()

    inputs = (torch.randn(9, 3), torch.tensor([1, 4, 4, 8]), torch.randn(4, 3))
    graph = summed(total, *inputs)
    assert not graph.nodes_of(aten.add.Tensor) and len(graph.nodes_of(aten.index_put.default)) == 1


def test_a_write_that_does_not_accumulate_stays() -> None:
    def total(x, places, values):
        return torch.zeros(9, 3).index_put([places], values) + x

    assert summed(total, torch.randn(9, 3), torch.tensor([1, 4]), torch.randn(2, 3)).nodes_of(
        aten.add.Tensor
    )
