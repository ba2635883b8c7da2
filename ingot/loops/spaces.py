"""Index spaces: how many points loops have, and where a point's element lies in an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingot.loops.expr import ONE, ZERO, Expr, Symbol, product


def extents_of(loops: Iterable[Symbol]) -> list[Expr]:
    return [loop.extent for loop in loops]


def points_of(loops: Iterable[Symbol]) -> Expr:
    """How many points loops have together."""
    return product(extents_of(loops))


def address_of(index: Iterable[Expr], strides: Iterable[Expr | int], start: Expr = ZERO) -> Expr:
    """How many elements behind `start` an index is."""
    for position, stride in zip(index, strides):
        start = start + position * stride
    return start


def row_major(loops: Sequence[Symbol], start: Expr = ZERO) -> Expr:
    """The address of a point in a contiguous array that has an element for each."""
    return address_of(loops, contiguous_strides(extents_of(loops)), start)


def contiguous_strides(sizes: Iterable[Expr | int]) -> tuple[Expr, ...]:
    """Row-major strides in elements; a size of 0 counts as 1, as in torch."""
    strides: list[Expr] = []
    step = ONE
    for size in reversed(tuple(sizes)):
        strides.append(step)
        if size is not ZERO and size != 0:
            step = step * size
    return tuple(reversed(strides))
