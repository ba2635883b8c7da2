"""`capture_call`: one call of a function becomes a graph, the guards under which it holds, and what
is left to do in Python.

In: a function and the arguments of a call, or the state at a graph break, and a `Request`. Out:
`Captured`. The call is not run, and nothing that existed before it is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import fx

import ingot.capture.rows  # noqa: F401 (found by way of tables)
from ingot.capture import marks
from ingot.capture.breaks import enter_chain, handled_here, leave
from ingot.capture.bytecode import VERSION
from ingot.capture.chain import Chain, Continuations
from ingot.capture.donations import Donations, check_names, donations_of
from ingot.capture.graph_inputs import GraphInput
from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import Observed, Quantity, SpeculativeSizes
from ingot.capture.histories import WithHistories
from ingot.capture.interpreter import InterpreterFrame, run_chain, spots
from ingot.capture.recorder import GraphRecorder
from ingot.capture.residual import Recipe, Residual, called
from ingot.capture.results import Results
from ingot.capture.session import Session, Stop
from ingot.capture.sources import ArgSource, CalledSource, ConstSource, PartSource, Source
from ingot.capture.values import default_devices, function_overrides, tensor_objects
from ingot.capture.values.base import Raised, Value
from ingot.capture.values.cached import refuse_shared
from ingot.capture.values.controls import BreakIsError
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.gathered import Gathers, leave_to_hooks, require_ended
from ingot.capture.values.modes import refuse_inside
from ingot.capture.values.tensor_hooks import refuse_changed
from ingot.capture.values.torch_functions import CompilingAnswer
from ingot.capture.works import wait_for_dropped
from ingot.errors import (
    EagerRaises,
    Evidence,
    GraphBreakError,
    Unsupported,
    unsupported,
    without_frames,
)
from ingot.graph.ambient import snapshot
from ingot.graph.fake_context import FakeContext
from ingot.graph.relations import reduced
from ingot.native import _native
from ingot.options import Options
from ingot.reasons import PROGRAM_RAISES, SKIP


@dataclass
class Captured:
    """What capture knows of one call.

    The graph's inputs are loaded from `inputs[i].source`; its outputs and the arguments of the call
    make the result through `residual`. `break_` is why the graph ends before the function does.
    `writes`: it may change its inputs. `handles`: the program may handle what the graph raises;
    `protects`: it surely handles some errors of its operations.
    """

    graph_module: fx.GraphModule
    inputs: list[GraphInput]
    guards: GuardSet
    residual: Residual
    context: FakeContext
    ops: int
    break_: Unsupported | None = None
    writes: bool = False
    handles: bool = False
    protects: bool = False
    marked: frozenset[Quantity] = frozenset()  # the sizes that are marked to be symbols
    speculative: frozenset[Quantity] = frozenset()  # those that are speculative symbols
    donations: Donations = Donations()

    def collect_shape_guards(self) -> None:
        """Takes over the relations between sizes that later stages relied on: to be called when the
        graph is compiled, before the guards are used."""
        shapes = self.context.shapes
        self.guards.set_relations(reduced(shapes.guards))
        self.guards.limited, self.guards.conditions = (*shapes.limited,), (*shapes.conditions(),)

    def native_spec(self, run: Callable[..., Any]) -> dict[str, Any]:
        """What the native walk is built from, which collects what `run_by_walk` takes."""
        has_histories = self.run_by_walk(run) is not run
        sources = []
        for graph_input in self.inputs:
            source = graph_input.source
            sources.append(source.collected if has_histories else source)
        return self.guards.native_spec(sources)

    def run_by_walk(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What runs the graph of what the native walk collects.

        A native program gives no results with a history, and takes local tensors without."""
        places, parts = [], []
        for place, graph_input in enumerate(self.inputs):
            source = graph_input.source
            if isinstance(source, PartSource):
                places.append(place)
                parts.append(source.base.function)
        if not places or type(run) is _native.Program:
            return run
        return WithHistories(run, places, parts)  # type: ignore[arg-type]

    def fixed_marks(self) -> list[str]:
        """The sizes that are marked to be symbols and yet are compiled for, for the report, with
        the user's line that needed it. To be called when the graph is compiled."""
        lines = {}
        for symbol, value, where in self.context.shapes.constants():
            size = self.guards.symbols.get(symbol)
            if size in self.marked:
                place = where or "where the graph is compiled"
                lines[size.name] = (
                    f"{size.name} is marked as dynamic, and is always {value}  ({place})"
                )
        return list(map(lines.__getitem__, sorted(lines)))


