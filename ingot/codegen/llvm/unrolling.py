"""How wide a kernel's vectors are, and how many copies of a body its loops have.

Whatever follows from a choice made here depends on a kernel's sizes alone: neither on threads nor
on where a thread's share of the points ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.codegen.llvm.target import Target
from ingot.loops.expr import Symbol
from ingot.loops.ops import FUNCTIONS, HALVES
from ingot.schedule.kernel import Kernel, Row, Stage

ROW_BYTES = 1 << 18  # of rows of scratch memory for columns that are computed side by side


def cost(stages: Sequence[Stage]) -> int:
    """About how many vector instructions the bodies take."""
    total = 0
    for stage in stages:
        for i in stage.body.instructions:
            if i.op in FUNCTIONS:
                total += 15
            elif i.op not in ("constant", "scalar"):
                total += 1
    return total


def choose_unroll(stages: Sequence[Stage]) -> int:
    """Copies of the body in the main loop.

    More gain nothing once the processor's window is full, and cost time. There are few where
    numbers are multiplied up: products that underflow pass through denormal ones, each copy's by
    itself.
    """
    if any(r.kind == "prod" for s in stages for r in s.reductions):
        return 2
    weight = cost(stages)
    if weight <= 16:
        return 4
    return 2 if weight <= 60 else 1


def lanes_of_register(kernel: Kernel, target: Target) -> int:
    """Lanes that fill a vector register with the dtype most values have."""
    dtypes = set()
    for s in kernel.stages:
        for i in s.body.instructions:
            if i.op not in ("constant", "index", "indirect"):
                dtypes.add(i.dtype)
    if torch.float64 in dtypes:
        size = 8
    elif dtypes <= HALVES:  # which are moved, or change their signs
        size = 2
    elif dtypes & {torch.float32, torch.int32, torch.bfloat16, torch.float16}:
        size = 4
    else:
        size = max((d.itemsize for d in dtypes), default=8)
    return target.vector_bytes // size


def choose_lanes(kernel: Kernel, target: Target) -> int:
    """Lanes that fill a vector register, or four registers where columns are reduced.

    The latter take the place of several accumulators and go through memory in wider steps. There
    are fewer where the vector loops are shorter.
    """
    lanes = lanes_of_register(kernel, target)
    if kernel.vector is not None:
        vector_loops = [kernel.vector]
        if any(s.loops for s in kernel.stages) and _rows_fit(kernel.rows, 4 * lanes):
            lanes *= 4
    else:
        vector_loops = []
        for s in kernel.stages:
            if s.loops:
                vector_loops.append(s.loops[-1])
    longest = max(map(extent_of, vector_loops), default=1)
    while lanes > 4 and lanes // 2 >= longest:
        lanes //= 2
    return lanes


def _rows_fit(rows: Sequence[Row], copies: int) -> bool:
    """Whether the cache holds so many copies of the rows."""
    total = 0
    for row in rows:
        if row.length.constant is None:
            return False
        total += row.length.constant * row.dtype.itemsize
    return copies * total <= ROW_BYTES


def extent_of(symbol: Symbol) -> int:
    """A loop's extent where it is constant, otherwise a large number."""
    constant = symbol.extent.constant
    if constant is None:
        return 1 << 62
    return constant


def most_copies(size: int, lanes: int, unroll: int) -> int:
    """Copies of the body in a loop of `size` iterations.

    A power of two, at most `unroll` and the number of whole vectors.
    """
    return min(unroll, 1 << max(1, size // lanes).bit_length() - 1)


def additions_in_a_row(size: int, lanes: int, unroll: int) -> int:
    """How many additions a loop of `size` iterations does to one accumulator, at most.

    The first copy of the body has the most: it also takes the vectors that remain at the end.
    """
    rounds, remaining = divmod(size, lanes * most_copies(size, lanes, unroll))
    return rounds - -remaining // lanes


def surely_runs(symbol: Symbol) -> bool:
    return (symbol.extent.bounds[0] or 0) > 0
