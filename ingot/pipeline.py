"""The way through: a captured graph becomes a program, in named steps that are timed and can be looked at one by
one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ingot.capture import Captured
from ingot.codegen.llvm import compile_kernels
from ingot.collection import paused_collection
from ingot.errors import Unsupported
from ingot.explain.compilation import Compilation, stage
from ingot.graph import OutputSpec, trace
from ingot.graph.fakes import has_history, requires_grad
from ingot.graph.joint import trace_joint
from ingot.graph.partition import Partition, partition
from ingot.loops.lowering import lower
from ingot.options import Options
from ingot.runtime.program import Program
from ingot.runtime.training import Backward, Original, Tangent, TrainingProgram, Window, WithWindows
from ingot.schedule import schedule
from ingot.serial import compiling


def _refuse_other_devices(captured: Captured) -> None:
    """Raises Unsupported for tensors that are not in the CPU's memory, which is all that compiled code can address."""
    for node in captured.graph_module.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
                raise Unsupported(f"a tensor on the device {str(tensor.device)!r}", node.meta["where"], skip=True)


def compile_graph(
    captured: Captured, compilation: Compilation, options: Options, frozen: Mapping[int, torch.Tensor]
) -> Callable[..., Sequence[Any]]:
    """Compile a captured graph for the CPU, leaving each artefact in `compilation`: what takes the graph's inputs and
    returns its outputs. The inputs at the positions in `frozen` always have these values, which is made use of where no
    gradients are wanted. Raises Unsupported for what cannot be compiled."""
    _refuse_other_devices(captured)
    fakes = [i.fake for i in captured.inputs]
    if not _wants_gradients(captured):
        with stage(compilation, "trace"):
            aten = compilation.aten = trace(captured.graph_module, fakes, captured.context, frozen)
        run: Callable[..., Sequence[Any]] = _program(compilation, options).native
        detached = [
            _window(k, ("input", spec.position), spec)
            for k, spec in enumerate(aten.outputs)
            if spec.position is not None and fakes[spec.position].requires_grad and not spec.tracked
        ]
        return WithWindows(run, detached, len(aten.outputs)) if detached else run
    with stage(compilation, "differentiate"):
        joint = trace_joint(captured.graph_module, fakes, captured.context)
        parts = partition(joint)
    compilation.aten = parts.forward
    run = _program(compilation, options, frugal=True).native
    if joint.differentiable:
        run = _training_program(run, parts, _original(captured, parts), compilation, options)
    windows = [_window(w.output, w.base, w.spec) for w in joint.windows]
    return WithWindows(run, windows, captured.residual.output_count) if windows else run


def _wants_gradients(captured: Captured) -> bool:
    """Whether eager would give one of the outputs a history. Raises Unsupported where that is not understood."""
    nodes = captured.graph_module.graph.nodes
    outputs = next(node for node in nodes if node.op == "output").all_input_nodes
    tracked = [n for n in outputs if isinstance(n.meta["val"], torch.Tensor) and requires_grad(n.meta["val"])]
    if not tracked:
        return False
    where = tracked[0].meta.get("where", "")
    if not torch.is_grad_enabled():
        if not any(has_history(n.meta["val"]) for n in tracked):  # windows on inputs that require a gradient
            return False
        raise Unsupported("gradients are wanted by a part of a function that is called without", where, skip=True)
    if captured.context.shapes.hints:
        raise Unsupported("gradients are wanted, and sizes are symbolic", where, skip=True)
    return True


def _program(compilation: Compilation, options: Options, frugal: bool = False) -> Program:
    """The program of the ATen graph in `compilation`; a frugal one keeps no memory between calls."""
    aten = compilation.aten
    compilation.rewrites += aten.rewrites
    with stage(compilation, "lower"):
        loops = compilation.loops = lower(aten, fast_libraries=options.numerics == "fast")
    with stage(compilation, "schedule"):
        plan = compilation.plan = schedule(loops, compilation.decisions.append, frugal)
    with stage(compilation, "codegen"):
        compiled = compilation.compiled = compile_kernels(plan.kernels, [symbol for symbol, *_ in loops.symbols])
    with stage(compilation, "load"):
        program = compilation.program = Program(plan, compiled)
    return program


def _training_program(
    forward: Callable[..., Sequence[Any]],
    parts: Partition,
    original: Original,
    compilation: Compilation,
    options: Options,
) -> TrainingProgram:
    """The forward's program, and the backward's, which is compiled when the first gradient comes in."""
    joint = parts.joint
    name = f"{compilation.name}, backward"
    backward = compilation.backward = Compilation(name, compilation.where, aten=parts.backward)

    def compile_backward() -> Backward:
        with compiling(), paused_collection():
            try:
                return _program(backward, options, frugal=True).native.consume
            except Exception as problem:  # the forward has run: eager's operations, one by one
                reason = problem if isinstance(problem, Unsupported) else Unsupported(f"internal error: {problem!r}")
                backward.skipped = reason
                function = parts.backward.function()
                return lambda inputs: function(*inputs)

    return TrainingProgram(
        forward,
        compile_backward,
        original,
        inputs=joint.primals,
        outputs=joint.outputs,
        tangents=[_tangent(k, node) for k, node in zip(joint.differentiable, joint.tangents)],
        wanted=joint.wanted,
        saved=[(s.kind, s.position) for s in parts.saved],
    )


def _original(captured: Captured, parts: Partition) -> Original:
    joint = parts.joint
    shown = {w.base[1]: w.output for w in joint.windows if w.base[0] == "output"}  # an output that shows each base
    heads = [(shown.get(k, k), k in shown) for k in joint.differentiable]
    written = [position for position, _ in joint.aten.mutations]
    return Original(captured.graph_module, heads, written, parts.draws)


def _tangent(output: int, node: torch.fx.Node) -> Tangent:
    value = node.meta["val"]
    return Tangent(output, tuple(value.shape), value.stride(), value.dtype, value.device)


def _window(output: int, base: tuple[str, int], spec: OutputSpec) -> Window:
    assert spec.dtype is not None
    return Window(output, base, spec.sizes, spec.strides, spec.offset, spec.dtype, spec.tracked)
