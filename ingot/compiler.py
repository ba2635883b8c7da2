"""One compiled callable: its entries, and what happens when none of them fits a call."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import fx

from ingot import events, lockstep, sharing, torch_controls
from ingot.backends import check_outputs, compile_with_backend
from ingot.built import CompiledGraph, Risks
from ingot.capture import (
    Captured,
    Chain,
    Request,
    argument_slots,
    capture_call,
    capture_continuation,
)
from ingot.capture.facts import operations_are_watched
from ingot.capture.guard_filter import filter_guards
from ingot.capture.guard_set import GuardSet, closest
from ingot.capture.guards import Quantity
from ingot.capture.inner_calls import unwatched
from ingot.capture.marks import disabled_by_itself, why_disabled
from ingot.capture.meanings import stated
from ingot.capture.resume import leave_alone, resume_function
from ingot.capture.sources import DerivedSource, ItemSource, Source
from ingot.collection import paused_collection
from ingot.compilation import Compilation
from ingot.eager_calls import EagerCalls, recompiled
from ingot.errors import (
    BackendError,
    GraphBreakError,
    Unsupported,
    of_hooks,
    unsupported,
    without_frames,
)
from ingot.graph.ambient import undisturbed
from ingot.graph.nodes import placeholders_of
from ingot.hot_sizes import HotSizes
from ingot.ladder import Ladder, Run, SizePolicy
from ingot.native import Dispatcher, Entry, GuardTree, _native
from ingot.options import Options
from ingot.rules import hand_over
from ingot.sequences import Args, Kwargs
from ingot.serial import safe_point, serial
from ingot.sharing import Compiled
from ingot.stance import DEFAULT, current_stance
from ingot.torch_private import ALL, why_off

log = logging.getLogger("ingot")

MAX_ENTRIES = 64  # a function that keeps changing is left to eager beyond this, and says so once
# the same for what follows a graph break: a loop that breaks has one for each iteration
MAX_CONTINUATION_ENTRIES = 16
# the same where a loop runs over modules whose hooks break the graph: it ends with the modules
MAX_ENTRIES_OF_HOOKED = 256
_PIECES = (  # of the pipeline, each behind those that it imports
    "ingot.schedule",
    "ingot.codegen.llvm",
    "ingot.loops.lowering.lower",
    "ingot.runtime.program",
    "ingot.gradients.higher_order",
    "ingot.pipeline",
)
# places where the graphs of one function are broken; behind further ones it runs in eager
MAX_CONTINUATIONS = 256

OFF = why_off(ALL)
"""Why nothing is compiled: torch lacks a name that all of it needs."""


class Compiler:
    """Compiles `fn` for each set of facts it meets. `dispatcher` is the native callable that users
    hold."""

    alive: weakref.WeakSet[Compiler] = weakref.WeakSet()
    newest: weakref.ref[Compiler] | None = None  # that has compiled something
    max_entries = MAX_ENTRIES
    passes_function = True  # in the last slot, so that entries serve others of the same code

    def __init__(self, fn: Any, options: Options) -> None:
        self.fn = fn
        self.name = display_name(fn)  # in reports
        self.options = options
        self.compilations: list[Compilation] = []
        self.guards: list[GuardSet] = []  # of every entry, newest last
        self.entries: list[Entry] = []  # of the dispatcher, beside their guards
        self.compiled: list[Compiled] = []  # what they are made of, kept alive for others
        self.sizes = SizePolicy(options)
        self.eager_calls = EagerCalls(self)
        self.continuations: dict[Chain, Continuation] = {}  # of graph breaks
        self.root: Compiler = self
        self.dispatcher = Dispatcher(entry_function(fn), self.compile_and_run, self.passes_function)
        self.hot_sizes = HotSizes(self)
        lockstep.watch_the_end()
        if options.donate:
            importlib.import_module("ingot.runtime.donated")  # by which native code takes memory
        Compiler.alive.add(self)

    @property
    def function(self) -> Any:
        """The Python function that the dispatcher runs."""
        fn = self.dispatcher.fn
        return getattr(fn, "__func__", fn)

    @staticmethod
    def of(fn: Any) -> Compiler | None:
        """The compiler behind a compiled function, method or module; None for anything else."""
        inside = getattr(type(fn), "__ingot_compiled_inside__", None)
        if inside is not None:
            fn = inside()
        dispatcher = getattr(
            type(fn), "__ingot_dispatcher__", fn.__func__ if isinstance(fn, MethodType) else fn
        )
        if isinstance(dispatcher, Dispatcher):
            return dispatcher.on_miss.__self__
        return None

    @serial
    def reset(self) -> None:
        self.dispatcher.clear()
        self.compilations.clear()
        self.guards.clear()
        self.entries.clear()
        self.compiled.clear()
        self.continuations.clear()
        self.sizes = SizePolicy(self.options)
        self.eager_calls.reset()
        self.hot_sizes.reset()

    # -- a call that no entry fits -----------------------------------------------------------------

    def compile_and_run(self, slots: Args, args: Args, kwargs: Kwargs) -> Any:
        """Called by the dispatcher on a miss: compile for this call's facts, then run what was
        compiled."""
        eager = self.eager_calls
        donated = sys.modules.get("ingot.runtime.donated")
        if donated is not None:
            donated.refuse(slots)
        if current_stance() != DEFAULT and eager.is_held_back():
            return eager.run_under_stance(slots, args, kwargs)
        if torch_controls.is_disabled():
            return eager.run(None, args, kwargs)
        if len(self.guards) >= self.entry_limit:  # as it stays: no need to wait for the lock
            return eager.run(eager.too_many(), args, kwargs)
        if OFF is not None:
            return eager.run(eager.off(OFF), args, kwargs)
        if operations_are_watched():
            return eager.run(eager.watched(), args, kwargs)
        if not self.options.fullgraph and any(guards.is_exceeded(slots) for guards in self.guards):
            # the integers of this call have more than 63 bits
            return eager.run(None, args, kwargs)
        if eager.failures.put_off(slots):
            _native.count_compilation(False)
            return eager.run(None, args, kwargs)
        start, known = time.perf_counter(), len(self.guards)
        compilation, run, served = self._compile_unless_served(slots, args, kwargs, known)
        if served:  # by another thread, while this one waited
            return self.dispatcher(*args, **kwargs)
        if compilation is None:
            return eager.run(eager.too_many(), args, kwargs)
        _native.count_compilation(compilation.has_graph)
        if run is None:
            result = eager.run(compilation.skipped, args, kwargs)
        else:
            result = run(slots, args, kwargs)
        compilation.first_call = time.perf_counter() - start
        return result

    def prepare_entry(self, args: Args, kwargs: Kwargs) -> Args:
        """Compile for the facts of a call, unless an entry holds for them, and run nothing. Returns
        the slots of its arguments."""
        try:
            slots = argument_slots(self.dispatcher.fn, args, kwargs, self.passes_function)
        except Unsupported:  # not a Python function: capture says so, and keeps the reason
            slots = ()
        if OFF is not None:
            self.eager_calls.off(OFF)
        else:
            self._compile_unless_served(slots, args, kwargs, 0)
        return slots

    def prepare(self, args: Args, kwargs: Kwargs) -> None:
        """The same, and runs the program where a graph was broken, or where hooks are around it:
        what follows depends on it."""
        self.prepare_entry(args, kwargs)
        if OFF is None and any(map(attrgetter("goes_on"), self.compilations)):
            self.dispatcher(*args, **kwargs)

    def find(self, args: Args, kwargs: Kwargs) -> tuple[Captured, list[Any]] | None:
        """The newest graph that serves a call, and its inputs; None if there is none."""
        slots = argument_slots(self.dispatcher.fn, args, kwargs, self.passes_function)
        for compilation in reversed(self.compilations):
            captured: Captured | None = compilation.captured
            is_start = captured is not None and not compilation.is_continuation
            if is_start and captured.guards.check_python(slots) is None:  # type: ignore[union-attr]
                return captured, loaded(captured, slots)  # type: ignore[return-value,arg-type]
        return None

    @serial
    def _compile_unless_served(
        self, slots: Args, args: Args, kwargs: Kwargs, known: int
    ) -> tuple[Compilation | None, Run | None, bool]:
        """Compile unless an entry other than the first `known` holds; nothing is compiled beyond
        `entry_limit`."""
        with unwatched():
            if any(guards.check_python(slots) is None for guards in self.guards[known:]):
                return None, None, True
            if len(self.guards) >= self.entry_limit:
                return None, None, False
            if self.guards and torch_controls.recompiling_is_error():
                raise recompiled(self, slots, "error_on_recompile")
            if self.passes_function and self._adopt(slots):
                return None, None, True
            with undisturbed(), paused_collection():
                return *self._compile(slots, args, kwargs), False

    def _compile(self, slots: Args, args: Args, kwargs: Kwargs) -> tuple[Compilation, Run | None]:
        hand_over()
        Compiler.newest = weakref.ref(self)
        compilation = self.new_compilation(self.difference(slots))
        with self._event_of(compilation) as span:
            run = self._climb(compilation, slots, args, kwargs)
            _note_outcome(compilation, span)
        self.compilations.append(compilation)
        if "INGOT_DEBUG" in os.environ:
            from ingot.explain.debug import debug  # pays for its imports only when asked for

            debug(compilation)
        return compilation, run

    def _event_of(self, compilation: Compilation) -> events.Span:
        """The compilation as an event. What follows a graph break belongs to the newest compilation
        that was broken."""
        parent = None
        if compilation.is_continuation:
            for known in reversed(self.compilations):
                if known.break_ is not None:
                    parent = known.event
                    break
        span = events.Span(events.COMPILATION, compilation.title, compilation.where, parent)
        compilation.event = span.id
        return span

    def _climb(
        self, compilation: Compilation, slots: Args, args: Args, kwargs: Kwargs
    ) -> Run | None:
        """What runs the call; None where it is to run in eager."""
        if self.sizes.is_symbolic and not self.guards:
            self.sizes.recall = self._recall
        self.sizes.observe(self.guards, self.entries, slots)
        if self.passes_function:
            self.sizes.observed |= sharing.changed_floats(self.options, slots)
        ladder = Ladder(
            self.sizes,
            compilation,
            self.continue_at,
            self.guards,
            lambda request: self.capture(args, kwargs, request),
            lambda captured: self.add_entry(compilation, captured, slots),
        )
        run: Run | None = None
        try:
            run = ladder.climb()
            self.eager_calls.failures.forget(slots)
            self._remember(ladder.captured)
        except Unsupported as reason:
            self.eager_calls.keep(compilation, reason, ladder.captured)
        except (BackendError, GraphBreakError):
            raise
        except Exception as error:
            self.eager_calls.keep_failure(compilation, error, ladder.captured, slots)
        return run

    def _remember(self, captured: Captured | None) -> None:
        """Remembers for later processes what varies in a call that was compiled."""
        observed = [q for q in self.sizes.observed if isinstance(q, Quantity)]
        if captured is None or not captured.guards.symbols or not observed:
            return
        from ingot.kept.varied import Varied, remember

        varied = Varied(frozenset(observed), captured.speculative)
        remember((self.name, self.where), varied)

    def _recall(self, captured: Captured) -> tuple[frozenset[Quantity], frozenset[Quantity]]:
        """What earlier processes remembered of a call that is the first one here."""
        from ingot.kept.varied import recalled

        return recalled((self.name, self.where), captured, self.native_options)

    @property
    def native_options(self) -> Options:
        """The options that Ingot compiles with now."""
        if self.options.memory_budget is None:
            return replace(self.options, memory_budget=torch_controls.memory_budget())
        return self.options

    kind = "function"

    @property
    def entry_limit(self) -> int:
        """How many entries there may be."""
        limit = self.options.recompile_limit or torch_controls.recompile_limit()
        return limit or self.max_entries

    @property
    def where(self) -> str:
        """The user's "file:line" where what is compiled begins."""
        return place_of(self.fn)

    def new_compilation(self, recompiled: str) -> Compilation:
        return Compilation(self.name, self.where, recompiled)

    def capture(self, args: Args, kwargs: Kwargs, request: Request) -> Captured:
        return capture_call(self.dispatcher.fn, args, kwargs, request, self.passes_function)

    def continue_at(self, chain: Chain) -> Any:
        """The compiled callable that goes on where a graph was broken."""
        continuation = self.continuations.get(chain)
        if continuation is None:
            if len(self.continuations) >= MAX_CONTINUATIONS:
                return leave_alone if chain.is_call else resume_function(chain)
            continuation = self.continuations[chain] = Continuation(self, chain)
        return continuation.dispatcher

    def add_entry(
        self,
        compilation: Compilation,
        captured: Captured,
        slots: Args,
        *,
        hot: bool = False,
    ) -> Run:
        """Make a captured call an entry; one that is `hot` only saves time, and what others know of
        it does not count as known."""
        compilation.captured = captured
        if captured.break_ is not None:
            compilation.break_ = without_frames(captured.break_)
        target, risks = self._compile_graph(compilation, captured, slots)
        tree = _guard_tree(compilation, captured, target, slots, self.options)
        replay = Replay.of(captured, risks)
        if self.options.verify and risks is not None:
            target = self._verified(compilation, captured, target, replay)
        if hot:
            from ingot.runtime.training import prepare_backward

            prepare_backward(target, [other.target for other in self.compiled])
        report = self.compilations if captured.break_ is not None else []
        compiled = Compiled(
            self.options, self.function.__globals__, compilation, captured, target, replay, report
        )
        entry = self._make_entry(tree, compiled)
        if not hot:
            self._keep(entry, compiled)
            if self.passes_function:
                sharing.share(self.function.__code__, compiled)
        calls = risks.collectives if risks is not None else {}
        return functools.partial(self._run_first, captured, target, replay, calls)

    def _verified(
        self,
        compilation: Compilation,
        captured: Captured,
        target: Callable[..., Any],
        replay: Replay,
    ) -> Callable[..., Any]:
        """What runs a program, the first times beside eager."""
        from ingot.debugging.repro import DIFFERENCE, repro_of  # for who asks for it
        from ingot.debugging.verifying import Program, verified

        dynamic = self.options.dynamic
        if captured.guards.symbols:
            dynamic = True
        again = replace(self.options, verify=0, fullgraph=True, dynamic=dynamic)
        program = Program(
            compilation.title,
            compilation.where,
            lambda function: Compiler(function, again).dispatcher,
            replay.replays,
            lambda inputs: repro_of(captured, self.options, compilation.title, inputs, DIFFERENCE),
        )
        return verified(target, captured, program, self.options.verify)

    def _make_entry(self, tree: GuardTree, compiled: Compiled) -> Entry:
        captured, replay = compiled.captured, compiled.replay
        return self.dispatcher.add_entry(  # type: ignore[no-any-return]
            tree,
            captured.run_by_walk(compiled.target),
            captured.residual,
            replays=replay.replays,
            handles=replay.handles,
            general=bool(captured.guards.symbols),
            generators=replay.generators,
            has_graph=bool(captured.ops),
        )

    def _keep(self, entry: Entry, compiled: Compiled) -> None:
        self.guards.append(compiled.captured.guards)
        self.entries.append(entry)
        self.compiled.append(compiled)

    def _adopt(self, slots: Args) -> bool:
        """Has what was compiled for another function of this code serve a call; whether there is
        such."""
        compiled = None
        if why_disabled(slots[-1]) is None:
            compiled = sharing.find(self.options, slots)
        if compiled is None:
            return False
        tree = GuardTree(compiled.captured.native_spec(compiled.target))
        self._keep(self._make_entry(tree, compiled), compiled)
        self.compilations.append(compiled.compilation)
        for behind_break in compiled.report:
            if behind_break.region is not None:
                self.compilations.append(behind_break)
        return True

    def _compile_graph(
        self, compilation: Compilation, captured: Captured, slots: Args
    ) -> tuple[Callable[..., Any], Risks | None]:
        """What runs a captured graph, and its risks, if it was Ingot that compiled it."""
        if not captured.ops:
            return _without_work(captured.graph_module.graph), None
        if self.options.is_native:
            options, frozen = self.native_options, {}
            if self.options.freeze:
                frozen = dict(_module_state(captured, slots))
            from ingot.kept.programs import found_or_compiled  # with what only this needs

            return found_or_compiled(captured, compilation, options, frozen, _import_pipeline)
        with compilation.log.stage("backend"):
            examples = loaded(captured, slots)
            return compile_with_backend(self.options, captured.graph_module, examples), None

    def _run_first(
        self,
        captured: Captured,
        target: Callable[..., Any],
        replay: Replay,
        collectives: lockstep.Calls,
        slots: Args,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """The call that an entry was compiled for; the dispatcher runs the later ones."""
        raised: Exception | None = None
        lockstep.announce(collectives)
        states = [generator.get_state() for generator in replay.generators]
        _native.forget_traces()
        try:
            outputs = target(*loaded(captured, slots))
        except Exception as error:
            if collectives:
                lockstep.explain(error)
            if not replay.replays or of_hooks(error) or _native.left_traces():
                raise
            raised = without_frames(error)
        if raised is not None:  # out of the handler, which would hang on what is raised now
            for generator, state in zip(replay.generators, states):
                generator.set_state(state)
            return self._replay(raised, replay.handles, args, kwargs)
        residual = captured.residual
        if not self.options.is_native:
            check_outputs(self.options, outputs, residual.output_count)
        return residual.build(outputs, slots)

    def _replay(self, raised: Exception, handles: bool, args: Args, kwargs: Kwargs) -> Any:
        """The original function after its graph has raised: it raises at its own line, inside the
        program's handlers. Where there are none, and it does not, somebody is at fault."""
        result = self.dispatcher.fn(*args, **kwargs)
        if not handles:
            what = (
                f"a compiled graph raised {raised!r}, which {self.dispatcher.fn} does not: the "
                "call ran in eager"
            )
            warnings.warn(what, RuntimeWarning, stacklevel=3)
        return result

    def report_overflow(self, compilation: Compilation) -> None:
        """Says that further variants run in eager."""
        message = f"{compilation.name}: {compilation.skipped}; further ones run in eager"
        events.warn(f"variants of {compilation.name}", message, compilation.where)

    def difference(self, slots: Args) -> str:
        """What told this call from the closest entry; "" at the first compilation."""
        return closest(self.guards, slots)


def _note_outcome(compilation: Compilation, span: events.Span) -> None:
    """What came of a compilation, as events."""
    title, where = compilation.title, compilation.where
    span.facts["outcome"] = "compiled" if compilation.skipped is None else "eager"
    if compilation.recompiled:
        events.note(events.RECOMPILATION, title, where, changed=compilation.recompiled)
    if compilation.break_ is not None:
        events.note_reason(events.BREAK, title, where, compilation.break_)
    if compilation.skipped is not None:
        events.note_reason(events.FALLBACK, title, where, compilation.skipped)


class Continuation(Compiler):
    """Compiles what follows a graph break, for each set of facts it meets there. Its function is
    the rest of the program in eager, its arguments are the state at the break."""

    kind = "continuation"
    max_entries = MAX_CONTINUATION_ENTRIES
    passes_function = False  # which the state at the break has

    def __init__(self, root: Compiler, chain: Chain) -> None:
        super().__init__(resume_function(chain), root.options)
        self.root, self.chain = root, chain
        self.compilations = root.compilations
        Compiler.alive.discard(self)

    @property
    def entry_limit(self) -> int:
        limit = super().entry_limit
        if limit == self.max_entries and any(map(_is_of_hooks, self.compilations)):
            return MAX_ENTRIES_OF_HOOKED
        return limit

    def new_compilation(self, recompiled: str) -> Compilation:
        name = self.chain.points[-1].code.co_qualname
        return Compilation(name, self.where, recompiled, self.chain)

    @property
    def where(self) -> str:
        return self.chain.where

    def capture(self, args: Args, kwargs: Kwargs, request: Request) -> Captured:
        return capture_continuation(self.chain, args, request)

    def continue_at(self, chain: Chain) -> Any:
        return self.root.continue_at(chain)

    def report_overflow(self, compilation: Compilation) -> None:
        # one of the functions that a broken instruction called: nobody asked to compile it
        if self.chain.is_call:
            _native.set_code_entry(self.chain.points[0].code, None)
        else:
            super().report_overflow(compilation)


def _is_of_hooks(compilation: Compilation) -> bool:
    """Whether a compilation ends before the call of a module whose hooks run in eager."""
    end = compilation.break_ or compilation.skipped
    return end is not None and end.why.is_of_hooks


class Replay(NamedTuple):
    """What is done where a graph raises an error. The original function is called, if it `replays`,
    to raise its own, with `generators` put back; if the program `handles` errors, it may not."""

    replays: bool
    handles: bool
    generators: tuple[torch.Generator, ...]

    @staticmethod
    def of(captured: Captured, risks: Risks | None) -> Replay:
        """Raises Unsupported for an error of the data's that may be found too late."""
        if risks is None:
            return Replay(not captured.writes, captured.handles, ())
        replays = bool(risks.generators) or not risks.draws
        if risks.is_replayed:
            replays = replays and not risks.leaves_traces
        if risks.fails_at is not None and not (replays and risks.fails_first):
            if risks.checks or captured.protects or captured.residual.effects:
                raise unsupported(
                    "late-error",
                    "an error of the data's may be found where eager could not go on",
                    risks.fails_at,
                )
        # what a check finds may be no error
        handles = captured.handles or risks.binds
        return Replay(replays, handles, risks.generators)


def _guard_tree(
    compilation: Compilation,
    captured: Captured,
    run: Callable[..., Any],
    slots: Args,
    options: Options,
) -> GuardTree:
    """The guards of a compiled graph for the dispatcher. Raises Unsupported where they do not hold
    for the call itself."""
    guards = captured.guards
    with compilation.log.stage("guards"):
        captured.collect_shape_guards()  # those that later stages added
        captured.context.shapes.closed = True
        compilation.fixed_sizes += captured.fixed_marks()
        if options.guard_filter_fn is not None:
            sources = list(map(attrgetter("source"), captured.inputs))
            filter_guards(guards, sources, slots, options.guard_filter_fn)
        tree = GuardTree(captured.native_spec(run))
    # learns at once what a call looks like in which nothing has changed
    if tree.collect(slots) is None:
        failed = guards.check_python(slots)
        if failed is not None:
            sentence = f"a fact changes while it is looked at: {failed.text}"
            raise unsupported("unstable-capture", sentence, failed.where)
    return tree


def _import_pipeline() -> Callable[..., CompiledGraph]:
    """`compile_graph`. Another backend needs nothing of what it imports. There are safe points
    between the pieces; an import that is cut off would have to be undone."""
    for name in _PIECES:
        importlib.import_module(name)
        safe_point()
    from ingot.pipeline import compile_graph

    return compile_graph


def _without_work(graph: fx.Graph) -> Callable[..., tuple[Any, ...]]:
    """A program that gives some of its arguments, as a graph without operations does: numbers that
    vary."""
    outputs: Any = graph.output_node().args[0]
    places = list(map(placeholders_of(graph).index, outputs))
    return lambda *args: tuple([args[place] for place in places])


def entry_function(fn: Any) -> Any:
    """The Python function, or bound method of one, whose call is a call of `fn`. It is the
    `__call__` of a module or another object, and a function around what is called in C (a
    `functools.partial`, a built-in), has a meaning that is stated, or is disabled by itself."""
    if isinstance(fn, FunctionType):
        if stated(fn) is None and disabled_by_itself(fn) is None:
            return fn
    elif isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return fn
    call = type(fn).__call__
    if not isinstance(fn, FunctionType) and isinstance(call, FunctionType):
        return call.__get__(fn)

    def called(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return functools.update_wrapper(called, fn)


def display_name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def place_of(fn: Any) -> str:
    """The "file:line" where `fn`, or the class or forward of a module, is defined; "" where it is
    not known."""
    target = fn
    if isinstance(fn, torch.nn.Module):
        target = getattr(type(fn), "forward", fn)
    code = getattr(target, "__code__", None) or getattr(type(target).__call__, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def loaded(captured: Captured, slots: Args) -> list[Any]:
    """The inputs of a captured graph in a call."""
    tuples: dict[Source, Any] = {}  # those made anew whenever they are loaded
    inputs = []
    for graph_input in captured.inputs:
        source = graph_input.source
        if isinstance(source, ItemSource) and isinstance(source.base, DerivedSource):
            if source.base not in tuples:
                tuples[source.base] = source.base.load(slots)
            inputs.append(tuples[source.base][source.key])
        else:
            inputs.append(source.load(slots))
    return inputs


def _module_state(captured: Captured, slots: Args) -> Iterator[tuple[int, torch.Tensor]]:
    """(position, value) of the tensors that are parameters, or that are reached through a
    module."""
    for position, value in enumerate(loaded(captured, slots)):
        owners = []
        for owner in captured.inputs[position].source.owners():
            owners.append(owner.load(slots))
        is_of_module = any(isinstance(owner, torch.nn.Module) for owner in owners)
        if is_of_module or isinstance(value, torch.nn.Parameter):
            yield position, value
