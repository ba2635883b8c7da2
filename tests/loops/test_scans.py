"""Scans: values along each dimension, of each type, and what is fused around them; the reference
runs them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.loops.ir import Scan
from tests.loops.test_lowering import assert_lowered, counts, lowered, t
from tests.op_outcome import assert_op

f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
i64, u8 = torch.int64, torch.uint8

SCANS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
    "of another type": lambda x, dim: (
        torch.cumsum(x, dim, dtype=f64),
        torch.cumsum(x, dim, dtype=torch.int32),
    ),
    "fused": lambda x, dim: torch.exp(-torch.cumsum(x.abs() + 1, dim)) * x,
    "of a softmax": lambda x, dim: torch.cumsum(torch.softmax(x.float(), dim), dim),
    "reversed": lambda x, dim: x.flip(dim).cumsum(dim).flip(dim),
}
DTYPES = [f32, f64, bf16, f16, i64, torch.int32, u8, torch.bool]


def assert_scan(function: Callable[..., Any], *args: Any) -> None:
    assert_op(function, *args, native=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str, dtype: torch.dtype) -> None:
    if (
        name == "logcumsumexp"
        and not dtype.is_floating_point
        or name == "fused"
        and dtype is torch.bool
    ):
        pytest.skip("eager has none")
    x = (torch.randn(5, 37, 18) * 4).to(dtype)
    for dim in range(3):
        assert_scan(lambda x, dim=dim: SCANS[name](x, dim), x)
    if name != "logcumsumexp":
        assert_scan(lambda x: SCANS[name](x, 0), x.flatten())
    assert_scan(lambda x: SCANS[name](x, 1), x.transpose(0, 2))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "fused"])
def test_reference_scans_too(name: str) -> None:
    graph = assert_lowered(lambda x: SCANS[name](x, 1), t(4, 9, 5).double())
    assert counts(graph)[2] == 0
    assert any(isinstance(node, Scan) for node in graph.nodes)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_numbers_that_are_none(name: str) -> None:
    nan, inf = float("nan"), float("inf")
    rows = [
        [1.0, nan, 2.0, 3.0, nan, 0.0],
        [inf, 1.0, -inf, 2.0, inf, 1.0],
        [-inf, -inf, -inf, 1.0, inf, inf],
    ]
    x = torch.tensor(
        [*rows, [0.0, -0.0, 0.0, -0.0, -0.0, 0.0], [-0.0, 1e38, 3e38, 1e-38, 3e38, -3e38]]
    )
    for dim in range(2):
        assert_scan(lambda x, dim=dim: SCANS[name](x, dim), x)
        assert_scan(lambda x, dim=dim: SCANS[name](x, dim), x.double().repeat(1, 5))


def test_equal_extremes() -> None:
    """The last of them counts."""
    x = torch.tensor([[3, 1, 3, 3, 0, 5, 5, 2, 5, 5]]).repeat(9, 4)
    for dim in range(2):
        assert_scan(lambda x, dim=dim: (torch.cummax(x, dim), torch.cummin(x, dim)), x)


def test_single_elements() -> None:
    assert_scan(lambda x: (torch.cumsum(x, 1), torch.cumprod(x, 1)), torch.tensor([[-0.0], [2.0]]))
    assert_scan(lambda x: (torch.cumsum(x, 0), torch.logcumsumexp(x, 0)), torch.tensor(-0.0))


def test_a_lone_row_of_long_steps_is_left_to_eager() -> None:
    assert counts(lowered(lambda x: torch.logcumsumexp(x, 0), t(64)))[2] == 1
    assert counts(lowered(lambda x: torch.logcumsumexp(x, 1), t(8, 64)))[2] == 0


def test_sizes_that_vary() -> None:
    compiled = ingot.compile(lambda x: (x.cumsum(0), x.cumsum(1), x.cummax(1)), dynamic=True)
    for rows, columns in ((3, 5), (17, 40), (40, 17)):
        x = torch.randn(rows, columns)
        for a, b in zip(compiled(x), (x.cumsum(0), x.cumsum(1), x.cummax(1)), strict=True):
            torch.testing.assert_close(a, b)


def test_gradients() -> None:
    x = torch.randn(6, 19, requires_grad=True)

    def gradient(function: Any) -> torch.Tensor:
        return torch.autograd.grad(function(x), x)[0]

    def total(x: torch.Tensor) -> torch.Tensor:
        return (x.cumsum(1) * x.cumprod(0)).sum() + x.cummax(1).values.sum()

    torch.testing.assert_close(gradient(ingot.compile(total)), gradient(total))


def test_masked_scatter_into_nothing() -> None:
    x, source = torch.randn(4, 0, 6), torch.randn(9)
    compiled = ingot.compile(lambda x: torch.masked_scatter(x, x > 0, source), fullgraph=True)
    assert compiled(x).shape == x.shape


@pytest.mark.parametrize("dtype", [f32, bf16, i64, torch.bool], ids=str)
def test_masked_scatter(dtype: torch.dtype) -> None:
    x, source = torch.randn(4, 5, 6), torch.randn(9, 40).to(dtype)
    assert_scan(torch.masked_scatter, x.to(dtype), x > 0, source)
    assert_scan(torch.masked_scatter, x.to(dtype), x[:, :1] > 0, source.t())
    assert_scan(torch.masked_scatter, x[:, :1].to(dtype), x > 0, source)
    assert_scan(torch.masked_scatter, x.to(dtype).transpose(0, 2), (x > 0).transpose(0, 2), source)


def test_masked_scatter_of_too_few() -> None:
    def scatter(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.masked_scatter(x > 0, source)

    compiled = ingot.compile(scatter)
    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    torch.testing.assert_close(compiled(x, torch.ones(3)), scatter(x, torch.ones(3)))
    with pytest.raises(RuntimeError):
        scatter(x, torch.ones(2))
    with pytest.raises(RuntimeError):
        compiled(x, torch.ones(2))


def test_what_reads_a_scan_of_all_elements():
    """By rows that are no rows of the scan, behind another scan."""

    def counted(a: torch.Tensor) -> torch.Tensor:
        rows = a.cumsum(-1, dtype=torch.float64)
        both = torch.stack([rows, rows], 2)
        number = (both == both).flatten().cumsum(0).view(both.shape)
        result = torch.fmod(number.double(), 2)
        result[..., 0].zero_()
        return result

    def chosen(a: torch.Tensor) -> torch.Tensor:
        rows = a.cumsum(-1, dtype=torch.float64)
        both = torch.stack([rows, rows], 2)
        result = torch.fmod(both.masked_scatter(both == both, both.flip(0)), 2)
        result[..., 0].zero_()
        return result

    a = torch.randint(-9, 9, (1, 3, 7, 6)).transpose(-1, -2)
    for function in (counted, chosen):
        assert torch.equal(ingot.compile(function, fullgraph=True)(a), function(a))


@pytest.mark.parametrize("width", [3, 7, 16, 37])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_scans_in_one_kernel_with_what_goes_by_other_rows(name: str, rows: int, width: int) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weighted = x * weight
        found = SCANS[name](weighted.flatten(1), 1)
        found, *places = (found,) if isinstance(found, torch.Tensor) else found
        return weighted, found, found.view(x.shape) - weight, *places

    x, weight = (
        torch.randint(-9, 9, (rows, 36, width)).double(),
        torch.randint(1, 3, (width,)).double(),
    )
    assert_scan(function, x, weight)
    assert len(ingot.explain(ingot.compile(function))(x, weight).kernels) == 1


@pytest.mark.parametrize("shape", [(1, 0, 1), (0, 4), (3, 0)])
def test_scans_of_nothing(shape):
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.cumsum(0), *x.cummax(-2), x.cumprod(-1))

    compiled, x = ingot.compile(function, fullgraph=True), torch.zeros(shape)
    for mine, theirs in zip(compiled(x), function(x), strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
