"""One compiled callable: its entries, and what happens when none of them fits a call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from ingot.backends import check_outputs, compile_with_backend
from ingot.capture import (
    Captured,
    Chain,
    Request,
    argument_slots,
    capture_call,
    capture_continuation,
)
from ingot.capture.facts import WATCHED, operations_are_watched
from ingot.capture.guards import GuardSet, Plausible, Quantity, Varying, closest
from ingot.capture.inner_calls import captured_by
from ingot.capture.resume import resume_function
from ingot.capture.sources import Source
from ingot.collection import paused_collection
from ingot.compilation import Compilation, stage
from ingot.errors import (
    BackendError,
    EagerRaises,
    Evidence,
    GraphBreakError,
    RecompileError,
    Unsupported,
    of_hooks,
    unsupported,
    without_frames,
)
from ingot.failures import ATTEMPTS, PASSING, Failures, Holds, explained
from ingot.graph.ambient import Modes, undisturbed
from ingot.graph.meta.basis import tensors_in
from ingot.graph.schemas import draws
from ingot.graph.shape_context import too_large
from ingot.native import Dispatcher, Entry, GuardTree, _native
from ingot.options import Options
from ingot.reasons import STATIC
from ingot.serial import safe_point, serial
from ingot.stance import DEFAULT, FAIL, current_stance
from ingot.torch_private import ALL, why_off

log = logging.getLogger("ingot")

MAX_ENTRIES = 64  # a function that keeps changing is left to eager beyond this, and says so once
# the same for what follows a graph break: a loop that breaks has one for each iteration
MAX_CONTINUATION_ENTRIES = 16
SETTLED = 8  # calls of one entry after which a size that they had in common is taken to stay
# calls with the same sizes, in a row, after which these are compiled for where that is asked for
HOT = 32
HOT_THREAD = "ingot: sizes that keep coming"
MAX_HOT = 8  # how often one function is, its continuations included
_PIECES = (  # of the pipeline, each behind those that it imports
    "ingot.schedule",
    "ingot.codegen.llvm",
    "ingot.loops.lowering",
    "ingot.runtime.program",
    "ingot.gradients",
    "ingot.pipeline",
)
# places where the graphs of one function are broken; behind further ones it runs in eager
MAX_CONTINUATIONS = 256
_FLOATS = frozenset({float})
_NUMBERS = _FLOATS | {int}

Run = Callable[[tuple[Any, ...], tuple[Any, ...], dict[str, Any]], Any]


OFF = why_off(ALL)
"""Why nothing is compiled: torch lacks a name that all of it needs."""


class Compiler:
    """Compiles `fn` for each set of facts it meets. `dispatcher` is the native callable that users
    hold."""

    alive: weakref.WeakSet[Compiler] = weakref.WeakSet()
    max_entries = MAX_ENTRIES

    def __init__(self, fn: Any, options: Options) -> None:
        self.fn = fn
        self.options = options
        self.compilations: list[Compilation] = []
        self.guards: list[GuardSet] = []  # of every entry, newest last
        self.entries: list[Entry] = []  # of the dispatcher, beside their guards
        self.varying: Varying = frozenset()
        self.plausible: Plausible | None = None  # sizes that may vary, too, once there is an entry
        # whether such are symbols
        self.supposes = options.dynamic is not False and options.is_native
        self.fixed_sizes = False  # whether they are compiled for, as symbols did not do
        # else they break the graph, as symbols for them did not do
        self.takes_data_dependent_sizes = options.is_native
        self.expects_errors = True  # that eager raises what capture says that it does
        # why further variants run in eager, once there are too many
        self.overflow: Unsupported | None = None
        # why calls ran in eager whose operations somebody sees
        self.watched: Unsupported | None = None
        self.failures = Failures()
        self.continuations: dict[Chain, Continuation] = {}  # of graph breaks
        self.root: Compiler = self
        self.hot_left = MAX_HOT
        self.dispatcher = Dispatcher(entry_function(fn), self.compile_and_run)
        self._await_hot_sizes()
        Compiler.alive.add(self)

    @staticmethod
    def of(fn: Any) -> Compiler | None:
        """The compiler behind a compiled function, method or module; None for anything else."""
        dispatcher = getattr(
            type(fn), "__ingot_dispatcher__", fn.__func__ if isinstance(fn, MethodType) else fn
        )
        return dispatcher.on_miss.__self__ if isinstance(dispatcher, Dispatcher) else None

    @serial
    def reset(self) -> None:
        self.dispatcher.clear()
        self.compilations.clear()
        self.guards.clear()
        self.entries.clear()
        self.varying, self.plausible, self.fixed_sizes = frozenset(), None, False
        self.supposes = self.options.dynamic is not False and self.options.is_native
        self.takes_data_dependent_sizes = self.options.is_native
        self.continuations.clear()
        self.failures.clear()
        self.expects_errors = True
        self.overflow = self.watched = None
        self.hot_left = MAX_HOT
        self._await_hot_sizes()

    # -- a call that no entry fits -----------------------------------------------------------------

    def compile_and_run(
        self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Called by the dispatcher on a miss: compile for this call's facts, then run what was
        compiled."""
        if current_stance() != DEFAULT:
            return self._run_uncompiled(slots, args, kwargs)
        if len(self.guards) >= self.max_entries:  # as it stays: no need to wait for the lock
            return self._run_eager(self._overflow(), args, kwargs)
        if OFF is not None:
            return self._run_eager(self._off(OFF), args, kwargs)
        if operations_are_watched():
            return self._run_eager(self._watched(), args, kwargs)
        if not self.options.fullgraph and any(guards.is_exceeded(slots) for guards in self.guards):
            # the integers of this call have more than 63 bits
            return self._run_eager(None, args, kwargs)
        if self.failures.put_off(slots):
            return self._run_eager(None, args, kwargs)
        start, known = time.perf_counter(), len(self.guards)
        compilation, run, served = self._compile_unless_served(slots, args, kwargs, known)
        if served:  # by another thread, while this one waited
            return self.dispatcher(*args, **kwargs)
        if compilation is None:
            return self._run_eager(self._overflow(), args, kwargs)
        result = (
            run(slots, args, kwargs)
            if run is not None
            else self._run_eager(compilation.skipped, args, kwargs)
        )
        compilation.first_call = time.perf_counter() - start
        return result

    def _run_uncompiled(
        self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that no entry fits, under a stance that forbids to compile it."""
        if current_stance() == FAIL:
            why = self._difference(slots) or "there is nothing that it could run"
            raise RecompileError(
                f"{self._new_compilation('').title} would be compiled under {FAIL!r}: {why}"
            )
        return self._run_eager(None, args, kwargs)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile for the facts of a call, unless an entry holds for them. The program is run only
        where a graph was broken: what follows depends on it."""
        try:
            slots = argument_slots(self.dispatcher.fn, args, kwargs)
        except Unsupported:  # not a Python function: capture says so, and keeps the reason
            slots = ()
        if OFF is not None:
            self._off(OFF)
            return
        self._compile_unless_served(slots, args, kwargs, 0)
        if any(c.break_ is not None and c.skipped is None for c in self.compilations):
            self.dispatcher(*args, **kwargs)

    @serial
    def _compile_unless_served(
        self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], known: int
    ) -> tuple[Compilation | None, Run | None, bool]:
        """Compile unless an entry other than the first `known` holds; nothing is compiled beyond
        `max_entries`."""
        with captured_by(None):
            if any(guards.check_python(slots) is None for guards in self.guards[known:]):
                return None, None, True
            if len(self.guards) >= self.max_entries:
                return None, None, False
            with undisturbed(), paused_collection():
                return *self._compile(slots, args, kwargs), False

    def _compile(
        self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Compilation, Run | None]:
        compilation = self._new_compilation(self._difference(slots))
        self.varying = self.varying.union(*(guards.changed_floats(slots) for guards in self.guards))
        if self.options.dynamic is not False and self.options.is_native:
            for guards in self.guards:
                self.varying = self.varying.union(
                    guards.changed_sizes(slots), guards.changed_integers(slots)
                )
            if self.supposes:
                self._suppose(slots)
        run: Run | None = None
        try:
            run = self._compile_data(compilation, slots, args, kwargs)
            self.failures.forget(slots)
        except Unsupported as reason:
            self._leave_to_eager(compilation, reason)
        except BackendError:
            raise
        except Exception as error:
            self._note_failure(compilation, error, slots)
        self.compilations.append(compilation)
        if "INGOT_DEBUG" in os.environ:
            from ingot.explain.debug import debug  # pays for its imports only when asked for

            debug(compilation)
        return compilation, run

    def _suppose(self, slots: tuple[Any, ...]) -> None:
        """Find the sizes that may vary though they were not seen to: those beside one that varies,
        unless they have settled in an entry that nothing but sizes keeps from serving this call."""
        compiled = [
            (g, entry) for g, entry in zip(self.guards, self.entries) if entry.target is not None
        ]
        if not compiled:
            return
        beside, settled = set[Quantity](), set[Quantity]()
        for guards, entry in compiled:
            if entry.hits < SETTLED:
                beside.update(guards.sizes_beside_changed(slots))
            else:
                settled.update(guards.settled_sizes(slots))
        places = (self.plausible.places if self.plausible is not None else frozenset()) | (
            beside - settled
        )
        known = frozenset(source for guards, _ in compiled for source in guards.sizes())
        self.plausible = Plausible(places, known)

    def _compile_data(
        self,
        compilation: Compilation,
        slots: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Run:
        """Compile with symbols for sizes that the data decide; where that cannot be done, the graph
        breaks there."""
        try:
            return self._compile_sizes(compilation, slots, args, kwargs)
        except (BackendError, *PASSING):
            raise
        except Exception as problem:
            captured = compilation.captured
            if (
                captured is None
                or not captured.context.shapes.unbacked.roots
                or self.options.fullgraph
            ):
                raise
            why = without_frames(problem)
        self.takes_data_dependent_sizes = False
        compilation.captured = None
        run = self._compile_sizes(compilation, slots, args, kwargs)
        compilation.fixed_sizes.append(f"sizes that the data decide break the graph: {why}")
        return run

    def _compile_sizes(
        self,
        compilation: Compilation,
        slots: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Run:
        """Compile with symbols for sizes and integers that vary, and for sizes that may; where that
        cannot be done, for those of this call."""
        symbolic, static = self._request(), self._static_request()

        def capture(request: Request) -> Captured:
            compilation.captured = None
            with stage(compilation, "capture"):
                compilation.captured = captured = self._capture(args, kwargs, request)
            return captured

        def compiled(request: Request) -> Run | Exception:
            """With symbols, or why that cannot be done."""
            try:
                captured = capture(request)
                why = captured.break_
                if why is None or not has_symbols(why) or str(capture(static).break_) == str(why):
                    # it does not break for the symbols' sake
                    return self._add_entry(compilation, captured, slots)
            except (BackendError, *PASSING):
                raise
            except Exception as problem:
                if not has_symbols(compilation.captured or problem):
                    raise
                return without_frames(problem)
            return why

        if self.fixed_sizes:
            return self._add_entry(compilation, capture(static), slots)
        if self.plausible is not None:
            found = compiled(replace(symbolic, plausible=self.plausible))
            if not isinstance(found, Exception):
                assert compilation.captured is not None
                self.plausible = self.plausible._replace(
                    places=self.plausible.places | compilation.captured.supposed
                )
                return found
            if not is_of_the_call(found):
                self.supposes, self.plausible = False, None
        found = compiled(symbolic)
        if not isinstance(found, Exception):
            return found
        captured, of_values = capture(static), is_of_the_call(found)
        if (
            of_values
            and not self.options.fullgraph
            and any(guards.takes_integers() for guards in self.guards)
        ):
            found = too_large()
            found.evidence = Evidence(captured.guards)
            raise found
        run = self._add_entry(compilation, captured, slots)
        compilation.fixed_sizes.append(
            f"all sizes and integers are those of the call: {without_frames(found)}"
        )
        self.fixed_sizes = not of_values
        return run

    # -- sizes that keep coming --------------------------------------------------------------------

    def _await_hot_sizes(self) -> None:
        if self.options.specialize and self.options.dynamic is not False and self.options.is_native:
            self.dispatcher.report_hot(HOT, self._on_hot)

    def _on_hot(
        self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Called by the dispatcher behind a call whose like has come HOT times in a row to an entry
        with symbols: have it compiled for its sizes by another thread."""
        if self.root.hot_left <= 0:
            self.dispatcher.report_hot(0, None)
        elif current_stance() == DEFAULT and not operations_are_watched():
            self.root.hot_left -= 1
            # Not a daemon, which the end of the process would cut off in the middle of LLVM.
            given = slots, args, kwargs, Modes.now(), tuple(self.entries)
            threading.Thread(target=self._specialize, args=given, name=HOT_THREAD).start()

    def _specialize(
        self,
        slots: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: Modes,
        entries: Sequence[Entry],
    ) -> None:
        """Compile for the sizes of a call that the `entries` served, in a thread of its own. Where
        that cannot be done they serve the like on, and nobody but the report hears of it."""
        try:
            self._compile_hot(slots, args, kwargs, modes, entries)
        except Exception as problem:
            general = [
                c for c in self.compilations if c.captured is not None and c.captured.guards.symbols
            ]
            for served in general[-1:]:
                served.decisions.append(
                    f"sizes that came {HOT} times in a row are not compiled for: {problem}"
                )

    @serial
    def _compile_hot(
        self,
        slots: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: Modes,
        entries: Sequence[Entry],
    ) -> None:
        compilation = self._new_compilation(
            f"sizes that came {HOT} times in a row, compiled for in the background"
        )
        with captured_by(None), undisturbed(), paused_collection():
            if self.entries[: len(entries)] != [*entries]:
                return  # reset since then
            modes.set()
            with stage(compilation, "capture"):
                captured = self._capture(args, kwargs, self._static_request())
            if captured.guards.symbols:
                raise unsupported("marked-sizes", "sizes are marked as dynamic")
            self._add_entry(compilation, captured, slots, hot=True)
            self.compilations.append(compilation)

    kind = "function"

    @property
    def where(self) -> str:
        """The user's "file:line" where what is compiled begins."""
        return place_of(self.fn)

    def _new_compilation(self, recompiled: str) -> Compilation:
        return Compilation(display_name(self.fn), self.where, recompiled=recompiled)

    def _request(self) -> Request:
        """Symbols for what varies."""
        flags = self.takes_data_dependent_sizes, self.expects_errors
        dynamic = self.options.dynamic if self.options.is_native else False
        inputs = _NUMBERS if dynamic else _FLOATS
        if dynamic is False or self.options.replays:  # what is recorded on a GPU has numbers in it
            inputs = frozenset()
        return Request(
            self.options, self._continue_at, self.varying, None, *flags, self.varying, inputs
        )

    def _static_request(self) -> Request:
        """The sizes and integers of the call; floats that vary are inputs."""
        floats = frozenset(place for place in self.varying if not isinstance(place, Quantity))
        request = self._request()
        options, inputs = replace(self.options, dynamic=False), request.inputs & _FLOATS
        return replace(request, options=options, varying=floats, inputs=inputs)

    def _capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Request) -> Captured:
        return capture_call(self.dispatcher.fn, args, kwargs, request)

    def _continue_at(self, chain: Chain) -> Any:
        """The compiled callable that goes on where a graph was broken."""
        found = self.continuations.get(chain)
        if found is None:
            if len(self.continuations) >= MAX_CONTINUATIONS:
                return resume_function(chain)
            found = self.continuations[chain] = Continuation(self, chain)
        return found.dispatcher

    def _add_entry(
        self,
        compilation: Compilation,
        captured: Captured,
        slots: tuple[Any, ...],
        *,
        hot: bool = False,
    ) -> Run:
        """Make a captured call an entry; one that is `hot` only saves time, and what others know of
        it does not count as known."""
        compilation.captured = captured
        compilation.break_ = (
            without_frames(captured.break_) if captured.break_ is not None else None
        )
        sources = [i.source for i in captured.inputs]
        if not captured.ops:
            target: Any = _without_work(captured.graph_module.graph)
        elif self.options.is_native:
            compile_graph = _import_pipeline()
            frozen = dict(_module_state(sources, slots)) if self.options.freeze else {}
            target = compile_graph(captured, compilation, self.options, frozen)
        else:
            with stage(compilation, "backend"):
                target = compile_with_backend(
                    self.options, captured.graph_module, [s.load(slots) for s in sources]
                )
        with stage(compilation, "guards"):
            captured.collect_shape_guards()  # those that later stages added
            captured.context.shapes.closed = True
            compilation.fixed_sizes += captured.fixed_marks()
            tree = GuardTree(captured.guards.native_spec(sources))
        # learns at once what a call looks like in which nothing has changed
        holds = tree.collect(slots) is not None
        failed = None if holds else captured.guards.check_python(slots)
        if failed is not None:
            raise unsupported(
                "unstable-capture",
                f"a fact changes while it is looked at: {failed.text}",
                failed.where,
            )
        residual = captured.residual
        aten, program = compilation.aten, compilation.program
        fails_at = may_fail_at(aten)
        generators = generators_of(aten) if fails_at is not None else ()
        replays = bool(generators) or not draws_random_numbers(aten)
        if program is None:
            replays = not captured.writes
        elif not isinstance(compilation.replayed, str | None):
            # a CUDA graph does not say how far it came
            replays = replays and not program.leaves_traces
        if fails_at is not None and not (replays and program.fails_first):
            if aten.checks or captured.protects or residual.effects:
                raise unsupported(
                    "late-error",
                    "an error of the data's may be found where eager could not go on",
                    fails_at,
                )
        # what a check finds may be no error
        handles = captured.handles or aten is not None and bool(aten.bindings)
        if hot:
            from ingot.runtime.training import prepare_backward

            prepare_backward(target, [entry.target for entry in self.entries])
        entry = self.dispatcher.add_entry(
            tree,
            target,
            residual,
            replays=replays,
            handles=handles,
            general=bool(captured.guards.symbols),
            generators=generators,
        )
        if not hot:
            self.guards.append(captured.guards)
            self.entries.append(entry)

        def run(slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            raised: Exception | None = None
            states = [generator.get_state() for generator in generators]
            _native.forget_traces()
            try:
                outputs = target(*[s.load(slots) for s in sources])
            except Exception as error:
                if not replays or of_hooks(error) or _native.left_traces():
                    raise
                raised = without_frames(error)
            if raised is not None:  # out of the handler, which would hang on what is raised now
                for generator, state in zip(generators, states):
                    generator.set_state(state)
                return self._replay(raised, handles, args, kwargs)
            if not self.options.is_native:
                check_outputs(self.options, outputs, residual.output_count)
            return residual.build(outputs, slots)

        return run

    def _replay(
        self, raised: Exception, handles: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The original function after its graph has raised: it raises at its own line, inside the
        program's handlers. Where there are none, and it does not, somebody is at fault."""
        result = self.dispatcher.fn(*args, **kwargs)
        if not handles:
            what = f"a compiled graph raised {raised!r}, which {self.dispatcher.fn} does not: the call ran in eager"
            warnings.warn(what, RuntimeWarning, stacklevel=3)
        return result

    def _difference(self, slots: tuple[Any, ...]) -> str:
        """What told this call from the closest entry; "" at the first compilation."""
        return closest(self.guards, slots)

    # -- calls that are not compiled ---------------------------------------------------------------

    def _leave_to_eager(self, compilation: Compilation, reason: Unsupported) -> None:
        """Keep the reason, and make the decision an entry that lasts as long as the facts that led
        to it."""
        if self.options.fullgraph and not isinstance(reason, EagerRaises):
            raise GraphBreakError(without_frames(reason)) from None
        if reason.evidence.guards is None and compilation.captured is not None:
            reason.evidence = reason.evidence._replace(guards=compilation.captured.guards)
        compilation.skipped = without_frames(reason)
        guards = reason.evidence.guards
        if guards is not None and not self._asks_eager(reason):
            self._add_eager_entry(guards)

    def _note_failure(
        self, compilation: Compilation, error: Exception, slots: tuple[Any, ...]
    ) -> None:
        """An error that is not the program's, before anything visible was done. The call runs in
        eager, and its like is tried again; after a few internal errors it is left to eager as long
        as the facts that led there hold."""
        reason = explained(error)
        if self.options.fullgraph:
            raise GraphBreakError(reason) from error if isinstance(error, RecursionError) else error
        captured = compilation.captured
        guards: GuardSet | None = vars(error).pop(
            "__ingot_guards__", captured.guards if captured else None
        )
        failure = self.failures.note(_check_of(guards), slots)
        left = guards is not None and failure.count >= ATTEMPTS and not isinstance(error, PASSING)
        again = "not tried again while the facts hold" if left else failure.again()
        reason.why = replace(reason.why, sentence=f"{reason.reason} ({again})")
        compilation.skipped = reason
        if failure.count == 1 and not isinstance(error, PASSING):
            log.error("internal error, the call runs in eager; please report this", exc_info=error)
        if left and guards is not None:
            self.failures.forget(slots)
            with contextlib.suppress(Exception):  # the guards may be what is wrong
                self._add_eager_entry(guards, last=True)

    @serial
    def _add_eager_entry(self, guards: GuardSet, last: bool = False) -> None:
        """`last`: behind those that are compiled."""
        tree = GuardTree(guards.native_spec(()))
        self.entries.append(self.dispatcher.add_entry(tree, None, None, general=last))
        self.guards.append(guards)

    def _overflow(self) -> Unsupported:
        """Why this variant is not compiled; the first time, a warning and a line in the report as
        well."""
        if self.overflow is None:
            self.overflow = unsupported(
                "variants", f"more than {self.max_entries} variants of this {self.kind}", self.where
            )
            compilation = self._new_compilation("")
            compilation.skipped = self.overflow
            self.compilations.append(compilation)
            self._report_overflow(compilation)
        return self.overflow

    def _report_overflow(self, compilation: Compilation) -> None:
        log.warning("%s: %s; further ones run in eager", compilation.name, compilation.skipped)

    def _off(self, why: Unsupported) -> Unsupported:
        """Nothing can be compiled with this torch; the first time, a line in the report."""
        if not self.compilations:
            compilation = self._new_compilation("")
            compilation.skipped = why
            self.compilations.append(compilation)
        return why

    def _watched(self) -> Unsupported:
        """Why a call whose operations somebody sees is not compiled; the first time, a line in the
        report as well."""
        if self.watched is None:
            self.watched = unsupported("watched", WATCHED, self.where)
            compilation = self._new_compilation("")
            compilation.skipped = self.watched
            self.compilations.append(compilation)
        return self.watched

    def _asks_eager(self, reason: Unsupported) -> bool:
        """Whether it is to be seen first whether eager raises the error that is expected of it.
        Where it does not, the graph is broken from the next call on."""
        breakable = self.expects_errors and reason.evidence.step is not None and not reason.skips
        return isinstance(reason, EagerRaises) and (breakable or self.options.fullgraph)

    def _run_eager(
        self, reason: Unsupported | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The original function. Once it has raised an error that was expected of it, it runs again
        for as long as the facts stay."""
        if reason is None or not (self.options.fullgraph or self._asks_eager(reason)):
            return self.dispatcher.fn(*args, **kwargs)
        if isinstance(reason, EagerRaises):
            try:
                result = self.dispatcher.fn(*args, **kwargs)
            except Exception:
                if reason.evidence.guards is not None:
                    self._add_eager_entry(reason.evidence.guards)
                raise
            if not self.options.fullgraph:
                self.expects_errors = False
                return result
        raise GraphBreakError(reason)


class Continuation(Compiler):
    """Compiles what follows a graph break, for each set of facts it meets there. Its function is
    the rest of the program in eager, its arguments are the state at the break."""

    kind = "continuation"
    max_entries = MAX_CONTINUATION_ENTRIES

    def __init__(self, root: Compiler, chain: Chain) -> None:
        super().__init__(resume_function(chain), root.options)
        self.root, self.chain = root, chain
        self.compilations = root.compilations
        Compiler.alive.discard(self)

    def _new_compilation(self, recompiled: str) -> Compilation:
        name = self.chain.points[-1].code.co_qualname
        return Compilation(
            name, self.where, recompiled=recompiled, is_continuation=True, region=self.chain
        )

    @property
    def where(self) -> str:
        return self.chain.where

    def _capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Request) -> Captured:
        return capture_continuation(self.chain, args, request)

    def _continue_at(self, chain: Chain) -> Any:
        return self.root._continue_at(chain)

    def _report_overflow(self, compilation: Compilation) -> None:
        # one of the functions that a broken instruction called: nobody asked to compile it
        if self.chain.is_call:
            _native.set_code_entry(self.chain.points[0].code, None)
        else:
            super()._report_overflow(compilation)


def _check_of(guards: GuardSet | None) -> Holds:
    """Whether they hold for a call; without guards nothing is known of what led to a failure."""
    return lambda slots: guards is None or guards.check_python(slots) is None


def _import_pipeline() -> Callable[..., Any]:
    """`compile_graph`. Another backend needs nothing of what it imports. There are safe points
    between the pieces; an import that is cut off would have to be undone."""
    for name in _PIECES:
        importlib.import_module(name)
        safe_point()
    from ingot.pipeline import compile_graph

    return compile_graph


def has_symbols(found: Captured | Exception) -> bool:
    """Whether a capture, or the reason why there is none, has seen symbols for sizes or integers;
    True if unknown."""
    if isinstance(found, Captured):
        return bool(found.guards.symbols)
    if not isinstance(found, Unsupported) or found.evidence.guards is None:
        return True
    if found.why.action is STATIC or found.why.is_of_the_call:
        return True
    return bool(found.evidence.guards.symbols)


def is_of_the_call(problem: Exception) -> bool:
    """Whether the values of this call are to blame, and not the program."""
    return isinstance(problem, Unsupported) and problem.why.is_of_the_call


def draws_random_numbers(aten: Any) -> bool:
    """Whether an operation of an ATen graph (None: there is none) takes numbers from a
    generator."""
    return aten is not None and any(draws(node.target) for node in aten.graph.nodes)


def _without_work(graph: fx.Graph) -> Callable[..., tuple[Any, ...]]:
    """A program that gives some of its arguments, as a graph without operations does: numbers that
    vary."""
    places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    outputs: Any = graph.output_node().args[0]
    chosen = [places[node] for node in outputs]
    return lambda *args: tuple([args[place] for place in chosen])


def generators_of(aten: Any) -> tuple[torch.Generator, ...]:
    """The generators that an ATen graph takes numbers from."""
    drawn = (tensors_in(node.meta["val"])[0] for node in aten.graph.nodes if draws(node.target))
    devices, on_gpus = (
        dict.fromkeys(tensor.device for tensor in drawn),
        torch.cuda.default_generators,
    )
    return tuple(on_gpus[d.index] if d.type == "cuda" else torch.default_generator for d in devices)


def may_fail_at(aten: Any) -> str | None:
    """Where an ATen graph may raise an error for what its tensors hold; None where it does not, or
    none is known."""
    if aten is None:
        return None
    if aten.checks:
        return aten.checks[0].where
    return next(
        (node.meta.get("where", "") for node in aten.graph.nodes if node.meta.get("may_raise")),
        None,
    )


def entry_function(fn: Any) -> Any:
    """The Python function, or bound method of one, whose call is a call of `fn`: for a module or
    another object its `__call__`, for what is called in C (a `functools.partial`, a built-in) a
    function around it."""
    if isinstance(fn, FunctionType) or (
        isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType)
    ):
        return fn
    call = type(fn).__call__
    if isinstance(call, FunctionType):
        return call.__get__(fn)

    def called(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return functools.update_wrapper(called, fn)


def display_name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def place_of(fn: Any) -> str:
    """The "file:line" where `fn`, or the class or forward of a module, is defined; "" where it is
    not known."""
    target = getattr(type(fn), "forward", fn) if isinstance(fn, torch.nn.Module) else fn
    code = getattr(target, "__code__", None) or getattr(type(target).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _module_state(
    sources: Sequence[Source], slots: tuple[Any, ...]
) -> Iterator[tuple[int, torch.Tensor]]:
    """(position, value) of the tensors that are parameters, or that are reached through a
    module."""
    for position, source in enumerate(sources):
        value = source.load(slots)
        if isinstance(value, torch.nn.Parameter) or any(
            isinstance(owner.load(slots), torch.nn.Module) for owner in source.owners()
        ):
            yield position, value
