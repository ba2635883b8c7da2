"""Reductions, and the norms and softmaxes made of them. A reduction's result is always in
memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, contiguous_strides, product
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Spec, TensorValue, compute_dtype
from ingot.torch_private import aten

apply = ops.apply

Dims = Sequence[int] | int | None


def dims_of(dims: Dims, rank: int) -> tuple[int, ...]:
    """The dimensions meant, ascending; none given means all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(d % rank for d in listed)) if rank else ()


def same(value: int) -> int:
    return value


def count_of(x: TensorValue, dims: Sequence[int]) -> Expr:
    return product(x.sizes[d] for d in dims)


def kept(x: TensorValue, dims: Sequence[int], dtype: torch.dtype, device: torch.device) -> Spec:
    """The spec of a reduction of `x` that keeps its dimensions."""
    sizes = tuple(ONE if k in dims else size for k, size in enumerate(x.sizes))
    return Spec(sizes, contiguous_strides(sizes), dtype, device)


# -- plain reductions ------------------------------------------------------------------------------


def reduce_rounded(
    lw: Lowering,
    out: Spec,
    kind: str,
    x: TensorValue,
    dims: Dims,
    element: Callable[[int], int] = same,
) -> TensorValue:
    """Accumulate in the compute dtype of `out.dtype`, round once at the end."""
    result = lw.reduce(out, kind, x, dims_of(dims, len(x.sizes)), compute_dtype(out.dtype), element)
    return lw.rounded_to(out, result)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TensorValue:
    return reduce_rounded(lw, out, "sum", x, dims)


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TensorValue:
    """In float64 for float32: each factor adds its rounding to the error, in whatever order they
    are multiplied."""
    held = torch.float64 if out.dtype is torch.float32 else compute_dtype(out.dtype)
    axes = dims_of(dims, len(x.sizes))
    return lw.rounded_to(out, lw.reduce(out, "prod", x, axes, held, same))


