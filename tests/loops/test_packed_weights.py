"""Weights of four bits as quantizers lay them out, against eager, and what a plan has of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.codegen.llvm.target import host
from tests.loops.test_few_rows import assert_product

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def unpacked(packed: Tensor) -> Tensor:
    """Levels from 0 to 15: two in a byte, the lower one first, or eight in an integer."""
    shifts = torch.arange(0, 8 * packed.itemsize, 4, dtype=packed.dtype)
    return ((packed[:, :, None] >> shifts) & 15).flatten(1)


def symmetric(levels: Tensor, scale: Tensor, zero: Tensor, group: int) -> Tensor:
    grouped = levels.unflatten(1, (-1, group)).to(scale.dtype) - 8
    return (grouped * scale[:, :, None]).flatten(1)


def asymmetric(levels: Tensor, scale: Tensor, zero: Tensor, group: int) -> Tensor:
    grouped = levels.unflatten(1, (-1, group)).to(scale.dtype)
    return ((grouped - zero.to(scale.dtype)[:, :, None]) * scale[:, :, None]).flatten(1)


def with_minimum(levels: Tensor, scale: Tensor, zero: Tensor, group: int) -> Tensor:
    grouped = levels.unflatten(1, (-1, group)).to(scale.dtype) - 8
    return (grouped * scale[:, :, None] + zero.to(scale.dtype)[:, :, None]).flatten(1)


def made(
    rows: int, columns: int, group: int, dtype: torch.dtype, packing: torch.dtype = torch.uint8
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed levels, scales and zero points."""
    info = torch.iinfo(packing)
    shape = rows, columns * 4 // info.bits
    packed = torch.randint(info.min, info.max, shape, dtype=packing)
    scale = torch.rand(rows, columns // group).to(dtype) / 8 + 0.01
    return packed, scale, torch.randint(0, 16, scale.shape, dtype=torch.int8)


PACKINGS = [
    *((torch.uint8, group) for group in (32, 64, 128)),
    (torch.int32, 64),
    (torch.int32, 128),
]


@pytest.mark.parametrize("packing, group", PACKINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("formula", [symmetric, asymmetric, with_minimum])
def test_groups(formula: Any, group: int, dtype: torch.dtype, packing: torch.dtype) -> None:
    """One kernel reads the packed weights, which nothing copies."""
    rows, columns = 37, 384
    packed, scale, zero = made(rows, columns, group, dtype, packing)

    def f(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return F.linear(x, formula(unpacked(packed), scale, zero, group))

    x = torch.randn(1, columns).to(dtype)
    weight = formula(unpacked(packed), scale, zero, group)
    assert_product(ingot.compile(f)(x, packed, scale, zero), x, weight.t())
    report = ingot.explain(f)(x, packed, scale, zero)
    products = [kernel for kernel in report.kernels if "linear" in str(kernel.ops)]
    assert [kernel.kind for kernel in products] == ["fused"]
    assert report.arena_bytes < packed.nbytes


@pytest.mark.parametrize("rows", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_rows(rows: int, dtype: torch.dtype) -> None:
    packed, scale, zero = made(45, 256, 64, dtype)

    def f(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return F.linear(x, asymmetric(unpacked(packed), scale, zero, 64))

    x = torch.randn(rows, 256).to(dtype)
    weight = asymmetric(unpacked(packed), scale, zero, 64)
    assert_product(ingot.compile(f)(x, packed, scale, zero), x, weight.t())


def test_part_of_a_larger_tensor() -> None:
    packed, scale, _ = made(70, 1024, 32, torch.bfloat16)

    def f(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
        part = unpacked(packed[1::2, 128:384])
        return F.linear(x, symmetric(part, scale[1::2, 8:24], scale, 32))

    x = torch.randn(1, 512).bfloat16()
    weight = symmetric(unpacked(packed[1::2, 128:384]), scale[1::2, 8:24], scale, 32)
    assert_product(ingot.compile(f)(x, packed, scale), x, weight.t())


@pytest.mark.parametrize("formula", [symmetric, asymmetric])
def test_every_scale_of_brain_floats(formula: Any) -> None:
    """Subnormal, huge and infinite ones, and no numbers, times each of the levels."""
    scale = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)[:, None].contiguous()
    low = torch.arange(16, dtype=torch.uint8)
    packed = (low | (low.flip(0) << 4)).expand(len(scale), 16).contiguous()
    zero = (torch.arange(len(scale))[:, None] * 7 % 16).to(torch.int8)

    def f(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return F.linear(x, formula(unpacked(packed), scale, zero, 32))

    weight = formula(unpacked(packed), scale, zero, 32)
    compiled = ingot.compile(f)
    for column in range(32):
        x = torch.zeros(1, 32, dtype=torch.bfloat16)
        x[:, column] = 1
        found = compiled(x, packed, scale, zero)[0]
        expected = weight[:, column].where(weight.isfinite().all(1), torch.nan)
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def test_a_table_is_rounded_by_two_multiplications() -> None:
    """One table for both numbers of a byte, and a branch for scales that need another rounding."""
    if host().vector_bytes < 64:
        pytest.skip("this processor has no AVX-512")
    packed, scale, zero = made(8, 64, 64, torch.bfloat16)

    def f(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return F.linear(x, symmetric(unpacked(packed), scale, zero, 64))

    x = torch.randn(1, 64).bfloat16()
    text = ingot.explain(f)(x, packed, scale, zero).stage("llvm")
    tables = 4 + 1  # of rows that are summed together, and of one that is left
    assert text.count("store volatile") == text.count(" phi <16 x float>") == tables


LARGE = [(torch.float32, 515, 1100), (torch.bfloat16, 515, 1100), (torch.bfloat16, 130, 8200)]


@pytest.mark.parametrize("dtype, columns, inner", LARGE)
def test_large_weights_are_streamed(dtype: torch.dtype, columns: int, inner: int) -> None:
    """Several rows at a time are summed, and those behind them are fetched; small ones are not."""
    x = torch.randn(1, inner).to(dtype)
    for weight in (
        torch.randn(columns, inner).to(dtype),
        torch.randn(columns, 2 * inner).to(dtype),
    ):
        part = weight[:, :inner]
        assert_product(ingot.compile(F.linear)(x, part), x, part.t())
        assert "@llvm.prefetch" in ingot.explain(F.linear)(x, part).stage("llvm")
    small = part[:50].contiguous()
    assert_product(ingot.compile(F.linear)(x, small), x, small.t())
    assert ("@llvm.prefetch" in ingot.explain(F.linear)(x, small).stage("llvm")) is (
        small.nbytes >= 1 << 20
    )


def test_large_packed_weights() -> None:
    """Their last rows are fewer than what is summed at a time."""
    for dtype in DTYPES[:2]:
        packed, scale, zero = made(1031, 2048, 32, dtype)

        def f(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
            return F.linear(x, symmetric(unpacked(packed), scale, zero, 32))

        x = torch.randn(1, 2048).to(dtype)
        weight = symmetric(unpacked(packed), scale, zero, 32)
        assert_product(ingot.compile(f)(x, packed, scale, zero), x, weight.t())
        report = ingot.explain(f)(x, packed, scale, zero)
        assert report.arena_bytes == 0
        assert "@llvm.prefetch" in report.stage("llvm")
