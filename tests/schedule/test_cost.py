"""How many threads kernels are given, by what they are estimated to take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.loops.lowering import cost
from ingot.native import _native
from ingot.runtime.description import Description
from ingot.schedule import cost as schedule_cost
from ingot.schedule.plan import KernelStep


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[KernelStep]:
    """The launches of what is compiled."""
    steps: list[KernelStep] = []
    described = Description.kernel

    def note(self: Description, step: KernelStep) -> Any:
        steps.append(step)
        return described(self, step)

    monkeypatch.setattr(Description, "kernel", note)
    return steps


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def values(elements: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(elements, dtype=dtype)


# what a kernel computes, of elements of which type, how many stay on one thread, and of how many
# four threads have a share
CASES: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype, int, int]] = {
    "copies": (torch.clone, torch.float32, 1 << 14, 1 << 17),
    "copies of bytes": (torch.clone, torch.uint8, 1 << 16, 1 << 19),
    "sums": (lambda x: x + x, torch.float64, 1 << 13, 1 << 16),
    "functions": (torch.log10, torch.float32, 1 << 12, 1 << 16),
    "functions of doubles": (torch.log10, torch.float64, 1 << 12, 1 << 15),
}


@pytest.mark.parametrize("maker", cost.TABLES)
def test_functions_take_what_was_measured(
    maker: str, launches: list[KernelStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_cost, "FUNCTIONS", cost.TABLES[maker])
    for name, dtype in (("lgamma", torch.float32), ("atanh", torch.float64), ("exp", torch.half)):
        launches.clear()
        function = getattr(torch, name)
        ingot.compile(lambda x, function=function: function(x) + 1, fullgraph=True)(
            values(64, dtype)
        )
        computed = torch.float32 if dtype is torch.half else dtype
        measured = 2 * cost.TABLES[maker][name, computed].ours
        (step,) = launches
        assert measured <= step.work <= 1.2 * measured + 0.2


@pytest.mark.parametrize("name", CASES)
def test_threads(name: str, launches: list[KernelStep]) -> None:
    function, dtype, few, many = CASES[name]
    for elements, threads in ((few, 1), (many, 4)):
        launches.clear()
        ingot.compile(function, fullgraph=True)(values(elements, dtype))
        (step,) = launches
        nanoseconds = step.work * elements
        assert step.extent.constant == elements
        assert _native.threads_wanted(elements, 64, nanoseconds) == threads
