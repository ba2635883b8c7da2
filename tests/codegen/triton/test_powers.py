"""Sums of powers under Triton's interpreter, in the pass that finds the largest. As in
test_interpreted.py, this file runs itself once more, in a process where Triton is interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ingot.codegen.triton.module import available
from ingot.schedule.plan import KernelStep
from tests.codegen.triton.interpreting import (
    INTERPRETED,
    NARROW,
    draw,
    interpreted,
    run_interpreted,
    with_blocking,
)
from tests.codegen.triton.test_interpreted import assert_planned
from tests.long import long

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    @long
    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)

else:
    from ingot.codegen.triton import write_kernel


IN_STEPS = with_blocking(largest_row=8, step=64, step_again=128, per_thread=2, l2_bytes=1)
"""Rows are taken in steps of which each thread has two or four elements."""

POWERS = {
    "softmax": lambda x, dim: F.softmax(x, dim),
    "log_softmax": lambda x, dim: F.log_softmax(x, dim),
    "logsumexp": lambda x, dim: torch.logsumexp(x, dim),
    "written out": lambda x, dim: (x - x.amax(dim, keepdim=True)).exp().sum(dim),
    "of what is computed": lambda x, dim: torch.logsumexp(x * 2 + x.abs(), dim),
    "masked": lambda x, dim: F.softmax(torch.where(x < 0.5, x, -torch.inf), dim),
}


def awkward(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows with all that a largest element may be."""
    x = draw(rows, columns, dtype=dtype) * 3
    x[0] = -torch.inf
    x[1, columns // 2] = torch.inf
    x[2, -1] = torch.nan
    x[3] = torch.linspace(-80, 80, columns).to(dtype)
    x[4] = torch.linspace(80, -80, columns).to(dtype)
    x[5, :-1] = -torch.inf
    x[6] = torch.finfo(dtype).min
    x[7, 0] = torch.finfo(dtype).max
    x[8, 1:] = torch.nan
    return x


@interpreted
@pytest.mark.parametrize("name, columns, dtype", [
    ("softmax", 200, torch.float32), ("softmax", 147, torch.float16),
    ("softmax", 200, torch.float64), ("log_softmax", 147, torch.float32),
    ("log_softmax", 200, torch.float16), ("logsumexp", 147, torch.float32),
    ("logsumexp", 200, torch.float16), ("written out", 200, torch.float32),
    ("written out", 147, torch.float16),
    ("of what is computed", 147, torch.float32), ("masked", 200, torch.float32),
])  # fmt: skip
def test_powers_are_summed_in_the_pass_that_finds_the_largest(name, columns, dtype) -> None:
    x = awkward(9, columns, dtype)
    plan = assert_planned(lambda x: POWERS[name](x, -1), x, target=IN_STEPS)
    (step,) = plan.steps
    assert isinstance(step, KernelStep)
    source = write_kernel(step.kernel).source
    rounded = dtype is torch.float16 and name == "written out"
    assert ("helpers.add_powers" in source) is not rounded  # the differences are rounded to halves
    again = name in ("softmax", "log_softmax", "masked") or rounded
    assert ("evict_last" in source) is again
    assert "mask=" not in source.split("for start")[1].split("for start")[0]


@interpreted
@pytest.mark.parametrize("name", POWERS)
def test_powers_of_columns(name) -> None:
    x = awkward(9, 70).t().contiguous()
    assert_planned(lambda x: POWERS[name](x, 0), x, target=NARROW)


@interpreted
def test_powers_of_differences_to_what_may_be_infinite_by_itself() -> None:
    """A mean is -inf where some elements are: their differences to it are NaN."""
    for other in (torch.amin, torch.mean):

        def differences(x: torch.Tensor, other: Any = other) -> Any:
            return x.amax(-1), (x - other(x, -1, keepdim=True)).exp().sum(-1)

        assert_planned(differences, awkward(9, 200), target=IN_STEPS)


@interpreted
def test_powers_of_differences_that_are_chosen_for_each_element() -> None:
    chosen = draw(200, seed=1) > 0

    def fn(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return (x - torch.where(chosen, x.amax(-1, keepdim=True), 0.5)).exp().sum(-1)

    assert_planned(fn, draw(9, 200), chosen, target=IN_STEPS)


@interpreted
def test_powers_of_what_was_written_since_are_not_taken_from_before() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        top = x.amax(-1, keepdim=True)
        return (x.exp() - top).exp().sum(-1)

    assert_planned(fn, draw(3, 200), target=IN_STEPS)


@interpreted
@pytest.mark.parametrize("sizes", [(100,), (1, 100), (3, 100)])
@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_are_written_over_what_they_are_made_of(sizes, turned) -> None:
    """What another point overwrites is not read again."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        made = F.softmax(x.flip(-1) if turned else x, -1)
        x.copy_(made)
        return made * 2

    assert_planned(fn, draw(*sizes), target=NARROW)
