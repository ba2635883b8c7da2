"""Copies, and conversions of dtypes."""

from __future__ import annotations

from ingot.graph.meta.families import exact_self, formatted_copy, pointwise_meta
from ingot.graph.schemas import Cost
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.values import LoopTensor, Spec
from ingot.ops.op import op
from ingot.torch_private import aten


def to_copy(lw: Lowering, out: Spec, x: LoopTensor, *_: object, **keywords: object) -> LoopTensor:
    """A conversion, or a copy: another name for the same elements until somebody needs it in
    memory."""
    if out.dtype is x.dtype:
        return lw.mapped(x, out, lambda index: index)
    return pointwise(lw, out, lambda v: v, [x])


def copy(
    lw: Lowering,
    out: Spec,
    target: LoopTensor,
    source: LoopTensor,
    non_blocking: bool = False,
) -> LoopTensor:
    return pointwise(lw, out, lambda v: v, [source])


OPS = (
    op(
        aten._to_copy.default,
        aten.clone.default,
        meta=formatted_copy,
        takes_no_elements=True,
        cost=Cost.LIGHT,
        lower=to_copy,
    ),
    op(aten._conj_physical.default, meta=pointwise_meta, lower=to_copy),
    op(aten.copy.default, meta=exact_self, takes_no_elements=True, lower=copy),
    op(aten.complex.default, aten.polar.default, meta=pointwise_meta),
)
