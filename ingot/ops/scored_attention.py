"""Attention with scores of the program's own, and its gradients: contractions whose left operand is
computed as it is summed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ingot.loops import ops, own_ops
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, as_expr, loop_symbol, product
from ingot.loops.ir import Access, Body, BodyBuilder, Contraction, Instruction
from ingot.loops.lowering.attention_parts import (
    FEWEST_BLOCKS,
    FEWEST_ROWS,
    MOST_AT_ONCE,
    SHORTEST,
    Parts,
    parts_of,
    put_together,
    put_together_at_once,
)
from ingot.loops.lowering.attention_tiles import tiles_of
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import RULES, NotLowered
from ingot.loops.lowering.values import Index, LoopTensor, Spec, contiguous, stored
from ingot.loops.proofs import is_in_range
from ingot.loops.scores import Step, Value, decode, run
from ingot.loops.spaces import address_of, contiguous_strides, extents_of
from ingot.loops.weights import InnerProduct, Weights
from ingot.ops.op import op
from ingot.torch_private import OpOverload, aten

WIDEST = 128  # elements of a head, which a block holds whole
MOST_ROWS = 64  # queries of all heads that share keys


class _Point(NamedTuple):
    """The loops over scores: those of the batch, of queries and of keys."""

    batch: tuple[Symbol, ...]
    query: Symbol
    key: Symbol

    @property
    def number(self) -> Expr:
        """The number of the batch."""
        return address_of(self.batch, contiguous_strides(extents_of(self.batch)))


def scored_attention(
    lw: Lowering, outs: tuple[Spec, Spec], query: LoopTensor, key: LoopTensor, value: LoopTensor,
    captured: Sequence[LoopTensor], score: str, sizes: Sequence[Any], zero_rows: bool,
) -> tuple[LoopTensor, LoopTensor | None]:  # fmt: skip
    """The contraction, for (batch, row, column) tensors. Raises NotLowered before it is written."""
    _require(lw, query.sizes[2], value.sizes[2])
    wanted = outs[0], outs[1] if lw.used[1] else None
    return by_steps(lw, wanted, query, key, value, captured, decode(score, sizes), zero_rows)


def by_steps(
    lw: Lowering, outs: tuple[Spec, Spec | None], query: LoopTensor, key: LoopTensor,
    value: LoopTensor, captured: Sequence[LoopTensor], steps: Sequence[Step], zero_rows: bool,
    decodes: bool = False,
) -> tuple[LoopTensor, LoopTensor | None]:  # fmt: skip
    """The same for decoded steps, and for the logarithms of sums only if they are wanted. Where a
    token is decoded on a GPU, parts of the keys are more and shorter: a block waits for each of its
    steps, and others read meanwhile."""
    at = _point(query, key, steps)
    body = _weight(lw, steps, [(query, key)], captured, at)
    products = _products(lw, [(query, key)], at, by_keys=False)
    column = loop_symbol("n", value.sizes[2])
    right = _operand(lw, value, (at.number, at.key, column))
    parts = _parts(lw, at, 2 if decodes else 1)
    if parts is not None:
        weights = Weights(products, body, True, False)
        return _attention_in_parts(lw, outs, at, parts, column, right, weights, zero_rows)
    logarithms, kept, of_logarithms = None, None, outs[1]
    if of_logarithms is not None:
        buffer = lw.new_buffer(of_logarithms, of_logarithms.strides)
        index = address_of((at.number, at.query), of_logarithms.strides[:2])
        logarithms, kept = Access(buffer, index), stored(buffer, of_logarithms)
    tiles = tiles_of(lw, body, True, at.batch, at.query, at.key)
    weights = Weights(products, body, True, zero_rows, logarithms, tiles)
    rows = at.query, at.key
    return _contraction(lw, outs[0], at, rows, column, right, weights), kept


def _parts(lw: Lowering, at: _Point, finer: int = 1) -> Parts | None:
    fewest = FEWEST_BLOCKS if lw.target.has_registers else FEWEST_ROWS
    batch = product(extents_of(at.batch)).constant or 0
    queries, keys = at.query.extent.constant or 0, at.key.extent.constant or 0
    return parts_of(batch, queries, keys, fewest * finer, SHORTEST // finer)


def _attention_in_parts(
    lw: Lowering, outs: tuple[Spec, Spec | None], at: _Point, parts: Parts, column: Symbol,
    right: Access, weights: Weights, zero_rows: bool,
) -> tuple[LoopTensor, LoopTensor | None]:  # fmt: skip
    """The contraction for each part of the keys, and what they give together."""
    sizes = (product(extents_of(at.batch)), parts.part.extent, at.query.extent)
    of_rows = contiguous(sizes, torch.float32)._replace(device=outs[0].device)
    logarithms = lw.new_buffer(of_rows, of_rows.strides)
    place = (at.number, parts.part, at.query)
    weights = replace(weights, logarithms=Access(logarithms, address_of(place, of_rows.strides)))
    results = _of_parts(lw, outs[0], at, parts, column, right, weights)
    number = parts.part.extent.constant or 0
    if lw.target.has_registers and outs[1] is None and number <= MOST_AT_ONCE:
        return put_together_at_once(
            lw, outs[0], results, stored(logarithms, of_rows), zero_rows
        ), None
    return put_together(lw, outs, results, stored(logarithms, of_rows), zero_rows)


def _of_parts(
    lw: Lowering, out: Spec, at: _Point, parts: Parts, column: Symbol, right: Access,
    weights: Weights,
) -> LoopTensor:  # fmt: skip
    """The contraction's results for each part of the keys: (batch, part, query, column)."""
    sizes = (product(extents_of(at.batch)), parts.part.extent, at.query.extent, column.extent)
    spec = contiguous(sizes, torch.float32)._replace(device=out.device)
    depths = {p.depth: p.depth for p in weights.products}
    inside = {at.key: parts.whole}
    weights = weights.substitute(inside, depths)
    buffer = lw.new_buffer(spec, spec.strides)
    place = (at.number, parts.part, at.query, column)
    node = Contraction(
        lw.node_name(), lw.origin, (*at.batch, parts.part), (at.query,), (column,), (parts.key,),
        weights.products[0].left, right.substitute(inside), buffer,
        address_of(place, spec.strides), torch.float32, weights,
    )  # fmt: skip
    lw.graph.nodes.append(node)
    return stored(buffer, spec)


