"""Sizes that keep coming: an entry of their own, compiled in the background.

In: calls that an entry with symbols serves, whose sizes have come HOT times in a row. Out: a static
entry, asked before the one that serves them. Where it cannot be compiled, the entry with symbols
serves on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ingot import events
from ingot.capture.facts import operations_are_watched
from ingot.capture.inner_calls import unwatched
from ingot.collection import paused_collection
from ingot.errors import unsupported
from ingot.graph.ambient import Modes, undisturbed
from ingot.graph.process_modes import left_alone
from ingot.ladder import Sizes
from ingot.native import Entry
from ingot.sequences import Args, Kwargs
from ingot.serial import serial
from ingot.stance import DEFAULT, current_stance

if TYPE_CHECKING:
    from ingot.compiler import Compiler

# calls with the same sizes, in a row, after which these are compiled for where that is asked for
HOT = 32
HOT_THREAD = "ingot: sizes that keep coming"
MAX_HOT = 8  # how often one function is, its continuations included


class HotSizes:
    """Those of one compiler. The compiler of a continuation counts with its root."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.reset()

    def reset(self) -> None:
        self.left = MAX_HOT
        options = self.compiler.options
        if options.specialize and options.dynamic is not False and options.is_native:
            self.compiler.dispatcher.report_hot(HOT, self._on_hot)

    def _on_hot(self, slots: Args, args: Args, kwargs: Kwargs) -> None:
        """Has the sizes of a call compiled for by another thread. The dispatcher calls it behind a
        call whose like has come HOT times in a row to an entry with symbols."""
        of_root = self.compiler.root.hot_sizes
        if of_root.left <= 0:
            self.compiler.dispatcher.report_hot(0, None)
        elif current_stance() == DEFAULT and not operations_are_watched():
            of_root.left -= 1
            # Not a daemon, which the end of the process would cut off in the middle of LLVM.
            call = slots, args, kwargs, Modes.now(), tuple(self.compiler.entries)
            threading.Thread(target=self._specialize, args=call, name=HOT_THREAD).start()

    def _specialize(self, *call: Any) -> None:
        """Compiles for the sizes of a call in a thread of its own, given what `_compile` takes.

        Where that cannot be done the entries that served it serve the like on, and nobody but the
        report hears of it.
        """
        try:
            self._compile(*call)
        except Exception as problem:
            for compilation in reversed(self.compiler.compilations):
                captured = compilation.captured
                if captured is not None and captured.guards.symbols:
                    compilation.log.decisions.append(
                        f"sizes that came {HOT} times in a row are not compiled for: {problem}"
                    )
                    return

    @serial
    def _compile(
        self,
        slots: Args,
        args: Args,
        kwargs: Kwargs,
        modes: Modes,
        entries: Sequence[Entry],
    ) -> None:
        compiler = self.compiler
        compilation = compiler.new_compilation(
            f"sizes that came {HOT} times in a row, compiled for in the background"
        )
        span = events.Span(events.COMPILATION, compilation.title, compilation.where)
        with unwatched(), undisturbed(), left_alone(), paused_collection():
            if compiler.entries[: len(entries)] != [*entries]:
                return  # reset since then
            modes.set()
            compilation.event = span.id
            with span:
                with compilation.log.stage("capture"):
                    request = compiler.sizes.request(Sizes.STATIC, compiler.continue_at)
                    captured = compiler.capture(args, kwargs, request)
                if captured.guards.symbols:
                    raise unsupported("marked-sizes", "sizes are marked as dynamic")
                compiler.add_entry(compilation, captured, slots, hot=True)
            compiler.compilations.append(compilation)
