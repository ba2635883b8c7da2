"""Attention of a few queries to many keys on a GPU, as when a token is decoded.

The heads that share keys are rows of one block, which reads these once and where they lie.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, loop_symbol
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import Index, LoopTensor, Spec, contiguous
from ingot.loops.scores import Step, Value
from ingot.ops.scored_attention import by_steps
from ingot.torch_private import OpOverload, aten

MOST_ROWS = 64  # queries of all heads that share keys


def few_queries(
    lw: Lowering, out: Spec, query: LoopTensor, key: LoopTensor, value: LoopTensor,
    mask: LoopTensor | None, scale: float, zero_rows: bool,
) -> LoopTensor:  # fmt: skip
    """The result (batch, head, query, column), of tensors (batch, head, row, column).

    Keys and values may have fewer heads, or repeat them. The mask is boolean, or added. Raises
    NotLowered before anything is written.
    """
    if any(t.dtype not in ops.HALVES for t in (query, key, value)):
        raise NotLowered("attention of another dtype")
    batch, heads, length, width = query.sizes
    groups = _groups(lw, heads.constant or 0, key, value)
    shared, keys = (heads.constant or 0) // groups, key.sizes[2]
    if shared * (length.constant or MOST_ROWS) > MOST_ROWS:
        raise NotLowered("attention of many queries")
    rows = length * shared

    def of_query(index: Index) -> Index:
        head = index[0] % groups * shared + index[1] // length
        return (index[0] // groups, head, index[1] % length, index[2])

    def of_keys(t: LoopTensor, turned: bool) -> LoopTensor:
        """Those of each group, with a column for each key if they are `turned`."""
        every = (t.sizes[1].constant or 0) // groups
        sizes = (batch * groups, keys, t.sizes[3])

        def at(index: Index) -> Index:
            number, *place = index
            if turned:
                place.reverse()
            return (number // groups, number % groups * every, *place)

        if turned:
            sizes = (sizes[0], sizes[2], sizes[1])
        return lw.mapped(t, contiguous(sizes, t.dtype), at)

    steps, captured = _steps(lw, (batch, as_expr(groups), rows, keys), length, shared, mask, scale)
    q = lw.mapped(query, contiguous((batch * groups, rows, width), query.dtype), of_query)
    spec = contiguous((batch * groups, rows, value.sizes[3]), out.dtype)
    wanted = spec._replace(device=out.device), None
    k, v = of_keys(key, True), of_keys(value, False)
    result, _ = by_steps(lw, wanted, q, k, v, captured, steps, zero_rows, decodes=True)

    def of_head(index: Index) -> Index:
        group, row = index[1] // shared, index[1] % shared * length + index[2]
        return (index[0] * groups + group, row, index[3])

    sizes = (batch, heads, length, value.sizes[3])
    return lw.mapped(result, contiguous(sizes, out.dtype), of_head)


def _groups(lw: Lowering, heads: int, key: LoopTensor, value: LoopTensor) -> int:
    """How many heads of keys and values differ: what repeats them reads the same elements."""
    own = key.sizes[1].constant or 0
    if not own or heads % own or value.sizes[1] is not key.sizes[1]:
        raise NotLowered("attention of heads that are no multiple of those of keys")
    for times in range(own, 1, -1):
        if own % times == 0 and all(_repeats(lw, t, own, times) for t in (key, value)):
            return own // times
    return own


def _repeats(lw: Lowering, t: LoopTensor, heads: int, times: int) -> bool:
    """Whether each `times` neighbouring heads of `t` are one."""
    batch, row, column = (loop_symbol(f"r{d}", t.sizes[d]) for d in (0, 2, 3))
    group, member = loop_symbol("group", heads // times), loop_symbol("member", times)
    first = lw.body_of(t, (batch, group * times, row, column))
    return lw.body_of(t, (batch, group * times + member, row, column)) == first


def _steps(
    lw: Lowering, scores: tuple[Expr, ...], length: Expr, shared: int, mask: LoopTensor | None,
    scale: float,
) -> tuple[list[Step], list[LoopTensor]]:  # fmt: skip
    """From products to scores, (batch, group, row, key), and the mask as it is read there."""
    captured = [] if mask is None else [_of_groups(lw, mask, scores, length, shared)]
    steps: list[Step] = []

    def step(op: OpOverload, *args: Any) -> Value:
        steps.append(Step(op, args, {}, scores, torch.float32))
        return Value(len(captured) + len(steps))

    score = step(aten.view.default, Value(0), list(scores))
    score = step(aten.mul.Scalar, score, scale)
    if mask is not None and mask.dtype is torch.bool:
        step(aten.where.self, Value(1), score, -math.inf)
    elif mask is not None:
        step(aten.add.Tensor, score, Value(1))
    return steps, captured


def _of_groups(
    lw: Lowering, mask: LoopTensor, scores: tuple[Expr, ...], length: Expr, shared: int
) -> LoopTensor:
    """A mask that is broadcast to (batch, head, query, key), as one of groups and their rows."""
    sizes = (*[ONE] * (4 - len(mask.sizes)), *mask.sizes)

    def at(index: Index) -> Index:
        batch, group, row, key = index
        place = (batch, group * shared + row // length, row % length, key)
        own = []
        for size, where in zip(sizes, place):
            own.append(ZERO if size is ONE else where)
        return tuple(own[4 - len(mask.sizes) :])

    return lw.mapped(mask, contiguous(scores, mask.dtype), at)