def entry(fn: Any) -> tuple[FunctionType, tuple[Any, ...]]:
    """The Python function that a call of `fn` runs, and the arguments it is bound to: for a module,
    `(__call__, (module,))`."""
    if isinstance(fn, torch.nn.Module):
        fn = type(fn).__call__.__get__(fn)
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return fn.__func__, (fn.__self__,)
    if isinstance(fn, FunctionType):
        return fn, ()
    call = vars(type(fn)).get("__call__")
    if isinstance(call, FunctionType):
        return call, (fn,)
    raise unsupported(
        "not-a-function", f"{type(fn).__name__} is not a Python function, method or module"
    )


def check_donated(fn: Any, names: Sequence[str]) -> None:
    """Raises ValueError for a name that is no parameter of `fn`."""
    check_names(*entry(fn), names)


def argument_slots(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], passes_function: bool = False
) -> tuple[Any, ...]:
    """The slots that ArgSource counts, in the order of `co_varnames`.

    A bound self comes first, *args is a tuple, **kwargs a dict. The function itself is last, if it
    is passed.

    Raises TypeError as the call itself would.
    """
    function, bound = entry(fn)
    code, name = function.__code__, function.__qualname__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = parameters[: code.co_argcount]
    args = (*bound, *args)
    arguments, further = dict(zip(positional, args)), {}
    for keyword, value in kwargs.items():
        if keyword not in parameters[code.co_posonlyargcount :]:
            further[keyword] = value
        elif keyword in arguments:
            raise TypeError(f"{name}() got multiple values for argument '{keyword}'")
        else:
            arguments[keyword] = value
    defaults = function.__defaults__ or ()
    values = dict(zip(positional[len(positional) - len(defaults) :], defaults))
    values.update(function.__kwdefaults__ or {})
    values.update(arguments)
    surplus = args[code.co_argcount :]
    takes_args, takes_kwargs = code.co_flags & CO_VARARGS, code.co_flags & CO_VARKEYWORDS
    is_surplus = (surplus and not takes_args) or (further and not takes_kwargs)
    if len(values) < len(parameters) or is_surplus:
        raise TypeError(f"{name}() is called with the wrong arguments")
    slots = list(map(values.__getitem__, parameters))
    if takes_args:
        slots.append(surplus)
    if takes_kwargs:
        slots.append(further)
    if passes_function:
        slots.append(function)
    return tuple(slots)


@dataclass(frozen=True)
class Request:
    """What is asked of a capture besides its call.

    Without `continuations` a graph may not be broken. `symbols` and `speculative` sizes are not
    compiled for their values; `observed` were seen to differ. `inputs` are the types of numbers
    that are inputs of the graph where they are arguments. `data_dependent_sizes` do not break the
    graph. Where `expects_errors`, an op whose arguments eager is known to refuse does not either.
    """

    options: Options
    continuations: Continuations | None = None
    symbols: Observed = frozenset()
    speculative: SpeculativeSizes | None = None
    data_dependent_sizes: bool = False
    expects_errors: bool = True
    observed: Observed = frozenset()
    inputs: frozenset[type] = frozenset()


Enter = Callable[[Session], tuple[list[InterpreterFrame], Value | None]]
"""Gives the frames that a region begins with, and an exception that the innermost one begins
with."""


