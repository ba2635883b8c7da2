"""The memory plan: where every buffer lives, dead buffers reused, and the peak as a number.

Temporaries live at offsets of one arena; buffers whose lives do not overlap may share bytes. What
the user gets owns its storage. Where memory is scarcer than time (a training step's peak is when
gradients are made of what was kept), temporaries own theirs as well, and inputs that nobody else
holds die with their last use. On a GPU, where to ask for memory takes the host as long as half a
launch, small ones share an arena all the same; whether those of symbolic sizes are small is known
when the program runs.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ingot.loops.expr import Expr, integer
from ingot.loops.ir import Buffer, LoopGraph
from ingot.loops.target import CPU, Target
from ingot.schedule.groups import estimate
from ingot.schedule.kernel import ceil_div, loans
from ingot.schedule.plan import KernelStep, LibraryStep, Place, touched
from ingot.schedule.reuse import retained_by

ALIGNMENT = 64
ZERO = integer(0)
# work on larger buffers takes a GPU longer than the host takes to ask for them
SMALL_BYTES = 1 << 20
# of an arena with all buffers of symbolic sizes: else each has memory of its own
JOINED_BYTES = 4 * SMALL_BYTES

Step = KernelStep | LibraryStep
NONE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Life:
    """A buffer's first and last step, both included."""

    buffer: str
    first: int
    last: int

    def overlaps(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def buffer_bytes(buffer: Buffer) -> Expr:
    """Bytes from the first to one past the last element; 0 when a size is 0."""
    return buffer.length * buffer.dtype.itemsize


def lives(steps: Sequence[Step], graph: LoopGraph) -> dict[str, Life]:
    """The life of every temporary and input that a step touches. What is returned lives to the end,
    and so does an input that is mutated: whoever gave it sees it, and autograd is told of the write
    even where it stores nothing."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for name in touched(step):
            first.setdefault(name, k)
            last[name] = k
    last |= dict.fromkeys((graph.returned | graph.mutated) & last.keys(), len(steps))
    result: dict[str, Life] = {}
    for name in graph.inputs:
        if name in last:
            result[name] = Life(name, 0, last[name])
    for name in filter(graph.is_temporary, first):
        result[name] = Life(name, first[name], last[name])
    return result


def lenders_of(steps: Sequence[Step], graph: LoopGraph) -> dict[str, str]:
    """The inputs that lend their memory, by the buffer: each dies with the step that first writes
    that."""
    lenders: dict[str, str] = {}
    alive = lives(steps, graph)
    for k, step in enumerate(steps):
        if isinstance(step, KernelStep):
            width = len(step.kernel.parameters)
            for begin in range(0, len(step.arguments), width):
                for position, to in loans(step.kernel.parameters):
                    lender, buffer = step.arguments[begin + position], step.arguments[begin + to]
                    if lender in graph.lends and alive[lender].last == k == alive[buffer].first:
                        lenders[buffer] = lender
    return lenders


def plan_memory(
    steps: Sequence[Step],
    graph: LoopGraph,
    frugal: bool = False,
    target: Target = CPU,
    lenders: Mapping[str, str] = NONE,
) -> tuple[dict[str, Place], dict[int, tuple[str, ...]], Expr, Expr, Expr]:
    """(places, buffers dead after each step, arena bytes, those with small buffers in it, peak
    bytes).

    The peak counts inputs, outputs, the arena and what library calls return, as long as each is
    held.
    """
    alive = lives(steps, graph)
    held = set(graph.inputs)  # by the caller, until the program ends
    if frugal:
        held = held.difference(graph.donated) if graph.donated else set()
    for name in alive.keys() & held:
        del alive[name]
    places, joined = _kinds_of_places(steps, graph, alive, frugal, target)
    arena_lives = [life for name, life in alive.items() if name not in places]
    sizes = {name: _rounded(buffer_bytes(graph.buffers[name])) for name in alive}
    offsets, joined_bytes = _offsets(arena_lives, sizes)
    arena_bytes = joined_bytes
    if joined:
        always = [life for life in arena_lives if life.buffer not in joined]
        arena_bytes = _offsets(always, sizes)[1]
    for name, offset in offsets.items():
        places[name] = Place("small" if name in joined else "arena", offset=offset)
    last_use: dict[int, tuple[str, ...]] = {}
    for life in alive.values():
        if life.last < len(steps):
            last_use[life.last] = (*last_use.get(life.last, ()), life.buffer)
    peak = _peak(steps, graph, alive, places, arena_bytes, lenders)
    return places, last_use, arena_bytes, joined_bytes, peak


def _kinds_of_places(
    steps: Sequence[Step],
    graph: LoopGraph,
    alive: Iterable[str],
    frugal: bool,
    target: Target,
) -> tuple[dict[str, Place], set[str]]:
    """The places of buffers that are not in the arena, and the buffers that are in it only if they
    turn out to be small."""
    places = {name: Place("input", position) for position, name in enumerate(graph.inputs)}
    places |= dict.fromkeys(graph.constants, Place("constant"))
    returned = graph.returned
    calls = []
    for step in steps:
        if isinstance(step, LibraryStep):
            calls.append(step.node)
    from_library: set[str | None] = set()
    for node in calls:
        if node.out is None:
            from_library.update(node.targets)
    retained = retained_by(calls)
    small: set[str] = set()
    may_be_small: set[str] = set()
    if target.device == "cuda":
        small, may_be_small = _small(steps, graph, alive)
    joined: set[str] = set()
    for name in alive:
        if name in places:
            continue
        size = buffer_bytes(graph.buffers[name])
        if name in from_library:
            places[name] = Place("library")
        elif name in returned:
            places[name] = Place("output")
        elif name in retained:
            places[name] = Place("own")
        elif frugal and name in may_be_small:
            joined.add(name)
        elif (frugal and name not in small) or not graph.bound.isdisjoint(size.symbols):
            places[name] = Place("own")
    return places, joined


def _small(
    steps: Sequence[Step], graph: LoopGraph, alive: Iterable[str]
) -> tuple[set[str], set[str]]:
    """Buffers of few bytes on the device, and those of symbolic sizes that may be of few bytes.
    Buffers that a library is given as tensors are not among them; products are given addresses."""
    tensors: set[str] = set()
    for step in steps:
        if isinstance(step, LibraryStep) and not step.multiplies:
            tensors.update(touched(step))
    small: set[str] = set()
    may_be_small: set[str] = set()
    for name in alive:
        buffer = graph.buffers[name]
        if name in tensors or buffer.on_host:
            continue
        size = buffer_bytes(buffer)
        if size.constant is None:
            if graph.bound.isdisjoint(size.symbols):
                may_be_small.add(name)
        elif size.constant <= SMALL_BYTES:
            small.add(name)
    return small, may_be_small


def _rounded(size: Expr) -> Expr:
    return ceil_div(size, ALIGNMENT) * ALIGNMENT


def _offsets(lives: Sequence[Life], sizes: dict[str, Expr]) -> tuple[dict[str, Expr], Expr]:
    """Offsets in the arena and its size: constant sizes by first fit, then symbolic ones in slots
    of exactly their size."""
    constants: dict[str, int] = {}
    for life in lives:
        constant = sizes[life.buffer].constant
        if constant is not None:
            constants[life.buffer] = constant
    offsets, total = _first_fit([life for life in lives if life.buffer in constants], constants)
    end = integer(total)
    slots: list[tuple[Expr, Expr, list[Life]]] = []
    for life in lives:
        if life.buffer in constants:
            continue
        size = sizes[life.buffer]
        for slot_size, offset, users in slots:
            if slot_size == size and not any(map(life.overlaps, users)):
                users.append(life)
                offsets[life.buffer] = offset
                break
        else:
            slots.append((size, end, [life]))
            offsets[life.buffer] = end
            end = end + size
    return offsets, end


def _first_fit(lives: Sequence[Life], sizes: dict[str, int]) -> tuple[dict[str, Expr], int]:
    """The lowest offset for each buffer, largest first, that no buffer alive at the same time
    overlaps; and the total."""
    offsets: dict[str, Expr] = {}
    # begin, end, first and last step, by their beginning
    spans: list[tuple[int, int, int, int]] = []
    for life in sorted(lives, key=lambda life: -sizes[life.buffer]):
        at, size = 0, sizes[life.buffer]
        for low, high, first, last in spans:
            if first <= life.last and life.first <= last and low < at + size and at < high:
                at = high
        insort(spans, (at, at + size, life.first, life.last))
        offsets[life.buffer] = integer(at)
    return offsets, max((high for _, high, *_ in spans), default=0)


def _peak(
    steps: Sequence[Step],
    graph: LoopGraph,
    alive: dict[str, Life],
    places: dict[str, Place],
    arena_bytes: Expr,
    lenders: Mapping[str, str],
) -> Expr:
    """Inputs and arena, plus the most that outputs and library results take at any step. What is
    lent counts once."""
    sizes = [buffer_bytes(graph.buffers[name]) for name in graph.inputs if name not in alive]
    base = sum((size * count for size, count in Counter(sizes).items()), arena_bytes)
    # what each step adds to the total
    changes: list[Expr | int] = [0] * (len(steps) + 2)
    for name, life in alive.items():
        if places[name].kind != "arena":
            known = buffer_bytes(graph.buffers[name])
            size = known if known.constant is None else known.constant  # numbers are added faster
            changes[life.first + (name in lenders)] += size
            changes[life.last + 1] -= size
    totals = list(accumulate(changes))
    return base + max(totals, key=lambda size: size if isinstance(size, int) else estimate(size))
