"""`compiled_backward`: backward passes whose whole graph, over all the graphs of a forward, is
compiled as one."""

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

from ingot.backward import functions
from ingot.backward.hooks import Hooks
from ingot.backward.sizes import Conditions, Seen, before
from ingot.backward.structure import IDENTITY, PROGRAM, Geometry, Structure, read
from ingot.backward.tracing import Traced, trace_backward
from ingot.capture.facts import WATCHED, operations_are_watched, read_global_state
from ingot.collection import paused_collection
from ingot.compilation import Compilation, stage
from ingot.errors import Unsupported, unsupported
from ingot.explain.report import Report
from ingot.graph.ambient import undisturbed
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.reasons import BREAK, SKIP
from ingot.serial import serial, whole
from ingot.stance import DEFAULT, current_stance
from ingot.torch_private import ALL, BACKWARDS, GRADIENTS, engine_run_backward, set_engine, why_off

log = logging.getLogger("ingot")

MAX_PROGRAMS = 64
"""How many different ones are compiled; others run in eager."""


_OFF = why_off(ALL, GRADIENTS, BACKWARDS)
"""Why all backwards are eager's: torch lacks a name that compiled ones need."""


class compiled_backward:  # noqa: N801 - it is called like a function
    """Inside of `with ingot.compiled_backward():` each `.backward()` and each `torch.autograd.grad`
    of this thread is compiled as one graph, whatever the number of graphs, and of operations of
    eager between them, that the forward was.

    What it adds to or sets in `.grad`, what hooks on tensors are given and what becomes of the
    graph is as in eager. A graph that looks the same takes the same program. A backward that is not
    understood is eager's, and the report says why.
    """

    def __enter__(self) -> compiled_backward:
        _thread.depth = getattr(_thread, "depth", 0) + 1
        with _installing:
            _users[0] += 1
            if _OFF is None:
                set_engine(_run_backward)
            else:
                _keep(_OFF)
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

    traced: Traced
    program: Any
    hooks: Hooks
    conditions: Conditions | None

    def holds(
        self, geometry: Geometry, hooks: Sequence[tuple[Any, ...]], structure: Structure
    ) -> bool:
        """Whether what it relied on of its sizes, hooks and functions holds of others."""
        if self.conditions is not None and not self.conditions.hold(geometry):
            return False
        asked = self.traced.materialized.items()
        if any(
            functions.materialized(structure.steps[position].node) != zeros
            for position, zeros in asked
        ):
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
_seen: dict[tuple[Any, ...], Seen] = {}
"""By what graphs have in common that are alike but for sizes, and by modes: the last that was
compiled."""
_count = [0]
_compilations: list[Compilation] = []
_reasons: set[str] = set()


@serial
def reset() -> None:
    """Forget all compiled backward passes."""
    _entries.clear()
    _seen.clear()
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
    rest = (keep_graph, create_graph, targets, allow_unreachable, accumulate_grad)
    if not getattr(_thread, "depth", 0) or any(isinstance(t, FakeTensor) for t in heads):
        return engine_run_backward(heads, tangents, *rest[:-1], accumulate_grad=accumulate_grad)
    try:
        structure, entry = _prepared(heads, tangents, create_graph, targets, accumulate_grad)
        present = entry.traced.present
        if not allow_unreachable and not all(present):
            raise unsupported("backward-call", "a gradient of what is not in the graph")
        arguments = _arguments(structure, tangents, entry)
    except Unsupported as reason:
        _keep(reason)
    except RuntimeError as error:  # of autograd, which its engine raises if it comes to that
        _keep(unsupported("backward-refused", f"autograd raises {str(error).splitlines()[0]}"))
    except Exception as bug:  # nothing has been done yet
        log.error("internal error, the backward runs in eager; please report this", exc_info=bug)
        _keep(unsupported("internal-error", f"internal error: {type(bug).__name__}: {bug}"))
    else:
        return _run(structure, entry, heads, arguments, keep_graph, targets)
    return engine_run_backward(heads, tangents, *rest[:-1], accumulate_grad=accumulate_grad)


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
    if operations_are_watched():
        raise unsupported("watched", WATCHED)
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise unsupported("backward-call", "a backward within autocast")
    if current_stance() != DEFAULT:
        raise unsupported("backward-call", f"the stance {current_stance()!r}")
    if not all(type(t) is torch.Tensor and not t.requires_grad for t in tangents):
        raise unsupported(
            "backward-call", "a gradient to begin with that is none, or has a history"
        )
    if not all(isinstance(t, torch.Tensor) and t.requires_grad for t in heads):
        raise unsupported("backward-call", "a tensor without a history")
    if (
        accumulates
        and targets
        and not all(isinstance(t, torch.Tensor) and t.is_leaf for t in targets)
    ):
        raise unsupported("backward-call", "gradients to be added up in tensors that are no leaves")
    structure = read(heads, targets, accumulates)
    modes, geometry = read_global_state()._replace(grad_mode=False), structure.geometry(tangents)
    key, hooks = (structure.key(tangents), modes), structure.hooks()
    found = _served(key, geometry, hooks, structure)
    if found is None:
        if _count[0] >= MAX_PROGRAMS:
            raise unsupported(
                "backward-call", f"more than {MAX_PROGRAMS} different backward passes"
            )
        found = _compile_unless_served(key, structure, tangents, geometry, modes)
    if isinstance(found, Unsupported):
        raise found
    return structure, found


