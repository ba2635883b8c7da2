"""`compiled_backward`: backward passes that are compiled as one graph, over all graphs of a
forward.

Heads and tangents go in as to autograd's engine, and the same gradients come out. Nothing has been
done yet where a backward is left to the engine.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from ingot import events
from ingot.backward import functions
from ingot.backward.hooks import Hooks
from ingot.backward.sizes import CompiledGraph, Conditions, before
from ingot.backward.structure import IDENTITY, PROGRAM, Geometry, Structure, read, storage_of
from ingot.backward.tracing import TracedGradients, trace_backward
from ingot.capture.facts import WATCHED, operations_are_watched, read_global_state
from ingot.collection import paused_collection
from ingot.compilation import Compilation
from ingot.errors import Unsupported, unsupported
from ingot.explain.report import Report
from ingot.graph.ambient import undisturbed
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.options import Options, is_switched_off
from ingot.reasons import BREAK, SKIP
from ingot.rules import hand_over
from ingot.serial import serial, whole
from ingot.stance import COMPILING, current_stance
from ingot.torch_private import ALL, BACKWARDS, GRADIENTS, engine_run_backward, set_engine, why_off

log = logging.getLogger("ingot")

MAX_PROGRAMS = 64
"""How many different ones are compiled; others run in eager."""


_OFF = why_off(ALL, GRADIENTS, BACKWARDS)
"""Why all backwards are eager's: torch lacks a name that compiled ones need."""


class compiled_backward:  # noqa: N801 - it is called like a function
    """`with ingot.compiled_backward():` compiles each `.backward()` and `torch.autograd.grad` of
    this thread as one graph. The forward may have been several graphs, with operations of eager
    between them.

        What it adds to or sets in `.grad`, what hooks on tensors are given and what becomes of the
    graph is as in eager. A graph that looks the same takes the same program. A backward that is not
    understood is eager's, and the report says why.
    """

    def __enter__(self) -> compiled_backward:
        _thread.depth = getattr(_thread, "depth", 0) + 1
        with _installing:
            _users[0] += 1
            if is_switched_off():
                pass
            elif _OFF is None:
                set_engine(_run_backward)
            else:
                _report(_OFF)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _thread.depth -= 1
        with _installing:
            _users[0] -= 1
            if not _users[0] and _OFF is None:
                set_engine(engine_run_backward)

    @staticmethod
    def report() -> Report:
        """Of all backward passes that were compiled this way, or run in eager instead: each graph,
        and each reason once."""
        return Report.from_compilations(_compilations)


_thread = threading.local()
_installing = threading.Lock()
_users = [0]


@dataclass
class Entry:
    """One compiled backward."""

    traced: TracedGradients
    program: Any
    hooks: Hooks
    conditions: Conditions | None

    def holds(
        self, geometry: Geometry, hooks: Sequence[tuple[Any, ...]], structure: Structure
    ) -> bool:
        """Whether what it relied on of its sizes, hooks and functions holds of others."""
        if self.conditions is not None and not self.conditions.hold(geometry):
            return False
        for position, zeros in self.traced.materialized.items():
            if functions.materialized(structure.steps[position].node) != zeros:
                return False
        return not any(condition.fails(hooks) for condition in self.hooks.conditions)


class Recorded:
    """What reports ask of a captured graph, of one that was recorded."""

    guards = ()

    def __init__(self, graph: AtenGraph) -> None:
        self.graph_module = graph
        self.ops = sum(node.op == "call_function" for node in graph.graph.nodes)
        self.context = SimpleNamespace(shapes=graph.shapes)


_entries: dict[tuple[Any, ...], list[Entry | Unsupported]] = {}
_last_graphs: dict[tuple[Any, ...], CompiledGraph] = {}
"""By what graphs have in common that are alike but for sizes, and by modes: the last that was
compiled."""
_count = [0]
_compilations: list[Compilation] = []
_reasons: set[str] = set()


@serial
def reset() -> None:
    """Forget all compiled backward passes."""
    _entries.clear()
    _last_graphs.clear()
    _count[0] = 0
    _compilations.clear()
    _reasons.clear()


