"""Sums of columns in the kernels that go over the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.schedule import columns, schedule
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import Plan
from tests.loops.test_lowering import traced

ROWS, WIDTH = 16384, 768


def planned(fn: Callable[..., Any], *args: Tensor) -> Plan:
    return schedule(lower(traced(fn, *args), target=GPU), target=GPU)


def kernels(fn: Callable[..., Any], *args: Tensor) -> list[Kernel]:
    return [k for k in planned(fn, *args).kernels if isinstance(k, Kernel)]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a layer norm's input, weight and bias."""
    normal = (x - mean) * scale
    inner = g * weight
    of_x = (inner - inner.mean(1, True) - normal * (inner * normal).mean(1, True)) * scale
    return of_x, (g * normal).sum(0), g.sum(0)


def arguments(rows: int = ROWS, width: int = WIDTH) -> tuple[Tensor, ...]:
    return empty(rows, width), empty(rows, width), empty(rows, 1), empty(rows, 1), empty(width)


def runs(found: list[Kernel]) -> list[int]:
    return [k.run for k in found if k.run]


def test_the_gradients_of_a_norm_are_one_pass_over_the_rows() -> None:
    found = kernels(norm_backward, *arguments())
    assert runs(found) == [ROWS // 256]
    (parts,) = (k for k in found if not k.run)  # the parts of both are added up in one launch
    assert len(parts.members) == 2
    (kernel,) = (k for k in found if k.run)
    assert choose_blocks(kernel).count(kernel).constant == 256
    assert [store.mode for stage in kernel.stages for store in stage.stores].count("total") == 2


def test_each_row_is_read_once() -> None:
    (kernel,) = (k for k in kernels(norm_backward, *arguments()) if k.run)
    large = [
        p for p in kernel.parameters if p.length is not None and p.length.constant == ROWS * WIDTH
    ]
    assert len(large) == 3  # two that are read and one that is written


def test_what_a_kernel_writes_is_summed_there() -> None:
    def fn(*args: Tensor) -> tuple[Tensor, ...]:
        of_x, *others = norm_backward(*args)
        half = of_x.to(torch.bfloat16)
        return (half, half.float().sum(0), *others)

    found = kernels(fn, *arguments())
    assert len(found) == 2 and len(runs(found)) == 1
    assert len(found[1].members) == 3


def test_the_sums_of_long_rows_are_apart() -> None:
    assert not runs(kernels(norm_backward, *arguments(2048, 8192)))


def test_the_sums_of_few_rows_are_apart() -> None:
    assert not runs(kernels(norm_backward, *arguments(1024, WIDTH)))


def test_more_sums_than_registers_are_apart() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.softmax(1), *((x * k).sum(0) for k in range(2, 3 + columns.MOST_SUMS))

    found = kernels(fn, empty(ROWS, WIDTH))
    assert not runs(found)


def test_sums_along_the_other_dimension_are_apart() -> None:
    """Rows that do not lie side by side."""
    assert not runs(kernels(lambda x: (x.softmax(0), x.sum(1)), empty(WIDTH, ROWS)))


def test_what_reads_the_sum_does_not_wait_in_the_same_kernel() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.sum(0)
        return (x + total).softmax(1), total

    found = kernels(fn, empty(ROWS, WIDTH))
    assert len(found) == 3 and not runs(found)


@pytest.mark.parametrize("rows", [16384, 16384 - 512, 12000])
def test_runs_fill_the_rows(rows: int) -> None:
    for kernel in kernels(norm_backward, *arguments(rows)):
        if kernel.run:
            assert rows % kernel.run == 0 and kernel.run % choose_blocks(kernel).points == 0


def test_a_batch_of_rows_is_rows() -> None:
    def fn(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        mean, scale = x.mean(-1, True), x.var(-1, keepdim=True)
        rows = [t.flatten(0, 1) for t in (g, x, mean, scale)]
        of_x, of_weight, of_bias = norm_backward(*rows, weight)
        return of_x.to(torch.bfloat16), of_weight, of_bias

    shape = (16, 1024, WIDTH)
    assert len(runs(kernels(fn, empty(*shape), empty(*shape), empty(WIDTH)))) == 1


def test_autograds_layer_norm() -> None:
    def fn(g: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        y, mean, rstd = torch.native_layer_norm(x, (WIDTH,), weight, bias, 1e-5)
        return torch.ops.aten.native_layer_norm_backward(
            g, x, (WIDTH,), mean, rstd, weight, bias, [True] * 3
        )

    shape = (ROWS, WIDTH)
    found = kernels(fn, empty(*shape), empty(*shape), empty(WIDTH), empty(WIDTH))
    assert len(runs(found)) == 1


def test_gelus_gradient_and_its_sum_stay_one_kernel_of_columns() -> None:
    def fn(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        of_x = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
        return of_x, of_x.sum(0)

    half = torch.bfloat16
    found = kernels(fn, empty(ROWS, 3072, dtype=half), empty(ROWS, 3072, dtype=half))
    assert len(found) == 2 and not runs(found)
