"""How often rows longer than a block are read on a GPU: figures that need none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from ingot.codegen.triton import supported
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.schedule import schedule
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.kernel import Kernel
from ingot.schedule.online import in_one_pass
from ingot.schedule.plan import KernelStep
from tests.loops.test_lowering import traced

LONG = 2 * GPU.blocking.largest_row


def kernels(fn: Callable[..., object], *args: torch.Tensor) -> list[Kernel]:
    plan = schedule(lower(traced(fn, *args), supported, target=GPU), target=GPU)
    assert all(isinstance(step, KernelStep) for step in plan.steps)
    return [step.kernel for step in plan.steps]


def passes(kernel: Kernel) -> list[tuple[int, int]]:
    """The loads and stores of each pass over the rows."""
    stages = [s for s in in_one_pass(kernel).stages if s.loops]
    return [
        (sum(not i.attrs[1].symbols.isdisjoint(s.loops) for i in s.body.loads), len(s.stores))
        for s in stages
    ]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize(
    "fn, expected",
    [
        (lambda x: F.softmax(x, -1), [(1, 0), (1, 1)]),
        (lambda x: F.log_softmax(x, -1), [(1, 0), (1, 1)]),
        (lambda x: torch.logsumexp(x, -1), [(1, 0)]),
        (lambda x: F.softmax(x.abs() * 2, -1), [(1, 0), (1, 1)]),
        (lambda x: F.softmax(x, -1).argmax(-1), [(1, 0), (1, 0)]),
        (lambda x: (x.float() - x.float().amax(-1, keepdim=True)).exp().sum(-1), [(1, 0)]),
        (lambda x: (x.float() - x.amax(-1, keepdim=True).float()).exp().sum(-1), [(1, 0)]),
    ],
    ids=(
        "softmax",
        "log_softmax",
        "logsumexp",
        "of what is computed",
        "read again",
        "written out",
        "exactly as large",
    ),
)
def test_long_rows_are_read_once_for_the_largest_and_the_powers(fn, expected, dtype) -> None:
    (kernel,) = kernels(fn, torch.empty(4096, LONG, dtype=dtype))
    assert passes(kernel) == expected
    assert not choose_blocks(kernel).persistent


def test_what_is_not_the_same_keeps_its_pass() -> None:
    x, y = torch.empty(4096, LONG), torch.empty(4096, LONG)
    others = kernels(lambda x, y: (y - x.amax(-1, keepdim=True)).exp().sum(-1), x, y)
    assert [p for k in others for p in passes(k)] == [(1, 0), (1, 0)]
    (by_mean,) = kernels(lambda x: (x.amax(-1), (x - x.mean(-1, keepdim=True)).exp().sum(-1)), x)
    assert passes(by_mean) == [(1, 0), (1, 0)]
    (stored,) = kernels(lambda x: ((p := (x - x.amax(-1, keepdim=True)).exp()), p.sum(-1)), x)
    assert passes(stored) == [(1, 0), (1, 1)]
    (rounded,) = kernels(lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1), x.bfloat16())
    assert passes(rounded) == [(1, 0), (1, 0)]


def test_rows_that_fit_registers_stay_there() -> None:
    (kernel,) = kernels(lambda x: F.softmax(x, -1), torch.empty(4096, 1024))
    assert choose_blocks(kernel).persistent and len(kernel.rows) == 1


def test_scratch_that_costs_less_than_reading_again_is_kept() -> None:
    a, b, c = (torch.empty(4096, LONG) for _ in range(3))
    (two,) = kernels(lambda a, b: F.softmax(a * b, -1), a, b)
    assert passes(two) == [(2, 0), (2, 1)] and len(two.parameters) == 3
    (three,) = kernels(lambda a, b, c: F.softmax(a * b + c, -1), a, b, c)
    assert passes(three) == [(3, 1), (1, 1), (1, 1)]
    (norm,) = kernels(lambda a, b: F.layer_norm(a + b, (LONG,)), a, b)
    assert passes(norm) == [(2, 1), (1, 0), (1, 1)]


def test_steps_are_long_where_rows_are_read_again() -> None:
    x = torch.empty(4096, LONG)
    (once,), (twice,) = (
        kernels(lambda x: torch.logsumexp(x, -1), x),
        kernels(lambda x: F.softmax(x, -1), x),
    )
    assert choose_blocks(once).inner < choose_blocks(twice).inner
