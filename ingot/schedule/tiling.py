"""Order of the loops of kernels without inner loops, from the strides of their accesses; which
loads are transposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ingot.loops.expr import Symbol, integer
from ingot.loops.ir import BodyBuilder, Instruction
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Stage, Store

SHORT_STRIDE = 4  # up to this stride, whole vectors are loaded and the elements picked out
FEW_POINTS, LONG = 64, 1 << 12  # of fewer rows, longer than this, threads share each one
SHORTEST = 4  # loops of fewer iterations are not worth a block
LONG_ENOUGH = 16  # iterations of a vector loop for which a shorter one is written out ...
MOST_INSTRUCTIONS = 200  # ... if no more come of it


def is_transposed(load: Instruction, tile: Symbol, vector: Symbol) -> bool:
    """Whether a load's memory is contiguous along `tile` and far apart along `vector`."""
    linear = None
    if not load.args:
        linear = load.attrs[1].linear((tile, vector))
    if linear is None or linear[0].is_indirect:
        return False
    along, across = linear[1].get(tile), linear[1].get(vector)
    if along is None or across is None or along.constant != 1:
        return False
    return across.constant is None or abs(across.constant) > SHORT_STRIDE


def transposed_loads(stages: Sequence[Stage], tile: Symbol, vector: Symbol) -> list[Instruction]:
    """The loads of buffers that the kernel does not write which blocks of `tile` by `vector`
    transpose."""
    written = {store.buffer for stage in stages for store in stage.stores}
    transposed = []
    for stage in stages:
        for load in stage.body.loads:
            if load.attrs[0] not in written and is_transposed(load, tile, vector):
                transposed.append(load)
    return transposed


def is_divided(outer: Sequence[Symbol]) -> bool:
    """Whether threads share the iterations of the last, the vector loop: few run before it, and it
    is long."""
    points, length = points_of(outer[:-1]).constant, outer[-1].extent.constant
    return points is not None and 1 < points < FEW_POINTS and length is not None and length >= LONG


def is_unrolled(outer: Sequence[Symbol], stages: Sequence[Stage]) -> bool:
    """Whether the last loop, too short for a vector, is written out: the one before it becomes the
    vector loop."""
    last = outer[-1].extent.constant
    if len(outer) < 2 or last is None or not 1 < last <= SHORT_STRIDE:
        return False
    if (outer[-2].extent.constant or LONG_ENOUGH) < LONG_ENOUGH:
        return False
    instructions = 0
    for stage in stages:
        if stage.body.lookups or any(store.mode != "store" for store in stage.stores):
            return False
        instructions += len(stage.body.instructions)
    return last * instructions <= MOST_INSTRUCTIONS


def unrolled(stage: Stage, loop: Symbol) -> Stage:
    """A stage without loops that does at one point what `stage` does at all points of `loop`."""
    builder = BodyBuilder()
    stores: list[Store] = []
    for point in range(loop.extent.constant or 0):
        here = {loop: integer(point)}
        positions = builder.copy(stage.body.substitute(here))
        for store in stage.stores:
            index, value = store.index.substitute(here), positions[store.value]
            stores.append(replace(store, index=index, value=value))
    return replace(stage, body=builder.body(), stores=tuple(stores))


def choose_tile_loop(outer: Sequence[Symbol], stages: Sequence[Stage]) -> Symbol | None:
    """The loop along which most bytes are loaded that lie apart along the last one. None where
    there are none, or where the order of the points counts."""
    vector = outer[-1]
    if any(store.scatters for stage in stages for store in stage.stores) or _is_short(vector):
        return None
    moved: Counter[Symbol] = Counter()
    for loop in outer[:-1]:
        if not _is_short(loop):
            moved[loop] = sum(
                load.dtype.itemsize for load in transposed_loads(stages, loop, vector)
            )
    best = max(moved, key=lambda loop: moved[loop], default=None)
    if best is not None and moved[best]:
        return best
    return None


def _is_short(loop: Symbol) -> bool:
    extent = loop.extent.constant
    return extent is not None and extent < SHORTEST
