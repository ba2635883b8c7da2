"""Horizontal fusion: launches of one kernel over many sets of buffers, none of which needs
another's results, become one launch. The update of a model's parameters is the case in point: the
same short loop over hundreds of tensors.

A launch moves ahead to an earlier one of the same kernel, which changes nothing for what lies
between: that neither writes what the launch touches nor reads what it writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ingot.loops.expr import ZERO, Expr, loop_symbol
from ingot.loops.ir import LoopGraph
from ingot.loops.target import Target
from ingot.schedule.blocks import power_of_two
from ingot.schedule.kernel import Kernel, anonymous
from ingot.schedule.plan import KernelStep, LibraryStep

# bytes of temporaries that launches may make earlier than needed, in one batch
MOST_EARLY = 1 << 16
FEWEST = 4  # launches on a GPU that make up for a table of their buffers
LONGEST = 1 << 40  # stands for the extent of a loop whose length does not show in the code

Step = KernelStep | LibraryStep


def side_by_side(steps: Sequence[Step], graph: LoopGraph, target: Target) -> list[Step]:
    """The steps with equal launches put together where their order allows it, each at the place of
    the first."""
    batches = _Batches(graph, target)
    for step in steps:
        batches.add(step)
    result: list[Step] = []
    for members in batches.members:
        result += _together(members, target)
    return result


def _together(members: Sequence[Step], target: Target) -> list[Step]:
    """The steps that are put at one place, in as few launches as the device takes them."""
    if not target.has_registers or not isinstance(members[0], KernelStep) or members[0].on_host:
        return [_joined(members)]
    if len(members) < FEWEST:
        return list(members)
    starts = range(0, len(members), target.most_sharing)
    results = []
    for k in starts:
        results.append(_joined(members[k : k + target.most_sharing], table=True))
    return results


class _Batches:
    """`members[k]` are the steps that run at place k."""

    def __init__(self, graph: LoopGraph, target: Target) -> None:
        self.graph, self.target = graph, target
        self._returned = graph.returned
        self.members: list[list[Step]] = []
        # by id of what kernels share, and whether the CPU runs it
        self._open: dict[tuple[int, bool], int] = {}
        self._early: dict[int, int] = defaultdict(int)
        self._written: dict[str, int] = {}  # the last place that writes a buffer ...
        self._touched: dict[str, int] = {}  # ... and that touches it
        self._failing = -1  # the last place where an error may be raised
        # by id of a kernel: many steps share one
        self._shapes: dict[int, tuple[Any, Kernel | None]] = {}
        self._alike: dict[Kernel, Kernel] = {}

    def add(self, step: Step) -> None:
        reads, writes = accesses(step)
        lenders = _lenders(step)
        shape = None
        if isinstance(step, KernelStep):
            shape = self._shape_of(step)
        on_host = isinstance(step, KernelStep) and step.on_host
        place = None
        if shape is not None and (on_host or self._shares(step)):
            place = self._open.get((id(shape), on_host))
        if place is None or not self._may_move(place, reads, writes, lenders):
            place = len(self.members)
            self.members.append([])
        self.members[place].append(step)
        if shape is not None:
            self._open[id(shape), on_host] = place
        if shape is None or _may_fail(shape):
            self._failing = place
        for name in (*writes, *lenders):
            self._written[name] = max(place, self._written.get(name, -1))
        for name in (*reads, *writes):
            self._touched[name] = max(place, self._touched.get(name, -1))

    def _shape_of(self, step: KernelStep) -> Kernel | None:
        """One object for all steps whose kernels are equal; None where a launch waits for a size,
        and for kernels that share no launch."""
        if not self.graph.bound.isdisjoint(step.extent.symbols):
            return None
        kernel = step.kernel
        if id(kernel) not in self._shapes:
            shape = _shape(step)
            self._shapes[id(kernel)] = kernel, shape and self._alike.setdefault(shape, shape)
        return self._shapes[id(kernel)][1]

    def _shares(self, step: Step) -> bool:
        """Whether a launch may be one with others on the device."""
        if not self.target.shares_launches or not self.target.has_registers:
            return self.target.shares_launches
        assert isinstance(step, KernelStep) and isinstance(step.kernel, Kernel)
        points = step.extent.constant or 0
        if not 0 < points <= self.target.shared_points or not _is_flat(step.kernel):
            return False
        return all(p.length is not None for p in step.kernel.parameters)

    def _may_move(
        self, place: int, reads: Sequence[str], writes: Sequence[str], lenders: Sequence[str]
    ) -> bool:
        """Whether a step can run at a place behind which others have been put. It does not write an
        input before what may fail, and does not hold much memory for longer; nor does it run beside
        what may read a buffer that it overwrites."""
        if any(self._touched.get(name, -1) >= place for name in (*lenders, *writes)):
            return False
        if any(self._written.get(name, -1) >= place for name in reads):
            return False
        early = self._early[place]
        for name in writes:
            buffer = self.graph.buffers[name]
            if name in self._returned:
                continue
            if self._failing >= place and buffer.role == "input":
                return False
            if buffer.is_temporary:
                size = (buffer.length * buffer.dtype.itemsize).constant
                if size is None:
                    return False
                early += size
        if early > MOST_EARLY:
            return False
        self._early[place] = early
        return True


def accesses(step: Step) -> tuple[Sequence[str], Sequence[str]]:
    """The buffers that a step reads and writes."""
    if isinstance(step, LibraryStep):
        return sorted(step.node.reads()), list(step.node.writes())
    reads: list[str] = []
    writes: list[str] = []
    for name, parameter in zip(step.arguments, step.parameters, strict=True):
        if parameter.read:
            reads.append(name)
        if parameter.written:
            writes.append(name)
    return reads, writes


def _lenders(step: Step) -> list[str]:
    """The inputs that a result may be written over."""
    if not isinstance(step, KernelStep):
        return []
    results = []
    for name, p in zip(step.arguments, step.parameters, strict=True):
        if p.lends >= 0:
            results.append(name)
    return results


def _may_fail(kernel: Kernel) -> bool:
    return any(stage.body.lookups for stage in kernel.stages)


def _shape(step: KernelStep) -> Kernel | None:
    """What equal launches have in common: the kernel without its names, and, of a kernel that is
    one vector loop, over any number of points. None for kernels of other kinds."""
    kernel = step.kernel
    if not isinstance(kernel, Kernel) or kernel.product is not None or kernel.rows:
        return None
    if _is_flat(kernel):
        return _of_any_length(anonymous(kernel))
    return anonymous(kernel)


def _is_flat(kernel: Kernel) -> bool:
    """Whether the only loop is the one that threads share and that fills vectors: its extent is
    then an argument."""
    return (
        kernel.parallel == 1
        and kernel.loops == (kernel.vector,)
        and not any(stage.loops for stage in kernel.stages)
    )


def _of_any_length(kernel: Kernel) -> Kernel:
    (old,) = kernel.loops
    new = loop_symbol(old.name, LONGEST)
    stages = tuple([stage.substitute({old: new}, ()) for stage in kernel.stages])
    return replace(kernel, loops=(new,), stages=stages, vector=new)


def _joined(members: Sequence[Step], table: bool = False) -> Step:
    """One launch for all, with the code of the longest of them, which finds the buffers in a
    `table` on a GPU."""
    if len(members) == 1:
        return members[0]
    launches = [step for step in members if isinstance(step, KernelStep)]
    longest = max(launches, key=lambda step: step.extent.constant or 0)
    parameters = []
    for k, parameter in enumerate(longest.kernel.parameters):
        lengths = {step.kernel.parameters[k].length for step in launches}
        parameters.append(parameter._replace(length=_length_of_all(lengths, table)))
    kernel = replace(longest.kernel, parameters=tuple(parameters))
    if table and isinstance(kernel, Kernel):
        kernel = replace(kernel, table=power_of_two(len(launches)))
    arguments: list[str] = []
    offsets: list[Expr] = []
    for step in launches:
        arguments += step.arguments
        offsets += step.offsets or (ZERO,) * len(step.arguments)
    if not any(step.offsets for step in launches):
        offsets = []
    extents = tuple([step.extent for step in launches])
    extent = sum(extents[1:], extents[0])
    return KernelStep(
        kernel, tuple(arguments), extent, longest.work, extents, tuple(offsets), longest.on_host
    )


def _length_of_all(lengths: set[Expr | None], table: bool) -> Expr | None:
    """What the code takes for the length of buffers of these lengths: the largest with a table,
    else none unless it is one."""
    if table:
        return max(lengths, key=lambda length: (length and length.constant) or 0)
    if len(lengths) == 1:
        return lengths.pop()
    return None
