"""Records a call for the page's timeline: a profiler says when what ran, on CPU threads and GPU
streams."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from ingot.explain import measure
from ingot.explain.page.document import document, page_of
from ingot.explain.page.flops import op_flops, program_flops, short_op
from ingot.explain.page.timeline import (
    CALL,
    Note,
    Span,
    Step,
    Timeline,
    described_by,
    described_by_steps,
    timeline,
)
from ingot.explain.programs import BACKWARD, FORWARD, INSIDE, ProgramReport
from ingot.explain.records import as_plain
from ingot.origins import is_trusted
from ingot.places import Origin, module_at
from ingot.runtime.step_names import step_names
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.torch_private import TorchDispatchMode

if TYPE_CHECKING:
    from ingot.explain.report import Report

__all__ = ["document_of", "page_of", "recorded"]

ROUNDS = 2
"""How many calls are recorded; the shorter one is shown."""

TIMED = 3
"""How many calls the kernels are timed in, if they have not been."""


def document_of(
    report: Report,
    call: Callable[[], object] | None = None,
    eager: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """The document of a report's page; with the timelines of calls, if these are given."""
    if call is None:
        return document(report.to_dict())
    call()
    if all(kernel.seconds is None for kernel in report.kernels):
        report.measure(call, TIMED)
    timelines = recorded(report.programs, call, eager)
    device = torch.device("cpu")
    for program in report.programs:
        if program.compilation.log.program is not None:
            device = program.compilation.log.program.device
    return document(report.to_dict(), as_plain(timelines), limits_of(device))


def recorded(
    programs: Sequence[ProgramReport],
    call: Callable[[], object],
    eager: Callable[[], object] | None = None,
) -> list[Timeline]:
    """The timelines of a call in eager, if that is given, and of the compiled one."""
    timelines = []
    if eager is not None:
        notes = dispatched(eager)
        timelines.append(timeline("eager", recorded_spans(eager), described_by(notes)))
    timelines.append(timeline("Ingot", recorded_spans(call), described_by_steps(steps(programs))))
    return timelines


def recorded_spans(call: Callable[[], object]) -> list[Span]:
    """What a profiler sees of a call that has run before; the span of all of it is named `CALL`."""
    # the profiler announces itself on stderr otherwise
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        for _ in range(ROUNDS):
            with record_function(CALL):
                call()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
    events: Any = profiled.profiler
    found = events.kineto_results.events()
    begin = min(event.start_ns() for event in found)
    spans = [_span(event, begin) for event in found]
    calls = [span for span in spans if span.name == CALL and not span.on_gpu]
    chosen = min(calls, key=lambda span: span.end - span.start)
    kept = []
    for span in spans:
        if chosen.start <= span.start and span.end <= chosen.end and span.end > span.start:
            kept.append(span)
    return kept


def _span(event: Any, begin: int) -> Span:
    on_gpu = event.device_type() == torch.autograd.DeviceType.CUDA
    lane = f"CPU thread {event.start_thread_id()}"
    if on_gpu:
        lane = f"GPU {event.device_index()}, stream {event.device_resource_id()}"
    start = event.start_ns() - begin
    return Span(
        name=event.name(),
        start=start * 1e-9,
        end=(start + event.duration_ns()) * 1e-9,  # ends that are equal stay so
        lane=lane,
        on_gpu=on_gpu,
        link=event.correlation_id(),
        sequence=event.sequence_nr(),
    )


# -- eager -----------------------------------------------------------------------------------------


def dispatched(call: Callable[[], object]) -> list[Note]:
    """The ops that a call dispatches, in order, each with the user's line and module."""
    notes: list[Note] = []
    with _Noting(notes):
        call()
    return notes


