"""The way through: a captured graph becomes a program, in named steps that are timed and can be looked at one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingot.capture import Captured
from ingot.codegen.llvm import CompiledKernels, compile_kernels
from ingot.graph import AtenGraph, trace
from ingot.loops.ir import LoopGraph
from ingot.loops.lowering import lower
from ingot.runtime.program import Program
from ingot.schedule import schedule
from ingot.schedule.plan import KernelStep, Plan


@dataclass
class Timeline:
    """Seconds spent in each stage, in the order of their first entry, and the decisions they noted."""

    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class Lowered:
    """Every artefact on the way from a captured graph to the program that runs it."""

    aten: AtenGraph
    loops: LoopGraph
    plan: Plan
    code: CompiledKernels
    program: Program


def compile_graph(captured: Captured, timeline: Timeline) -> Lowered:
    """Compile a captured graph for the CPU. Raises Unsupported for what cannot be compiled."""
    with timeline.stage("trace"):
        aten = trace(captured.graph_module, [i.fake for i in captured.inputs], captured.context)
    with timeline.stage("lower"):
        loops = lower(aten)
    with timeline.stage("schedule"):
        plan = schedule(loops, timeline.note)
    with timeline.stage("codegen"):
        code = compile_kernels(
            [s.kernel for s in plan.steps if isinstance(s, KernelStep)], [symbol for symbol, *_ in loops.symbols]
        )
    with timeline.stage("load"):
        program = Program(plan, code)
    return Lowered(aten, loops, plan, code, program)

