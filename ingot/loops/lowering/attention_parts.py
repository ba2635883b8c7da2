"""Attention of few queries over many keys: parts of the keys side by side, and then put together.

A part gives its result and the logarithm of its sum of exponentials, which says how much the result
weighs.
"""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import NamedTuple

import torch

from ingot.loops import ops
from ingot.loops.expr import Expr, Symbol, as_expr, loop_symbol
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.values import Index, LoopTensor, Spec, contiguous
from ingot.loops.spaces import contiguous_strides

FEWEST_BLOCKS = 256  # of threads, that keep a GPU busy
FEWEST_ROWS = 8  # ... and rows of a batch a CPU
SHORTEST = 256  # keys of a part
MOST_QUERIES = 64  # that one block takes
MOST_AT_ONCE = 32  # parts that each element of a result puts together by itself


class Parts(NamedTuple):
    """The loops over parts of the keys, and over the keys of one."""

    part: Symbol
    key: Symbol

    @property
    def whole(self) -> Expr:
        """The number of a key."""
        return self.part * self.key.extent + self.key


def parts_of(
    batch: int, queries: int, keys: int, fewest: int = FEWEST_BLOCKS, shortest: int = SHORTEST
) -> Parts | None:
    """The parts, of equal length, that as many batches of queries are worth; None for one.

    There are to be `fewest` in all, if that is possible, none of less than `shortest` keys.
    """
    count = 1
    if queries <= MOST_QUERIES:
        while batch * count < fewest and keys % (2 * count) == 0:
            if keys // (2 * count) < shortest:
                break
            count *= 2
    if count == 1:
        return None
    return Parts(loop_symbol("part", count), loop_symbol("k", keys // count))


def put_together(
    lw: Lowering, outs: tuple[Spec, Spec | None], results: LoopTensor, logarithms: LoopTensor,
    zero_rows: bool,
) -> tuple[LoopTensor, LoopTensor | None]:  # fmt: skip
    """The result of (batch, part, row, column) and logarithms of (batch, part, row), and the
    logarithm of the whole sum, (batch, row, 1).

    A row of nothing is NaN, or zero with `zero_rows`.
    """
    batch, _, rows, columns = results.sizes
    kept = contiguous((batch, rows), torch.float32)
    top = lw.reduce(kept, "max", logarithms, [1], torch.float32, lambda value: value)

    def base(index: Index) -> int:
        """The largest logarithm of a (batch, row), from which others are counted."""
        value = top.load(index)
        is_empty = ops.apply("eq", value, _number(-math.inf))
        return ops.apply("where", is_empty, _number(0.0), value)

    def weight(index: Index) -> int:
        """That of a (batch, part, row)."""
        difference = ops.apply("sub", logarithms.load(index), base((index[0], index[2])))
        return ops.apply("exp", difference)

    def weighted(index: Index) -> int:
        """Zero for a part of nothing, whose result is NaN."""
        term = ops.apply("mul", weight(index[:3]), results.load(index))
        is_empty = ops.apply("eq", logarithms.load(index[:3]), _number(-math.inf))
        return ops.apply("where", is_empty, _number(0.0), term)

    sizes = logarithms.sizes
    weights = LoopTensor(sizes, contiguous_strides(sizes), torch.float32, weight)
    total = lw.reduce(kept, "sum", weights, [1], torch.float32, lambda value: value)
    terms = LoopTensor(results.sizes, contiguous_strides(results.sizes), torch.float32, weighted)
    whole = contiguous((batch, rows, columns), torch.float32)
    sums = lw.reduce(whole, "sum", terms, [1], torch.float32, lambda value: value)

    def result(index: Index) -> int:
        divisor = total.load(index[:2])
        quotient = ops.apply("div", sums.load(index), divisor)
        if not zero_rows:
            return quotient
        return ops.apply("where", _is_zero(divisor), _number(0.0), quotient)

    def logarithm(index: Index) -> int:
        largest = top.load(index[:2])
        is_infinite = ops.apply("eq", ops.apply("abs", largest), _number(math.inf))
        value = ops.apply("add", largest, ops.apply("log", total.load(index[:2])))
        return ops.apply("where", is_infinite, largest, value)

    value = lw.computed(whole._replace(device=outs[0].device), result, [sums, total], cost=3)
    of_logarithms = None
    if outs[1] is not None:
        of_logarithms = lw.computed(outs[1], logarithm, [top, total], cost=4)
    return lw.rounded_to(outs[0], value), of_logarithms


def put_together_at_once(
    lw: Lowering, out: Spec, results: LoopTensor, logarithms: LoopTensor, zero_rows: bool
) -> LoopTensor:
    """The same without sums of rows in memory, in one kernel: an element of the result looks at all
    parts. That takes less than another launch where parts and rows are few."""
    parts = results.sizes[1].constant or 0

    def result(index: Index) -> int:
        batch, row, column = index
        places = [as_expr(part) for part in range(parts)]
        of_parts = [logarithms.load((batch, part, row)) for part in places]
        top = reduce(partial(ops.apply, "maximum"), of_parts)
        is_empty = ops.apply("eq", top, _number(-math.inf))
        base = ops.apply("where", is_empty, _number(0.0), top)
        total, terms = _number(0.0), _number(0.0)
        for part, logarithm in zip(places, of_parts):
            weight = ops.apply("exp", ops.apply("sub", logarithm, base))
            term = ops.apply("mul", weight, results.load((batch, part, row, column)))
            nothing = ops.apply("eq", logarithm, _number(-math.inf))
            term = ops.apply("where", nothing, _number(0.0), term)
            total, terms = ops.apply("add", total, weight), ops.apply("add", terms, term)
        quotient = ops.apply("div", terms, total)
        if not zero_rows:
            return quotient
        return ops.apply("where", _is_zero(total), _number(0.0), quotient)

    batch, _, rows, columns = results.sizes
    whole = contiguous((batch, rows, columns), torch.float32)._replace(device=out.device)
    value = lw.computed(whole, result, [results, logarithms], cost=8 * parts)
    return lw.rounded_to(out, value)


def _number(value: float) -> int:
    return ops.constant(value, torch.float32)


def _is_zero(value: int) -> int:
    return ops.apply("eq", value, _number(0.0))
