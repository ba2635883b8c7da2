"""The way through: a captured graph becomes a program, in named steps that are timed and can be
looked at one by one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import Captured
from ingot.codegen.llvm import compile_kernels, prepack
from ingot.compilation import Compilation, stage
from ingot.errors import unsupported
from ingot.gradients import wants_gradients, with_history
from ingot.graph import trace_alike
from ingot.graph.differentiation import new_leaves
from ingot.graph.output_windows import output_window, size_places
from ingot.graph.passes.pipeline import LIBRARY_PASSES, run_passes
from ingot.graph.symbols import to_expr
from ingot.loops import ops
from ingot.loops.expr import Symbol
from ingot.loops.lowering import lower
from ingot.loops.sides import device_of
from ingot.loops.target import CPU, GPU, Target
from ingot.loops.training_contract import Slot
from ingot.loops.verify import verify
from ingot.native import _native
from ingot.options import Options
from ingot.precision import float32_precisions
from ingot.runtime.cuda_capture import machine_of
from ingot.runtime.cuda_graphs import Replayed, why_not
from ingot.runtime.program import Program
from ingot.runtime.traces import unaligned_inputs
from ingot.runtime.training import WithLeaves
from ingot.runtime.windows import WithWindows, windows_by_sizes
from ingot.schedule import schedule
from ingot.schedule.plan import KernelStep, Plan

if TYPE_CHECKING:
    from ingot.runtime.tuning import Tuner

DEVICES = ("cpu", "cuda")


def _target(device: torch.device) -> tuple[Target, Callable[[str, torch.dtype], bool]]:
    """What is asked of a device, and of which scalar ops there is code for it."""
    if device.type == "cpu":
        return CPU, ops.supported
    from ingot.codegen import triton  # what is for GPUs is imported for them

    return GPU, triton.supported


def _device(graph: torch.fx.Graph) -> torch.device:
    """The device of all tensors of a graph, or the GPU where some are on the CPU. Raises
    Unsupported for other two devices, and for one that there is no code for."""
    device, where = device_of(graph)
    if device.type not in DEVICES or (
        device.type == "cuda" and os.environ.get("INGOT_CUDA") == "0"
    ):
        raise unsupported("device", f"a tensor on the device {str(device)!r}", where)
    if device.type == "cuda" and torch.version.hip:
        raise unsupported("device", "a tensor on an AMD GPU", where)
    return device


def compile_graph(
    captured: Captured,
    compilation: Compilation,
    options: Options,
    frozen: Mapping[int, torch.Tensor],
) -> Callable[..., Sequence[Any]]:
    """Compile a captured graph, leaving each artefact in `compilation`: what takes the graph's
    inputs and returns its outputs. The inputs at the positions in `frozen` always have these
    values, which is made use of where no gradients are wanted. Raises Unsupported for what cannot
    be compiled."""
    _device(captured.graph_module.graph)
    graph, fakes = captured.graph_module, [i.fake for i in captured.inputs]
    has_history = wants_gradients(captured)
    if has_history:
        frugal = functools.partial(_program, options=options, frugal=True)
        run = with_history(graph, fakes, captured.context, compilation, frugal)
    else:
        with stage(compilation, "trace"):
            aten = compilation.aten = trace_alike(graph, fakes, captured.context, frozen)
        run = _program(compilation, options)
        detached = []
        for k, spec in enumerate(aten.outputs):
            base = spec.position
            if base is not None and fakes[base].requires_grad and not spec.tracked:
                detached.append(output_window(k, Slot("input", base), spec).converted(to_expr))
        if detached:
            places = size_places(detached, aten.symbols, aten.outputs)
            run = WithWindows(run, windows_by_sizes(detached, places), len(aten.outputs))
    leaves = new_leaves(fakes)
    return WithLeaves(run, leaves) if leaves else run


def compile_aten(compilation: Compilation) -> _native.Program | Replayed:
    """The program of the ATen graph in `compilation`, which keeps no memory between calls."""
    return _program(compilation, Options(), frugal=True)


def _program(
    compilation: Compilation, options: Options, frugal: bool = False
) -> _native.Program | Replayed:
    """The program of the ATen graph in `compilation`; a frugal one keeps no memory between
    calls."""
    aten = compilation.aten
    device = _device(aten.graph)
    # which knows more that may follow a product in its kernel
    if device.type == "cuda" and not options.tunes:
        run_passes(aten, LIBRARY_PASSES)
    compilation.rewrites += aten.rewrites
    target, supported = _target(device)
    machine = machine_of(device) if options.replays else None
    if machine is not None:
        target = replace(target, shares_launches=False)  # a table of buffers is made for each call
    # a GPU's allocator keeps memory, for each stream
    frugal = frugal or machine is not None or device.type != "cpu"
    with stage(compilation, "lower"):
        loops = compilation.loops = lower(aten, supported, options.numerics == "fast", target)
        verify(loops)  # 1% of the time, and what is wrong does not reach anybody's memory
    with stage(compilation, "schedule"):
        tuner = _tuner(device) if options.tunes else None
        plan = compilation.plan = schedule(
            loops, compilation.decisions.append, frugal, target, tuner
        )
    if tuner is not None:
        compilation.tuned += tuner.notes
    if options.freeze and device.type == "cpu":
        with stage(compilation, "prepack"):
            prepack(plan)
    with stage(compilation, "codegen"):
        compiled = compilation.compiled = _machine_code(plan, device, compilation.sizes)
    with stage(compilation, "load"):
        program = compilation.program = Program(plan, compiled, device)
    if not options.replays:
        return program.native
    apart = plan.apart()
    parts = apart and (Program(apart[0], compiled, device), Program(apart[1], compiled, device))
    why = "there are none on a CPU" if machine is None else why_not(parts[0] if parts else program)
    if machine is None or why:
        compilation.replayed = why
        return program.native
    made = compilation.replayed = Replayed(program, machine, parts)
    return made


def _tuner(device: torch.device) -> Tuner | None:
    """What chooses among ways to compute a product, on a GPU."""
    if device.type == "cpu":
        return None
    from ingot.runtime.measuring import Measurement, chip_of
    from ingot.runtime.tuning import Tuner

    full = float32_precisions()[0] != "tf32"
    chip = chip_of(device)
    return Tuner(chip, Measurement(device, chip), ("ieee",) if full else ("ieee", "tf32"))


def _machine_code(plan: Plan, device: torch.device, sizes: Mapping[Symbol, int]) -> Any:
    """The code of a plan's kernels; `sizes` are those of the call at hand."""
    if device.type == "cpu":
        return compile_kernels(plan.kernels, [symbol for symbol, *_ in plan.graph.symbols])
    from ingot.codegen import triton
    from ingot.codegen.mixed import MixedKernels

    major, minor = torch.cuda.get_device_capability(device)
    steps = [step for step in plan.steps if isinstance(step, KernelStep)]
    launched = [step for step in steps if not step.on_host]
    gpu = triton.Gpu("cuda", 10 * major + minor)
    compiled = triton.compile_kernels(launched, gpu, unaligned_inputs(plan), sizes)
    if len(launched) == len(steps):
        return compiled
    host = compile_kernels(
        [s.kernel for s in steps if s.on_host], [symbol for symbol, *_ in plan.graph.symbols]
    )
    return MixedKernels(compiled, host, steps)
