"""`Compilation`: one compilation of one function, as reports see it, and `Log`, its written record.

The compiler fills in the call and its outcome; the steps of `pipeline.py` write to the log. Reports
read both. No step reads a log: each takes what it needs as an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingot import events
from ingot.errors import Unsupported

if TYPE_CHECKING:
    from ingot.graph.aten_graph import AtenGraph
    from ingot.graph.partition import Partition
    from ingot.loops.expr import Symbol
    from ingot.loops.ir import LoopGraph
    from ingot.runtime.cuda_graphs import Replayed
    from ingot.runtime.program import Program
    from ingot.schedule.plan import KernelStep, Plan


@dataclass
class Log:
    """What the steps from a graph to its program have written down.

    The artefacts are those of `built.Built`, each from the moment at which it was there; None for a
    step that was not reached. `replayed` may be the reason why nothing replays the program instead.
    `seconds` holds the stages in the order they ran, `decisions` the schedule's notes, `rewrites`
    those of the graph passes, and `tuned` what was measured to choose how products are computed.
    `donated` has each argument that the caller gives up, with the reason if it stays, or "".
    `inside` are the logs of the graphs of branches and loops that data decide. `kept` says whether
    the program was found among those that are kept, or why none can be. `compile_again` fills in
    the artefacts that no step has made: of a program that was found, of all layers of one that was
    made from some, or of gradients that nobody has asked for yet. `partition` is how a graph that
    records gradients was cut; where it has some of the layers alone, `whole` tells of the others.
    The graphs may be `longer` than those that the plan was made of, for reports alone.
    """

    aten: AtenGraph | None = None
    loops: LoopGraph | None = None
    plan: Plan | None = None
    code: Any = None
    program: Program | None = None
    replayed: Replayed | str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)
    rewrites: list[str] = field(default_factory=list)
    tuned: list[str] = field(default_factory=list)
    donated: list[tuple[str, str]] = field(default_factory=list)
    inside: list[Log] = field(default_factory=list)
    kept: str = ""
    partition: Partition | None = None
    whole: Any = None  # a `gradients.layered.Whole`
    longer: bool = False
    function: str = ""  # the title of the compilation
    compile_again: Callable[[Log], None] | None = None

    def fill(self, again: Log, native: Any) -> None:
        """Takes the artefacts of another log, of a program that does as this one's, which is
        `native`."""
        assert again.program is not None
        again.program.native = native
        again.seconds, again.kept = self.seconds, self.kept
        vars(self).update(vars(again))

    def start_over(self) -> None:
        """Forgets an attempt that came to nothing, whose time counts all the same."""
        vars(self).update(vars(Log(seconds=self.seconds, kept=self.kept, function=self.function)))

    def replace_native(self, native: Any) -> None:
        """Has the program be run by `native`, which does as its own does."""
        if self.program is not None:
            self.program.native = native

    def attempt(self) -> Log:
        """A log of what may come to nothing, whose time counts here all the same."""
        return Log(seconds=self.seconds, function=self.function)

    def adopt(self, attempt: Log) -> None:
        """Takes what was written down of an attempt that came to something."""
        vars(self).update(vars(attempt))

    def then(self, change: Callable[[Log], None]) -> None:
        """Has a change follow on what `compile_again` fills in."""
        compile_again = self.compile_again

        def fill(log: Log) -> None:
            if compile_again is not None:
                compile_again(log)
            change(log)

        self.compile_again = fill

    def complete(self) -> None:
        """To be called before a report reads the artefacts."""
        while self.compile_again is not None:
            again, self.compile_again = self.compile_again, None
            again(self)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to the stage's, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            events.note_stage(self.function, name, seconds)

    @property
    def kernel_steps(self) -> list[KernelStep]:
        """The launches of fused kernels, in run order."""
        from ingot.runtime.traces import kernel_steps

        if self.plan is None:
            return []
        return kernel_steps(self.plan)


@dataclass
class Compilation:
    """One entry of a compiled function, or one program of its gradients.

    `region` is the graph break that it begins at, in the function `name`; None for the function's
    start. `recompiled` names the fact that differed if this is not the region's first entry.
    `skipped` says why the call runs in eager instead, `break_` why the graph ends before the
    function does (None if it returned). `fixed_sizes` says why sizes that vary, or are marked as
    dynamic, are compiled for. `backward` is of the graph that computes gradients, whose later
    stages are reached when the first gradient comes in, or while others compile the forward;
    `partial_backwards` are of those for calls where only some of the outputs get one. `event` is
    its id in a trace (`ingot.events`).
    """

    name: str
    where: str = ""
    recompiled: str = ""
    region: Any = None
    captured: Any = None
    break_: Unsupported | None = None
    skipped: Unsupported | None = None
    fixed_sizes: list[str] = field(default_factory=list)
    first_call: float | None = None
    backward: Compilation | None = None
    partial_backwards: list[Compilation] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    event: str = ""

    def __post_init__(self) -> None:
        self.log.function = self.title

    @property
    def is_continuation(self) -> bool:
        return self.region is not None

    @property
    def title(self) -> str:
        """What it is called in reports."""
        if self.is_continuation:
            return f"{self.name}, continued at {self.where}"
        return self.name

    @property
    def has_graph(self) -> bool:
        """Whether there is tensor work that was compiled."""
        return self.captured is not None and self.skipped is None and bool(self.captured.ops)

    @property
    def goes_on(self) -> bool:
        """Whether more is compiled once the call runs."""
        if self.skipped is not None:
            return self.skipped.why.is_of_hooks
        return self.break_ is not None

    @property
    def sizes(self) -> dict[Symbol, int]:
        """What each size symbol was in the call that led here, so that sizes in bytes can be stated
        as numbers."""
        if self.captured is not None:
            return self.captured.context.shapes.hints
        return {}

    @property
    def guards(self) -> list[str]:
        """The guards as text; those of a skipped call are what holds the decision to skip."""
        guards = None
        if self.captured is not None:
            guards = getattr(self.captured, "guards", None)
        elif self.skipped is not None:
            guards = self.skipped.evidence.guards
        return [str(guard) for guard in guards or ()]
