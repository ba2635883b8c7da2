"""How kernels are cut into blocks for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.schedule import schedule
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.plan import KernelStep, Plan
from tests.loops.test_lowering import traced


def planned(fn: Callable[..., Any], *args: torch.Tensor) -> Plan:
    return schedule(lower(traced(fn, *args), target=GPU), target=GPU)


def kernels(fn: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
    return [step.kernel for step in planned(fn, *args).steps if isinstance(step, KernelStep)]


def test_a_row_stays_in_registers() -> None:
    (kernel,) = kernels(lambda x: x.softmax(-1), torch.randn(512, 1024))
    blocks = choose_blocks(kernel)
    assert blocks.persistent and (blocks.points, blocks.inner) == (1, 1024)
    assert blocks.count(kernel).constant == 512


@pytest.mark.parametrize("width, warps", [(1024, 4), (2048, 8), (4096, 8), (8192, 16), (16384, 16)])
def test_threads_take_more_of_a_long_row_before_there_are_more_of_them(
    width: int, warps: int
) -> None:
    (kernel,) = kernels(lambda x: x.softmax(-1), torch.empty(512, width))
    assert choose_blocks(kernel).warps == warps


def test_short_rows_share_a_block() -> None:
    (kernel,) = kernels(lambda x: x.softmax(-1), torch.randn(8192, 60))
    blocks = choose_blocks(kernel)
    assert blocks.persistent and blocks.inner == 64 and blocks.points == 32


@pytest.mark.parametrize(
    ("rows", "width", "points"), [(4096, 60, 16), (512, 256, 2), (100, 256, 2), (512, 16, 32)]
)
def test_few_short_rows_are_spread_over_more_blocks(rows: int, width: int, points: int) -> None:
    (kernel,) = kernels(lambda x: x.softmax(-1), torch.randn(rows, width))
    blocks = choose_blocks(kernel)
    assert blocks.points == points and blocks.warps == 2 * max(
        1, blocks.points * blocks.inner // 512
    )


def test_long_rows_are_taken_in_steps_and_kept_in_memory() -> None:
    (kernel,) = kernels(
        lambda x: (x.exp() + x.exp().sum(-1, keepdim=True)).sqrt(), torch.rand(300, 40000)
    )
    assert not choose_blocks(kernel).persistent and not kernel.rows


def test_columns_are_reduced_side_by_side() -> None:
    (kernel,) = kernels(lambda x: x.sum(0), torch.randn(64, 100000))
    assert choose_blocks(kernel).points >= 16


def test_a_transposition_is_done_in_tiles() -> None:
    (kernel,) = kernels(lambda x: x.t().contiguous(), torch.randn(512, 768))
    blocks = choose_blocks(kernel)
    assert blocks.tile == blocks.points == 32 and blocks.count(kernel).constant == 16 * 24


def test_few_long_rows_are_split() -> None:
    first, second = kernels(lambda x: x.sum(-1), torch.randn(4, 1 << 20))
    assert first.points.constant == GPU.splitting.most_parts and second.points.constant == 4


def test_few_short_rows_are_not_split() -> None:
    """A block of threads has no more to do with each than with a part of it."""
    x, weight = torch.randn(128, 768), torch.randn(768)
    (kernel,) = kernels(lambda x, w: F.layer_norm(x, (768,), w, w), x, weight)
    assert kernel.points.constant == 128 and choose_blocks(kernel).persistent


def test_long_columns_are_split_and_summed_in_steps() -> None:
    first, second = kernels(lambda x: x.sum(0), torch.empty(16384, 3072, dtype=torch.bfloat16))
    blocks = choose_blocks(first)
    assert blocks.points == 128 and not blocks.persistent
    assert (
        GPU.splitting.most_parts // 2
        <= (blocks.count(first).constant or 0)
        <= GPU.splitting.most_parts
    )
    assert second.points.constant == 3072 and choose_blocks(second).persistent


@pytest.mark.parametrize(
    ("rows", "width", "apart"),
    [(100, 1 << 13, False), (100, 1 << 14, True), (1000, 1 << 14, False)],
)
def test_few_rows_do_not_hold_up_what_is_wide(rows: int, width: int, apart: bool) -> None:
    """Of few long rows, what is done with each element has a kernel of its own."""
    made = kernels(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), torch.rand(rows, width))
    assert (len(made) > 1) is apart


def test_libraries_compute_products_and_scatters() -> None:
    def fn(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, at, x @ x)

    made = planned(fn, torch.randn(64, 64), torch.arange(64))
    called = [str(step.node.function) for step in made.steps if not isinstance(step, KernelStep)]
    assert len(called) == 2 and "index_add" in called[1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_bias_of_few_elements_is_added_by_what_comes_next(dynamic: bool) -> None:
    """The library takes longer with it; of symbolic sizes, there may be few."""

    def steps(fn: Callable[..., Any], dtype: torch.dtype) -> list[str]:
        args = (
            torch.ones(8, 16, dtype=dtype),
            torch.ones(32, 16, dtype=dtype),
            torch.ones(32, dtype=dtype),
        )
        plan = schedule(lower(traced(fn, *args, dynamic=dynamic), target=GPU), target=GPU)
        return [
            "kernel" if isinstance(s, KernelStep) else s.node.function.__name__ for s in plan.steps
        ]

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w, b).sin()

    assert steps(fn, torch.float32) == ["mm", "kernel"]
    assert steps(fn, torch.bfloat16) == ["addmm", "kernel"]


def test_small_temporaries_share_an_arena() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x @ w).tanh() @ w
        return torch.cumsum(x + 1, 0).sin()

    def kinds(rows: int, dynamic: bool = False) -> tuple[set[str], int | None]:
        graph = lower(
            traced(fn, torch.ones(rows, 256), torch.ones(256, 256), dynamic=dynamic), target=GPU
        )
        plan = schedule(graph, frugal=True, target=GPU)
        sizes = {symbol: rows for symbol, *_ in plan.graph.symbols}
        assert plan.arena_bytes.constant in (0, plan.joined_bytes.constant)
        return {place.kind for place in plan.places.values()}, plan.joined_bytes.evaluate(sizes)

    # What cumsum is given is a tensor of its own.
    assert kinds(16) == ({"input", "arena", "own", "output"}, 2 * 16 * 256 * 4)
    assert kinds(2048) == ({"input", "own", "output"}, 0)
    # Whether what has a symbolic size is small, the program finds out.
    assert kinds(16, dynamic=True) == ({"input", "small", "own", "output"}, 2 * 16 * 256 * 4)
