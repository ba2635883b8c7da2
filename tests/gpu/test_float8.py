"""Casts to and from float8, scales and scaled products on the device: eager's bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
PRODUCTS = [torch.float8_e4m3fn, torch.float8_e5m2]  # what tensor cores take
nan, inf = float("nan"), float("inf")
ENDS = [
    0.0,
    -0.0,
    inf,
    -inf,
    nan,
    240.0,
    448.0,
    464.0,
    480.0,
    57344.0,
    61440.0,
    2.0**-9,
    2.0**-10,
    2.0**-17,
    1e-30,
]


def numbers(dtype: torch.dtype, wide: bool = True) -> torch.Tensor:
    """All magnitudes that float8 has, and, if `wide`, what it rounds to infinity, NaN or zero."""
    drawn = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    drawn = drawn * 2.0 ** torch.linspace(-20, 17 if wide else 4, 1000)
    return torch.cat([drawn, torch.tensor(ENDS if wide else [0.0])]).to("cuda", dtype)


def check(fn: Callable[..., Any], *args: Any) -> None:
    """The compiled function gives eager's numbers: zeros have their signs, NaNs need not."""
    expected, found = fn(*args), ingot.compile(fn, fullgraph=True)(*args)
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    wide, truth = found.double(), expected.double()
    torch.testing.assert_close(wide, truth, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(wide.signbit() & ~wide.isnan(), truth.signbit() & ~truth.isnan())


@pytest.mark.parametrize("narrow", FLOAT8, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_casts(dtype: torch.dtype, narrow: torch.dtype) -> None:
    x = numbers(dtype)
    check(lambda x: x.to(narrow), x)
    check(lambda x: (x * 2).to(narrow).to(dtype) + 1, x)
    check(lambda q: q.to(dtype) * 2, x.to(narrow))
    check(lambda q: q.float().neg().to(narrow), x.to(narrow))
    check(lambda x: x[:1000].reshape(20, 50).t().to(narrow).contiguous(), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("narrow", FLOAT8[:4], ids=str)
@pytest.mark.parametrize("shape", [(64,), (33, 70), (5, 3, 257), (300, 4096)], ids=str)
def test_scales(shape: tuple[int, ...], narrow: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to("cuda", dtype)
    most = torch.finfo(narrow).max

    def of_all(x: torch.Tensor) -> torch.Tensor:
        return (x / x.abs().amax().float().clamp(min=1e-6)).to(narrow)

    def of_rows(x: torch.Tensor) -> torch.Tensor:
        scale = most / x.abs().amax(-1, keepdim=True).clamp(min=1e-6)
        return (x * scale).clamp(-most, most).to(narrow)

    def of_blocks(x: torch.Tensor) -> torch.Tensor:
        blocks = x.flatten()[: x.numel() // 32 * 32].reshape(-1, 32)
        return (blocks / blocks.abs().amax(1, keepdim=True)).to(narrow)

    for fn in (of_all, of_rows, of_blocks):
        check(fn, x)


def two_matrices(size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randn(size, size, generator=generator).to("cuda", torch.bfloat16) for _ in range(2)
    ]


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kinds", list(itertools.product(PRODUCTS, PRODUCTS))[:3], ids=str)
@pytest.mark.parametrize("size", [64, 256, 1024])
def test_scaled_products(
    size: int, kinds: tuple[torch.dtype, torch.dtype], out: torch.dtype
) -> None:
    def fn(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scales = [t.abs().amax().float().clamp(min=1e-6) for t in (a, w)]
        left, right = (a / scales[0]).to(kinds[0]), (w / scales[1]).to(kinds[1]).t()
        return torch._scaled_mm(left, right, *scales, out_dtype=out).relu() + 1

    check(fn, *two_matrices(size))


@pytest.mark.parametrize("size", [64, 256, 1024])
def test_products_scaled_by_rows(size: int) -> None:
    def fn(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scales = [t.abs().amax(1, keepdim=True).float().clamp(min=1e-6) for t in (a, w)]
        left, right = (a / scales[0]).to(PRODUCTS[0]), (w / scales[1]).to(PRODUCTS[0]).t()
        return (
            torch._scaled_mm(left, right, scales[0], scales[1].t(), out_dtype=torch.bfloat16).relu()
            + 1
        )

    check(fn, *two_matrices(size))


def test_a_large_scaled_product_is_compiled_at_once() -> None:
    """Its result's layout was found by a CPU's product of the same size, which takes minutes."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    w, one = (
        torch.randn(4096, 4096, device="cuda").to(torch.float8_e4m3fn),
        torch.ones((), device="cuda"),
    )

    def fn(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        largest = a.abs().amax().float()
        narrow = (a / largest.clamp(min=1e-6)).to(torch.float8_e4m3fn)
        return torch._scaled_mm(
            narrow, w.t(), scale_a=largest, scale_b=one, out_dtype=torch.bfloat16
        )

    check(fn, a, w)


def test_a_gradient_through_a_cast() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.float8_e4m3fn).to(torch.float32) * x).sum()

    grads = []
    for call in (fn, ingot.compile(fn, fullgraph=True)):
        x = numbers(torch.float32, wide=False).requires_grad_()
        grads.append(torch.autograd.grad(call(x), x)[0])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-6, atol=1e-6)