def module_name(path: str) -> str:
    """ "blocks.0.norm" of `named_modules` as the program would write it: "self.blocks[0].norm"."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"self.{path}".rstrip("."))


class _Noting(TorchDispatchMode):
    def __init__(self, notes: list[Note]) -> None:
        super().__init__()
        self._notes = notes
        self._names = cache(_names_below)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        where, modules = _place(sys._getframe(1))
        module = ""
        if modules:  # the outermost one gives the others their names
            module = self._names(modules[-1]).get(modules[0], type(modules[0]).__name__)
        inputs, results = measure.tensors((args, kwargs)), measure.tensors(result)
        shapes = [tuple(tensor.shape) for tensor in inputs]
        shape = tuple(results[0].shape) if results else None
        op = short_op(str(func))
        moved = _moved(inputs, results, op in GATHERS)
        flops = op_flops(op, shape, shapes)
        self._notes.append(Note(f"{func.namespace}::{op}", where, module, moved, flops))
        return result


GATHERS = frozenset(("embedding", "gather", "index", "index_select"))


def _moved(inputs: Sequence[Tensor], results: Sequence[Tensor], gathers: bool) -> int:
    """The bytes that an op reads and writes; a view of an input moves nothing."""
    storages = set(map(_storage, inputs))
    own = [tensor for tensor in results if _storage(tensor) not in storages]
    if results and not own:
        return 0
    if gathers:
        inputs = own  # of a table, the rows that are asked for
    return sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *own))


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors have none
        return id(tensor)


def _names_below(root: torch.nn.Module) -> dict[torch.nn.Module, str]:
    names = {}
    for path, module in root.named_modules():
        names[module] = module_name(path)
    return names


def _place(frame: FrameType | None) -> tuple[str, list[torch.nn.Module]]:
    """The user's line that a frame is reached from, and the modules whose `forward` runs, the
    innermost first."""
    where, modules = "", []
    while frame is not None:
        code = frame.f_code
        if not where and _is_users(frame):
            where = f"{code.co_filename}:{frame.f_lineno}"
        if code.co_name == "forward" and code.co_argcount:
            owner = frame.f_locals.get(code.co_varnames[0])
            if isinstance(owner, torch.nn.Module):
                modules.append(owner)
        frame = frame.f_back
    return where, modules


def _is_users(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    of_ingot = str(name).partition(".")[0] == "ingot"
    return not (of_ingot or is_trusted(name) or frame.f_code.co_filename.startswith("<"))


# -- Ingot -----------------------------------------------------------------------------------------


def steps(programs: Sequence[ProgramReport]) -> dict[str, list[Step]]:
    """The steps of programs by what profilers call them, in order."""
    found: dict[str, list[Step]] = {}
    backward, known = False, set[str]()
    for number, program in enumerate(programs):
        plan = program.compilation.log.plan
        if program.kind != INSIDE:
            backward = program.kind == BACKWARD
        if program.kind == FORWARD:
            known = {node.module for node in program.calls}
        if plan is None:
            continue
        flops = program_flops(as_plain(parts_of(program)))
        modules = step_modules(plan, known)
        for position, name in enumerate(step_names(plan)):
            kernel = program.kernels[position]
            step = Step(
                program=number,
                kernel=position,
                backward=backward,
                module=modules[position],
                where=kernel.where,
                bytes=kernel.reads_bytes + kernel.writes_bytes,
                flops=flops[position],
                name=kernel.name,
            )
            found.setdefault(name, []).append(step)
    return found


def parts_of(program: ProgramReport) -> dict[str, Any]:
    return {name: getattr(program, name) for name in ("kernels", "nodes", "buffers")}


def step_modules(plan: Plan, known: Container[str]) -> list[str]:
    """The module of each step of a plan. `known` are those that the program has.

    Of layers that are alike, the plan was made of the first few and the last: those between have
    the steps of one of them, once for each.
    """
    origins = list(map(_origin, plan.steps))
    paths = [module_at(origin.where) for origin in origins]
    layers = plan.graph.layers
    if layers is None:
        return paths
    counts, seen = Counter(map(id, origins)), Counter[int]()
    repeated = False
    for position, origin in enumerate(origins):
        count = seen[id(origin)]
        seen[id(origin)] += 1
        repeated = repeated or counts[id(origin)] > 1
        later = count
        if counts[id(origin)] == 1:
            later = layers.left_out if repeated else 0
        if plan.graph.is_backward:  # which goes from the last layer to the first
            later = layers.left_out - later
        paths[position] = layer_path(paths[position], later, known)
    return paths


def _origin(step: KernelStep | LibraryStep) -> Origin:
    return step.kernel.origin if isinstance(step, KernelStep) else step.node.origin


def layer_path(path: str, later: int, known: Container[str]) -> str:
    """The path of the same module in a layer that comes later by so many; with "[*]" in it where
    there is none."""
    for match in re.finditer(r"\[(\d+)\]", path):
        renamed = f"{path[: match.start()]}[{int(match[1]) + later}]{path[match.end() :]}"
        if renamed in known:
            return renamed
    return re.sub(r"\[\d+\]", "[*]", path)


# -- the machine -----------------------------------------------------------------------------------


def limits_of(device: torch.device) -> dict[str, Any]:
    """What a device does at most, as measured now: bytes that a copy moves in a second, and
    operations of a product of float32 matrices."""
    gpu = device.type == "cuda"
    megabytes, size = (1024, 4096) if gpu else (64, 1024)
    source = torch.ones(megabytes << 18, device=device)
    target = torch.empty_like(source)
    matrix = torch.ones(size, size, device=device)
    moved = 2 * source.numel() * source.element_size()
    copy = _best(lambda: target.copy_(source), device)
    product = _best(lambda: matrix @ matrix, device)
    name = torch.cuda.get_device_name(device) if gpu else "CPU"
    return {
        "device": name,
        "bytes_per_second": moved / copy,
        "flops_per_second": 2 * size**3 / product,
    }


def _best(call: Callable[[], object], device: torch.device) -> float:
    seconds = []
    with torch.no_grad():
        for _ in range(5):
            measure.synchronize(device)
            start = time.perf_counter()
            call()
            measure.synchronize(device)
            seconds.append(time.perf_counter() - start)
    return min(seconds)
