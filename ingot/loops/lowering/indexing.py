"""Indexing with tensors, and the functional forms of writing into a part of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, maximum, minimum
from ingot.loops.ir import Fault
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import compare, slice_start
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Index, Spec, TensorValue, broadcast_index, numel, rounded
from ingot.torch_private import aten

apply = ops.apply

_OUT_OF_RANGE = Fault(IndexError, "index out of range in self")
INDEX_TYPES = (torch.int64, torch.int32)
FEW = 8
"""Places are few where there are this many times as many elements."""


def strict(position: int, extent: Expr, fault: Fault) -> Any:
    """`position` as an index that may not be negative."""
    zero = ops.constant(0, torch.int64)
    position = ops.to(position, torch.int64)
    outside = apply("where", apply("lt", position, zero), ops.index(extent), position)
    return ops.indirect(outside, extent, fault)


def of_vectors(rule: Callable[..., TensorValue]) -> Callable[..., TensorValue]:
    """A rule in which tensors without dimensions are vectors of one element."""

    def vector(lw: Lowering, value: Any) -> Any:
        if not isinstance(value, TensorValue) or value.sizes:
            return value
        return lw.mapped(
            value, Spec((ONE,), (ONE,), value.dtype, torch.device("cpu")), lambda index: ()
        )

    def of_scalars(
        lw: Lowering, out: Spec, x: TensorValue, *args: Any, **keywords: Any
    ) -> TensorValue:
        given = [vector(lw, value) for value in args]
        if out.sizes:
            return rule(lw, out, vector(lw, x), *given, **keywords)
        result = rule(
            lw, out._replace(sizes=(ONE,), strides=(ONE,)), vector(lw, x), *given, **keywords
        )
        return lw.mapped(result, out, lambda index: (ZERO,))

    return of_scalars


def looked_up(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    positions: Sequence[TensorValue],
    compute: Callable[[Index], int],
) -> TensorValue:
    """A lazy value that reads `x` at places that other tensors name. `x` is computed there where
    they are few, else in memory before."""
    if any(p.dtype not in INDEX_TYPES for p in positions):
        raise NotLowered("an index that is not an integer")
    found, there = numel(out.sizes).constant, numel(x.sizes).constant
    if x.root.cost and (found is None or there is None or found * FEW > there):
        lw.realize_root(x)
    return lw.computed(out, compute, [x, *positions], cost=2)


@lowers(aten.embedding.default)
def embedding(
    lw: Lowering, out: Spec, weight: TensorValue, indices: TensorValue, *_: object
) -> TensorValue:
    rank = len(indices.sizes)
    if ZERO in weight.sizes:
        raise NotLowered("a lookup in nothing")

    def compute(index: Index) -> int:
        row = strict(indices.load(index[:rank]), weight.sizes[0], _OUT_OF_RANGE)
        return weight.load((row, index[-1]))

    return looked_up(lw, out, weight, [indices], compute)


@lowers(aten.gather.default)
@of_vectors
def gather(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    *,
    sparse_grad: bool = False,
) -> TensorValue:
    dim %= len(x.sizes)
    if x.sizes[dim] is ZERO:
        raise NotLowered("gather from nothing")
    fault = Fault(RuntimeError, f"index out of bounds for dimension {dim} with size {x.sizes[dim]}")

    def compute(index: Index) -> int:
        at = strict(indices.load(index), x.sizes[dim], fault)
        return x.load((*index[:dim], at, *index[dim + 1 :]))

    return looked_up(lw, out, x, [indices], compute)


@lowers(aten.index_select.default)
@of_vectors
def index_select(
    lw: Lowering, out: Spec, x: TensorValue, dim: int, indices: TensorValue
) -> TensorValue:
    if ZERO in x.sizes:
        raise NotLowered("index_select of nothing")
    dim %= len(x.sizes)
    # eager has a kernel of its own for dimension 1
    fault = (
        Fault(RuntimeError, "INDICES element is out of DATA bounds") if dim == 1 else _OUT_OF_RANGE
    )

    def compute(index: Index) -> int:
        at = strict(indices.load((index[dim],)), x.sizes[dim], fault)
        return x.load((*index[:dim], at, *index[dim + 1 :]))

    return looked_up(lw, out, x, [indices], compute)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(
    lw: Lowering, out: Spec, x: TensorValue, indices: Sequence[TensorValue | None]
) -> TensorValue:
    """Advanced indexing: the indexed dimensions are replaced by those of the broadcast index
    tensors, which stand where the first indexed dimension was if the indexed ones are adjacent,
    else in front."""
    used = {d: v for d, v in enumerate(indices) if v is not None}
    dims = sorted(used)
    rank = max((len(v.sizes) for v in used.values()), default=0)
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    start = dims[0] if adjacent else 0
    places = places_named(x, used, start, rank)
    return looked_up(lw, out, x, list(used.values()), lambda place: x.load(places(place)))


def places_named(
    x: TensorValue, used: Mapping[int, TensorValue], start: int, rank: int
) -> Callable[[Index], Index]:
    """From a place among what is indexed to the place in `x`: `used` are the index tensors by
    dimension of `x`, whose broadcast `rank` dimensions stand from `start` on."""
    faults = {  # eager counts the dimensions that are indexed
        d: Fault(IndexError, f"index out of bounds for dimension {k} with size {x.sizes[d]}")
        for k, d in enumerate(sorted(used))
    }

    def places(index: Index) -> Index:
        chosen, others = index[start : start + rank], iter(index[:start] + index[start + rank :])
        at = []
        for d, size in enumerate(x.sizes):
            if d in used:
                position = used[d].load(broadcast_index(chosen, used[d].sizes))
                at.append(ops.indirect(position, size, faults[d]))
            else:
                at.append(next(others))
        return tuple(at)

    return places


# -- writing into a part
# -------------------------------------------------------------------------------------------------


def overlaid(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    source: TensorValue,
    inside: Callable[[Index], int],
    at: Callable[[Index], Index],
) -> TensorValue:
    """`source[at(index)]` where `inside(index)`, else `x[index]`."""
    lw.share(source)

    def compute(place: Index) -> int:
        condition = inside(place)
        with ops.masked(condition):
            new = rounded(source.load(broadcast_index(at(place), source.sizes)), out.dtype)
        return apply("where", condition, new, x.load(place))

    return lw.computed(out, compute, [x, source], cost=3)


@lowers(aten.select_scatter.default)
def select_scatter(
    lw: Lowering, out: Spec, x: TensorValue, source: TensorValue, dim: int, position: int | Expr
) -> TensorValue:
    dim %= len(x.sizes)
    chosen = as_expr(position)
    if (chosen.constant or 0) < 0:
        chosen = chosen + x.sizes[dim]
    return overlaid(
        lw,
        out,
        x,
        source,
        lambda i: compare("eq", i[dim], chosen),
        lambda i: (*i[:dim], *i[dim + 1 :]),
    )


@lowers(aten.slice_scatter.default)
def slice_scatter(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int = 1,
) -> TensorValue:
    dim %= len(x.sizes)
    first = slice_start(start, x.sizes[dim])
    last = first + source.sizes[dim] * step

    def inside(i: Index) -> int:
        condition = apply("logical_and", compare("ge", i[dim], first), compare("lt", i[dim], last))
        if step != 1:
            condition = apply("logical_and", condition, compare("eq", (i[dim] - first) % step, 0))
        return condition

    return overlaid(
        lw, out, x, source, inside, lambda i: (*i[:dim], (i[dim] - first) // step, *i[dim + 1 :])
    )


@lowers(aten.tril.default)
def tril(lw: Lowering, out: Spec, x: TensorValue, diagonal: int | Expr = 0) -> TensorValue:
    return _triangle(lw, out, x, "le", diagonal)


@lowers(aten.triu.default)
def triu(lw: Lowering, out: Spec, x: TensorValue, diagonal: int | Expr = 0) -> TensorValue:
    return _triangle(lw, out, x, "ge", diagonal)


def _triangle(
    lw: Lowering, out: Spec, x: TensorValue, relation: str, diagonal: int | Expr
) -> TensorValue:
    rows, columns = x.sizes[-2:]
    within = maximum(minimum(diagonal, columns), -rows)  # those beyond the corners are all alike

    def compute(i: Index) -> int:
        value = x.load(i)
        return apply(
            "where",
            compare(relation, i[-1], i[-2] + within),
            value,
            ops.constant(0, ops.dtype_of(value)),
        )

    return lw.computed(out, compute, [x], cost=2)
