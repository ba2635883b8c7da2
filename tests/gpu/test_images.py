"""Depthwise convolutions and sampled images on the device, beside eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import ingot
from tests.gpu.checks import CLOSE, agree, assert_compiled, gradients_agree
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


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("window", "settings"),
    [
        (3, {"padding": 1}),
        (3, {"stride": (1, 2)}),
        (5, {"padding": 2}),
        (5, {"padding": 2, "stride": 2}),
        (5, {"padding": (4, 1), "stride": 3}),
        (5, {"padding": 4, "dilation": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 40, 33, 30), (64, 96, 14, 13), (3, 8, 6, 70)], ids=str)
def test_gradients_of_windows_of_channels(
    shape: tuple[int, ...], window: int, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    """Those of the weight and the bias against sums of float64, and the same at each call. The
    library, which has the dilated ones, does not round to TF32 here."""
    channels = shape[1]

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = F.conv2d(x, w, b, groups=channels, **settings)
        return y, *torch.autograd.grad(y.square().sum(), (x, w, b))

    x = draw(*shape, dtype=dtype).to(memory_format=LAST).requires_grad_()
    w = (draw(channels, 1, window, window, dtype=dtype, seed=1) / window).requires_grad_()
    b = draw(channels, dtype=dtype, seed=2).requires_grad_()
    compiled = ingot.compile(fn, fullgraph=True)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found, again = compiled(x, w, b), compiled(x, w, b)
    y = found[0].detach()  # whose rounding is part of what the gradients are of
    exact = torch.ops.aten.convolution_backward(
        (2 * y).double(), x.detach().double(), w.detach().double(), [channels],
        *_settings(channels, **settings), [True] * 3,
    )  # fmt: skip
    for gradient, same, right in zip(found[1:], again[1:], exact, strict=True):
        assert torch.equal(gradient, same)
        assert (gradient.double() - right).norm() < ROUNDING[dtype] * right.norm()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_bias_is_added_by_who_reads_the_result(
    groups: int, transposed: bool, dtype: torch.dtype
) -> None:
    x = draw(3, 32, 17, 16, dtype=dtype).to(memory_format=LAST)
    w = draw(32, 32 // groups, 3, 3, dtype=dtype, seed=1) / 8
    b = draw(32, dtype=dtype, seed=2)
    op = F.conv_transpose2d if transposed else F.conv2d

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return op(x, w, b, padding=1, groups=groups).relu() * 2

    compiled = assert_compiled(fn, x, w, b)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        compiled(x, w, b)
        torch.cuda.synchronize()
    assert not [event.name for event in profiled.events() if "elementwise" in event.name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_groups_of_channels_lie_side_by_side(dtype: torch.dtype) -> None:
    """The library converts no images between two layouts, forward or backward."""
    x = draw(4, 48, 28, 28, dtype=dtype).requires_grad_()
    narrow, wide = (draw(48, n, k, k, dtype=dtype, seed=k) / 8 for n, k in ((48, 1), (8, 3)))
    weights = narrow.requires_grad_(), wide.requires_grad_(), narrow.detach().requires_grad_()

    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(F.conv2d(x, a).relu(), b, None, 1, 1, 1, 6).relu()
        return F.conv2d(y, c)

    compiled = ingot.compile(fn, fullgraph=True)
    gradients_agree(fn, x, *weights, compiled=compiled, strides=False)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        compiled(x, *weights).sum().backward()
        torch.cuda.synchronize()
    names = [event.name for event in profiled.events()]
    assert not [name for name in names if "nchwToNhwc" in name or "nhwcToNchw" in name]


@pytest.mark.parametrize("images", [1, 16, 256])
@pytest.mark.parametrize("channels", [(24, 56), (56, 152), (152, 368)], ids=str)
def test_convolutions_round_to_tf32_where_eagers_do(images: int, channels: tuple[int, int]) -> None:
    """What eager's library computes in full, for some sizes, is computed in full."""
    narrow, wide = channels
    x = draw(images, narrow, 28, 28).requires_grad_()
    weights = [draw(wide, narrow, 1, 1) / 8, draw(wide, wide, 3, 3, seed=1) / 32]
    weights = [w.requires_grad_() for w in weights]

    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, a).relu(), b, None, 2, 1)

    def results(call: Any, *args: torch.Tensor) -> list[torch.Tensor]:
        y = call(*args)
        return [y.detach(), *torch.autograd.grad(y.sum(), args)]

    compiled = results(ingot.compile(fn, fullgraph=True), x, *weights)
    exact = results(fn, *(t.detach().double().requires_grad_() for t in (x, *weights)))
    for found, eager, right in zip(compiled, results(fn, x, *weights), exact, strict=True):
        departure, theirs = ((t.double() - right).norm() / right.norm() for t in (found, eager))
        assert departure <= 1.2 * theirs + 1e-6


ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def _settings(groups: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> tuple[Any, ...]:
    """As aten.convolution_backward has them."""
    pairs = []
    for value in (stride, padding, dilation):
        pairs.append(list(value) if isinstance(value, tuple) else [value] * 2)
    return *pairs, False, [0, 0], groups


def test_images_whose_number_varies() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.conv2d(x, w, None, 1, 2, 1, 24)
        return torch.autograd.grad(y.sum(), (x, w))

    compiled = ingot.compile(fn, fullgraph=True, dynamic=True)
    w = draw(24, 1, 5, 5, seed=1).requires_grad_()
    for images in (2, 5, 33):
        x = draw(images, 24, 9, 11).to(memory_format=LAST).requires_grad_()
        agree(compiled, fn, x, w)


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
