"""The plan of a program: its steps in order and where every buffer lives. This is what the run time
executes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from ingot.loops.aligned_products import mm_in_parts
from ingot.loops.expr import Expr
from ingot.loops.ir import Library, LoopGraph
from ingot.schedule.kernel import AnyKernel, Parameter


@dataclass(frozen=True)
class KernelStep:
    """Launch `kernel` on the buffers `arguments` (graph buffer names, in the order of
    `kernel.parameters`).

    `extent` is the number of points of the collapsed parallel loops; `work` estimates the
    nanoseconds one of them takes on one core; where that depends on sizes, it is an expression that
    counts picoseconds. Kernels equal but for their name and origin share one body of machine code.

    `offsets` says where each of `arguments` begins in its buffer, in elements; if it is empty, all
    begin at 0.

    With `extents`, the kernel runs over several sets of buffers in one launch: they are the extents
    of the sets, whose arguments follow one another. `extent` is then the sum. In a GPU's plan the
    CPU runs what is `on_host`.
    """

    kernel: AnyKernel
    arguments: tuple[str, ...]
    extent: Expr
    work: float | Expr
    extents: tuple[Expr, ...] = ()
    offsets: tuple[Expr, ...] = ()
    on_host: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The kernel's parameter for each of `arguments`."""
        return self.kernel.parameters * max(1, len(self.extents))

    def separate(self) -> list[KernelStep]:
        """A launch for each set of buffers."""
        width, steps = len(self.kernel.parameters), []
        for k, extent in enumerate(self.extents):
            piece = slice(k * width, (k + 1) * width)
            arguments, offsets = self.arguments[piece], self.offsets[piece]
            alone = replace(self, arguments=arguments, extent=extent, extents=(), offsets=offsets)
            steps.append(alone)
        return steps


@dataclass(frozen=True)
class LibraryStep:
    node: Library

    @property
    def multiplies(self) -> bool:
        """Whether it does no more than multiply matrices, or batches of them, into memory that is
        there."""
        multiplies = self.node.function in (torch.mm, torch.bmm, mm_in_parts)
        return multiplies and self.node.out is not None and not self.node.kwargs


@dataclass(frozen=True)
class Place:
    """Where a buffer lives.

    `kind` is "input" (`position` among the graph's inputs), "constant", "arena" (`offset` bytes
    into the call's arena), "output" (storage of its own, allocated when its first writer runs,
    owned by the user afterwards), "library" (a tensor that a library call returned) or "own"
    (storage of its own that is released with its last use: in a frugal plan, for sizes that are not
    known when the program begins, and where a library call may keep it) or "small" (in the arena,
    at an `offset`, where that is small with all of these, else "own").
    """

    kind: str
    position: int = 0
    offset: Expr | None = None


@dataclass
class Plan:
    """`last_use` maps a step's position to the buffers dead after it. Sizes in bytes are
    expressions over size symbols; `joined_bytes` are those of the arena with all small buffers in
    it. `lenders` are the inputs whose memory a buffer is given if nobody else needs them, by the
    buffer. Of a `frugal` plan nothing is kept between calls, and memory is given back as soon as it
    is dead, but for small temporaries of a GPU."""

    graph: LoopGraph
    steps: list[KernelStep | LibraryStep]
    places: dict[str, Place]
    last_use: dict[int, tuple[str, ...]]
    arena_bytes: Expr
    joined_bytes: Expr
    peak_bytes: Expr
    frugal: bool = False
    lenders: dict[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> list[AnyKernel]:
        """The kernels of all launches, in run order."""
        results = []
        for step in self.steps:
            if isinstance(step, KernelStep):
                results.append(step.kernel)
        return results

    def split_by_device(self) -> tuple[Plan, Plan] | None:
        """In a GPU's plan, the device's steps alone, and the CPU's, without outputs. None where the
        CPU has none, or one side reads or writes what is the other's."""
        buffers = self.graph.buffers
        sides = []
        for step in self.steps:
            sides.append({buffers[name].on_host for name in touched(step)})
        if {True} not in sides or {True, False} in sides:
            return None
        if any(buffers[name].on_host for name in self.graph.returned):
            return None
        beside = self._of(lambda k: sides[k] == {True})
        return self._of(lambda k: sides[k] != {True}), replace(
            beside, graph=replace(self.graph, outputs=[])
        )

    def _of(self, belongs: Callable[[int], bool]) -> Plan:
        """Some of the steps, which nothing of the others depends on."""
        positions = []
        for k in range(len(self.steps)):
            if belongs(k):
                positions.append(k)
        last_use = {}
        for new, old in enumerate(positions):
            if old in self.last_use:
                last_use[new] = self.last_use[old]
        return replace(self, steps=[self.steps[k] for k in positions], last_use=last_use)


def touched(step: KernelStep | LibraryStep) -> list[str]:
    """The buffers that a step reads or writes."""
    if isinstance(step, KernelStep):
        return list(step.arguments)
    return [*sorted(step.node.reads()), *step.node.writes()]
