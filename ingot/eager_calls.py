"""Calls of a compiled function that are not compiled: why, for how long, and the call itself.

In: a reason, or an error of Ingot's own, and the call. Out: the original function's result, a line
in the report, and, where the facts are known that led there, an entry that leaves such calls to
eager for as long as the facts hold.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingot import events
from ingot.capture import Captured
from ingot.capture.facts import WATCHED
from ingot.capture.guard_set import GuardSet
from ingot.capture.inner_calls import InnerCalls
from ingot.compilation import Compilation
from ingot.errors import (
    EagerRaises,
    GraphBreakError,
    RecompileError,
    Unsupported,
    unsupported,
    without_frames,
)
from ingot.failures import ATTEMPTS, PASSING, Failures, Holds, explained
from ingot.native import GuardTree
from ingot.sequences import Args, Kwargs
from ingot.serial import serial
from ingot.stance import FAIL, LATER, current_stance

if TYPE_CHECKING:
    from ingot.compiler import Compiler

log = logging.getLogger("ingot")


class EagerCalls:
    """Those of one compiler."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.failures = Failures()
        self._too_many: Unsupported | None = None  # variants; further ones run in eager
        self._watched: Unsupported | None = None  # operations, by somebody in calls that ran
        self._has_waited = False  # for a second call

        self._hooked = HookedCall(compiler)

    def reset(self) -> None:
        self.failures.clear()
        self._hooked = HookedCall(self.compiler)
        self._too_many = self._watched = None
        self._has_waited = False

    # -- reasons -----------------------------------------------------------------------------------

    def keep(
        self, compilation: Compilation, reason: Unsupported, captured: Captured | None
    ) -> None:
        """Keeps the reason, and makes the decision an entry that lasts as long as the guards that
        led to it. These are the reason's or, if it has none, those of what was captured."""
        is_expected = isinstance(reason, EagerRaises) or reason.why.passes
        is_refused = not (is_expected or self._runs_hooked(reason))
        if self.compiler.options.fullgraph and is_refused:
            raise GraphBreakError(without_frames(reason)) from None
        if reason.evidence.guards is None and captured is not None:
            reason.evidence = reason.evidence._replace(guards=captured.guards)
        compilation.skipped = without_frames(reason)
        guards = reason.evidence.guards
        if guards is not None and not (reason.why.passes or self._asks_eager(reason)):
            self._add_entry(guards, hooked=self._runs_hooked(reason))

    def keep_failure(
        self,
        compilation: Compilation,
        error: Exception,
        captured: Captured | None,
        slots: Args,
    ) -> None:
        """Keeps an error that is not the program's, before anything visible was done. The call runs
        in eager, and its like is tried again; after a few internal errors it is left to eager as
        long as the facts that led there hold."""
        reason = explained(error)
        if captured is not None and "INGOT_REPRO_DIR" in os.environ:
            from ingot.debugging.repro import told_of_error  # for who asks for it

            told_of_error(error, captured, self.compiler.native_options, compilation.title)
        if self.compiler.options.fullgraph:
            raise GraphBreakError(reason) from error if isinstance(error, RecursionError) else error
        passes = isinstance(error, PASSING)
        guards = _guards_of(error, captured)
        failure = self.failures.note(_check_of(guards), slots)
        left = guards is not None and failure.count >= ATTEMPTS and not passes
        again = "not tried again while the facts hold"
        if not left:
            again = failure.again()
        reason.why = replace(reason.why, sentence=f"{reason.why.sentence} ({again})")
        compilation.skipped = reason
        if failure.count == 1 and not passes:
            log.error("internal error, the call runs in eager; please report this", exc_info=error)
        if left and guards is not None:
            self.failures.forget(slots)
            with contextlib.suppress(Exception):  # the guards may be what is wrong
                self._add_entry(guards, last=True)

    @serial
    def _add_entry(self, guards: GuardSet, last: bool = False, hooked: bool = False) -> None:
        """Leaves calls to eager for which the guards hold. `last`: behind entries that are
        compiled. `hooked`: all but a module's forward."""
        compiler, tree = self.compiler, GuardTree(guards.native_spec(()))
        target = residual = None
        if hooked:
            target, residual = tuple, self._hooked  # there is no graph: no outputs
        entry = compiler.dispatcher.add_entry(
            tree, target, residual, general=last, has_graph=not hooked
        )
        compiler.entries.append(entry)
        compiler.guards.append(guards)

    def too_many(self) -> Unsupported:
        """Why this variant is not compiled; the first time, a warning and a line in the report as
        well."""
        if self._too_many is None:
            compiler = self.compiler
            self._too_many = unsupported(
                "variants",
                f"more than {compiler.entry_limit} variants of this {compiler.kind}",
                compiler.where,
            )
            compiler.report_overflow(self._report(self._too_many))
        return self._too_many

    def off(self, why: Unsupported) -> Unsupported:
        """Nothing can be compiled with this torch; the first time, a line in the report."""
        if not self.compiler.compilations:
            self._report(why)
        return why

    def watched(self) -> Unsupported:
        """Why a call whose operations somebody sees is not compiled; the first time, a line in the
        report as well."""
        if self._watched is None:
            self._watched = unsupported("watched", WATCHED, self.compiler.where)
            self._report(self._watched)
        return self._watched

    def _report(self, why: Unsupported) -> Compilation:
        compilation = self.compiler.new_compilation("")
        compilation.skipped = why
        self.compiler.compilations.append(compilation)
        events.note_reason(events.FALLBACK, compilation.title, compilation.where, why)
        return compilation

    # -- calls -------------------------------------------------------------------------------------

    def is_held_back(self) -> bool:
        """Whether the stance forbids to compile this call."""
        if current_stance() != LATER:
            return True
        waits = not (self.compiler.guards or self._has_waited)
        self._has_waited = True
        return waits

    def run_under_stance(self, slots: Args, args: Args, kwargs: Kwargs) -> Any:
        """A call that no entry fits, under a stance that forbids to compile it."""
        if current_stance() == FAIL:
            raise recompiled(self.compiler, slots, FAIL)
        return self.run(None, args, kwargs)

    def run(self, reason: Unsupported | None, args: Args, kwargs: Kwargs) -> Any:
        """The original function. Once it has raised an error that was expected of it, it runs again
        for as long as the facts stay."""
        function, fullgraph = self.compiler.dispatcher.fn, self.compiler.options.fullgraph
        if reason is not None and self._runs_hooked(reason):
            return self._hooked(function, args, kwargs)
        if reason is None or reason.why.passes or not (fullgraph or self._asks_eager(reason)):
            return function(*args, **kwargs)
        if not isinstance(reason, EagerRaises):
            raise GraphBreakError(reason)
        try:
            result = function(*args, **kwargs)
        except Exception:
            if reason.evidence.guards is not None:
                self._add_entry(reason.evidence.guards)
            raise
        if fullgraph:
            raise GraphBreakError(reason)
        self.compiler.sizes.expects_errors = False
        return result

    def _runs_hooked(self, reason: Unsupported) -> bool:
        """Whether it is a call of a module of which all but the forward runs in eager."""
        return reason.why.is_of_hooks and reason.evidence.step is None

    def _asks_eager(self, reason: Unsupported) -> bool:
        """Whether it is to be seen first whether eager raises the error that is expected of it.
        Where it does not, the graph is broken from the next call on."""
        if not isinstance(reason, EagerRaises):
            return False
        may_break = reason.evidence.step is not None and not reason.skips
        return self.compiler.options.fullgraph or (self.compiler.sizes.expects_errors and may_break)


