"""The artefact of every stage as text, headed by the stage's name and time. Graphs and loop IR are
Python that runs (`RUNNING`)."""

from __future__ import annotations

import builtins
import functools
import re
import textwrap
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from ingot.compilation import Compilation
from ingot.explain.programs import BACKWARD, ProgramReport, saved_reports
from ingot.explain.records import StageReport, ValueReport
from ingot.explain.text import code_at, ops_text, plural, size_text
from ingot.explain.text import place_text as place_of
from ingot.loops.expr import ZERO
from ingot.loops.ir import View
from ingot.loops.show import show, text_and_names
from ingot.schedule.kernel import AnyKernel, AttentionBackwardKernel, AttentionKernel
from ingot.schedule.plan import KernelStep, LibraryStep, Place, Plan

Function = Callable[..., Any]


def show_captured(compilation: Compilation) -> str:
    """The graph's Python code, each line followed by the user's place."""
    return captured_code(compilation.captured.graph_module)[0]


def captured_code(module: torch.fx.GraphModule) -> tuple[str, dict[str, Any]]:
    """The graph as a Python function `graph(*inputs)`, each line followed by the user's place; and
    what the text names beside builtins. Tensors of the program's own are attributes of
    `constants`."""
    code = module.graph.python_code("constants")
    text = re.sub(r"\bdef forward\(self(, )?", "def graph(", code.src, count=1)
    return _with_places(text, module), {**code.globals, "constants": module}


def captured_function(code: str, names: dict[str, Any], title: str) -> Function:
    """What `captured_code` gives as a function, which eager runs. It writes the tensors that the
    program writes."""
    scope = dict(names)
    exec(builtins.compile(code, f"<graph of {title}>", "exec"), scope)
    function: Function = scope["graph"]
    return function


def _with_places(code: str, module: torch.fx.GraphModule) -> str:
    places = {}
    for node in module.graph.nodes:
        places[node.name] = node.meta.get("where", "")
    lines = []
    for line in code.strip().splitlines():
        where = places.get(line.strip().partition(" ")[0], "")
        lines.append(f"{line}  # {where}" if where else line)
    return "\n".join(lines)


def _run_captured(compilation: Compilation) -> Function:
    return captured_function(*captured_code(compilation.captured.graph_module), compilation.title)


def show_guards(compilation: Compilation) -> str:
    return "\n".join(compilation.guards)


def show_aten(compilation: Compilation) -> str:
    assert compilation.log.aten is not None
    return compilation.log.aten.code()


def _run_aten(compilation: Compilation) -> Function:
    assert compilation.log.aten is not None
    return compilation.log.aten.function()


def show_joint(compilation: Compilation) -> str:
    """Forward and backward as one graph, before it was cut."""
    cut, whole = compilation.log.partition, compilation.log.whole
    assert cut is not None
    text = cut.joint.aten.code()
    if whole is not None:
        left_out = whole.forward.left_out
        text = f"# {plural(left_out, 'layer')} like the last one with such are left out\n{text}"
    return text


def _run_joint(compilation: Compilation) -> Function:
    cut, whole = compilation.log.partition, compilation.log.whole
    assert cut is not None
    if whole is not None:
        raise ValueError("layers of this joint graph are left out")
    return cut.joint.aten.function()


def show_partition(compilation: Compilation) -> str:
    """What the forward saves for the backward, and what both compute; each with the reason."""
    lines = ["saved by the forward"]
    for value in saved_reports(compilation):
        lines.append(f"  {value_text(value)}")
    backward = compilation.backward
    if backward is not None:
        lines.append("computed again by the backward")
        sizes, cut = compilation.sizes, compilation.log.partition
        for value in ProgramReport.of(backward, BACKWARD, 0, sizes, cut).recomputed:
            lines.append(f"  {value_text(value)}")
    return "\n".join(lines)


def value_text(value: ValueReport) -> str:
    """A value that is saved, or computed again, on one line."""
    times = ""
    if value.count > 1:
        times = f" x{value.count}"
    op = ""
    if value.op:
        op = f" of {ops_text([value.op])}"
    size = size_text(value.total_bytes)
    return f"{value.name}{times}: {value.value}{op}, {size}, {value.why}  # {value.where}".rstrip(
        " #"
    )


def show_loops(compilation: Compilation) -> str:
    assert compilation.log.loops is not None
    return show(compilation.log.loops)