def scored_product(
    lw: Lowering, out: Spec, operands: Sequence[LoopTensor], other: LoopTensor,
    captured: Sequence[LoopTensor], weight: str, sizes: Sequence[Any], by_keys: bool,
    zero_rows: bool,
) -> LoopTensor:  # fmt: skip
    """The same without a softmax. Raises NotLowered before it is written."""
    pairs = list(zip(operands[::2], operands[1::2]))
    _require(lw, *(left.sizes[2] for left in operands[::2]), other.sizes[2])
    steps = decode(weight, sizes)
    at = _point(*pairs[0], steps)
    body = _weight(lw, steps, pairs, captured, at)
    products = _products(lw, pairs, at, by_keys)
    rows = at.query, at.key
    if by_keys:
        rows = at.key, at.query
    column = loop_symbol("n", other.sizes[2])
    right = _operand(lw, other, (at.number, rows[1], column))
    parts = None if by_keys else _parts(lw, at)
    if parts is not None:
        weights = Weights(products, body, False, zero_rows)
        results = _of_parts(lw, out, at, parts, column, right, weights)
        sums = contiguous(out.sizes, torch.float32)._replace(device=out.device)
        return lw.rounded_to(out, lw.reduce(sums, "sum", results, [1], torch.float32, _same))
    tiles = None
    if zero_rows:
        tiles = tiles_of(lw, body, False, at.batch, *rows)
    weights = Weights(products, body, False, zero_rows, tiles=tiles)
    return _contraction(lw, out, at, rows, column, right, weights)


def scored_square(
    lw: Lowering, out: Spec, operands: Sequence[LoopTensor], captured: Sequence[LoopTensor],
    weight: str, sizes: Sequence[Any], size: Sequence[Expr],
) -> LoopTensor:  # fmt: skip
    """Products in memory, and what the steps make of them."""
    products = []
    for left, right in zip(operands[::2], operands[1::2]):
        shape = (*left.sizes[:2], right.sizes[2])
        spec = contiguous(shape, torch.float32)._replace(device=out.device)
        product: LoopTensor = RULES[aten.bmm.default](lw, spec, left, right)
        products.append(product)
    result = run(decode(weight, sizes), [*products, *captured], partial(_call, lw))
    return lw.reshaped(result, out)


def _call(lw: Lowering, step: Step, args: Any, kwargs: Any) -> LoopTensor:
    if step.op not in RULES:
        raise NotLowered(f"scores by {step.op}, which a library computes")
    shape = tuple(map(as_expr, step.sizes))
    result: LoopTensor = RULES[step.op](lw, contiguous(shape, step.dtype), *args, **kwargs)
    return result


def _require(lw: Lowering, *widths: Expr) -> None:
    for width in widths:
        if (width.constant or 0) > WIDEST and lw.target.has_registers:
            raise NotLowered("attention of wide heads")


def _point(query: LoopTensor, key: LoopTensor, steps: Sequence[Step]) -> _Point:
    """The loops. Those of the batch are as many as steps tell apart, but for those of one
    iteration."""
    batch: Sequence[Expr] = query.sizes[:1]
    for step in steps:
        if len(step.sizes) - 2 > len(batch):
            batch = tuple(map(as_expr, step.sizes[:-2]))
    loops = []
    for d, size in enumerate(batch):
        if size is not ONE:
            loops.append(loop_symbol(f"b{d}", size))
    return _Point(tuple(loops), loop_symbol("q", query.sizes[1]), loop_symbol("k", key.sizes[2]))


