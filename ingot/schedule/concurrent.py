"""Launches on a GPU that need not wait for each other become one.

They are small kernels, and products of a few rows, such as those of an attention's queries, keys
and values. Each of them takes less time than a launch, or not much more.

A launch moves ahead to an earlier one, as in `horizontal.py`, where kernels are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ingot.loops.expr import ZERO, Expr
from ingot.loops.ir import LoopGraph
from ingot.loops.target import Target
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.build import kernel_name
from ingot.schedule.horizontal import MOST_EARLY, accesses
from ingot.schedule.kernel import Kernel, Parameter, scaling
from ingot.schedule.plan import KernelStep, LibraryStep

FAR = 6  # steps that a launch moves ahead: those behind it wait for it
MOST = 8  # kernels of a launch
SMALL = 1 << 16  # points of a small kernel, each of a thread
LARGEST = 1 << 26  # bytes of a kernel of rows; one that takes longer need not share

Step = KernelStep | LibraryStep


def concurrent(steps: Sequence[Step], graph: LoopGraph, target: Target) -> list[Step]:
    """The steps with launches put together where their order allows it, each at the place of the
    first."""
    if not target.has_registers:
        return list(steps)
    places: list[list[Step]] = []
    kinds: list[object] = []
    for step in steps:
        kind = _kind(step, target)
        place = None
        if kind is not None:
            place = _earlier(step, kind, places, kinds, graph)
        if place is None:
            places.append([step])
            kinds.append(kind)
        else:
            places[place].append(step)
    return list(map(_together, places))


def _kind(step: Step, target: Target) -> object:
    """What launches have in common that become one: the registers and threads of a block; None of
    those that stay alone."""
    if not isinstance(step, KernelStep) or step.on_host or step.extents:
        return None
    kernel = step.kernel
    if not isinstance(kernel, Kernel) or kernel.table or kernel.run or scaling(kernel):
        return None
    if kernel.depthwise is not None or not _is_of_known_sizes(kernel):
        return None
    if kernel.product is not None:
        if kernel.product.weights is not None:
            return None
        return kernel.product.tiling
    if not any(stage.loops for stage in kernel.stages):
        return "small" if (kernel.points.constant or 0) <= SMALL else None
    bytes = sum((p.length.constant or 0) * p.dtype.itemsize for p in kernel.parameters if p.length)
    blocks = choose_blocks(kernel)
    return blocks if bytes <= LARGEST and (kernel.points.constant or 0) > 1 else None


def _is_of_known_sizes(kernel: Kernel) -> bool:
    for e in _expressions(kernel):
        if any(symbol.kind == "size" for symbol in e.symbols):
            return False
    return all(p.length is not None for p in kernel.parameters)


def _expressions(kernel: Kernel) -> Iterator[Expr]:
    """Whatever sizes may be in."""
    yield kernel.points
    for p in kernel.parameters:
        if p.length is not None:
            yield p.length
    bodies = []
    for stage in kernel.stages:
        yield from (loop.extent for loop in stage.loops)
        yield from (store.index for store in stage.stores)
        bodies.append(stage.body)
    if kernel.product is not None:
        bodies += filter(None, kernel.product.prologues)
        yield from (kernel.product.left.index, kernel.product.right.index)
    for body in bodies:
        for i in body.instructions:
            yield from (a for a in i.attrs if isinstance(a, Expr))


def _earlier(
    step: Step,
    kind: object,
    places: Sequence[Sequence[Step]],
    kinds: Sequence[object],
    graph: LoopGraph,
) -> int | None:
    """The place of a launch of the same kind that a step may join."""
    reads, writes = accesses(step)
    changed = {*writes, *_lenders(step)}
    early = 0
    for name in writes:
        buffer = graph.buffers[name]
        if buffer.is_temporary:
            early += (buffer.length * buffer.dtype.itemsize).constant or 0
    for place in range(len(places) - 1, max(-1, len(places) - 1 - FAR), -1):
        for other in places[place]:
            read, written = accesses(other)
            overwritten = {*written, *_lenders(other)}
            if not overwritten.isdisjoint((*reads, *changed)) or not changed.isdisjoint(read):
                return None
        waits = place == len(places) - 1  # what it makes is there no earlier
        if kinds[place] == kind and len(places[place]) < MOST and (waits or early <= MOST_EARLY):
            return place
    return None


def _lenders(step: Step) -> list[str]:
    """The inputs that a result may be written over."""
    if not isinstance(step, KernelStep):
        return []
    return [n for n, p in zip(step.arguments, step.parameters, strict=True) if p.lends >= 0]


def _together(steps: Sequence[Step]) -> Step:
    """One launch of all kernels."""
    first, *others = steps
    if not others:
        return first
    launches = [step for step in steps if isinstance(step, KernelStep)]
    members = [step.kernel for step in launches if isinstance(step.kernel, Kernel)]
    parameters: list[Parameter] = []
    arguments: list[str] = []
    offsets: list[Expr] = []
    for step in launches:
        begin = len(parameters)
        for p in step.parameters:
            lends = p.lends + begin if p.lends >= 0 else -1
            parameters.append(p._replace(name=f"p{len(parameters)}", lends=lends))
        arguments += step.arguments
        offsets += step.offsets or (ZERO,) * len(step.arguments)
    if not any(step.offsets for step in launches):
        offsets = []
    origin = members[0].origin.merged(*[m.origin for m in members[1:]])
    kernel = replace(
        members[0], name=kernel_name(origin), origin=origin, loops=(), stages=(), rows=(),
        parameters=tuple(parameters), parallel=0, vector=None, tile=None, product=None,
        members=tuple(members),
    )  # fmt: skip
    work = max((step.work for step in launches if isinstance(step.work, float)), default=0.0)
    return KernelStep(kernel, tuple(arguments), kernel.points, work, (), tuple(offsets))
