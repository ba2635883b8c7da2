"""The choice between the library and kernels of ours, with a clock that is made up: no GPU is
needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
import ingot.pipeline
from ingot.codegen.store import Store
from ingot.codegen.triton import supported
from ingot.codegen.triton.module import available
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.runtime.measuring import alike
from ingot.runtime.tuning import Tuner
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.schedule.tilings import Chip
from tests.loops.test_lowering import traced

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

H200 = Chip("H200", 90, 132, 227 << 10, 50 << 20)


class Clock:
    """What measures: `times` of the library and of each tiling that is tried, over and over."""

    def __init__(self, *times: float | None) -> None:
        self.times, self.asked = times, list[Sequence[Plan]]()

    def __call__(self, plans: Sequence[Plan], given: frozenset[str]) -> list[float | None]:
        self.asked.append(plans)
        return [self.times[min(k, len(self.times) - 1)] for k in range(len(plans))]


def gelu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = gelu_linear(x, w, w[:, 0])
    return x


ARGS = half(64, 48), half(80, 48), half(80)


def planned(
    tuner: Callable[..., Any],
    fn: Callable[..., Any] = gelu_linear,
    args: Sequence[torch.Tensor] = ARGS,
) -> Plan:
    return schedule(lower(traced(fn, *args), supported, target=GPU), target=GPU, choose=tuner)


def names(plan: Plan) -> list[str]:
    return [s.kernel.name if isinstance(s, KernelStep) else "call" for s in plan.steps]


def tuner(clock: Clock, path: Path, chip: Chip = H200, **options: Any) -> Tuner:
    return Tuner(chip, clock, store=Store(path), **options)


def test_a_kernel_that_is_faster_is_taken(tmp_path: Path) -> None:
    clock = Clock(10.0, 12.0, 9.0, None, 11.0)
    chooser = tuner(clock, tmp_path)
    plan = planned(chooser)
    assert names(plan) == ["linear_gelu"]
    (tried,) = clock.asked
    (kernel,), (best,) = plan.kernels, tried[2].kernels
    assert (
        isinstance(kernel, Kernel) and isinstance(best, Kernel) and kernel.product and best.product
    )
    assert kernel.product.tiling == best.product.tiling
    assert [type(step) for step in tried[0].steps] == [LibraryStep, KernelStep]
    (note,) = chooser.notes
    assert (
        "[64, 48] @ [48, 80] of bfloat16" in note
        and "a kernel" in note
        and "9.0 us, the library 10.0 us" in note
    )


@pytest.mark.parametrize("times", [(10.0, 9.9), (10.0, 10.0), (10.0, None), (None, 1.0)], ids=str)
def test_else_the_library_is_called(times: tuple[float | None, ...], tmp_path: Path) -> None:
    chooser = tuner(Clock(*times), tmp_path)
    assert names(planned(chooser)) == ["call", "gelu"]
    assert len(chooser.notes) == 1 and "a kernel" not in chooser.notes[0]


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    clock = Clock(10.0, 8.0)
    planned(tuner(clock, tmp_path))
    again = tuner(clock, tmp_path)  # as in another process
    assert (
        names(planned(again)) == ["linear_gelu"]
        and len(clock.asked) == 1
        and "measured before" in again.notes[0]
    )
    planned(tuner(clock, tmp_path, H200._replace(name="H100")))
    assert len(clock.asked) == 2
    planned(tuner(clock, tmp_path), args=(half(65, 48), half(80, 48), half(80)))
    assert len(clock.asked) == 3
    planned(tuner(clock, tmp_path), lambda x, w, b: F.relu(F.linear(x, w, b)))
    assert len(clock.asked) == 4
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    planned(tuner(clock, tmp_path))
    assert len(clock.asked) == 5


def test_what_could_not_be_measured_is_not_kept(tmp_path: Path) -> None:
    planned(tuner(Clock(None), tmp_path))
    assert names(planned(tuner(Clock(10.0, 8.0), tmp_path))) == ["linear_gelu"]


def test_products_that_are_alike_are_measured_once(tmp_path: Path) -> None:
    clock = Clock(10.0, 8.0)
    chooser = tuner(clock, tmp_path)
    plan = planned(chooser, layers, (half(64, 48), *(half(48, 48) for _ in range(12))))
    assert len(plan.kernels) == 12 and len(clock.asked) <= 3 and len(chooser.notes) == 12
    assert sum("measured before" in note for note in chooser.notes) == 12 - len(clock.asked)


def test_products_in_full_precision_stay_so(tmp_path: Path) -> None:
    """Unless torch's settings allow another."""
    for precisions in (("ieee",), ("ieee", "tf32")):
        clock = Clock(10.0, 8.0)
        planned(tuner(clock, tmp_path, precisions=precisions), args=[a.float() for a in ARGS])
        tilings = [
            k.product.tiling
            for p in clock.asked[0]
            for k in p.kernels
            if isinstance(k, Kernel) and k.product
        ]
        found = {t.precision for t in tilings if t is not None}
        assert precisions[-1] in found and found <= set(precisions)


def test_a_measurement_leaves_the_program_alone(tmp_path: Path) -> None:
    """Where the library is called, the plan is that of the default mode."""
    plain = schedule(lower(traced(gelu_linear, *ARGS), supported, target=GPU), target=GPU)
    tuned = planned(tuner(Clock(1.0, 2.0), tmp_path))
    assert tuned.steps == plain.steps and tuned.places == plain.places


def test_wrong_results_are_seen() -> None:
    x = torch.linspace(-1, 1, 100)
    assert alike([x, x > 0], [x * 1.0001, x > 0.1]) and alike([x / 0], [x / 0])
    assert not alike([x], [x * 1.01]) and not alike([x, x], [x, -x])
    assert alike([x.half()], [x.half() * 1.01]) and not alike([x.half()], [x.half() * 1.1])


def test_the_report_says_what_was_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Tuner] = []

    def chooser(device: torch.device) -> Tuner:
        made.append(tuner(Clock(10.0, 20.0), tmp_path))
        return made[-1]

    monkeypatch.setattr(ingot.pipeline, "_tuner", chooser)
    for mode, asked in (
        ("max-autotune", True),
        ("max-autotune-no-cudagraphs", True),
        ("default", False),
    ):
        made.clear()
        report = ingot.explain(ingot.compile(gelu_linear, mode=mode))(*ARGS)
        assert bool(made) is asked and report.tuned == [note for t in made for note in t.notes]
        assert len(report.tuned) == asked and ("tuned" in str(report)) is asked
