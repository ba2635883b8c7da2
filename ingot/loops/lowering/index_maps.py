"""Maps from an index of a result to the index of an argument, and comparisons of indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ingot.loops import ops
from ingot.loops.expr import (
    ONE,
    ZERO,
    Expr,
    as_expr,
    known_less,
    known_less_equal,
    maximum,
    minimum,
)
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import Index, LoopTensor
from ingot.loops.spaces import contiguous_strides


def reshape_map(new: Sequence[Expr], old: Sequence[Expr]) -> Callable[[Index], Index]:
    """From an index into sizes `new` to the index into `old` of the same element in row-major
    order."""
    groups = _groups(
        [k for k, s in enumerate(new) if s is not ONE],
        [k for k, s in enumerate(old) if s is not ONE],
        new,
        old,
    )
    if ZERO in new:
        return lambda index: (ZERO,) * len(old)

    def index_map(index: Index) -> Index:
        result = [ZERO] * len(old)
        for ours, theirs in groups:
            if len(ours) == len(theirs) == 1:
                result[theirs[0]] = index[ours[0]]
                continue
            flat = ZERO
            for k, stride in zip(ours, contiguous_strides([new[k] for k in ours])):
                flat = flat + index[k] * stride
            strides = contiguous_strides([old[k] for k in theirs])
            for position, (k, stride) in enumerate(zip(theirs, strides)):
                coordinate = flat // stride
                if position:
                    result[k] = coordinate % old[k]
                else:
                    result[k] = coordinate
        return tuple(result)

    return index_map


def unflattened(position: Expr, sizes: Sequence[Expr]) -> Index:
    """The index of the element at a place of a row-major array."""
    strides = contiguous_strides(sizes)
    return tuple(position // stride % size for stride, size in zip(strides, sizes))


def _groups(
    ours: list[int], theirs: list[int], new: Sequence[Expr], old: Sequence[Expr]
) -> list[tuple[list[int], list[int]]]:
    """Split two row-major factorizations of one space into the finest runs of dimensions that cover
    equal parts."""
    groups = []
    while ours and theirs:
        a, b = [ours.pop(0)], [theirs.pop(0)]
        left, right = new[a[0]], old[b[0]]
        while left is not right:
            if known_less(left, right) and ours:
                a.append(ours.pop(0))
                left = left * new[a[-1]]
            elif known_less(right, left) and theirs:
                b.append(theirs.pop(0))
                right = right * old[b[-1]]
            else:  # sizes that cannot be compared: the rest is one run
                a, b = a + ours, b + theirs
                ours, theirs = [], []
                break
        groups.append((a, b))
    return groups


def on_dim(dim: int, rank: int, f: Callable[[Expr], Expr]) -> Callable[[Index], Index]:
    """The index map that changes one coordinate."""
    dim %= max(rank, 1)
    return lambda index: with_place(index, dim, f(index[dim]))


def with_place(index: Index, dim: int, place: Expr) -> Index:
    """An index with another place along one dimension."""
    return (*index[:dim], place, *index[dim + 1 :])


def slice_start(start: int | Expr | None, size: Expr) -> Expr:
    """The first element that a slice takes: negative starts count from the end, and both ends
    clamp."""
    first = as_expr(0 if start is None else start)
    low, high = first.bounds
    if high is not None and high < 0:
        first = first + size
    elif low is None or low < 0:
        raise NotLowered("a slice whose start may be negative")
    return clamp(first, size)


def clamp(position: Expr, size: Expr) -> Expr:
    return minimum(maximum(position, 0), size)


def compare(name: str, a: Expr | int, b: Expr | int) -> int:
    """A comparison of index expressions as a condition."""
    return ops.apply(name, ops.index(a), ops.index(b))


def inside(place: Sequence[Expr], sizes: Sequence[Expr | int]) -> int:
    """Whether a place is one of an array of `sizes`, as a condition."""
    condition = ops.constant(True, torch.bool)
    for position, size in zip(place, sizes):
        if not known_less_equal(0, position):
            condition = ops.apply("logical_and", condition, compare("ge", position, 0))
        if not known_less(position, size):
            condition = ops.apply("logical_and", condition, compare("lt", position, size))
    return condition


def windows_on(
    place: Sequence[Expr], steps: Sequence[int], counts: Sequence[Expr | int]
) -> tuple[list[Expr], int]:
    """(which window begins at a place, whether one does): of `counts` windows in each dimension,
    the first at 0 and the others `steps` apart."""
    numbers, begins = [], ops.constant(True, torch.bool)
    for at, step, count in zip(place, steps, counts):
        number = at // step
        numbers.append(number)
        begins = ops.apply("logical_and", begins, compare("ge", at, 0))
        begins = ops.apply("logical_and", begins, compare("lt", number, count))
        if step > 1:
            begins = ops.apply("logical_and", begins, compare("eq", at % step, 0))
    return numbers, begins


def load_where(
    condition: int, x: LoopTensor, index: Index, dtype: torch.dtype, other: float = 0.0
) -> int:
    """The element of `x` at an index where `condition` holds, else `other`."""
    with ops.masked(condition):
        value = ops.to(x.load(index), dtype)
    return ops.apply("where", condition, value, ops.constant(other, dtype))