@lowers(aten.mean.default, aten.mean.dim)
def mean(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TensorValue:
    axes = dims_of(dims, len(x.sizes))
    total = lw.reduce(out, "sum", x, axes, compute_dtype(out.dtype), same)
    return divided(lw, out, total, count_of(x, axes))


def divided(lw: Lowering, out: Spec, total: TensorValue, count: Expr) -> TensorValue:
    """total / count, in the dtype of `total`, rounded to `out.dtype`."""
    return pointwise(
        lw,
        out,
        lambda v: apply("div", v, ops.index(count, ops.dtype_of(v))),
        [total],
        [total.dtype],
    )


@lowers(aten.amax.default, aten.max.default)
def amax(
    lw: Lowering, out: Spec, x: TensorValue, dims: Dims = None, keepdim: bool = False
) -> TensorValue:
    return reduce_rounded(lw, out, "max", x, dims)


@lowers(aten.amin.default, aten.min.default)
def amin(
    lw: Lowering, out: Spec, x: TensorValue, dims: Dims = None, keepdim: bool = False
) -> TensorValue:
    return reduce_rounded(lw, out, "min", x, dims)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(
    lw: Lowering, out: Spec, x: TensorValue, dims: Dims = None, keepdim: bool = False
) -> TensorValue:
    return _truth(lw, out, "any", x, dims)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(
    lw: Lowering, out: Spec, x: TensorValue, dims: Dims = None, keepdim: bool = False
) -> TensorValue:
    return _truth(lw, out, "all", x, dims)


def _truth(lw: Lowering, out: Spec, kind: str, x: TensorValue, dims: Dims) -> TensorValue:
    axes = dims_of(dims, len(x.sizes))
    result = lw.reduce(
        out._replace(dtype=torch.bool), kind, x, axes, torch.bool, lambda v: ops.to(v, torch.bool)
    )
    return lw.rounded_to(out, result)  # of uint8 these are uint8


@lowers(aten.argmax.default)
def argmax(
    lw: Lowering, out: Spec, x: TensorValue, dim: int | None = None, keepdim: bool = False
) -> TensorValue:
    return position(lw, out, "argmax", x, dim)


@lowers(aten.argmin.default)
def argmin(
    lw: Lowering, out: Spec, x: TensorValue, dim: int | None = None, keepdim: bool = False
) -> TensorValue:
    return position(lw, out, "argmin", x, dim)


def position(lw: Lowering, out: Spec, kind: str, x: TensorValue, dim: int | None) -> TensorValue:
    dims = dims_of(dim, len(x.sizes))
    return lw.reduce(out, kind, x, dims, compute_dtype(x.dtype), same, result_dtype=torch.int64)


@lowers(aten.max.dim)
def max_dim(
    lw: Lowering, outs: Sequence[Spec], x: TensorValue, dim: int, keepdim: bool = False
) -> tuple[TensorValue, ...]:
    return _with_position(lw, outs, "max", x, dim)


@lowers(aten.min.dim)
def min_dim(
    lw: Lowering, outs: Sequence[Spec], x: TensorValue, dim: int, keepdim: bool = False
) -> tuple[TensorValue, ...]:
    return _with_position(lw, outs, "min", x, dim)


def _with_position(
    lw: Lowering, outs: Sequence[Spec], kind: str, x: TensorValue, dim: int
) -> tuple[TensorValue, ...]:
    lw.share(x)
    return reduce_rounded(lw, outs[0], kind, x, dim), position(lw, outs[1], "arg" + kind, x, dim)


# -- moments and norms -----------------------------------------------------------------------------


def moments(
    lw: Lowering,
    x: TensorValue,
    dims: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    correction: Any = 0,
) -> tuple[TensorValue, TensorValue]:
    """(variance, mean) of `x` over `dims`, dimensions kept, computed in `dtype` in two passes."""
    lw.share(x)
    spec = kept(x, dims, dtype, device)
    average = lw.realize(
        divided(lw, spec, lw.reduce(spec, "sum", x, dims, dtype, same), count_of(x, dims))
    )
    deviation = pointwise(
        lw,
        Spec(x.sizes, contiguous_strides(x.sizes), dtype, device),
        lambda v, m: _square(apply("sub", v, m)),
        [x, average],
        [dtype, dtype],
    )
    squares = lw.reduce(spec, "sum", deviation, dims, dtype, same)
    return _corrected(lw, spec, squares, count_of(x, dims), correction), average


def _corrected(
    lw: Lowering, spec: Spec, squares: TensorValue, count: Expr, correction: Any
) -> TensorValue:
    if isinstance(correction, float) and not correction.is_integer():
        raise NotLowered("a fractional correction")
    freedom = count - int(correction)
    known = freedom.constant
    if known is not None:
        freedom = freedom if known > 0 else ZERO
    return divided(lw, spec, squares, freedom)


def _square(v: int) -> int:
    return apply("mul", v, v)


def dropped(lw: Lowering, out: Spec, x: TensorValue) -> TensorValue:
    """`x` with or without its dimensions of size 1, as `out` has them, rounded to `out.dtype`."""
    at = [k for k, size in enumerate(out.sizes) if size is not ONE]

    def index_map(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        rest = iter([index[k] for k in at])
        return tuple(ZERO if size is ONE else next(rest) for size in x.sizes)

    return lw.rounded_to(out, lw.mapped(x, out._replace(dtype=x.dtype), index_map))


@lowers(aten.var.correction)
def var(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> TensorValue:
    return dropped(lw, out, _variance(lw, out, x, dims, correction)[0])


@lowers(aten.std.correction)
def std(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> TensorValue:
    variance = _variance(lw, out, x, dims, correction)[0]
    spec = Spec(variance.sizes, variance.strides, variance.dtype, out.device)
    return dropped(
        lw, out, pointwise(lw, spec, lambda v: apply("sqrt", v), [variance], [spec.dtype])
    )


@lowers(aten.var_mean.correction)
def var_mean(
    lw: Lowering,
    outs: Sequence[Spec],
    x: TensorValue,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[TensorValue, ...]:
    results = _variance(lw, outs[0], x, dims, correction)
    return tuple(dropped(lw, out, value) for out, value in zip(outs, results))


def _variance(
    lw: Lowering, out: Spec, x: TensorValue, dims: Any, correction: Any
) -> tuple[TensorValue, TensorValue]:
    if correction is None:
        correction = 1
    return moments(
        lw, x, dims_of(dims, len(x.sizes)), compute_dtype(out.dtype), out.device, correction
    )


def normalized(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    average: TensorValue | None,
    scale: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
) -> TensorValue:
    """(x - average) * scale * weight + bias, in the compute dtype, rounded once."""
    parts = [("sub", average), ("mul", scale), ("mul", weight), ("add", bias)]
    steps = [(name, operand) for name, operand in parts if operand is not None]

    def scalar(value: int, *operands: int) -> int:
        for (name, _), operand in zip(steps, operands):
            value = apply(name, value, operand)
        return value

    dtype = compute_dtype(out.dtype)
    operands = [x, *(operand for _, operand in steps)]
    return pointwise(lw, out, scalar, operands, [dtype] * len(operands))


def reciprocal_root(
    lw: Lowering, variance: TensorValue, epsilon: float, device: torch.device
) -> TensorValue:
    """1 / sqrt(variance + epsilon), in memory."""

    def scalar(v: int) -> int:
        root = apply("sqrt", apply("add", v, ops.constant(epsilon, ops.dtype_of(v))))
        return apply("div", ops.constant(1, ops.dtype_of(v)), root)

    spec = Spec(variance.sizes, variance.strides, variance.dtype, device)
    return lw.realize(pointwise(lw, spec, scalar, [variance], [spec.dtype]))


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    lw: Lowering,
    outs: Sequence[Spec],
    x: TensorValue,
    normalized_shape: Sequence[int],
    weight: TensorValue | None,
    bias: TensorValue | None,
    epsilon: float,
) -> tuple[TensorValue, ...]:
    rank = len(x.sizes)
    dims = tuple(range(rank - len(normalized_shape), rank))
    device = outs[0].device
    variance, average = moments(lw, x, dims, compute_dtype(x.dtype), device)
    scale = reciprocal_root(lw, variance, epsilon, device)
    result = normalized(lw, outs[0], x, average, scale, weight, bias)
    return result, dropped(lw, outs[1], average), dropped(lw, outs[2], scale)


# -- softmax ---------------------------------------------------------------------------------------


def _shifted(
    lw: Lowering, x: TensorValue, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Spec, TensorValue, TensorValue]:
    """(full spec, kept spec's maximum) of a softmax over `dim` computed in `dtype`."""
    lw.share(x)
    spec = kept(x, (dim,), dtype, device)
    return spec, lw.reduce(spec, "max", x, (dim,), dtype, same), x


@lowers(aten._softmax.default)
def softmax(
    lw: Lowering, out: Spec, x: TensorValue, dim: int, half_to_float: bool = False
) -> TensorValue:
    powers, total, _ = _powers(lw, out, x, dim)
    dtype = powers.dtype
    return pointwise(
        lw,
        out,
        lambda p, t: apply("mul", p, apply("reciprocal", t)),
        [powers, total],
        [dtype, dtype],
    )


@lowers(aten._safe_softmax.default)
def safe_softmax(
    lw: Lowering, out: Spec, x: TensorValue, dim: int, dtype: torch.dtype | None = None
) -> TensorValue:
    """A softmax that is zero where all are -inf."""
    if dtype not in (None, x.dtype):
        raise NotLowered("a softmax in another dtype")
    powers, total, largest = _powers(lw, out, x, dim)

    def scalar(p: int, t: int, m: int) -> int:
        nothing = apply("eq", m, ops.constant(-math.inf, powers.dtype))
        zero = ops.constant(0.0, powers.dtype)
        return apply("where", nothing, zero, apply("mul", p, apply("reciprocal", t)))

    return pointwise(lw, out, scalar, [powers, total, largest], [powers.dtype] * 3)


def _powers(
    lw: Lowering, out: Spec, x: TensorValue, dim: int
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """The terms of a softmax over `dim`, their sums, and the largest elements."""
    if not x.sizes:
        raise NotLowered("softmax of a scalar")
    dim %= len(x.sizes)
    dtype = compute_dtype(out.dtype)
    spec, largest, x = _shifted(lw, x, dim, dtype, out.device)
    full = Spec(x.sizes, contiguous_strides(x.sizes), dtype, out.device)
    powers = pointwise(
        lw, full, lambda v, m: apply("exp", apply("sub", v, m)), [x, largest], [dtype, dtype]
    )
    lw.realize(powers)
    return powers, lw.reduce(spec, "sum", powers, (dim,), dtype, same), largest


@lowers(aten._log_softmax.default)
def log_softmax(
    lw: Lowering, out: Spec, x: TensorValue, dim: int, half_to_float: bool = False
) -> TensorValue:
    if not x.sizes:
        raise NotLowered("log_softmax of a scalar")
    dim %= len(x.sizes)
    dtype = compute_dtype(out.dtype)
    spec, largest, x = _shifted(lw, x, dim, dtype, out.device)
    full = Spec(x.sizes, contiguous_strides(x.sizes), dtype, out.device)
    powers = pointwise(
        lw, full, lambda v, m: apply("exp", apply("sub", v, m)), [x, largest], [dtype, dtype]
    )
    total = lw.reduce(spec, "sum", powers, (dim,), dtype, same)
    logarithm = lw.realize(pointwise(lw, spec, lambda t: apply("log", t), [total], [dtype]))

    def scalar(v: int, m: int, log: int) -> int:
        return apply("sub", apply("sub", v, m), log)

    return pointwise(lw, out, scalar, [x, largest, logarithm], [dtype] * 3)
