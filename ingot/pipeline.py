"""The way through: a captured graph becomes a program, in named steps that are timed and can be looked at one by
one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ingot.capture import Captured
from ingot.codegen.llvm import compile_kernels
from ingot.explain.compilation import Compilation
from ingot.graph import trace
from ingot.loops.lowering import lower
from ingot.options import Options
from ingot.runtime.program import Program
from ingot.schedule import schedule


@contextmanager
def stage(compilation: Compilation, name: str) -> Iterator[None]:
    """Add the seconds spent inside to the stage's, also when it raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        compilation.seconds[name] = compilation.seconds.get(name, 0.0) + time.perf_counter() - start


def compile_graph(captured: Captured, compilation: Compilation, options: Options) -> Program:
    """Compile a captured graph for the CPU, leaving each artefact in `compilation`. Raises Unsupported for what
    cannot be compiled."""
    with stage(compilation, "trace"):
        aten = compilation.aten = trace(captured.graph_module, [i.fake for i in captured.inputs], captured.context)
        compilation.rewrites += aten.rewrites
    with stage(compilation, "lower"):
        loops = compilation.loops = lower(aten, fast_libraries=options.numerics == "fast")
    with stage(compilation, "schedule"):
        plan = compilation.plan = schedule(loops, compilation.decisions.append)
    with stage(compilation, "codegen"):
        compiled = compilation.compiled = compile_kernels(plan.kernels, [symbol for symbol, *_ in loops.symbols])
    with stage(compilation, "load"):
        program = compilation.program = Program(plan, compiled)
    return program
