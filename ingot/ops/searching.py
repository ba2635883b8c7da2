"""Binary search, written out: as many steps as the sorted row has binary digits, each a load at a
computed place."""

from __future__ import annotations

from typing import Any

import torch

from ingot.errors import EagerRaises
from ingot.graph.meta.trials import tried_out
from ingot.graph.meta.untried import sized_as, unless_known
from ingot.graph.schemas import bind
from ingot.loops import ops
from ingot.loops.expr import ZERO, Expr
from ingot.loops.ir import Fault
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import Operand
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import Index, LoopTensor, Spec, compute_dtype, rounded
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply

LONGEST_ROW = 1 << 20
_INSIDE = Fault(IndexError, "a step of a search is inside of the row")  # cannot happen


def _searched(lw: Lowering, out: Spec, row: LoopTensor, value: Operand, right: bool) -> LoopTensor:
    """How many elements of the row come before the value: those less than it or, from the right,
    not greater."""
    length = row.sizes[-1].constant
    if length is None or not 0 < length < LONGEST_ROW:
        raise NotLowered("a row of symbolic length, of none, or a very long one")
    if isinstance(value, Expr) or (isinstance(value, LoopTensor) and value.dtype is not row.dtype):
        raise NotLowered("a symbolic number, or a row and values of two types")
    lw.realize_root(row)
    dtype = compute_dtype(row.dtype)
    i64, steps = torch.int64, length.bit_length()

    def compute(index: Index) -> int:
        if isinstance(value, LoopTensor):
            target = ops.to(value.load(index), dtype)
        else:
            target = rounded(ops.constant(value, dtype), row.dtype)
        outer = index[: len(row.sizes) - 1]
        first, end = ops.constant(0, i64), ops.constant(length, i64)
        one, last = ops.constant(1, i64), ops.constant(length - 1, i64)
        # of eager, which decide what is found in a row that is not sorted, as by NaN
        for _ in range(steps):
            middle = apply("shift_right", apply("add", first, end), one)
            place = ops.indirect(apply("minimum", middle, last), length, _INSIDE)
            element = ops.to(row.load((*outer, place)), dtype)
            stays = apply("gt" if right else "ge", element, target)
            moves = apply("logical_and", apply("lt", first, end), apply("logical_not", stays))
            first = apply("where", moves, apply("add", middle, one), first)
            end = apply("where", moves, end, middle)
        return ops.to(first, out.dtype)

    if isinstance(value, LoopTensor):
        operands = [row, value]
    else:
        operands = [row]
    return lw.computed(out, compute, operands, cost=8 * steps, heavy=True)


def bucketize(
    lw: Lowering,
    out: Spec,
    value: Operand,
    boundaries: LoopTensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> LoopTensor:
    if len(boundaries.sizes) != 1:
        raise NotLowered("boundaries that are no vector")
    return _searched(lw, out, boundaries, value, right)


def searchsorted(
    lw: Lowering, out: Spec, row: LoopTensor, value: Operand, *, out_int32: bool = False,
    right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> LoopTensor:  # fmt: skip
    if sorter is not None or side not in (None, "left", "right") or (side == "left" and right):
        raise NotLowered("a row given unsorted, or sides that disagree")
    sizes = value.sizes if isinstance(value, LoopTensor) else ()
    if not row.sizes or ZERO in row.sizes:
        raise NotLowered("a search in nothing")
    if len(row.sizes) > 1 and (len(sizes) != len(row.sizes) or sizes[:-1] != row.sizes[:-1]):
        raise NotLowered("rows and values that do not belong together")
    return _searched(lw, out, row, value, right or side == "right")


# -- sorting ---------------------------------------------------------------------------------------


@unless_known
def sorted_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What is in other places along a dimension, and where it was; of topk, so many elements of
    it."""
    bound = bind(op, args, kwargs)
    sizes = list(args[0].shape)
    if "k" in bound and sizes:
        if bound["k"] > sizes[bound["dim"] % len(sizes)]:
            raise EagerRaises("topk of fewer elements")
        sizes[bound["dim"] % len(sizes)] = bound["k"]
    return tuple([sized_as(op, sizes, t) for t in tried_out(op, args, kwargs)])


# -- counting --------------------------------------------------------------------------------------


@unless_known
def histogram_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """As many counts as there are bins, however many elements are counted."""
    bins = bind(op, args, kwargs)["bins"]
    if bins < 1:
        raise EagerRaises("histc with no bins")
    return sized_as(op, [bins], tried_out(op, args, kwargs))


OPS = (
    op(aten.bucketize.Tensor, aten.bucketize.Scalar, lower=bucketize),
    op(aten.searchsorted.Tensor, aten.searchsorted.Scalar, lower=searchsorted),
    op(aten.sort.default, aten.sort.stable, aten.topk.default, meta=sorted_meta),
    op(aten.histc.default, meta=histogram_meta),
)