def capture_call(
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Request,
    passes_function: bool = False,
) -> Captured:
    """Captures the call `fn(*args, **kwargs)` without running it, to its end or to a graph break.

    The guards hold for other functions of the same code, if the function is passed in the last
    slot.

    Raises Unsupported, with the user's line and the guards gathered so far (`error.guards`), for
    what cannot be captured at all.
    """

    def enter(session: Session) -> tuple[list[InterpreterFrame], Value | None]:
        function, _ = entry(fn)
        marks.refuse_disabled(function)
        names = function.__code__.co_varnames
        slots = argument_slots(fn, args, kwargs)
        source: Source = ConstSource(function)
        if passes_function:
            source = CalledSource(len(slots), function.__qualname__)
        root = FunctionValue.outside(session, function, source)
        values = []
        for i, slot in enumerate(slots):
            values.append(session.wrap(slot, ArgSource(i, names[i])))
        return [session.root_frame(root, values)], None

    captured = _capture(enter, request)
    donated = request.options.donate
    if donated:
        captured.donations = donations_of(captured, *entry(fn), donated)
    return captured


def capture_continuation(chain: Chain, state: Sequence[Any], request: Request) -> Captured:
    """Captures what follows a graph break, from the state there, as `capture_call` does for a
    call."""

    def enter(session: Session) -> tuple[list[InterpreterFrame], Value | None]:
        session.continues = True
        return enter_chain(session, chain, state)

    return _capture(enter, request)


class Attempt(NamedTuple):
    """One way to capture: to the end of the function or, given a reason to break the graph, to that
    place. `says_compiling` is what a program hears that asks whether it is compiled. `hooked` is
    why hooks of FSDP run in eager, where the graph was to do what they do."""

    end: Unsupported | None = None
    says_compiling: bool = True
    hooked: Unsupported | None = None


def _capture(enter: Enter, request: Request) -> Captured:
    """Captures by the first attempt that succeeds. Each starts over: no half-done instruction is
    ever undone."""
    if not _native.KNOWS_FRAMES:
        version = ".".join(map(str, VERSION))
        sentence = f"the instructions of Python {version} are not known"
        raise unsupported("instruction", sentence, action=SKIP)
    attempt = Attempt()
    while True:
        try:
            return _capture_to(attempt, enter, request)
        except Unsupported as reason:
            next_attempt = _attempt_after(attempt, reason, request)
            if next_attempt is None:
                raise
            without_frames(reason)
        attempt = next_attempt


def _attempt_after(attempt: Attempt, reason: Unsupported, request: Request) -> Attempt | None:
    """What to try where an attempt fails; None where nothing is left.

    To end before what cannot be captured; and to say no to a program that asked whether it is
    compiled, where yes leads to an error, as eager's answer may not."""
    end, step = attempt.end, reason.evidence.step
    if reason.evidence.gathers:
        return Attempt(says_compiling=attempt.says_compiling, hooked=without_frames(reason))
    if end is None:
        if reason.evidence.break_is_error and not isinstance(reason, EagerRaises):
            raise GraphBreakError(without_frames(reason)) from None
        may_break = not request.options.fullgraph and request.continuations is not None
        if may_break and step is not None and not reason.skips:
            return attempt._replace(end=reason)
    elif reason is not end:
        assert end.evidence.step is not None
        if step is not None and step < end.evidence.step:  # it has to be broken earlier
            return attempt._replace(end=reason)
    if isinstance(reason, EagerRaises) and reason.evidence.asked_compiling:
        if attempt.says_compiling:
            return Attempt(says_compiling=False, hooked=attempt.hooked)
    if end is not None and reason is not end and not reason.skips:
        _blame(end, reason)
    return None


def _blame(end: Unsupported, reason: Unsupported) -> None:
    """Has the reason of a graph break stand for the reason why the graph cannot be broken there."""
    why = f"{end.why.sentence}, where the graph cannot be broken: {reason.why.sentence}"
    reason.why = replace(end.why, sentence=why, action=reason.why.action, step=reason.why.step)


