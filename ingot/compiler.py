"""One compiled callable: its entries, and what happens when none of them fits a call."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any

from ingot.backends import find_backend
from ingot.capture import Captured, capture_call
from ingot.capture.guards import GuardSet
from ingot.errors import GraphBreakError, Unsupported
from ingot.explain.compilation import Compilation
from ingot.explain.debug import debug
from ingot.explain.report import Report
from ingot.native import Dispatcher, GuardTree
from ingot.options import Options
from ingot.pipeline import Timeline, compile_graph

log = logging.getLogger("ingot")

MAX_ENTRIES = 64  # a function that keeps changing is left to eager beyond this, and says so once

# Compilation is serial in a process: it runs torch's own tracing state. The call path takes no lock.
_compiling = threading.RLock()


class Compiler:
    """Compiles `fn` for each set of facts it meets. `dispatcher` is the native callable that users hold."""

    _by_dispatcher: weakref.WeakKeyDictionary[Any, Compiler] = weakref.WeakKeyDictionary()

    def __init__(self, fn: Any, options: Options) -> None:
        find_backend(options.backend)  # an unknown name is an error now, not at the first call
        self.fn = fn
        self.options = options
        self.compilations: list[Compilation] = []
        self.dispatcher = Dispatcher(fn, self.compile_and_run)
        Compiler._by_dispatcher[self.dispatcher] = self

    @staticmethod
    def of(fn: Any) -> Compiler | None:
        """The compiler behind a compiled function or module, or None."""
        dispatcher = getattr(type(fn), "__ingot_dispatcher__", fn)
        try:
            return Compiler._by_dispatcher.get(dispatcher)
        except TypeError:  # not hashable or not weakly referable: not ours
            return None

    def reset(self) -> None:
        with _compiling:
            self.dispatcher.clear()
            self.compilations.clear()

    def report(self) -> Report:
        return Report.from_compilations(self.compilations)

    # -- a call that no entry fits ---------------------------------------------------------------------------------

    def compile_and_run(self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by the dispatcher on a miss: compile for this call's facts, then run what was compiled."""
        with _compiling:
            compilation = self._compile(slots, args, kwargs)
        if compilation.run is None:
            return self.fn(*args, **kwargs)
        return compilation.run(slots)

    def _compile(self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compilation:
        compilation = Compilation(recompile_reason=self._difference(slots))
        self.compilations.append(compilation)
        if len(self.dispatcher.entries()) >= MAX_ENTRIES:
            return self._give_up(compilation)
        timeline = Timeline()
        compilation.seconds = timeline.seconds
        compilation.notes = timeline.notes
        try:
            with timeline.stage("capture"):
                captured = capture_call(self.fn, args, kwargs, self.options)
            compilation.captured = captured
            self._add_entry(compilation, captured, slots, timeline)
        except Unsupported as reason:
            self._leave_to_eager(compilation, reason)
        except Exception as bug:
            self._report_bug(compilation, bug)
        if "INGOT_DEBUG" in os.environ:
            debug(compilation)
        return compilation

    def _add_entry(self, compilation: Compilation, captured: Captured, slots: tuple[Any, ...], timeline: Timeline) -> None:
        sources = [i.source for i in captured.inputs]
        backend = find_backend(self.options.backend)
        if backend is None:
            compilation.lowered = compile_graph(captured, timeline)
            target: Any = compilation.lowered.program
        else:
            with timeline.stage("backend"):
                target = backend(captured.graph_module, [s.load(slots) for s in sources])
        with timeline.stage("guards"):
            tree = GuardTree(captured.guards.native_spec(sources))
        failed = captured.guards.check_python(slots)
        if failed is not None:
            raise Unsupported(f"a fact changes while it is looked at: {failed.text}", failed.where)
        residual = captured.residual
        compilation.run = lambda slots: residual.build(target(*[s.load(slots) for s in sources]), slots)
        self.dispatcher.add_entry(tree, target, residual)

    def _difference(self, slots: tuple[Any, ...]) -> str | None:
        """What told this call from the closest entry: the fact that differed; None at the first compilation."""
        for earlier in reversed(self.compilations):
            if earlier.guards is not None:
                text = earlier.guards.describe_difference(slots)
                if text is not None:
                    return text
        return None

    # -- calls that are not compiled -------------------------------------------------------------------------------

    def _leave_to_eager(self, compilation: Compilation, reason: Unsupported) -> None:
        compilation.skip = reason
        if self.options.fullgraph:
            raise GraphBreakError(str(reason)) from reason
        guards = reason.guards if isinstance(reason.guards, GuardSet) else compilation.captured and compilation.captured.guards
        if guards:
            compilation.guards = guards
            self.dispatcher.add_entry(GuardTree(guards.native_spec(())), None, None)

    def _give_up(self, compilation: Compilation) -> Compilation:
        compilation.skip = Unsupported(f"more than {MAX_ENTRIES} variants of this function", hint="see Report.recompiles for what varies")
        if not any(c.skip and c.skip.reason == compilation.skip.reason for c in self.compilations[:-1]):
            log.warning("%s: %s; further ones run in eager", getattr(self.fn, "__qualname__", self.fn), compilation.skip)
        else:
            self.compilations.pop()
        return compilation

    def _report_bug(self, compilation: Compilation, bug: Exception) -> None:
        """Ingot's own fault, before anything visible was done: say so once, run this function in eager from now on."""
        compilation.skip = Unsupported(f"internal error: {type(bug).__name__}: {bug}")
        log.error("ingot: internal error, the call runs in eager; please report this", exc_info=bug)
        if self.options.fullgraph:
            raise bug
        self.dispatcher.add_entry(GuardTree(GuardSet().native_spec(())), None, None)
