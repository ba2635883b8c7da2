"""Products of a few rows: which become kernels, and with what behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.triton import supported
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.schedule import schedule
from ingot.schedule.few_rows import FewRows, estimate, tilings
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.schedule.tilings import Chip
from tests.loops.test_lowering import traced

CHIP = Chip("H200", 90, 132, 227 << 10, 50 << 20)


def planned(fn: Callable[..., Any], *args: Tensor) -> tuple[Plan, FewRows]:
    loops = lower(traced(fn, *args), supported, target=GPU)
    verify(loops)
    choose = FewRows(CHIP)
    return schedule(loops, target=GPU, choose=choose), choose


def inputs(rows: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.zeros(*sizes, dtype=dtype) for sizes in ((rows, 1024), (2048, 1024))]


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


@pytest.mark.parametrize("rows", [8, 32])
def test_a_product_takes_what_comes_next_along(rows: int) -> None:
    x, weight = inputs(rows)
    plan, choose = planned(gated, x, weight, weight)
    assert len(plan.steps) == 2 and len(choose.notes) == 2
    for step in plan.steps:
        assert isinstance(step, KernelStep) and isinstance(step.kernel, Kernel)
        assert step.kernel.product is not None
    assert "div" in plan.steps[1].kernel.name  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (F.linear, inputs(128)),
        (F.linear, inputs(1, torch.float32)),
        (F.linear, [torch.zeros(2, 64).half(), torch.zeros(64, 64).half()]),
        (lambda x, w: F.linear(x, w * 2), inputs(2)),
    ],
    ids=["many rows", "float32", "a small weight", "no weight"],
)
def test_others_are_the_librarys(fn: Callable[..., Any], args: list[Tensor]) -> None:
    plan, choose = planned(fn, *args)
    assert isinstance(plan.steps[-1], LibraryStep) and not choose.notes


@pytest.mark.parametrize("rows", [1, 16, 33, 64])
@pytest.mark.parametrize(("columns", "depth"), [(8192, 2048), (512, 4096), (1000, 200)])
def test_tilings_fit_and_larger_weights_take_longer(rows: int, columns: int, depth: int) -> None:
    for tiling in tilings((1, rows, columns, depth), 2, CHIP):
        assert tiling.rows >= rows and tiling.depth <= depth
        shared = tiling.stages * (tiling.rows + tiling.columns) * tiling.depth * 2
        assert shared <= CHIP.shared
        times = [estimate((1, rows, n * columns, depth), 2, CHIP, tiling) for n in (1, 64)]
        assert 0 < times[0] < times[1]


@pytest.mark.parametrize("rows", [4, 32])
def test_products_of_the_same_rows_share_a_launch(rows: int) -> None:
    def fn(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.linear(x, w) for w in weights)

    x, query = torch.zeros(rows, 2048).half(), torch.zeros(2048, 2048).half()
    key = query[:512]
    plan, choose = planned(fn, x, query, key.clone(), key.clone())
    (step,) = plan.steps
    assert isinstance(step, KernelStep) and isinstance(step.kernel, Kernel)
    assert len(step.kernel.members) == 3 and len(choose.notes) == 3


def test_a_product_that_needs_another_does_not_share_its_launch() -> None:
    x, weight = torch.zeros(8, 1024).half(), torch.zeros(1024, 1024).half()
    plan, _ = planned(lambda x, w: F.linear(F.linear(x, w), w), x, weight)
    assert len(plan.steps) == 2
