"""Order of the loops of kernels without inner loops, from the strides of their accesses; which loads are transposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingot.loops.expr import Symbol
from ingot.loops.ir import Instruction
from ingot.schedule.kernel import Stage

SHORT_STRIDE = 4  # up to this stride, whole vectors are loaded and the elements picked out
SHORTEST = 4  # loops of fewer iterations are not worth a block


def is_transposed(load: Instruction, tile: Symbol, vector: Symbol) -> bool:
    """Whether a load's memory is contiguous along `tile` and far apart along `vector`."""
    linear = None if load.args else load.attrs[1].linear((tile, vector))
    if linear is None or any(s.kind == "value" for s in linear[0].symbols):
        return False
    along, across = (linear[1].get(s) for s in (tile, vector))
    if along is None or across is None or along.constant != 1:
        return False
    return across.constant is None or abs(across.constant) > SHORT_STRIDE


def transposed_loads(stages: Sequence[Stage], tile: Symbol, vector: Symbol) -> list[Instruction]:
    """The loads of buffers that the kernel does not write which blocks of `tile` by `vector` transpose."""
    written = {store.buffer for stage in stages for store in stage.stores}
    loads = (load for stage in stages for load in stage.body.loads)
    return [load for load in loads if load.attrs[0] not in written and is_transposed(load, tile, vector)]


def choose_tile_loop(outer: Sequence[Symbol], stages: Sequence[Stage]) -> Symbol | None:
    """The loop along which most bytes are loaded that lie apart along the last one; None where there are none, or where
    the order of the points counts."""
    vector = outer[-1]
    if any(store.scatters for stage in stages for store in stage.stores) or _is_short(vector):
        return None
    moved: Counter[Symbol] = Counter()
    for loop in outer[:-1]:
        if not _is_short(loop):
            moved[loop] = sum(load.dtype.itemsize for load in transposed_loads(stages, loop, vector))
    best = max(moved, key=lambda loop: moved[loop], default=None)
    return best if best is not None and moved[best] else None


def _is_short(loop: Symbol) -> bool:
    extent = loop.extent.constant
    return extent is not None and extent < SHORTEST
