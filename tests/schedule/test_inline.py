"""Small tensors are computed where they are read, on a GPU, if that is less than a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.reference import run_plan
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.schedule import schedule
from ingot.schedule.plan import KernelStep, Plan
from tests.loops.test_lowering import traced
from tests.oracle import CLOSE, EXACT, assert_call

APART = replace(GPU, launch=0)


def planned(fn: Callable[..., Any], *args: Tensor, target: Any = GPU) -> Plan:
    return schedule(lower(traced(fn, *args), target=target), target=target)


def launches(fn: Callable[..., Any], *args: Tensor, target: Any = GPU) -> int:
    return sum(isinstance(step, KernelStep) for step in planned(fn, *args, target=target).steps)


def assert_planned(fn: Callable[..., Any], *args: Tensor) -> tuple[int, int]:
    """The numbers of launches with and without what is computed again; both give the same bits,
    which are near eager's, in results and in arguments."""
    plan, other = (planned(fn, *args, target=target) for target in (GPU, APART))

    def run(*own: Tensor) -> Any:
        return run_plan(plan, list(own))

    def run_other(*own: Tensor) -> Any:
        return run_plan(other, list(own))

    assert_call(run, run_other, *args, numbers=EXACT)
    assert_call(run, fn, *args, numbers=CLOSE, structure=False)
    return launches(fn, *args), launches(fn, *args, target=APART)


def statistics(channels: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The mean, the variance, the weight and the bias of a batch norm."""
    return [
        torch.randn(channels),
        torch.rand(channels) + 0.5,
        torch.randn(channels).to(dtype),
        torch.randn(channels),
    ]


def norm(x: Tensor, *stats: Tensor) -> Tensor:
    return F.batch_norm(x, *stats).clamp(0, 6)


def test_a_batch_norm_of_few_images_is_one_kernel() -> None:
    assert assert_planned(norm, torch.randn(2, 5, 4, 3), *statistics(5)) == (1, 2)
    last = torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last)
    assert assert_planned(norm, last, *statistics(5)) == (1, 2)


def test_of_many_it_has_its_scales_computed_once() -> None:
    few, many = (torch.empty(n, 64, 112, 112) for n in (2, 32))
    assert (launches(norm, few, *statistics(64)), launches(norm, many, *statistics(64))) == (1, 2)


def test_with_zeros_around() -> None:
    """Nothing is read where the zeros are."""
    x = torch.randn(2, 5, 4, 3)
    assert assert_planned(
        lambda x, *stats: F.pad(norm(x, *stats), (1, 1, 0, 2)), x, *statistics(5)
    ) == (1, 2)


def test_what_one_part_of_a_result_is_made_of() -> None:
    def fn(x: Tensor, y: Tensor, *stats: Tensor) -> Tensor:
        return torch.cat([norm(x, *stats), y], 1) * 2

    assert assert_planned(fn, torch.randn(2, 5, 4, 3), torch.randn(2, 4, 4, 3), *statistics(5)) == (
        1,
        2,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_as_in_memory(dtype: torch.dtype) -> None:
    def fn(x: Tensor, scale: Tensor) -> Tensor:
        scale = (scale.exp() + 1) * scale
        return x * scale + x / scale

    assert assert_planned(fn, torch.randn(40, 6).to(dtype), torch.rand(6).to(dtype) + 1)[0] == 1


def test_a_table_of_rows() -> None:
    def fn(x: Tensor, table: Tensor) -> Tensor:
        table = table.sin().exp() + table
        return x * table + x.flip(1, 2) / (table + 2)

    assert assert_planned(fn, torch.randn(9, 3, 4), torch.rand(3, 4)) == (1, 2)
    assert assert_planned(
        lambda x, table: fn(x, table.t()), torch.randn(9, 3, 4), torch.rand(4, 3)
    ) == (1, 2)


def test_a_number() -> None:
    def fn(x: Tensor, s: Tensor) -> Tensor:
        return x * s.exp() + s.exp().sqrt().sin() * (x + s.exp())

    assert assert_planned(fn, torch.randn(30), torch.rand(()))[0] == 1


def test_what_is_read_where_reductions_read_it() -> None:
    def fn(x: Tensor, *stats: Tensor) -> Tensor:
        return F.batch_norm(x, *stats).square().sum((2, 3))

    assert assert_planned(fn, torch.randn(2, 5, 4, 3), *statistics(5)) == (1, 2)


def test_what_others_need_in_memory_stays_there() -> None:
    def returned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        scale = weight.exp() + 1
        return x * scale + x.sin() / scale, scale

    assert assert_planned(returned, torch.randn(40, 6), torch.rand(6)) == (2, 2)

    def multiplied(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        scale = weight.exp() + 1
        return x * scale + x.sin() / scale, scale @ weight

    kept = assert_planned(multiplied, torch.randn(40, 6), torch.rand(6))
    assert kept[0] == kept[1]


def test_what_is_overwritten_is_read_before() -> None:
    def fn(x: Tensor, mean: Tensor, *stats: Tensor) -> Tensor:
        y = norm(x, mean, *stats)
        mean.add_(1)
        return y

    assert assert_planned(fn, torch.randn(2, 5, 4, 3), *statistics(5))[1] == 2


def test_what_a_reduction_gives_stays_in_its_kernel() -> None:
    def fn(x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(0) + 1e-5)
        return x * scale + scale.exp() * x

    assert launches(fn, torch.randn(4000, 64)) == launches(fn, torch.randn(4000, 64), target=APART)


def test_numbers_of_a_size_that_varies_are_counted_by_nobody() -> None:
    def plan(target: Any) -> Plan:
        loops = lower(
            traced(norm, torch.randn(2, 5, 4, 3), *statistics(5), dynamic=True), target=target
        )
        return schedule(loops, target=target)

    assert len(plan(GPU).steps) == len(plan(APART).steps) == 2
