"""Variances and norms of equal numbers, which rounding must not tell apart, and of extreme ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.ops.norms import moments_in_one_pass

LENGTHS = (2, 3, 7, 33, 100, 1000, 4097)
OPS: dict[str, Any] = {
    "var": lambda x: x.var(-1),
    "biased": lambda x: x.var(-1, correction=0),
    "std": lambda x: x.std(-1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, -1)[0],
    "std_mean": lambda x: torch.std_mean(x, -1)[0],
    "columns": lambda x: x.t().contiguous().var(0),
    "whole": lambda x: x[:1].std(),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[:, None], 1),
    "told apart": lambda x: x.std(-1) != 0,
}


def equal_numbers(rows: int, length: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    numbers = torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 5
    return numbers.to(dtype).expand(rows, length).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_equal_numbers_do_not_vary(name: str, dtype: torch.dtype) -> None:
    """In eager it is so for rows, but not always for a whole tensor, nor for norms of halves."""
    for length in LENGTHS:
        x = equal_numbers(9, length, dtype)
        actual = ingot.compile(OPS[name], fullgraph=True)(x)
        assert actual.count_nonzero() == 0, (length, actual.abs().max())
        if dtype.itemsize > 2 and name != "whole":
            assert torch.equal(actual, OPS[name](x))


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_channels_of_equal_numbers(name: str) -> None:
    """Eager's own results are near 0; these are no farther from it."""
    for length in LENGTHS:
        x = equal_numbers(3, length, torch.float32)[None]
        if name == "batch_norm":
            expected = F.batch_norm(x, None, None, training=True)
            actual = ingot.compile(lambda x: F.batch_norm(x, None, None, training=True))(x)
        else:
            expected, actual = F.instance_norm(x), ingot.compile(F.instance_norm)(x)
        assert actual.abs().max() <= expected.abs().max()


@pytest.mark.parametrize("name", ["std", "std_mean", "var", "layer_norm"])
def test_gradients_of_equal_numbers(name: str) -> None:
    x = equal_numbers(4, 7, torch.float32).requires_grad_()
    (expected,) = torch.autograd.grad(OPS[name](x).sum(), x)
    (actual,) = torch.autograd.grad(ingot.compile(OPS[name])(x).sum(), x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "layer_norm", "group_norm"])
def test_sizes_that_vary(name: str) -> None:
    compiled = ingot.compile(OPS[name], dynamic=True, fullgraph=True)
    for length in LENGTHS:
        x = equal_numbers(5, length, torch.float32)
        assert torch.equal(compiled(x), OPS[name](x))


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e18, 1e20, 1e30, torch.inf, torch.nan])
def test_extreme_numbers(name: str, scale: float) -> None:
    """What overflows is infinite, and what is no number stays none. Eager's kernels for CPUs take
    the root of a deviation before they round it; here the square is rounded."""
    x = torch.randn(6, 33, generator=torch.Generator().manual_seed(1)).clamp(-1, 1) * scale
    x[1, 2:] = 1.0
    x[2, :] = 1.0
    expected = OPS[name.replace("std", "var")](x.double()).float()
    if "std" in name:
        expected = expected.sqrt().reshape(OPS[name](x).shape)
    actual = ingot.compile(OPS[name])(x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0, equal_nan=True)
    assert not (actual < 0).any()


def lopsided() -> dict[str, Tensor]:
    """Images whose sample, the first of them, is far from the rest."""
    x = torch.randn(64, 3, 16, 17, generator=torch.Generator().manual_seed(0))
    outlier, offset = x.clone(), x + 1e4
    outlier[0] = 1e4
    first = x.clone()
    first[1:] *= 1e-3
    return {"plain": x, "outlier": outlier, "offset": offset, "first": first, "zeros": x * 0}


@pytest.mark.parametrize("kind", lopsided())
def test_moments_in_one_pass(kind: str) -> None:
    """However far the sample is from the rest, the variance loses few roundings: a sample is a part
    of what varies."""
    x = lopsided()[kind]
    mean, variance = moments_in_one_pass(x, [0, 2, 3])
    right = torch.var_mean(x.double(), [0, 2, 3], correction=0, keepdim=True)
    torch.testing.assert_close(variance.double(), right[0], rtol=64 * 2**-23, atol=0)
    few_roundings = 4 * 8 * 2**-23  # of deviations that are up to 8 times the standard one
    assert ((mean - right[1]).abs() <= few_roundings * (right[0].sqrt() + right[1].abs())).all()


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_moments_in_one_pass_of_what_is_no_number(number: float) -> None:
    for at in (0, -1):
        x = lopsided()["plain"]
        x[at, 0, 0, 0] = number
        mean, variance = moments_in_one_pass(x, [0, 2, 3])
        assert not mean[0, 0].isfinite() and variance[0, 0].isnan()
        assert variance[0, 1:].isfinite().all()


def test_moments_in_one_pass_of_the_largest_numbers() -> None:
    x = lopsided()["plain"] * 1e25
    mean, variance = moments_in_one_pass(x, [0, 2, 3])
    assert mean.isfinite().all() and variance.isposinf().all()
