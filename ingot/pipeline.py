"""The way through: a captured graph becomes a program, in named steps that are timed and can be looked at one by
one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ingot.capture import Captured
from ingot.codegen.llvm import compile_kernels
from ingot.errors import Unsupported
from ingot.explain.compilation import Compilation, stage
from ingot.graph import trace
from ingot.loops.lowering import lower
from ingot.options import Options
from ingot.runtime.program import Program
from ingot.schedule import schedule


def _refuse_other_devices(captured: Captured) -> None:
    """Raises Unsupported for tensors that are not in the CPU's memory, which is all that compiled code can address."""
    for node in captured.graph_module.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
                raise Unsupported(f"a tensor on the device {str(tensor.device)!r}", node.meta["where"], skip=True)


def compile_graph(
    captured: Captured, compilation: Compilation, options: Options, frozen: Mapping[int, torch.Tensor]
) -> Program:
    """Compile a captured graph for the CPU, leaving each artefact in `compilation`. The inputs at the positions in
    `frozen` always have these values. Raises Unsupported for what cannot be compiled."""
    _refuse_other_devices(captured)
    with stage(compilation, "trace"):
        fakes = [i.fake for i in captured.inputs]
        aten = compilation.aten = trace(captured.graph_module, fakes, captured.context, frozen)
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