def _run_loops(compilation: Compilation) -> Function:
    from ingot.codegen.loop_text import function  # for reports alone

    loops = compilation.log.loops
    assert loops is not None
    if loops.copies:
        raise ValueError("components of this program are left out, which are like others")
    return function(*text_and_names(loops))


def show_schedule(compilation: Compilation) -> str:
    plan = compilation.log.plan
    assert plan is not None
    lines = [f"arena {plan.arena_bytes} bytes, peak {plan.peak_bytes} bytes"]
    for number, step in enumerate(plan.steps):
        lines.append(f"{number:3d}  {step_text(step)}")
        dead = plan.last_use.get(number)
        if dead:
            lines.append(f"     free {', '.join(dead)}")
    for name, place in plan.places.items():
        lines.append(f"{name}: {place_text(plan, place)}")
    return "\n".join(lines)


def step_text(step: KernelStep | LibraryStep) -> str:
    """One step of a plan on one line."""
    if isinstance(step, KernelStep):
        return launch_text(step)
    node = step.node
    targets = ", ".join(target or "_" for target in node.targets)
    arguments = list(map(argument_text, node.args))
    for k, v in node.kwargs.items():
        arguments.append(f"{k}={argument_text(v)}")
    call = f"{function_name(node.function)}({', '.join(arguments)})"
    return f"{targets} = {call}  # {node.origin.where}"


def launch_text(step: KernelStep) -> str:
    kernel, arguments = step.kernel, list(step.arguments)
    for k, offset in enumerate(step.offsets or ()):
        if offset is not ZERO:
            arguments[k] += f"+{offset}"
    if isinstance(kernel, (AttentionKernel, AttentionBackwardKernel)):
        sizes, causal = ", ".join(map(str, kernel.sizes)), " causal" if kernel.causal else ""
        shape = f"sizes ({sizes}) blocks of {kernel.query_block}{causal}"
    else:
        loops = " ".join(f"{loop}<{loop.extent}" for loop in kernel.loops)
        shape = f"loops [{loops}] stages {len(kernel.stages)}"
    ops = ", ".join(kernel.origin.ops)
    return f"launch {kernel.name}({', '.join(arguments)})  {shape}  # {ops} {kernel.origin.where}"


def function_name(function: Any) -> str:
    """A library function's name, without the default overload's."""
    return getattr(function, "__name__", str(function)).removesuffix(".default")


def argument_text(argument: Any) -> str:
    """An argument of a library call: a view of a whole buffer by the buffer's name, another with
    its geometry."""
    if isinstance(argument, View):
        sizes = ", ".join(map(str, argument.sizes))
        offset = ""
        if argument.offset.constant != 0:
            offset = f"+{argument.offset}"
        return f"{argument.buffer}{offset}[{sizes}]"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(argument_text, argument))}]"
    return str(argument)


def place_text(plan: Plan, place: Place) -> str:
    if place.kind == "arena":
        return f"arena at {place.offset}"
    if place.kind == "small":
        return f"small, arena at {place.offset}"
    if place.kind == "input":
        return f"{place.kind} {place.position}"
    return place.kind


def show_llvm(compilation: Compilation) -> str:
    """The distinct kernels as a module that LLVM reads, or for a GPU as a file of Triton's."""
    code, kernels = compilation.log.code, {}
    for step in compilation.log.kernel_steps:
        if not hasattr(code, "source") or not code.is_written(step.kernel):
            kernels[step.kernel.name] = step.kernel
    if hasattr(code, "source"):
        if not kernels:
            return "# all kernels are written as C++"
        code = code.rest
    text: str = code.module_text(kernels.values())
    return text


def show_cpp(compilation: Compilation) -> str:
    """One C++ file with each distinct kernel, under where it comes from and what its buffers
    are."""
    code, plan = compilation.log.code, compilation.log.plan
    assert plan is not None
    if not hasattr(code, "source"):
        lines = ['# by LLVM; --emit cpp, or options={"emit": "cpp"}, has these kernels as C++:']
        for step in compilation.log.kernel_steps:
            lines.append(f"# {step.kernel.name}  {place_of(step.kernel.origin.where)}")
        return "\n".join(lines)
    labels: dict[AnyKernel, tuple[str, list[str], tuple[str, ...]]] = {}
    for step in compilation.log.kernel_steps:
        kernel = step.kernel
        if kernel in labels:
            continue
        name = re.sub(r"[^A-Za-z0-9]+", "_", compilation.name).strip("_")
        name = f"{name}_kernel{len(labels)}"
        labels[kernel] = name, _kernel_comments(step, plan), step.arguments
    return code.source(labels)  # type: ignore[union-attr]


