"""Calls of NumPy itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.graph import geometry
from ingot.graph.arrays import whole_calls
from ingot.graph.arrays.calls import BY_RESULTS, Look, along, look_along, looks
from ingot.graph.meta.basis import fresh
from ingot.graph.schemas import indexes
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload


def _like(look: Look) -> Tensor:
    sizes, dtype = look
    return fresh(sizes, dtype, geometry.contiguous(sizes))


def ufunc_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    results = tuple(map(_like, looks(*args)))
    if len(results) == 1:
        return results[0]
    return results


def along_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return _like(look_along(*args))


def call_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    function, arguments, operands = args
    shapes, dtypes = [], []
    for operand in operands:
        shapes.append(tuple(operand.shape))
        dtypes.append(operand.dtype)
    looks = whole_calls.results_of(function, arguments, tuple(shapes), tuple(dtypes)).looks
    results = tuple(map(_like, looks))
    if len(results) == 1:
        return results[0]
    return results


OPS = (
    op(*whole_calls.BY_RESULTS.values(), meta=call_meta, may_raise=indexes),
    op(*BY_RESULTS.values(), meta=ufunc_meta, may_raise=indexes),
    op(along, meta=along_meta),
)
