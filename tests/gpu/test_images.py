"""Depthwise convolutions and sampled images on the device, beside eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.checks import CLOSE, assert_compiled
from tests.oracle import EXACT

LAST = torch.channels_last
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
PADDINGS = list(
    itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True))
)
nan, inf = float("nan"), float("inf")


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_windows_of_channels(stride: int, padding: int, dtype: torch.dtype) -> None:
    x, w = (
        draw(2, 32, 15, 14, dtype=dtype).to(memory_format=LAST),
        draw(32, 1, 3, 3, dtype=dtype, seed=1) / 3,
    )
    assert_compiled(lambda x, w: F.conv2d(x, w, None, stride, padding, 1, 32), x, w)
    assert_compiled(
        lambda x, w: F.conv2d(F.pad(x.relu(), (0, 1, 0, 1)), w, None, stride, 0, 1, 32).clamp(0, 6),
        x,
        w,
    )
    assert_compiled(
        lambda x, w: F.conv2d(F.silu(x), w, w[:, 0, 0, 0], stride, padding, 1, 32) + x.mean(), x, w
    )


def test_a_block_of_a_mobile_network() -> None:
    """Of float32: layouts are chosen, and eager rounds to TF32 as well."""
    sizes: list[tuple[int, ...]] = [(144, 24, 1, 1), (144, 1, 3, 3), (24, 144, 1, 1)]
    stats = [[draw(n), draw(n).exp(), draw(n, seed=1), draw(n, seed=2)] for n in (144, 144, 24)]

    def fn(x: Any, weights: Any, stats: Any) -> Any:
        y = F.batch_norm(F.conv2d(x, weights[0]), *stats[0]).clamp(0, 6)
        y = F.batch_norm(F.conv2d(y, weights[1], None, 1, 1, 1, 144), *stats[1]).clamp(0, 6)
        return x + F.batch_norm(F.conv2d(y, weights[2]), *stats[2])

    weights = [draw(*size, seed=k) / 4 for k, size in enumerate(sizes)]
    with torch.no_grad():
        assert_compiled(fn, draw(1, 24, 56, 56), weights, stats)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize(("mode", "padding", "corners"), PADDINGS)
def test_sampled(mode: str, padding: str, corners: bool, dtype: torch.dtype) -> None:
    """Places between two elements, at corners, far away and nowhere are eager's."""
    special = torch.tensor([-1, 1, 0, 0.5, -0.5, 0.25, 1.0001, 3, -7.5, 1e9, -1e30, inf, -inf, nan])
    pairs = torch.cartesian_prod(special, special).view(1, 14, 14, 2).to("cuda", dtype)
    grid = torch.cat([pairs, draw(1, 20, 14, 2, dtype=dtype) * 0.8], 1)

    def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=corners)

    for height, width in ((8, 8), (1, 1), (1, 9), (13, 2)):
        assert_compiled(
            sampled,
            draw(1, 5, height, width, dtype=dtype),
            grid,
            numbers=EXACT if mode == "nearest" else CLOSE,
        )


@pytest.mark.parametrize("corners", [False, True])
def test_gradients_of_what_is_sampled(corners: bool) -> None:
    """With corners, cuDNN samples in eager."""

    def fn(x: torch.Tensor, grid: torch.Tensor) -> Any:
        y = F.grid_sample(x * 2, grid, align_corners=corners)
        return y.detach(), *torch.autograd.grad(y.square().sum(), (x, grid))

    assert_compiled(
        fn, draw(2, 5, 8, 9).requires_grad_(), (draw(2, 20, 14, 2, seed=1) * 0.8).requires_grad_()
    )