def _capture_to(attempt: Attempt, enter: Enter, request: Request) -> Captured:
    """Captures once."""
    end = attempt.end
    if isinstance(end, EagerRaises) and not request.expects_errors:
        end = end.as_break()
    guards, options = GuardSet(), request.options
    guards.add_global_state()
    context = FakeContext(request.data_dependent_sizes)
    session = Session(guards, GraphRecorder(context, options.dynamic, not options.is_native))
    session.symbols, session.observed = request.symbols, request.observed
    session.speculative, session.input_types = request.speculative, request.inputs
    session.state(CompilingAnswer).answer = attempt.says_compiling
    if attempt.hooked is not None:
        leave_to_hooks(session, attempt.hooked)
    context.shapes.at_work = lambda: session.where
    if end is not None:
        assert end.evidence.step is not None
        session.stop_at = end.evidence.step
    restore_modes = snapshot()
    try:
        results = Results(session)
        try:
            recipe = results.recipe(run_chain(session, *enter(session)))
        except Stop:
            assert end is not None and request.continuations is not None
            if isinstance(end, EagerRaises) and not handled_here(session):
                raise end from None
            # what led to the break, in the instruction that is not captured
            guards.adopt(end.evidence.guards)
            recipe = leave(session, results, request.continuations)
        return _finish(session, results, recipe, end)
    except Raised as raised:
        assert isinstance(raised.value, ExceptionValue)
        reason = EagerRaises(
            f"the program raises {raised.value.message()}", raised.where, id=PROGRAM_RAISES
        )
        reason.why = reason.why.led_by(spots(raised.stack))
        asked = session.state(CompilingAnswer).is_asked
        gathers = session.state(Gathers).is_inside
        reason.evidence = Evidence(guards, asked_compiling=asked, gathers=gathers)
        raise reason from None
    except Unsupported as reason:
        reason.evidence = _evidence(session, reason, end)
        raise
    except Exception as error:  # of Ingot's own, or for want of memory or stack
        with suppress(AttributeError):
            error.__ingot_guards__ = guards  # type: ignore[attr-defined]
        raise
    finally:
        context.shapes.at_work = None
        session.effects.guard_paths(session)
        session.end()
        restore_modes()


def _evidence(session: Session, reason: Unsupported, end: Unsupported | None) -> Evidence:
    """What a capture that fails knew of the reason."""
    in_one_piece, asked = session.graph.in_one_piece, session.state(CompilingAnswer).is_asked
    gathers = session.state(Gathers).is_inside
    if reason is end:  # the first capture has seen more: what led to the error
        known = reason.evidence
        in_one_piece = in_one_piece or known.in_one_piece
        return known._replace(in_one_piece=in_one_piece, asked_compiling=asked, gathers=gathers)
    step = reason.why.step
    if step is None and end is None:
        step = session.broken_at
    is_error = session.state(BreakIsError).holds
    return Evidence(session.guards, step, in_one_piece, asked, is_error, gathers)


def _finish(
    session: Session, results: Results, recipe: Recipe, end: Unsupported | None
) -> Captured:
    require_ended(session)
    results.check_dropped()
    wait_for_dropped(session, results.has)
    recorder: GraphRecorder = session.graph
    refuse_inside(session, recorder.modes.entered_at)
    default_devices.refuse_inside(session)
    function_overrides.refuse_inside(session)
    tensor_objects.refuse_rebased(session)
    refuse_changed(session)
    effects = [*results.effects(), *(called(*change) for change in recorder.modes.left_behind())]
    refuse_shared(session, results.has)
    if recorder.writes:
        recorder.inputs.guard_memory(session)
    recorder.inputs.guard_places(session)
    recorder.inputs.guard_ragged(session)
    graph_module, inputs = recorder.finish(results.outputs)
    recorder.context.release()
    ops = sum(node.op not in ("placeholder", "output") for node in graph_module.graph.nodes)
    captured = Captured(
        graph_module,
        inputs,
        session.guards,
        Residual(recipe, len(results.outputs), effects),
        recorder.context,
        ops,
        break_=end,
        writes=recorder.writes,
        handles=session.handles,
        protects=session.protects,
        marked=frozenset(recorder.inputs.marked),
        speculative=frozenset(recorder.inputs.speculative),
    )
    captured.collect_shape_guards()
    return captured