def _weight(
    lw: Lowering,
    steps: Sequence[Step],
    pairs: Sequence[tuple[LoopTensor, LoopTensor]],
    captured: Sequence[LoopTensor],
    at: _Point,
) -> Body:
    """What the steps make of the products at a point, which are read there alone."""
    place = (at.number, at.query, at.key)
    sizes = (pairs[0][0].sizes[0], at.query.extent, at.key.extent)

    def product(number: int) -> LoopTensor:
        def load(index: Index) -> int:
            if not all(map(_is_same, sizes, index, place)):
                raise NotLowered("scores that are made of several products")
            return ops.recorder().emit("scalar", (), torch.float32, (_name(number),))

        return LoopTensor(sizes, contiguous_strides(sizes), torch.float32, load)

    products = list(map(product, range(len(pairs))))
    lw.repeats = True
    try:
        result = run(steps, [*products, *captured], partial(_call, lw))
        flat = lw.reshaped(result, contiguous(sizes, result.dtype))
        return _with_places(lw.body_of(flat, place))
    finally:
        lw.repeats = False


def _same(value: int) -> int:
    return value


def _is_same(size: Expr, index: Expr, other: Expr) -> bool:
    """Whether two indices along a dimension are the same."""
    return size is ONE or index is other


def _with_places(body: Body) -> Body:
    """The body without lookups of what is a place for sure, as each index of a tensor is."""
    places: dict[Symbol, Expr] = {}
    for k in body.lookups:
        symbol, extent, _ = body.instructions[k].attrs
        value = body.instructions[body.instructions[k].args[0]]
        if value.op == "index" and is_in_range(value.attrs[0], extent):
            places[symbol] = value.attrs[0].substitute(places)

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        if i.op == "indirect" and i.attrs[0] in places:
            return i.args[0]
        return builder.append(i.with_index(lambda e: e.substitute(places)))

    return body.rewrite(visit).without_dead()


def _name(number: int) -> str:
    return f"product{number}"


def _products(
    lw: Lowering, pairs: Sequence[tuple[LoopTensor, LoopTensor]], at: _Point, by_keys: bool
) -> tuple[InnerProduct, ...]:
    results = []
    for number, (query, key) in enumerate(pairs):
        depth = loop_symbol(f"d{number}_", query.sizes[2])
        of_query = _operand(lw, query, (at.number, at.query, depth))
        of_key = _operand(lw, key, (at.number, depth, at.key))
        if _dtype(lw, of_query) is not _dtype(lw, of_key):
            raise NotLowered("a product of different dtypes")
        sides = of_query, of_key
        if by_keys:
            sides = of_key, of_query
        results.append(InnerProduct(_name(number), depth, *sides))
    return tuple(results)


def _dtype(lw: Lowering, access: Access) -> torch.dtype:
    return lw.graph.buffers[access.buffer].dtype


def _operand(lw: Lowering, value: LoopTensor, index: Sequence[Expr]) -> Access:
    """Where an operand lies. One that only widens what lies in memory is read there."""
    body = lw.body_of(value, tuple(index))
    source = body.instructions[0]
    only_widens = len(body.instructions) == 2 and body.instructions[1].op == "to"
    if source.op == "load" and not source.args and (len(body.instructions) == 1 or only_widens):
        if not source.attrs[1].is_indirect and source.dtype.itemsize <= value.dtype.itemsize:
            return Access(*source.attrs)
    view = lw.view(value)
    return Access(view.buffer, address_of(index, view.strides, view.offset))


def _contraction(
    lw: Lowering,
    out: Spec,
    at: _Point,
    rows: tuple[Symbol, Symbol],
    column: Symbol,
    right: Access,
    weights: Weights,
) -> LoopTensor:
    row, reduced = rows
    sums = contiguous(out.sizes, torch.float32)._replace(device=out.device)
    buffer = lw.new_buffer(sums, sums.strides)
    index = address_of((at.number, row, column), sums.strides)
    left = weights.products[0].left
    node = Contraction(
        lw.node_name(), lw.origin, at.batch, (row,), (column,), (reduced,), left, right, buffer,
        index, torch.float32, weights,
    )  # fmt: skip
    lw.graph.nodes.append(node)
    return lw.rounded_to(out, stored(buffer, sums))


# -- a few queries to many keys, as when a token is decoded ----------------------------------------


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

    steps, captured = _steps_to_scores(
        lw, (batch, as_expr(groups), rows, keys), length, shared, mask, scale
    )
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


def _steps_to_scores(
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


OPS = (
    op(own_ops.scored_attention, lower=scored_attention),
    op(own_ops.scored_product, lower=scored_product),
    op(own_ops.scored_square, lower=scored_square),
)