def _run_backward(
    heads: Sequence[Any],
    tangents: Sequence[Any],
    keep_graph: bool,
    create_graph: bool,
    targets: Sequence[Any] = (),
    allow_unreachable: bool = False,
    accumulate_grad: bool = False,
) -> tuple[Any, ...]:
    """In place of what torch.autograd calls to run its engine."""
    rest = (keep_graph, create_graph, targets, allow_unreachable)
    if not getattr(_thread, "depth", 0) or any(isinstance(t, FakeTensor) for t in heads):
        return engine_run_backward(heads, tangents, *rest, accumulate_grad=accumulate_grad)
    try:
        structure, entry = _prepared(heads, tangents, create_graph, targets, accumulate_grad)
        present = entry.traced.present
        if not allow_unreachable and not all(present):
            raise unsupported("backward-call", "a gradient of what is not in the graph")
        arguments = _arguments(structure, tangents, entry)
    except Unsupported as reason:
        _report(reason)
    except RuntimeError as error:  # of autograd, which its engine raises if it comes to that
        _report(unsupported("backward-refused", f"autograd raises {str(error).splitlines()[0]}"))
    except Exception as bug:  # nothing has been done yet
        log.error(_IN_EAGER, exc_info=bug)
        _report(unsupported("internal-error", _internal_error(bug)))
    else:
        return _run(structure, entry, heads, arguments, keep_graph, targets)
    return engine_run_backward(heads, tangents, *rest, accumulate_grad=accumulate_grad)


def _prepared(
    heads: Sequence[Any],
    tangents: Sequence[Any],
    create_graph: bool,
    targets: Sequence[Any],
    accumulates: bool,
) -> tuple[Structure, Entry]:
    """The graph, and what was compiled for its like. Raises Unsupported where it is to run in
    eager."""
    if create_graph:
        raise unsupported("backward-call", "gradients are to be differentiated (create_graph=True)")
    _refuse_modes()
    _refuse_tensors(heads, tangents, targets if accumulates else ())
    structure = read(heads, targets, accumulates)
    modes, geometry = read_global_state()._replace(grad_mode=False), structure.geometry(tangents)
    key, hooks = (structure.key(tangents), modes), structure.hooks()
    entry = _served(key, geometry, hooks, structure)
    if entry is None:
        if _count[0] >= MAX_PROGRAMS:
            raise unsupported(
                "backward-call", f"more than {MAX_PROGRAMS} different backward passes"
            )
        entry = _compile_unless_served(key, structure, tangents, geometry, modes)
    if isinstance(entry, Unsupported):
        raise entry
    return structure, entry


def _refuse_modes() -> None:
    """Raises Unsupported for modes of the thread that a compiled backward would not heed."""
    if operations_are_watched():
        raise unsupported("watched", WATCHED)
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise unsupported("backward-call", "a backward within autocast")
    if current_stance() not in COMPILING:
        raise unsupported("backward-call", f"the stance {current_stance()!r}")


