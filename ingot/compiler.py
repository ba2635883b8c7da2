"""One compiled callable: its entries, and what happens when none of them fits a call."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ingot.backends import find_backend
from ingot.capture import Captured, capture_call
from ingot.capture.guards import GuardSet
from ingot.collection import paused_collection
from ingot.errors import GraphBreakError, Unsupported
from ingot.explain.compilation import Compilation
from ingot.native import Dispatcher, GuardTree
from ingot.options import Options
from ingot.pipeline import compile_graph, stage

log = logging.getLogger("ingot")

MAX_ENTRIES = 64  # a function that keeps changing is left to eager beyond this, and says so once

# Compilation is serial in a process: it runs torch's own tracing state. The call path takes no lock.
_compiling = threading.RLock()

Run = Callable[[tuple[Any, ...]], Any]


class Compiler:
    """Compiles `fn` for each set of facts it meets. `dispatcher` is the native callable that users hold."""

    _by_dispatcher: weakref.WeakKeyDictionary[Any, Compiler] = weakref.WeakKeyDictionary()

    def __init__(self, fn: Any, options: Options) -> None:
        find_backend(options.backend)  # an unknown name is an error now, not at the first call
        self.fn = fn
        self.options = options
        self.compilations: list[Compilation] = []
        self.guards: list[GuardSet] = []  # of every entry, newest last
        self.dispatcher = Dispatcher(entry_function(fn), self.compile_and_run)
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
            self.guards.clear()

    # -- a call that no entry fits ---------------------------------------------------------------------------------

    def compile_and_run(self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by the dispatcher on a miss: compile for this call's facts, then run what was compiled."""
        start = time.perf_counter()
        with _compiling, paused_collection():
            compilation, run = self._compile(slots, args, kwargs)
        result = run(slots) if run is not None else self.dispatcher.__wrapped__(*args, **kwargs)
        compilation.first_call = time.perf_counter() - start
        return result

    def _compile(
        self, slots: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Compilation, Run | None]:
        compilation = Compilation(display_name(self.fn), place_of(self.fn), recompiled=self._difference(slots))
        run: Run | None = None
        try:
            if len(self.guards) >= MAX_ENTRIES:
                raise Unsupported(
                    f"more than {MAX_ENTRIES} variants of this function", hint="Report.recompiles says what varies"
                )
            with stage(compilation, "capture"):
                captured = compilation.captured = capture_call(self.fn, args, kwargs, self.options)
            run = self._add_entry(compilation, captured, slots)
        except Unsupported as reason:
            self._leave_to_eager(compilation, reason)
        except Exception as bug:
            self._report_bug(compilation, bug)
        self.compilations.append(compilation)
        if "INGOT_DEBUG" in os.environ:
            from ingot.explain.debug import debug  # pays for its imports only when asked for

            debug(compilation)
        return compilation, run

    def _add_entry(self, compilation: Compilation, captured: Captured, slots: tuple[Any, ...]) -> Run:
        sources = [i.source for i in captured.inputs]
        backend = find_backend(self.options.backend)
        if backend is None:
            target: Any = compile_graph(captured, compilation, self.options).native
        else:
            with stage(compilation, "backend"):
                target = backend(captured.graph_module, [s.load(slots) for s in sources])
        with stage(compilation, "guards"):
            captured.collect_shape_guards()  # those that later stages added
            tree = GuardTree(captured.guards.native_spec(sources))
        failed = captured.guards.check_python(slots)
        if failed is not None:
            raise Unsupported(f"a fact changes while it is looked at: {failed.text}", failed.where)
        residual = captured.residual
        self.dispatcher.add_entry(tree, target, residual)
        self.guards.append(captured.guards)
        return lambda slots: residual.build(target(*[s.load(slots) for s in sources]), slots)

    def _difference(self, slots: tuple[Any, ...]) -> str:
        """What told this call from the newest entry; "" at the first compilation."""
        return (self.guards[-1].describe_difference(slots) or "") if self.guards else ""

    # -- calls that are not compiled -------------------------------------------------------------------------------

    def _leave_to_eager(self, compilation: Compilation, reason: Unsupported) -> None:
        compilation.skipped = reason
        if self.options.fullgraph:
            raise GraphBreakError(str(reason)) from reason
        guards = reason.guards
        if guards is None and compilation.captured is not None:
            guards = compilation.captured.guards
        if guards is not None:
            self.guards.append(guards)
            self.dispatcher.add_entry(GuardTree(guards.native_spec(())), None, None)
        elif len(self.guards) == MAX_ENTRIES and not any(
            c.skipped and c.skipped.reason == reason.reason for c in self.compilations
        ):
            log.warning("%s: %s; further ones run in eager", compilation.name, reason)

    def _report_bug(self, compilation: Compilation, bug: Exception) -> None:
        """Ingot's own fault, before anything visible was done: say so once, run this function in eager from now on."""
        compilation.skipped = Unsupported(f"internal error: {type(bug).__name__}: {bug}")
        if self.options.fullgraph:
            raise bug
        log.error("internal error, the call runs in eager; please report this", exc_info=bug)
        self.dispatcher.add_entry(GuardTree(GuardSet().native_spec(())), None, None)


def entry_function(fn: Any) -> Any:
    """The function or bound method whose call is a call of `fn`: for a module or another callable object, its
    `__call__`."""
    return type(fn).__call__.__get__(fn) if isinstance(fn, torch.nn.Module) else fn


def display_name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def place_of(fn: Any) -> str:
    """The "file:line" where `fn`, or the class or forward of a module, is defined; "" where it is not known."""
    target = getattr(type(fn), "forward", fn) if isinstance(fn, torch.nn.Module) else fn
    code = getattr(target, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