@serial
def _compile_unless_served(
    key: tuple[Any, ...],
    structure: Structure,
    tangents: Sequence[torch.Tensor],
    geometry: Geometry,
    modes: Any,
) -> Entry | Unsupported:
    with undisturbed(), paused_collection():
        found = _served(key, geometry, structure.hooks(), structure)
        if found is None:
            found = _compile(structure, tangents, geometry, modes)
            general = isinstance(found, Entry) and found.conditions is not None
            _entries.setdefault((*key, None if general else geometry), []).append(found)
            _count[0] += 1
        return found


def _served(
    key: tuple[Any, ...], geometry: Geometry, hooks: Sequence[tuple[Any, ...]], structure: Structure
) -> Entry | Unsupported | None:
    """What was compiled for such a graph with such hooks: for its sizes, or any."""
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
    known, _seen[family] = _seen.get(family), Seen.of(structure, geometry)
    try:
        then = before(structure, geometry, known)
        if then is not None:
            return _compile_for(structure, tangents, geometry, then)
        why = ""
    except Unsupported as reason:
        why = f"sizes that vary are compiled for: {reason.reason}"
    except Exception as bug:
        log.error(
            "internal error, sizes that vary are compiled for; please report this", exc_info=bug
        )
        why = f"sizes that vary are compiled for: internal error: {type(bug).__name__}: {bug}"
    try:
        return _compile_for(structure, tangents, geometry, None, why)
    except Unsupported as reason:
        return Unsupported(replace(reason.why, function="", action=BREAK))
    except Exception as bug:
        log.error("internal error, the backward runs in eager; please report this", exc_info=bug)
        return unsupported("internal-error", f"internal error: {type(bug).__name__}: {bug}")


def _compile_for(
    structure: Structure,
    tangents: Sequence[torch.Tensor],
    geometry: Geometry,
    then: Sequence[tuple[int, ...]] | None,
    why: str = "",
) -> Entry:
    """Where it is known what sizes were `then`, with symbols for those that vary; `why` there are
    none."""
    from ingot.pipeline import compile_aten

    compilation = Compilation(
        "backward", _place(), recompiled=_recompiled(), fixed_sizes=[why] if why else []
    )
    hooks = Hooks(structure.tables(), structure.functions())
    with stage(compilation, "trace"):
        traced = trace_backward(structure, tangents, hooks, geometry, then)
    compilation.aten = traced.graph
    compilation.captured = Recorded(traced.graph)
    program = compile_aten(compilation)
    _compilations.append(compilation)
    assert traced.sizes is not None
    return Entry(traced, program, hooks, traced.sizes.conditions())


def _recompiled() -> str:
    return (
        "another graph, or other sizes" if any(c.program is not None for c in _compilations) else ""
    )


def _keep(reason: Unsupported) -> None:
    """Keep why a backward runs in eager: once."""
    if reason.reason in _reasons or len(_reasons) > MAX_PROGRAMS:
        return
    _reasons.add(reason.reason)
    compilation = Compilation("backward", _place())
    compilation.skipped = Unsupported(replace(reason.why, where=_place(), function="", action=SKIP))
    _compilations.append(compilation)


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
    found = [*tangents, *(t for step in structure.steps for t in step.saved)]
    found += [t for step in structure.steps for t in structure.tensors_of(step)[len(step.saved) :]]
    written = (
        {t.untyped_storage()._cdata for t in found[-len(entry.traced.into) :]}
        if entry.traced.into
        else ()
    )
    hooks = structure.hooks() if entry.hooks.conditions else ()
    for condition in entry.hooks.conditions:
        for source in condition.reads:
            read_by_hook = source.load(hooks[condition.position])
            if read_by_hook.untyped_storage()._cdata in written:
                raise unsupported("backward-hook", "a hook reads a gradient that is being added to")
            found.append(read_by_hook)
    return found


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
    for position, gradient in zip(traced.leaves, results):
        structure.steps[position].variable.grad = gradient  # type: ignore[union-attr]
    for position in traced.order:
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
    """Has autograd let go of what the nodes keep: its engine passes them with no gradients, past
    which no hook is called."""
    for position, passed in entry.traced.passed.items():
        step = structure.steps[position]
        assert step.kind == PROGRAM
        step.node.consumed_elsewhere = [True if came else None for came in passed]
    zeros = [s.node for s in structure.steps if s.kind == IDENTITY]
    for node in zeros:  # else there would be gradients
        node.set_materialize_grads(False)
    silent = [structure.steps[k].node for k in structure.functions()]
    for node in silent:
        functions.silence(node)
    try:
        with _without_hooks(structure), torch.enable_grad():
            end = _End.apply(*heads)
            aims, tangent = tuple(targets), torch.ones_like(end)
            engine_run_backward(
                (end,), (tangent,), False, False, aims, True, accumulate_grad=structure.accumulates
            )
    finally:
        for node in zeros:
            node.set_materialize_grads(True)
        for node in silent:
            functions.unsilence(node)


@whole
def _retain(structure: Structure, entry: Entry, results: Sequence[torch.Tensor]) -> None:
    """Has autograd store gradients in the tensors that retain them, which only it knows: its engine
    is asked for the gradient of what has just that gradient."""
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