def _refuse_tensors(heads: Sequence[Any], tangents: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Raises Unsupported for tensors that autograd may refuse, or treat in a way of its own."""
    if not all(type(t) is torch.Tensor and not t.requires_grad for t in tangents):
        raise unsupported(
            "backward-call", "a gradient to begin with that is none, or has a history"
        )
    if not all(isinstance(t, torch.Tensor) and t.requires_grad for t in heads):
        raise unsupported("backward-call", "a tensor without a history")
    if not all(isinstance(t, torch.Tensor) and t.is_leaf for t in leaves):
        raise unsupported("backward-call", "gradients to be added up in tensors that are no leaves")


@serial
def _compile_unless_served(
    key: tuple[Any, ...],
    structure: Structure,
    tangents: Sequence[torch.Tensor],
    geometry: Geometry,
    modes: Any,
) -> Entry | Unsupported:
    with undisturbed(), paused_collection():
        entry = _served(key, geometry, structure.hooks(), structure)
        if entry is None:
            with events.Span(events.BACKWARD, "backward", _place()):
                entry = _compile(structure, tangents, geometry, modes)
            is_dynamic = isinstance(entry, Entry) and entry.conditions is not None
            _entries.setdefault((*key, None if is_dynamic else geometry), []).append(entry)
            _count[0] += 1
        return entry


def _served(
    key: tuple[Any, ...], geometry: Geometry, hooks: Sequence[tuple[Any, ...]], structure: Structure
) -> Entry | Unsupported | None:
    """The entry for such a graph with such hooks: for its sizes, or any."""
    with torch.no_grad():  # in which hooks were captured
        for sizes in (geometry, None):
            for entry in _entries.get((*key, sizes), ()):
                if isinstance(entry, Unsupported) or entry.holds(geometry, hooks, structure):
                    return entry
    return None


def _compile(
    structure: Structure, tangents: Sequence[torch.Tensor], geometry: Geometry, modes: Any
) -> Entry | Unsupported:
    """With symbols for sizes that differ from those of a graph like this one before, where that can
    be done."""
    family = (structure.family(), modes)
    previous, _last_graphs[family] = _last_graphs.get(family), CompiledGraph.of(structure, geometry)
    why_static = ""
    try:
        sizes_before = before(structure, geometry, previous)
        if sizes_before is not None:
            return _compile_for(structure, tangents, geometry, sizes_before)
    except Unsupported as reason:
        why_static = f"sizes that vary are compiled for: {reason.reason}"
    except Exception as bug:
        text = "internal error, sizes that vary are compiled for; please report this"
        log.error(text, exc_info=bug)
        why_static = f"sizes that vary are compiled for: {_internal_error(bug)}"
    try:
        return _compile_for(structure, tangents, geometry, None, why_static)
    except Unsupported as reason:
        return Unsupported(replace(reason.why, function="", action=BREAK))
    except Exception as bug:
        log.error(_IN_EAGER, exc_info=bug)
        return unsupported("internal-error", _internal_error(bug))


_IN_EAGER = "internal error, the backward runs in eager; please report this"


def _internal_error(bug: Exception) -> str:
    return f"internal error: {type(bug).__name__}: {bug}"


def _compile_for(
    structure: Structure,
    tangents: Sequence[torch.Tensor],
    geometry: Geometry,
    sizes_before: Sequence[tuple[int, ...]] | None,
    why_static: str = "",
) -> Entry:
    """With symbols for the sizes that are not what they were before, if that is known; else
    `why_static` is the reason for there being none."""
    from ingot.pipeline import build

    fixed_sizes = []
    if why_static:
        fixed_sizes = [why_static]
    compilation = Compilation("backward", _place(), _recompiled(), fixed_sizes=fixed_sizes)
    hooks = Hooks(structure.tables(), structure.functions())
    hand_over()
    with compilation.log.stage("trace"):
        backward = trace_backward(structure, tangents, hooks, geometry, sizes_before)
    compilation.log.aten = backward.graph
    compilation.captured = Recorded(backward.graph)
    hints = backward.graph.shapes.hints
    built = build(backward.graph, compilation.log, Options(), hints, frugal=True)
    _compilations.append(compilation)
    return Entry(backward.gradients, built.run, hooks, backward.sizes.conditions())


def _recompiled() -> str:
    """Why another backward is compiled, if one was before."""
    compiled = any(c.skipped is None for c in _compilations)
    if compiled:
        return "another graph, or other sizes"
    return ""


def _report(reason: Unsupported) -> None:
    """Reports why a backward runs in eager: once."""
    if reason.reason in _reasons or len(_reasons) > MAX_PROGRAMS:
        return
    _reasons.add(reason.reason)
    compilation = Compilation("backward", _place())
    why = replace(reason.why, where=_place(), function="", action=SKIP, stack=())
    compilation.skipped = Unsupported(why)
    _compilations.append(compilation)
    events.note_reason(events.FALLBACK, "backward", "", compilation.skipped)


def _place() -> str:
    """The user's line that the backward was begun at."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("torch", "ingot"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _arguments(structure: Structure, tangents: Sequence[torch.Tensor], entry: Entry) -> list[Any]:
    """What the program takes."""
    arguments = [*tangents, *structure.saved_tensors(), *structure.written_gradients()]
    updated = len(entry.traced.updated_leaves)
    written = arguments[len(arguments) - updated :]
    storages = set(map(storage_of, written))
    hooks = structure.hooks() if entry.hooks.conditions else ()
    for condition in entry.hooks.conditions:
        for source in condition.reads:
            tensor = source.load(hooks[condition.position])
            if storage_of(tensor) in storages:
                raise unsupported("backward-hook", "a hook reads a gradient that is being added to")
            arguments.append(tensor)
    return arguments


def _run(
    structure: Structure,
    entry: Entry,
    heads: Sequence[torch.Tensor],
    arguments: list[Any],
    keep_graph: bool,
    targets: Sequence[torch.Tensor],
) -> tuple[Any, ...]:
    traced = entry.traced
    if not keep_graph:
        _release(structure, entry, heads, targets)
    for step in structure.steps:
        step.saved = step.call = ()
    with torch.no_grad():
        results = entry.program.consume(arguments)
    _retain(structure, entry, results)
    if not structure.accumulates:
        remaining = iter(results)
        return tuple([next(remaining) if present else None for present in traced.present])
    for position, gradient in zip(traced.new_leaves, results):
        structure.steps[position].variable.grad = gradient  # type: ignore[union-attr]
    for position in traced.leaf_order:
        for hook in [*structure.steps[position].accumulated_hooks.values()]:
            with torch.no_grad():
                hook(structure.steps[position].variable)
    return ()


@whole
def _release(
    structure: Structure,
    entry: Entry,
    heads: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
) -> None:
    """Has autograd free what the nodes saved: its engine passes them with no gradients, past which
    no hook is called."""
    for position, consumed in entry.traced.consumed.items():
        step = structure.steps[position]
        assert step.kind == PROGRAM
        step.node.consumed_elsewhere = [True if present else None for present in consumed]
    materializing = []
    for s in structure.steps:
        if s.kind == IDENTITY:
            materializing.append(s.node)
    for node in materializing:  # else there would be gradients
        node.set_materialize_grads(False)
    silent = []
    for k in structure.functions():
        silent.append(structure.steps[k].node)
    for node in silent:
        functions.silence(node)
    try:
        with _without_hooks(structure), torch.enable_grad():
            end = _End.apply(*heads)
            tangent, accumulates = torch.ones_like(end), structure.accumulates
            engine_run_backward(
                (end,), (tangent,), False, False, tuple(targets), True, accumulate_grad=accumulates
            )
    finally:
        for node in materializing:
            node.set_materialize_grads(True)
        for node in silent:
            functions.unsilence(node)


@whole
def _retain(structure: Structure, entry: Entry, results: Sequence[torch.Tensor]) -> None:
    """Has autograd store gradients in the tensors that retain them. Only autograd knows these: its
    engine is asked for the gradient of what has just that gradient."""
    retained = entry.traced.retained
    if not retained:
        return
    with _without_hooks(structure):
        for (position, number), gradient in zip(retained, results[-len(retained) :]):
            edge = (GradientEdge(structure.steps[position].node, number),)
            engine_run_backward(edge, (gradient,), True, False, edge, True, accumulate_grad=False)


@contextmanager
def _without_hooks(structure: Structure) -> Iterator[None]:
    """No hook of the user's runs inside."""
    silent = [*structure.tables(), *(step.accumulated_hooks for step in structure.steps)]
    tables = [(table, dict(table)) for table in silent if table]
    for table, _ in tables:
        table.clear()
    try:
        yield
    finally:
        for table, content in tables:
            table.update(content)


class _End(torch.autograd.Function):
    """What has no gradients for its arguments."""

    @staticmethod
    def forward(ctx: Any, *heads: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:  # type: ignore[override]
        return (None,) * len(ctx.needs_input_grad)
