"""Products of few rows by weights of a few bits, against float64 and eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from benchmarks.quantized import Int4, Int8
from ingot.codegen.llvm.target import host

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def assert_product(result: Tensor, a: Tensor, b: Tensor, more: Tensor | float = 0.0) -> None:
    """`result` is `a @ b + more`, summed in float32 and rounded once."""
    a, b = a.double(), b.double()
    exact, size = a @ b + more, a.abs() @ b.abs() + abs(more)
    single, own = torch.finfo(torch.float32).eps, torch.finfo(result.dtype).eps
    bound = (a.shape[-1] + 3) * single * size + own / 2 * exact.abs()
    smallest = torch.finfo(result.dtype).smallest_normal
    assert ((result.double() - exact).abs() <= bound * 1.01 + smallest).all()


def kinds(function: Any, *args: Any) -> list[str]:
    """Whether each launch is a kernel of Ingot's or a library's."""
    return [kernel.kind for kernel in ingot.explain(function)(*args).kernels]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("columns, inner", [(1, 1), (7, 3), (33, 130), (65, 1100)])
def test_halves(rows: int, columns: int, inner: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, inner).to(dtype)
    weight, bias = torch.randn(columns, inner).to(dtype), torch.randn(columns).to(dtype)
    for b in (None, bias):
        more = 0.0 if b is None else b.double()
        assert_product(ingot.compile(F.linear)(x, weight, b), x, weight.t(), more)
        assert kinds(F.linear, x, weight, b) == ["fused" if rows <= 3 else "extern"]


@pytest.mark.parametrize("rows", [2, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_rows_read_each_weight_once(rows: int, dtype: torch.dtype) -> None:
    """They are sums of one kernel, what is added included; the weights may be packed."""
    x = torch.randn(rows, 96).to(dtype)
    weight = Int4.of(torch.randn(21, 96).to(dtype))
    for bias in (torch.randn(21), torch.randn(rows, 21), torch.randn(rows, 1)):
        bias = bias.to(dtype)

        def f(bias: Tensor, x: Tensor, weight: Int4) -> Tensor:
            return torch.addmm(bias, x, weight.unpacked().t())

        found = ingot.compile(f)(bias, x, weight)
        assert_product(found, x, weight.unpacked().t(), bias.double())
        assert kinds(f, bias, x, weight) == ["fused"]


def test_what_is_around_is_part_of_the_kernel() -> None:
    def f(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return residual + F.silu(F.linear(x, weight, bias))

    x, weight = torch.randn(1, 96).bfloat16(), torch.randn(40, 96).bfloat16()
    bias, residual = torch.randn(40).bfloat16(), torch.randn(1, 40).bfloat16()
    assert kinds(f, x, weight, bias, residual) == ["fused"]
    expected = f(x, weight, bias, residual)
    torch.testing.assert_close(ingot.compile(f)(x, weight, bias, residual), expected)


@pytest.mark.parametrize("beta, alpha", [(0, 1), (0.5, 1), (1, -2)])
def test_factors(beta: float, alpha: float) -> None:
    x, weight = torch.randn(1, 50).bfloat16(), torch.randn(20, 50).bfloat16()
    bias = torch.full((20,), torch.nan).bfloat16() if beta == 0 else torch.randn(20).bfloat16()

    def f(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return torch.addmm(bias, x, weight.t(), beta=beta, alpha=alpha)

    more = 0.0 if beta == 0 else beta * bias.double()
    assert_product(ingot.compile(f)(bias, x, weight), alpha * x, weight.t(), more)


def test_what_the_library_computes() -> None:
    """Many rows, and weights that are not contiguous along the sum."""
    x, weight = torch.randn(64, 48).bfloat16(), torch.randn(32, 48).bfloat16()
    assert kinds(F.linear, x, weight) == ["extern"]
    assert kinds(torch.mm, x[:1].contiguous(), weight.t().contiguous()) == ["extern"]


def test_rows_of_a_larger_tensor() -> None:
    whole, weight = torch.randn(4, 200).bfloat16(), torch.randn(9, 300).bfloat16()

    def f(whole: Tensor, weight: Tensor) -> Tensor:
        return F.linear(whole[2, 50:150], weight[:, 100:200])

    assert_product(ingot.compile(f)(whole, weight), whole[2:3, 50:150], weight[:, 100:200].t())


@pytest.mark.parametrize("target", ["", "avx2", "avx512", "zen4"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("pack", [Int8, Int4])
def test_weights_of_few_bits(
    pack: Any, dtype: torch.dtype, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel reads the packed weights; also where the processor has less."""
    if target == "zen4" and not host().rounds_brains:
        pytest.skip("this processor has no AVX512-BF16")
    if target == "avx512" and host().vector_bytes < 64:
        pytest.skip("this processor has no AVX-512")
    monkeypatch.setenv("INGOT_TARGET", target)
    x, weight = torch.randn(1, 320).to(dtype), pack.of(torch.randn(37, 320).to(dtype))
    found = ingot.compile(F.linear)(x, weight)
    if pack is Int8:
        expected = F.linear(x, weight.packed.to(dtype)) * weight.scale
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=1e-2)
    else:
        assert_product(found, x, weight.unpacked().t())
    assert kinds(F.linear, x, weight) == ["fused"]


def test_every_number_of_four_bits() -> None:
    """Each row of the weight is one number, in the lower bits and in the upper ones."""
    packed = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 64).contiguous()
    scale = torch.rand(256, 4).bfloat16() + 1
    weight = Int4(packed, scale, (256, 128))
    x = torch.randn(1, 128).bfloat16()
    assert_product(ingot.compile(F.linear)(x, weight), x, weight.unpacked().t())


def test_four_bits_of_integers() -> None:
    """Eight numbers in an integer of 32 bits, the signed and the unsigned ones."""

    def f(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        levels = ((packed[:, :, None] >> shifts) & 15).flatten(1)
        return F.linear(x, ((levels - 8).to(x.dtype).unflatten(1, (-1, 128)) * scale).flatten(1))

    packed = torch.randint(-(2**31), 2**31, (24, 64), dtype=torch.int32)
    x, scale = torch.randn(1, 512), torch.rand(24, 4, 1)
    torch.testing.assert_close(ingot.compile(f)(x, packed, scale), f(x, packed, scale))


def test_bytes_are_halves() -> None:
    """All integers of 8 bits, which neither half rounds."""
    for integer in (torch.int8, torch.uint8):
        info = torch.iinfo(integer)
        weight = (
            torch.arange(info.min, info.max + 1).to(integer)[:, None].repeat(1, 32).contiguous()
        )
        for dtype in HALVES:
            x = torch.zeros(1, 32, dtype=dtype)
            x[:, 5] = 1
            found = ingot.compile(lambda x, weight: F.linear(x, weight.to(x.dtype)))(x, weight)
            assert torch.equal(found[0], weight[:, 0].to(dtype))


def test_threads_change_no_bit() -> None:
    x, weight = torch.randn(1, 2048).bfloat16(), torch.randn(515, 2048)
    calls = [(F.linear, weight.bfloat16()), (F.linear, Int4.of(weight.bfloat16()))]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([ingot.compile(f)(x, w) for f, w in calls])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(map(torch.equal, others, found[0]))


def test_four_bits_are_looked_up() -> None:
    """By an instruction of AVX-512."""
    x, weight = torch.randn(1, 320), Int4.of(torch.randn(37, 320))
    text = ingot.explain(F.linear)(x, weight).stage("llvm")
    assert ("permvar" in text) is (host().vector_bytes == 64)
