"""`Compilation`: what one compilation of one function left behind, stage by stage.

Each stage of `pipeline.py` sets its field and adds its seconds; reports and dumps read them. The
field of a stage that was not reached is None.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingot.errors import Unsupported

if TYPE_CHECKING:
    from ingot.loops.expr import Symbol
    from ingot.loops.ir import LoopGraph
    from ingot.schedule.plan import KernelStep, Plan


@dataclass
class Compilation:
    """One entry of a compiled function. A field is None for a stage that was not reached.

    `seconds` holds the stages in the order they ran. `skipped` says why the call runs in eager
    instead, `break_` why the graph ends before the function does (None if it returned).
    `is_continuation` says that it begins at `where`, a graph break in the function `name`, and
    `region` tells the places apart where one may begin. `recompiled` names the fact that differed
    when this is not the region's first entry. `fixed_sizes` says why sizes that vary, or are marked
    as dynamic, are compiled for. `decisions` are the schedule's notes and `rewrites` those of the
    graph passes, in order, `tuned` what was measured to choose how products are computed.
    `replayed` is what replays the program as a CUDA graph, where that is asked for, or why nothing
    does. `backward` is of the graph that computes gradients, whose later stages are reached when
    the first gradient comes in; `partial_backwards` are of those for calls where only some of the
    outputs get one.
    """

    name: str
    where: str = ""
    captured: Any = None
    aten: Any = None
    loops: LoopGraph | None = None
    plan: Plan | None = None
    compiled: Any = None
    program: Any = None
    replayed: Any = None
    backward: Compilation | None = None
    partial_backwards: list[Compilation] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    first_call: float | None = None
    skipped: Unsupported | None = None
    break_: Unsupported | None = None
    is_continuation: bool = False
    region: Any = None
    recompiled: str = ""
    fixed_sizes: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    rewrites: list[str] = field(default_factory=list)
    tuned: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What it is called in reports."""
        return f"{self.name}, continued at {self.where}" if self.is_continuation else self.name

    @property
    def has_graph(self) -> bool:
        """Whether there is tensor work that was compiled."""
        return self.captured is not None and self.skipped is None and bool(self.captured.ops)

    @property
    def sizes(self) -> dict[Symbol, int]:
        """What each size symbol was in the call that led here, so that sizes in bytes can be stated
        as numbers."""
        return self.captured.context.shapes.hints if self.captured is not None else {}

    @property
    def guards(self) -> list[str]:
        """The guards as text; those of a skipped call are what holds the decision to skip."""
        guards = None
        if self.captured is not None:
            guards = getattr(self.captured, "guards", None)
        elif self.skipped is not None:
            guards = self.skipped.evidence.guards
        return [str(guard) for guard in guards or ()]

    @property
    def kernel_steps(self) -> list[KernelStep]:
        """The launches of fused kernels, in run order."""
        from ingot.schedule.plan import KernelStep

        if self.plan is None:
            return []
        return [step for step in self.plan.steps if isinstance(step, KernelStep)]


@contextmanager
def stage(compilation: Compilation, name: str) -> Iterator[None]:
    """Add the seconds spent inside to the stage's, also when it raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        compilation.seconds[name] = compilation.seconds.get(name, 0.0) + time.perf_counter() - start
