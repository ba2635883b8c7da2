"""Long reductions to few results run in parts: right at every length, and the same at any number of
threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ingot
from tests.oracle import AGAINST_FLOAT64, EXACT, assert_call, assert_tensors

LONG = 1 << 17


def names(fn: Callable, *args: torch.Tensor) -> list[str]:
    with torch.no_grad():
        return [k.name for k in ingot.explain(ingot.compile(fn, fullgraph=True))(*args).kernels]


def assert_split(fn: Callable, *args: torch.Tensor) -> None:
    """As near to float64 as eager, or equal for integers; the same bits on one thread and on
    two."""
    compiled = ingot.compile(fn, fullgraph=True)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append(compiled(*args))
    finally:
        torch.set_num_threads(threads)
    assert_tensors(*results, EXACT)
    with torch.no_grad():
        assert_call(lambda *own: results[0], fn, *args, numbers=AGAINST_FLOAT64)


@pytest.mark.parametrize("length", [LONG, LONG + 1, 3 * LONG + 5, (1 << 20) - 1])
@pytest.mark.parametrize(
    "fn",
    [
        torch.sum,
        torch.amax,
        torch.mean,
        torch.var,
        lambda x: (x + 2).abs().min(),
        lambda x: (x * 0.5).exp().sum(),
    ],
)
def test_one_result(fn, length):
    torch.manual_seed(length)
    assert_split(fn, torch.rand(length))


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.bfloat16]
)
def test_every_dtype(dtype):
    torch.manual_seed(0)
    x = torch.randint(0, 2 if dtype is torch.bool else 100, (LONG + 77,)).to(dtype)
    assert_split(torch.sum, x)
    assert_split(lambda x: (x > 98).any(), x)
    assert_split(lambda x: (x >= 0).all(), x)
    if dtype is not torch.bool:
        assert_split(torch.amax, -x if dtype is not torch.uint8 else x)


@pytest.mark.parametrize(
    "shape, dims",
    [
        ((3, LONG), 1),
        ((2, 3, 50_001), 2),
        ((40_001, 5), 0),
        ((1000, 700), 0),
        ((70, 3, 900), (0, 2)),
    ],
)
def test_few_results(shape, dims):
    torch.manual_seed(1)
    x = torch.rand(shape)
    assert_split(lambda x: x.sum(dims), x)
    assert_split(lambda x: x.amax(dims), x)
    assert len(names(lambda x: x.sum(dims), x)) == 2


def test_extremes_keep_nan_and_infinities():
    x = torch.randn(LONG + 3)
    x[LONG + 2] = float("nan")
    compiled = ingot.compile(lambda x: (x.amax(), x[:-1].amax(), x.amin()))
    with torch.no_grad():
        top, finite, low = compiled(x)
    assert top.isnan() and low.isnan() and finite == x[:-1].max()
    y = torch.full((LONG + 3,), -float("inf"))
    with torch.no_grad():
        assert compiled(y)[0] == -float("inf")


def test_an_index_out_of_range_is_found_and_the_end_is_not_passed():
    x, i = torch.randn(1000), torch.randint(-1000, 1000, (LONG + 13,))
    fn = lambda x, i: x[i].sum()  # noqa: E731
    assert_split(lambda x: x[i].sum(), x)
    i[-1] = 1000
    with torch.no_grad(), pytest.raises(IndexError):
        ingot.compile(fn)(x, i)


def test_what_is_short_or_has_many_results_is_not_split():
    assert len(names(torch.sum, torch.randn(LONG - 1))) == 1
    assert len(names(lambda x: x.sum(1), torch.randn(8, LONG))) == 1
    assert len(names(lambda x: x.sum(0), torch.randn(100, 8192))) == 1
    assert len(names(lambda x: x.sum(1), torch.randn(32, 256, 128))) == 1
    assert len(names(lambda x: x.var(1), torch.randn(2048, 1024))) == 1


def test_reductions_of_one_source_stay_together():
    """Also with what makes it: nothing is read twice."""
    assert names(lambda x: (x.sum(), x.amax()), torch.randn(1 << 20))[0] == "sum_amax"
    assert len(names(lambda x: (x * x).sum().sqrt() + 1, torch.randn(1 << 20))) == 2


@pytest.mark.parametrize("shape", [(4096, 40, 24), (3 * 1024, 64, 96)])
def test_products_of_long_sums(shape):
    torch.manual_seed(0)
    length, rows, columns = shape
    x, y = torch.randn(length, rows), torch.randn(length, columns)
    assert_split(lambda x, y: x.T @ y, x, y)
    assert_split(lambda x, y: torch.relu(x.T @ y + y[:rows]), x, y)
    assert len(names(lambda x, y: x.T @ y, x, y)) == 2


def test_products_of_many_blocks_or_of_lengths_without_divisors_are_whole():
    assert len(names(lambda x, y: x.T @ y, torch.randn(1024, 600), torch.randn(1024, 600))) == 1
    assert len(names(lambda x, y: x.T @ y, torch.randn(4099, 40), torch.randn(4099, 24))) == 1
    assert len(names(lambda x, y: x.T @ y, torch.randn(512, 40), torch.randn(512, 24))) == 1