class HookedCall:
    """A call of `Module.__call__`, or of what it calls, in eager but for what the hooks stand
    around: that is an inner call. Also the residual of entries that run such calls."""

    kind, output_count = "general", 0

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.calls = InnerCalls(compiler.continue_at)

    def __call__(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        return self.calls.run(_call, (function, args, kwargs))

    def build(self, outputs: Sequence[Any], slots: Args) -> Any:
        module, args, kwargs, *_ = slots
        return self(self.compiler.function, (module, *args), kwargs)


def _call(function: Any, args: Args, kwargs: Kwargs) -> Any:
    return function(*args, **kwargs)


def recompiled(compiler: Compiler, slots: Args, under: str) -> RecompileError:
    """The error for a call that may not be compiled; `under` names what forbids it."""
    why = compiler.difference(slots) or "there is nothing that it could run"
    title = compiler.new_compilation("").title
    return RecompileError(f"{title} would be compiled under {under!r}: {why}")


def _guards_of(error: Exception, captured: Captured | None) -> GuardSet | None:
    """The guards that led to an error, as far as capture came."""
    guards: GuardSet | None = None
    if captured is not None:
        guards = captured.guards
    return vars(error).pop("__ingot_guards__", guards)


def _check_of(guards: GuardSet | None) -> Holds:
    """Whether they hold for a call; without guards nothing is known of what led to a failure."""
    return lambda slots: guards is None or guards.check_python(slots) is None
