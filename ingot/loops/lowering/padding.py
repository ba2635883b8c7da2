"""Tensors put together from pieces of one: rolled, and padded by reflection or replication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot.loops.expr import ONE, ZERO, Expr, as_expr, known_less_equal, maximum, minimum
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.creation import join
from ingot.loops.lowering.index_maps import on_dim
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Index, Spec, TensorValue
from ingot.torch_private import aten


@lowers(aten.roll.default)
def roll(
    lw: Lowering, out: Spec, x: TensorValue, shifts: Sequence[int], dims: Sequence[int] = ()
) -> TensorValue:
    if not dims:
        raise NotLowered("roll over the flattened tensor")
    moved = dict(zip((d % len(x.sizes) for d in dims), shifts))
    if len(moved) < len(dims):
        raise NotLowered("a dimension rolled twice")
    inner = next(
        (d for d in moved if x.strides[d] is ONE and as_expr(moved[d]).constant is not None), None
    )
    if inner is not None:  # in two pieces, so that neighbours in memory stay neighbours
        size, shift = x.sizes[inner], as_expr(moved.pop(inner)) % x.sizes[inner]
        moves: list[tuple[Expr, Callable[[Expr], Expr]]]
        moves = [(shift, lambda i: i + size - shift), (size - shift, lambda i: i)]
        specs = [out._replace(sizes=(*x.sizes[:inner], n, *x.sizes[inner + 1 :])) for n, _ in moves]
        pieces = [
            lw.mapped(x, spec, on_dim(inner, len(x.sizes), f)) for spec, (_, f) in zip(specs, moves)
        ]
        x = join(lw, out, pieces, inner)

    def index_map(index: Index) -> Index:
        return tuple((i - moved[k]) % x.sizes[k] if k in moved else i for k, i in enumerate(index))

    return lw.mapped(x, out, index_map) if moved else x


def _clamped(i: Expr, size: Expr) -> Expr:
    return minimum(maximum(i, 0), size - 1)


def _reflected(i: Expr, size: Expr) -> Expr:
    i = maximum(i, -i)
    from_end = size - 1 - i
    # which changes nothing, and is plainly in range
    return _clamped(size - 1 - maximum(from_end, -from_end), size)


def _padded(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    pad: Sequence[Any],
    position: Callable[[Expr, Expr], Expr],
    mirrored: bool,
) -> TensorValue:
    """`position(i, size)` is the element that stands at place `i` of a dimension, where 0 is the
    first one.

    The last dimension is written in three parts, each of which walks through memory in steps of one
    length.
    """
    rank, padded = len(x.sizes), len(pad) // 2
    before = [ZERO] * rank
    for k in range(padded):
        before[rank - 1 - k] = as_expr(pad[2 * k])
    left, right, size = as_expr(pad[0]), as_expr(pad[1]), x.sizes[-1]
    if left.constant is None or right.constant is None or ZERO in x.sizes:
        raise NotLowered("padding of symbolic width, or of nothing")
    lw.realize_root(x)
    first, last = max(left.constant, 0), max(right.constant, 0)

    def part(length: Expr, at: Callable[[Expr], Expr]) -> TensorValue:
        def index_map(index: Index) -> Index:
            outer = (position(i - b, n) if b is not ZERO or whole is not n else i for i, b, n, whole in
                     zip(index[:-1], before, x.sizes, out.sizes))  # fmt: skip
            return (*outer, at(index[-1]))

        return lw.mapped(x, out._replace(sizes=(*out.sizes[:-1], length)), index_map)

    middle = out.sizes[-1] - first - last
    if not known_less_equal(0, middle):
        raise NotLowered("padding of nothing that is left")
    parts = [part(middle, lambda i: i + first - left)]
    if first:
        parts.insert(0, part(as_expr(first), lambda i: first - i if mirrored else ZERO))
    if last:
        parts.append(part(as_expr(last), lambda i: size - 2 - i if mirrored else size - 1))
    return join(lw, out, parts, rank - 1)


def _rule(position: Callable[[Expr, Expr], Expr], mirrored: bool) -> Callable[..., TensorValue]:
    def rule(lw: Lowering, out: Spec, x: TensorValue, pad: Sequence[Any]) -> TensorValue:
        return _padded(lw, out, x, pad, position, mirrored)

    return rule


lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)(
    _rule(_reflected, True)
)
lowers(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)(_rule(_clamped, False))
