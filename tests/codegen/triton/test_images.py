"""Depthwise convolutions and sampled images under Triton's interpreter, beside eager. As
test_interpreted.py, this file runs itself once more, in a process where Triton is interpreted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.triton.module import available
from ingot.loops.target import Target
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.plan import KernelStep
from tests.codegen.triton.interpreting import (
    FEW_BLOCKS,
    INTERPRETED,
    draw,
    interpreted,
    run_interpreted,
)

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)

else:
    from ingot.codegen.triton import write_kernel
    from tests.codegen.triton.interpreter import planned, planned_beside, run
    from tests.oracle import CLOSE, assert_call

LAST = torch.channels_last
PADDINGS = list(
    itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True))
)
nan, inf = float("nan"), float("inf")


def assert_planned(fn: Any, *args: Tensor, target: Target = FEW_BLOCKS) -> tuple[int, int]:
    """The GPU's plan of a function gives what eager gives; how many launches it has, and calls of a
    library."""
    plan = planned(fn, *args, target=target)
    assert_call(lambda *own: run(plan, list(own)), fn, *args, numbers=CLOSE, structure=False)
    launches = sum(isinstance(step, KernelStep) for step in plan.steps)
    return launches, len(plan.steps) - launches


# -- depthwise convolutions ------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
@pytest.mark.parametrize("padding", [0, 1, (0, 1)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_windows_of_channels(stride: Any, padding: Any, dilation: int, bias: bool) -> None:
    x, w, b = draw(2, 12, 7, 6).to(memory_format=LAST), draw(12, 1, 3, 3, seed=1), draw(12, seed=2)

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b if bias else None, stride, padding, dilation, 12)

    assert assert_planned(fn, x, w, b) == (1, 0)


@interpreted
def test_of_many_points_the_weight_is_laid_side_by_side_first() -> None:
    target = replace(FEW_BLOCKS, many_taps=9 * 12 * 80)
    w = draw(12, 1, 3, 3, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, None, 1, 1, 1, 12)

    few, many = (draw(1, 12, 8, n).to(memory_format=LAST) for n in (9, 10))
    assert assert_planned(fn, few, w, target=target) == (1, 0)
    assert assert_planned(fn, many, w, target=target) == (2, 0)


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_windows_of_halves_are_rounded_once(dtype: torch.dtype) -> None:
    x, w = (
        draw(1, 8, 5, 5, dtype=dtype).to(memory_format=LAST),
        draw(8, 1, 3, 3, seed=1, dtype=dtype),
    )

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, None, 1, 1, 1, 8)

    (found,) = run(planned(fn, x, w), [x, w])
    # it may truncate
    torch.testing.assert_close(found, fn(x.float(), w.float()).to(dtype), rtol=2**-7, atol=0)
    assert found.stride() == x.stride()


def statistics(channels: int) -> list[Tensor]:
    return [draw(channels), draw(channels).exp(), draw(channels, seed=1), draw(channels, seed=2)]


def step(x: Tensor, w: Tensor, *stats: Tensor) -> Tensor:
    """What is before and behind the convolution is computed in its kernel: norms, and zeros
    around."""
    x = F.pad(F.batch_norm(x, *stats).clamp(0, 6), (0, 1, 1, 1))
    return F.batch_norm(F.conv2d(x, w, None, 2, 0, 1, x.shape[1]), *stats).relu()


@interpreted
def test_what_is_before_and_behind_is_in_its_kernel() -> None:
    x, w = draw(1, 16, 6, 7).to(memory_format=LAST), draw(16, 1, 3, 3, seed=1)
    assert assert_planned(step, x, w, *statistics(16)) == (1, 0)
    assert assert_planned(
        lambda x, w: F.conv2d(F.pad(x + 1, (1, 1, 0, 0), value=2.0), w, None, 1, 0, 1, 16), x, w
    ) == (1, 0)
    assert (
        assert_planned(
            lambda x, w: F.conv2d(F.pad(x + 1, (1, 1, 0, 0), value=2.0), w, None, 1, 1, 1, 16), x, w
        )[1]
        == 0
    )


@interpreted
def test_what_others_read_as_well_is_in_memory() -> None:
    x, w = draw(1, 16, 6, 7).to(memory_format=LAST), draw(16, 1, 3, 3, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = (x.exp() + 1).sqrt()
        return F.conv2d(y, w, None, 1, 1, 1, 16) + y

    assert assert_planned(fn, x, w) == (2, 0)


@interpreted
def test_channels_that_lie_apart_are_brought_together() -> None:
    """Not read apart for each element of the window."""
    x, w = draw(2, 12, 7, 6), draw(12, 1, 3, 3, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.sin().to(memory_format=LAST), w, None, 1, 1, 1, 12)

    assert assert_planned(fn, x, w) == (2, 0)
    assert assert_planned(lambda x, w: fn(x.permute(3, 1, 0, 2), w), draw(2, 12, 7, 6), w)[1] == 0


def test_few_images_or_cheap_ones_are_computed_again() -> None:
    w = torch.empty(64, 1, 3, 3)

    def launches(fn: Any, images: int) -> int:
        x = torch.empty(images, 64, 28, 28).to(memory_format=LAST)
        return len(planned_of_any(fn, x, w).steps)

    def of_little(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.relu(), w, None, 1, 1, 1, 64)

    def of_much(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(F.silu(x), w, None, 1, 1, 1, 64)

    assert [launches(of_little, n) for n in (1, 64)] == [1, 2] and [
        launches(of_much, n) for n in (1, 64)
    ] == [1, 3]


def planned_of_any(fn: Any, *args: Tensor) -> Any:
    """A plan, in whichever process."""
    from ingot.loops.lowering.lower import lower
    from ingot.loops.target import GPU
    from ingot.schedule import schedule
    from tests.loops.test_lowering import traced

    return schedule(lower(traced(fn, *args), target=GPU), target=GPU)


def test_what_stays_the_librarys() -> None:
    x = draw(1, 8, 9, 9)
    for given, w, groups in (
        (x, draw(8, 1, 3, 3), 8),  # contiguous
        (x.to(memory_format=LAST), draw(8, 2, 3, 3), 4),  # groups of two channels
        (x.to(memory_format=LAST), draw(16, 1, 3, 3), 8),  # two results for each channel
        (x.to(memory_format=LAST), draw(8, 1, 7, 7), 8),  # a large window
        (x.to(memory_format=LAST), draw(8, 8, 3, 3), 1),
    ):
        plan = planned_of_any(lambda x, w, g=groups: F.conv2d(x, w, None, 1, 1, 1, g), given, w)
        assert sum(not isinstance(step, KernelStep) for step in plan.steps) == 1


def test_threads_of_a_window_take_a_point_each() -> None:
    x, w = draw(1, 64, 8, 8).to(memory_format=LAST), draw(64, 1, 3, 3)
    (only,) = planned_of_any(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 64), x, w).kernels
    chosen = choose_blocks(only)
    assert chosen.points == 32 * chosen.warps


# -- sampled images --------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize(("mode", "padding", "corners"), PADDINGS)
def test_sampled(mode: str, padding: str, corners: bool) -> None:
    def fn(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=corners)

    special = torch.tensor([-1, 1, 0, 0.25, 3, -7.5]).view(1, 1, 6, 1).expand(2, 1, 6, 2)
    grid = torch.cat([draw(2, 4, 6, 2) * 0.8, special], 1)
    assert assert_planned(fn, draw(2, 3, 5, 7), grid) == (1, 0)
    assert assert_planned(fn, draw(2, 3, 4, 2).transpose(2, 3), grid) == (1, 0)


@interpreted
@pytest.mark.parametrize(("mode", "padding", "corners"), PADDINGS)
def test_places_that_are_none_are_outside_on_a_gpu(mode: str, padding: str, corners: bool) -> None:
    """Or, where there is no outside, at the border."""
    x, grid = draw(1, 2, 4, 5), torch.full((1, 1, 5, 2), 0.3)
    grid[0, 0, :, 0] = torch.tensor([nan, inf, -inf, 1e30, -1e30])

    def fn(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=corners)

    (found,) = run(planned(fn, x, grid), [x, grid])
    if padding == "zeros":
        assert torch.equal(found, torch.zeros(1, 2, 1, 5))
    else:
        ends = torch.full((1, 1, 2, 2), 0.3)
        ends[0, 0, :, 0] = torch.tensor([-5.0, 5.0])
        low, high = F.grid_sample(x, ends, mode, "border", align_corners=corners).unbind(-1)
        torch.testing.assert_close(found[..., 0], low)  # NaN
        if padding == "border":
            torch.testing.assert_close(found[..., 1:], torch.stack([high, low, high, low], -1))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_what_cudnn_samples_is_a_kernel(dtype: torch.dtype) -> None:
    x, grid = draw(2, 3, 5, 7, dtype=dtype), (draw(2, 4, 6, 2) * 0.8).to(dtype)
    plan = planned_beside(torch.ops.aten.cudnn_grid_sampler.default, x, grid)
    assert [type(step) for step in plan.steps] == [KernelStep]
    (found,), expected = (
        run(plan, [x, grid]),
        F.grid_sample(x.double(), grid.double(), align_corners=True),
    )
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected.to(dtype))


@interpreted
def test_cudnn_gives_nan_where_a_place_is_none() -> None:
    """What is far away is outside, and its weights count: where their product is no number, zeros
    times it are none."""
    x, grid = draw(1, 2, 4, 5), torch.full((1, 1, 8, 2), 0.3)
    grid[0, 0, :, 0] = torch.tensor([nan, inf, -inf, 1e30, -1e30, 7.0, 1e30, 1.0])
    grid[0, 0, 6, 1] = -1e30
    (found,) = run(planned_beside(torch.ops.aten.cudnn_grid_sampler.default, x, grid), [x, grid])
    assert torch.equal(
        found.isnan(), torch.tensor([1, 1, 1, 0, 0, 0, 1, 0]).bool().expand(1, 2, 1, 8)
    )
    assert torch.equal(found[..., 3:6], torch.zeros(1, 2, 1, 3))
    torch.testing.assert_close(
        found[..., 7], F.grid_sample(x, grid[:, :, 7:], align_corners=True)[..., 0]
    )


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_sampled_in_float32(dtype: torch.dtype) -> None:
    x, grid = draw(1, 2, 4, 5, dtype=dtype), (draw(1, 3, 5, 2) * 0.6).to(dtype)

    def fn(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, align_corners=False)

    (found,) = run(planned(fn, x, grid), [x, grid])
    torch.testing.assert_close(found, fn(x.float(), grid.float()).to(dtype))


@interpreted
def test_samples_are_fused_with_their_neighbours_and_nothing_is_asserted() -> None:
    def fn(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x * 2, 2 * grid - 1, align_corners=False).relu()

    x, grid = draw(1, 2, 4, 5), draw(1, 3, 5, 2).sigmoid()
    assert assert_planned(fn, x, grid) == (1, 0)
    assert not any(write_kernel(kernel).asserts for kernel in planned(fn, x, grid).kernels)


@interpreted
@pytest.mark.parametrize("shape", [(2, 3, 20), (1, 1, 1)])
def test_windows_of_unequal_lengths_over_expanded_images(shape: tuple[int, ...]) -> None:
    """What lies beyond a window's end can be read, as it is in the same place; it counts for
    nothing."""
    assert_planned(
        lambda x: F.interpolate(x.expand(2, 3, 20), scale_factor=1.5, mode="area"), draw(*shape)
    )
