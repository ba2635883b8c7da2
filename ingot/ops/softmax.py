"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.checks import along
from ingot.graph.decompositions import rounded_once, widened
from ingot.graph.meta.basis import by_look, fresh
from ingot.graph.meta.families import contiguous_self
from ingot.graph.meta.untried import unless_known
from ingot.loops import ops
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise, simple
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import LoopTensor, Spec, compute_dtype, contiguous
from ingot.ops.op import op
from ingot.ops.reductions import kept, reduction_meta, same
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply


# -- as other ops ----------------------------------------------------------------------------------


@rounded_once
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or geometry.is_empty(x):
        return NotImplemented
    weights = torch.exp(x - torch.amax(x, dim, keepdim=True))
    return weights * torch.reciprocal(torch.sum(weights, dim, keepdim=True))  # one division a row


@rounded_once
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or geometry.is_empty(x):
        return NotImplemented
    shifted = x - torch.amax(x, dim, keepdim=True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))


@rounded_once
def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if x.is_complex():
        return NotImplemented
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    if geometry.is_empty(x):
        return torch.log(torch.sum(torch.exp(x), dim, keepdim))
    top = torch.amax(x, dim, keepdim=True)
    top = torch.where(torch.abs(top) == math.inf, 0.0, top)
    total = torch.log(torch.sum(torch.exp(x - top), dim, keepdim=True)) + top
    if keepdim:
        return total
    return torch.squeeze(total, dim)


def softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if geometry.is_empty(y) or dtype is not y.dtype:
        return NotImplemented
    g, value = widened(grad), widened(y)
    return (value * (g - torch.sum(g * value, dim, keepdim=True))).to(dtype)


def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if geometry.is_empty(y) or dtype is not y.dtype:
        return NotImplemented
    g = widened(grad)
    return (g - torch.exp(widened(y)) * torch.sum(g, dim, keepdim=True)).to(dtype)


# -- as loops: what has no elements, or is widened -------------------------------------------------


def _powers(lw: Lowering, out: Spec, x: LoopTensor, dim: int) -> tuple[LoopTensor, LoopTensor]:
    """The terms of a softmax over `dim`, e^(x - largest element), and the largest elements."""
    lw.share(x)
    dtype = compute_dtype(out.dtype)
    largest = lw.reduce(kept(x, (dim,), dtype), "max", x, (dim,), dtype, same)

    def power(value: int, most: int) -> int:
        return apply("exp", apply("sub", value, most))

    return pointwise(lw, contiguous(x.sizes, dtype), power, [x, largest]), largest


def _summed(lw: Lowering, powers: LoopTensor, dim: int) -> LoopTensor:
    spec = kept(powers, (dim,), powers.dtype)
    return lw.reduce(spec, "sum", powers, (dim,), powers.dtype, same)


def _dim_of(x: LoopTensor, dim: int) -> int:
    if not x.sizes:
        raise NotLowered("softmax of a scalar")
    return dim % len(x.sizes)


def lower_softmax(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, half_to_float: bool = False
) -> LoopTensor:
    dim = _dim_of(x, dim)
    powers = lw.realize(_powers(lw, out, x, dim)[0])
    total = _summed(lw, powers, dim)
    return pointwise(lw, out, _share, [powers, total], [powers.dtype] * 2)


def _share(power: int, total: int) -> int:
    return apply("mul", power, apply("reciprocal", total))


def safe_softmax(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, dtype: torch.dtype | None = None
) -> LoopTensor:
    """A softmax that is zero where all are -inf."""
    if dtype not in (None, x.dtype):
        raise NotLowered("a softmax in another dtype")
    dim = _dim_of(x, dim)
    powers, largest = _powers(lw, out, x, dim)
    total = _summed(lw, lw.realize(powers), dim)

    def scalar(p: int, t: int, m: int) -> int:
        nothing = apply("eq", m, ops.constant(-math.inf, powers.dtype))
        zero = ops.constant(0.0, powers.dtype)
        return apply("where", nothing, zero, _share(p, t))

    return pointwise(lw, out, scalar, [powers, total, largest], [powers.dtype] * 3)


def lower_log_softmax(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, half_to_float: bool = False
) -> LoopTensor:
    dim = _dim_of(x, dim)
    powers, largest = _powers(lw, out, x, dim)
    total = _summed(lw, powers, dim)
    spec = kept(x, (dim,), powers.dtype)
    logarithm = lw.realize(pointwise(lw, spec, simple("log"), [total]))

    def scalar(v: int, m: int, log: int) -> int:
        return apply("sub", apply("sub", v, m), log)

    return pointwise(lw, out, scalar, [x, largest, logarithm], [powers.dtype] * 3)


# -- what they look like ---------------------------------------------------------------------------


@by_look
@unless_known
def softmax_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return fresh(args[0].shape, args[3])


OPS = (
    op(
        aten._softmax.default,
        decompose=softmax,
        meta=contiguous_self,
        refuses=along,
        lower=lower_softmax,
    ),
    op(aten._safe_softmax.default, meta=contiguous_self, lower=safe_softmax),
    op(
        aten._log_softmax.default,
        decompose=log_softmax,
        meta=contiguous_self,
        refuses=along,
        lower=lower_log_softmax,
    ),
    op(aten.logsumexp.default, decompose=logsumexp, meta=reduction_meta),
    op(aten._softmax_backward_data.default, decompose=softmax_backward, meta=softmax_backward_meta),
    op(
        aten._log_softmax_backward_data.default,
        decompose=log_softmax_backward,
        meta=softmax_backward_meta,
    ),
)
