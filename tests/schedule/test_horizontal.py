"""Launches side by side: which are put together, which stay where they are, and that they compute
the same."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.loops.lowering.lower import lower
from ingot.schedule import schedule
from tests.loops.test_lowering import traced


def kernels(fn, *args):
    with torch.no_grad():
        return ingot.explain(ingot.compile(fn, fullgraph=True))(*args).kernels


def vectors(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for size in sizes]


def scaled(xs):
    return [x * 2 + 1 for x in xs]


@pytest.mark.parametrize("sizes", [(5, 70000, 16, 17, 1000, 2), (100001,) * 3, (3, 0, 4)])
def test_equal_loops_over_tensors_of_any_length_are_one_launch(sizes):
    xs = vectors(*sizes)
    assert len(kernels(scaled, xs)) == 1
    for mine, its in zip(ingot.compile(scaled)(xs), scaled(xs), strict=True):
        assert torch.equal(mine, its)


def test_loops_of_several_dimensions_share_a_launch_where_they_are_equal():
    def fn(xs):
        return [x.sum(1) for x in xs]

    xs = [torch.arange(8.0 * n).reshape(8, n) for n in (40, 40, 50, 40)]
    assert len(kernels(fn, xs)) == 2
    for mine, its in zip(ingot.compile(fn)(xs), fn(xs), strict=True):
        assert torch.equal(mine, its)


def test_different_code_stays_apart():
    def fn(xs):
        return xs[0] * 2, xs[1] * 3, xs[2] * 2

    xs = vectors(5, 6, 7)
    assert len(kernels(fn, xs)) == 2
    for mine, its in zip(ingot.compile(fn)(xs), fn(xs), strict=True):
        assert torch.equal(mine, its)


def test_each_waits_for_what_it_reads():
    def fn(x, y):
        a = torch.sort(x * 2 + 1).values  # a library's result, which the second loop needs
        return a * 2 + 1, y * 2 + 1

    x, y = vectors(40, 50)
    found = kernels(fn, x, y)
    assert [k.kind for k in found] == ["fused", "extern", "fused"]
    for mine, its in zip(ingot.compile(fn)(x, y), fn(x, y), strict=True):
        assert torch.equal(mine, its)


def test_what_is_read_before_is_not_overwritten_early():
    def fn(x, y):
        x.mul_(2)
        total = torch.logcumsumexp(y, 0)
        y.mul_(2)
        return total

    mine, its = vectors(40, 50), vectors(40, 50)
    assert torch.equal(ingot.compile(fn)(*mine), fn(*its))
    assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))


@pytest.mark.parametrize("lending", [False, True])
def test_what_is_read_beside_it_is_not_overwritten(lending):
    """Of two equal loops the first reads what lends its memory to the second's result."""
    graph = lower(traced(lambda x, y, z: (x[:5] * y, z * x), *vectors(10, 5, 10)))
    graph.lends = {graph.inputs[k] for k in (0, 1) if lending}
    plan = schedule(graph, frugal=True)
    assert len(plan.steps) == 1 + lending and len(plan.lenders) == 2 * lending


def test_large_temporaries_are_not_made_early():
    def fn(x, y):
        first = torch.logcumsumexp(x * 2 + 1, 0).sum()
        return first + torch.logcumsumexp(y * 2 + 1, 0).sum()

    small, large = ([k.kind for k in kernels(fn, *vectors(n, n + 1))] for n in (100, 30000))
    assert (
        small.count("fused") < large.count("fused")
        and small.count("extern") == large.count("extern") == 2
    )