def _kernel_comments(step: KernelStep, plan: Plan) -> list[str]:
    """What is above a kernel for people: its ops, the user's line, its buffers."""
    origin = step.kernel.origin
    lines = textwrap.wrap(", ".join(origin.ops), 96, subsequent_indent="  ")
    if origin.where:
        lines.append(f"{place_of(origin.where)}: {code_at(origin.where)}"[:96])
    for parameter, name in zip(step.kernel.parameters, step.arguments):
        buffer, uses = plan.graph.buffers[name], []
        for use, holds in (("read", parameter.read), ("written", parameter.written)):
            if holds:
                uses.append(use)
        shape = ", ".join(map(str, buffer.sizes))
        dtype = str(buffer.dtype).removeprefix("torch.")
        place = place_text(plan, plan.places[name])
        lines.append(f"  {name}: {dtype} [{shape}], {' and '.join(uses)}, {place}")
    return lines


def show_assembly(compilation: Compilation) -> str:
    return compilation.log.code.assembly()


STAGES: dict[str, tuple[str, str, Callable[[Compilation], str]]] = {
    # name: (the field that must be there, the stage whose seconds head it, printer)
    "capture": ("captured", "capture", show_captured),
    "guards": ("captured", "capture", show_guards),
    "joint": ("log.partition", "differentiate", show_joint),
    "partition": ("log.partition", "differentiate", show_partition),
    "aten": ("log.aten", "trace", show_aten),
    "loops": ("log.loops", "lower", show_loops),
    "schedule": ("log.plan", "schedule", show_schedule),
    "llvm": ("log.code", "codegen", show_llvm),
    "cpp": ("log.code", "codegen", show_cpp),
    "assembly": ("log.code", "codegen", show_assembly),
}


RUNNING: dict[str, Callable[[Compilation], Function]] = {
    "capture": _run_captured,
    "joint": _run_joint,
    "aten": _run_aten,
    "loops": _run_loops,
}
"""The stages whose text is a Python function `graph(*inputs)`, and what makes it one that runs."""


OF_GRADIENTS = ("joint", "partition")
"""The stages that only what records gradients passes."""

OF_FUNCTIONS = ("capture", "guards", *OF_GRADIENTS)
"""The stages whose texts have what is inside of branches and loops, and of gradients, in them."""


def artefact(compilation: Compilation, name: str) -> str | None:
    """The artefact of stage `name`, None where there is none."""
    needs, _, printer = STAGES[name]
    if attrgetter(needs)(compilation) is None:
        return None
    return printer(compilation)


def why_missing(compilation: Compilation, name: str) -> str:
    """Why a compilation has no artefact of a stage."""
    if compilation.skipped is not None:
        return f"not reached: {compilation.skipped}"
    if compilation.has_graph and name in OF_GRADIENTS:
        return "no gradients are recorded here"
    if compilation.captured is None or compilation.has_graph:
        return "not reached"
    return "no tensor work here"


def stage_report(compilation: Compilation, name: str) -> StageReport:
    """The artefact of stage `name` (a key of `STAGES`), or why there is none; ValueError for an
    unknown name."""
    if name not in STAGES:
        raise ValueError(f"no stage is called {name!r}; the stages are {', '.join(STAGES)}")
    compilation.log.complete()
    seconds = compilation.log.seconds.get(STAGES[name][1])
    text, reason, make = artefact(compilation, name), "", None
    if text is None:
        reason = why_missing(compilation, name)
    elif name in RUNNING:
        make = functools.partial(RUNNING[name], compilation)
    return StageReport(name, compilation.title, seconds, text, reason, make)


def stage_text(compilation: Compilation, name: str) -> str:
    """The artefact of stage `name` (a key of `STAGES`) under a heading; ValueError for an unknown
    name."""
    report = stage_report(compilation, name)
    heading = f"# == {name} of {report.program}"
    if report.seconds is not None:
        heading += f" ({report.seconds * 1e3:.1f} ms)"
    text = report.text
    if text is None:
        text = f"# {report.reason}"
    return f"{heading}\n{text}"
