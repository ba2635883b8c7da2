"""The document of a page of a program on a GPU, made where there is none.

The plan and the Triton text are those of a GPU. No call is recorded: the spans are made up, as a
profiler would give them, each as long as a made-up limit lets it be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import ingot
from ingot import pipeline
from ingot.codegen.triton import supported, write_kernel
from ingot.codegen.triton.forms import forms_of
from ingot.explain.page.document import document
from ingot.explain.page.flops import program_flops
from ingot.explain.page.recording import dispatched, parts_of, steps
from ingot.explain.page.timeline import (
    CALL,
    Span,
    described_by,
    described_by_steps,
    timeline,
)
from ingot.explain.programs import ProgramReport
from ingot.explain.records import as_plain
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.passes.pipeline import LIBRARY_PASSES, run_passes
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.runtime.step_names import step_names
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel

LIMITS = {
    "device": "a GPU that is made up",
    "bytes_per_second": 4e12,
    "flops_per_second": 5e13,
}
LAUNCH, REACHED = 6e-6, 0.5
"""The seconds of a launch, and the share of the limit that each kernel reaches."""


class _Code:
    """The Triton text of kernels."""

    def ir(self, kernel: Any) -> str:
        if not isinstance(kernel, Kernel):
            return ""
        return write_kernel(kernel, forms_of(kernel)[0]).source

    def module_text(self, kernels: Iterable[Any]) -> str:
        return "\n\n".join(dict.fromkeys(map(self.ir, kernels)))


def gpu_document(function: Callable[..., Tensor], args: tuple[Tensor, ...]) -> dict[str, Any]:
    """The document of an inference call."""
    graphs: list[AtenGraph] = []
    build = pipeline.build

    def recorded(aten: AtenGraph, *rest: Any, **keywords: Any) -> Any:
        graphs.append(aten)
        return build(aten, *rest, **keywords)

    with torch.no_grad(), mock.patch.object(pipeline, "build", recorded):
        compiled = ingot.compile(function)
        compiled(*args)
        report = ingot.explain(compiled)(*args)
        notes = dispatched(lambda: function(*args))
    (before,) = report.programs
    log = before.compilation.log.attempt()
    log.aten = graphs[0]
    run_passes(log.aten, LIBRARY_PASSES)
    log.loops = lower(log.aten, supported, target=GPU)
    log.plan = schedule(log.loops, frugal=True, target=GPU)
    log.code = _Code()  # type: ignore[assignment]
    compilation = replace(before.compilation, log=log)
    program = ProgramReport.of(compilation, "forward", 0, before.sizes)
    kernels = []
    for kernel, flops in zip(program.kernels, program_flops(as_plain(parts_of(program)))):
        moved = kernel.reads_bytes + kernel.writes_bytes
        kernels.append(replace(kernel, seconds=_seconds(moved, flops)))
    program.kernels = kernels
    report.programs, report.kernels = [program], kernels
    report.peak_bytes, report.arena_bytes = program.peak_bytes, program.arena_bytes
    named = steps([program])
    places: dict[str, int] = {}
    launched = []
    for name in step_names(log.plan):
        known = named[name]
        number = places.get(name, 0)
        places[name] = number + 1
        step = known[number % len(known)]
        launched.append((name, step.name, _seconds(step.bytes, step.flops)))
    in_eager = [(note.name, note.name, _seconds(note.bytes, note.flops)) for note in notes]
    timelines = [
        timeline("eager", spans_of(in_eager), described_by(notes)),
        timeline("Ingot", spans_of(launched), described_by_steps(named)),
    ]
    return document(report.to_dict(), as_plain(timelines), LIMITS)


def _seconds(moved: int, flops: int | None) -> float:
    least = max(moved / LIMITS["bytes_per_second"], (flops or 0) / LIMITS["flops_per_second"])
    return least / REACHED


def spans_of(launched: Sequence[tuple[str, str, float]]) -> list[Span]:
    """Those of a thread that launches, and of a stream that runs behind it."""
    spans, at, free = [], 0.0, 0.0
    for number, (name, kernel, seconds) in enumerate(launched, 1):
        spans.append(Span(name, at, at + LAUNCH, "CPU thread 1"))
        if seconds:
            launch = at + LAUNCH / 2
            spans.append(Span("cudaLaunchKernel", launch, at + LAUNCH, "CPU thread 1", link=number))
            begin = max(free, at + LAUNCH)
            free = begin + seconds
            spans.append(Span(kernel, begin, free, "GPU 0, stream 7", True, number))
        at += LAUNCH
    spans.append(Span(CALL, 0.0, max(at, free), "CPU thread 1"))
    return spans
