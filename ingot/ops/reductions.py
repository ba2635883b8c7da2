"""Reductions: sums, extremes, variances and norms of vectors.

The result of one that is lowered to loops is materialized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.decompositions import rounded_once, widened
from ingot.graph.meta.basis import by_look, fresh
from ingot.graph.meta.families import pointwise_meta
from ingot.graph.meta.trials import dtypes, probe, tried_out
from ingot.graph.schemas import bind
from ingot.graph.symbolic_views import is_symbolic
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, product
from ingot.loops.ir import Fault
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise, simple
from ingot.loops.lowering.rules import NotLowered, Rule
from ingot.loops.lowering.values import Index, LoopTensor, Spec, compute_dtype, contiguous, numel
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

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


def count_of(x: LoopTensor, dims: Sequence[int]) -> Expr:
    return product(x.sizes[d] for d in dims)


def kept(x: LoopTensor, dims: Sequence[int], dtype: torch.dtype) -> Spec:
    """The spec of a reduction of `x` that keeps its dimensions."""
    return contiguous([ONE if k in dims else size for k, size in enumerate(x.sizes)], dtype)


# -- plain reductions ------------------------------------------------------------------------------


def reduce_rounded(
    lw: Lowering,
    out: Spec,
    kind: str,
    x: LoopTensor,
    dims: Dims,
    element: Callable[[int], int] = same,
) -> LoopTensor:
    """Accumulate in the compute dtype of `out.dtype`, round once at the end."""
    result = lw.reduce(out, kind, x, dims_of(dims, len(x.sizes)), compute_dtype(out.dtype), element)
    return lw.rounded_to(out, result)


def sum_(
    lw: Lowering, out: Spec, x: LoopTensor, dims: Dims = None, *_: object, **__: object
) -> LoopTensor:
    return reduce_rounded(lw, out, "sum", x, dims)


def prod(
    lw: Lowering, out: Spec, x: LoopTensor, dims: Dims = None, *_: object, **__: object
) -> LoopTensor:
    """In float64 for narrower floats: each factor adds its rounding to the error, in whatever order
    they are multiplied. Nor do products become denormal on the way, which takes processors long."""
    if out.dtype.is_floating_point:
        accumulator = torch.float64
    else:
        accumulator = compute_dtype(out.dtype)
    axes = dims_of(dims, len(x.sizes))
    return lw.rounded_to(out, lw.reduce(out, "prod", x, axes, accumulator, same))


def mean(
    lw: Lowering, out: Spec, x: LoopTensor, dims: Dims = None, *_: object, **__: object
) -> LoopTensor:
    axes = dims_of(dims, len(x.sizes))
    total = lw.reduce(out, "sum", x, axes, compute_dtype(out.dtype), same)
    return divided(lw, out, total, count_of(x, axes))


def divided(lw: Lowering, out: Spec, total: LoopTensor, count: Expr) -> LoopTensor:
    """total / count, in the dtype of `total`, rounded to `out.dtype`."""
    return pointwise(
        lw,
        out,
        lambda v: apply("div", v, ops.index(count, ops.dtype_of(v))),
        [total],
        [total.dtype],
    )


def _extreme(kind: str) -> Rule:
    def rule(
        lw: Lowering, out: Spec, x: LoopTensor, dims: Dims = None, *_: object, **__: object
    ) -> LoopTensor:
        return reduce_rounded(lw, out, kind, x, dims)

    return rule


def _truth(kind: str) -> Rule:
    def rule(
        lw: Lowering, out: Spec, x: LoopTensor, dims: Dims = None, *_: object, **__: object
    ) -> LoopTensor:
        axes, spec = dims_of(dims, len(x.sizes)), out._replace(dtype=torch.bool)
        result = lw.reduce(spec, kind, x, axes, torch.bool, lambda v: ops.to(v, torch.bool))
        return lw.rounded_to(out, result)  # of uint8 these are uint8

    return rule


def _position(kind: str) -> Rule:
    def rule(
        lw: Lowering, out: Spec, x: LoopTensor, dim: int | None = None, *_: object, **__: object
    ) -> LoopTensor:
        return position(lw, out, kind, x, dim)

    return rule


def position(lw: Lowering, out: Spec, kind: str, x: LoopTensor, dim: int | None) -> LoopTensor:
    dims = dims_of(dim, len(x.sizes))
    parts = _parts_of_rows(lw, x, dims)
    if parts > 1:
        return _position_in_parts(lw, out, kind, x, parts)
    return lw.reduce(out, kind, x, dims, compute_dtype(x.dtype), same, result_dtype=torch.int64)


SHORTEST_PART = 1024  # elements of a row's part that has a block of threads for itself


def _parts_of_rows(lw: Lowering, x: LoopTensor, dims: Sequence[int]) -> int:
    """Into how many equal parts a GPU cuts long rows, of which there are too few to keep it
    busy."""
    rows, length = numel(x.sizes[:-1]).constant, x.sizes[-1:] and x.sizes[-1].constant
    if not lw.target.has_registers or list(dims) != [len(x.sizes) - 1] or not (rows and length):
        return 1
    goal = min(lw.target.splitting.parallel_points // rows, length // SHORTEST_PART)
    return max((parts for parts in range(2, goal + 1) if length % parts == 0), default=1)


_INSIDE = Fault(IndexError, "a position is outside of its row")  # which cannot be


def _position_in_parts(lw: Lowering, out: Spec, kind: str, x: LoopTensor, parts: int) -> LoopTensor:
    """The position in each part of a row, and of these that in the part with the extreme.

    It is the first of equal ones, as in a whole row.
    """
    lw.share(x)
    dtype, (*rest, whole) = compute_dtype(x.dtype), x.sizes
    length, at = whole // parts, len(rest)

    def place(index: Index) -> Index:
        return (*index[:at], index[at] * length + index[at + 1])

    cut = lw.mapped(x, contiguous((*rest, as_expr(parts), length), x.dtype), place)
    each = contiguous((*rest, as_expr(parts)), torch.int64)._replace(device=out.device)
    inner = lw.reduce(each, kind, cut, [at + 1], dtype, same, result_dtype=torch.int64)

    def extreme(index: Index) -> int:
        found = ops.indirect(inner.load(index), length, _INSIDE)
        return x.load(place((*index, found)))

    extremes = LoopTensor(each.sizes, each.strides, x.dtype, extreme)
    row = contiguous(rest, torch.int64)._replace(device=out.device)
    outer = lw.reduce(row, kind, extremes, [at], dtype, same, result_dtype=torch.int64)

    def position_in_row(index: Index) -> int:
        part = outer.load(index)
        inside = inner.load((*index, ops.indirect(part, parts, _INSIDE)))
        begin = apply("mul", part, ops.index(length, torch.int64))
        return apply("add", begin, inside)

    return lw.reshaped(lw.computed(row, position_in_row, [outer, inner]), out)


def _with_position(kind: str) -> Rule:
    def rule(
        lw: Lowering, outs: Sequence[Spec], x: LoopTensor, dim: int, *_: object, **__: object
    ) -> tuple[LoopTensor, ...]:
        lw.share(x)
        extreme = reduce_rounded(lw, outs[0], kind, x, dim)
        return extreme, position(lw, outs[1], "arg" + kind, x, dim)

    return rule


# -- moments and norms -----------------------------------------------------------------------------


def moments(
    lw: Lowering,
    x: LoopTensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    correction: Any = 0,
) -> tuple[LoopTensor, LoopTensor]:
    """(variance, mean) of `x` over `dims`, dimensions kept, computed in `dtype` in two passes.

    The second pass sums the deviations, too, and takes out what rounding has put into the mean:
    equal numbers have the variance 0, as in eager. (The corrected two-pass algorithm: Chan, Golub
    and LeVeque, "Algorithms for computing the sample variance", 1983.)"""
    lw.share(x)
    spec, count = kept(x, dims, dtype), count_of(x, dims)
    average = lw.realize(divided(lw, spec, lw.reduce(spec, "sum", x, dims, dtype, same), count))
    deviation = pointwise(
        lw, contiguous(x.sizes, dtype), lambda v, m: apply("sub", v, m), [x, average]
    )
    rest = lw.reduce(spec, "sum", deviation, dims, dtype, same)
    drift = divided(lw, spec, rest, count)
    squares = pointwise(
        lw,
        spec,
        _less_drift,
        [lw.reduce(spec, "sum", deviation, dims, dtype, _square), rest, drift],
    )
    mean = pointwise(lw, spec, _mean_of, [average, drift, squares])
    return _corrected(lw, spec, squares, count, correction), mean


def _mean_of(average: int, drift: int, squares: int) -> int:
    """The mean: that of equal numbers without its rounding; of others `drift` has as much."""
    is_exact = apply("eq", squares, ops.constant(0.0, ops.dtype_of(squares)))
    return apply("where", is_exact, apply("add", average, drift), average)


def _less_drift(squares: int, rest: int, drift: int) -> int:
    """The sum of squared deviations from the mean, of those from a mean that lacks `drift`; their
    sum is `rest`. What overflows stays infinite, and nothing is below 0."""
    dtype = ops.dtype_of(squares)
    excess = apply("mul", rest, drift)
    excess = apply("minimum", excess, ops.constant(torch.finfo(dtype).max, dtype))
    return apply("maximum", apply("sub", squares, excess), ops.constant(0.0, dtype))


def _corrected(
    lw: Lowering, spec: Spec, squares: LoopTensor, count: Expr, correction: Any
) -> LoopTensor:
    if isinstance(correction, float) and not correction.is_integer():
        raise NotLowered("a fractional correction")
    freedom = count - int(correction)
    known = freedom.constant
    if known is not None:
        freedom = freedom if known > 0 else ZERO
    return divided(lw, spec, squares, freedom)


def _square(v: int) -> int:
    return apply("mul", v, v)


def dropped(lw: Lowering, out: Spec, x: LoopTensor) -> LoopTensor:
    """`x` with or without its dimensions of size 1, as `out` has them, rounded to `out.dtype`."""
    at = []
    for k, size in enumerate(out.sizes):
        if size is not ONE:
            at.append(k)

    def index_map(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        rest = iter([index[k] for k in at])
        return tuple(ZERO if size is ONE else next(rest) for size in x.sizes)

    return lw.rounded_to(out, lw.mapped(x, out._replace(dtype=x.dtype), index_map))


def lower_var(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dims: Any = None,
    *,
    correction: Any = None,
    **_: object,
) -> LoopTensor:
    return dropped(lw, out, _variance(lw, out, x, dims, correction)[0])


def lower_std(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dims: Any = None,
    *,
    correction: Any = None,
    **_: object,
) -> LoopTensor:
    variance = _variance(lw, out, x, dims, correction)[0]
    spec = Spec(variance.sizes, variance.strides, variance.dtype)
    return dropped(lw, out, pointwise(lw, spec, simple("sqrt"), [variance]))


def lower_var_mean(
    lw: Lowering,
    outs: Sequence[Spec],
    x: LoopTensor,
    dims: Any = None,
    *,
    correction: Any = None,
    **_: object,
) -> tuple[LoopTensor, ...]:
    results = _variance(lw, outs[0], x, dims, correction)
    return tuple(dropped(lw, out, value) for out, value in zip(outs, results))


def _variance(
    lw: Lowering, out: Spec, x: LoopTensor, dims: Any, correction: Any
) -> tuple[LoopTensor, LoopTensor]:
    if correction is None:
        correction = 1
    return moments(lw, x, dims_of(dims, len(x.sizes)), compute_dtype(out.dtype), correction)


# -- as other ops ----------------------------------------------------------------------------------


def count_of_elements(x: Tensor, dims: list[int]) -> Any:
    return math.prod(x.shape[d] for d in dims) if dims else 1


def squared_deviations(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """(sum of squared deviations from the mean, mean) of `x` over `dims`, dimensions kept: as
    `moments` computes them."""
    average = torch.mean(x, dims, keepdim=True)
    centered = x - average
    rest = torch.sum(centered, dims, keepdim=True)
    drift = rest / count_of_elements(x, dims)
    squares = torch.sum(centered * centered, dims, keepdim=True)
    excess = (rest * drift).clamp(max=torch.finfo(x.dtype).max)
    squares = (squares - excess).clamp(min=0.0)
    return squares, torch.where(squares == 0, average + drift, average)


def _variance_of(x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    dims = _dims_of(x, dim)
    squares, mean = squared_deviations(x, dims)
    divisor = count_of_elements(x, dims) - (1 if correction is None else correction)
    if isinstance(divisor, (int, float)):
        divisor = max(divisor, 0)
    if not _is_zero(divisor):
        variance = squares / divisor
    else:
        variance = squares * math.inf
    if keepdim:
        return variance, mean
    return variance.squeeze(dims), mean.squeeze(dims)


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


def _dims_of(x: Tensor, dim: Any) -> list[int]:
    """The dimensions meant; none given means all."""
    listed = [dim] if isinstance(dim, int) else dim
    if listed and x.dim():
        return [d % x.dim() for d in listed]
    return list(range(x.dim()))


def _refuses(x: Tensor) -> bool:
    return geometry.is_empty(x) or x.is_complex() or not x.is_floating_point()


@rounded_once
def var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    if _refuses(x):
        return NotImplemented
    return _variance_of(x, dim, correction, keepdim)[0]


@rounded_once
def std(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    if _refuses(x):
        return NotImplemented
    return torch.sqrt(_variance_of(x, dim, correction, keepdim)[0])


def var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if _refuses(x):
        return NotImplemented
    variance, mean = _variance_of(widened(x), dim, correction, keepdim)
    return variance.to(x.dtype), mean.to(x.dtype)


def std_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if x.is_complex():
        return NotImplemented
    if geometry.is_empty(x):
        variance, mean = torch.var_mean(x, dim, correction=correction, keepdim=keepdim)
        return torch.sqrt(variance), mean
    variance, mean = _variance_of(widened(x), dim, correction, keepdim)
    return torch.sqrt(variance).to(x.dtype), mean.to(x.dtype)


def vector_norm(
    x: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    if not x.is_floating_point() or (dtype is not None and dtype.is_complex):
        return NotImplemented
    return _norm(widened(x if dtype is None else x.to(dtype)), order, _dims_of(x, dim), keepdim).to(
        dtype or x.dtype
    )


def _norm(x: Tensor, order: float, dims: list[int], keepdim: bool) -> Tensor:
    if order == 0:
        return torch.sum((x != 0).to(x.dtype), dims, keepdim=keepdim)
    if order == 2:
        return torch.sqrt(torch.sum(x * x, dims, keepdim=keepdim))
    if math.isinf(order):
        extreme = torch.amax if order > 0 else torch.amin
        return extreme(torch.abs(x), dims, keepdim=keepdim)
    if order == 1:
        return torch.sum(torch.abs(x), dims, keepdim=keepdim)
    return torch.pow(torch.sum(torch.pow(torch.abs(x), order), dims, keepdim=keepdim), 1 / order)


def norm(x: Tensor, order: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return vector_norm(x, 2 if order is None else order, dim, keepdim, dtype=dtype)


def norm_of_all(x: Tensor, order: Any = 2, *, dtype: Any = None) -> Tensor:
    return vector_norm(x, 2 if order is None else order, dtype=dtype)


def nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if x.is_complex() or (dtype is not None and dtype.is_complex):
        return NotImplemented
    known = x
    if x.is_floating_point():
        known = torch.where(torch.isnan(x), 0, x)
    return torch.sum(known, _dims_of(x, dim), keepdim=keepdim, dtype=dtype)


def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    if x.is_complex():
        return NotImplemented
    return torch.sum(x != 0, _dims_of(x, dim))


def aminmax(x: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    dims = _dims_of(x, dim)
    return torch.amin(x, dims, keepdim=keepdim), torch.amax(x, dims, keepdim=keepdim)


# -- what they look like ---------------------------------------------------------------------------


def _reduced_dims(dim: Any, rank: int) -> set[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return set(range(rank))
    listed, span = [dim] if isinstance(dim, int) else dim, max(rank, 1)
    dims = set()
    for d in listed:
        if -span <= d < span:
            dims.add(d % span)
    if len(dims) < len(listed):
        raise EagerRaises(
            f"dimensions {list(listed)} of a tensor of rank {rank}: out of range, or one twice"
        )
    return dims


@by_look
def reduction_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    bound = bind(op, args, kwargs)
    t = args[0]
    dims, keep = _reduced_dims(bound.get("dim"), t.dim()), bound.get("keepdim", False)
    if geometry.is_empty(t) and not (is_symbolic(t) and tried_out(op, args, kwargs) is not None):
        # as above, whether this raises depends on the op, and on no symbol
        return probe(op, args, kwargs)
    sizes = []
    for d, s in enumerate(t.shape):
        if keep or d not in dims:
            sizes.append(1 if d in dims else s)
    # one element has no variance
    results = tuple(fresh(sizes, dtype) for dtype in dtypes(op, args, kwargs, 2))
    return results[0] if len(results) == 1 else results


_reduction = partial(op, meta=reduction_meta)

OPS = (
    _reduction(aten.sum.default, aten.sum.dim_IntList, takes_no_elements=True, lower=sum_),
    _reduction(aten.prod.default, aten.prod.dim_int, takes_no_elements=True, lower=prod),
    _reduction(aten.mean.default, aten.mean.dim, takes_no_elements=True, lower=mean),
    _reduction(aten.nansum.default, decompose=nansum, takes_no_elements=True),
    _reduction(aten.amax.default, aten.max.default, lower=_extreme("max")),
    _reduction(aten.amin.default, aten.min.default, lower=_extreme("min")),
    _reduction(aten.max.dim, lower=_with_position("max")),
    _reduction(aten.min.dim, lower=_with_position("min")),
    op(aten.max.other, aten.min.other, meta=pointwise_meta),
    _reduction(aten.aminmax.default, decompose=aminmax),
    _reduction(aten.argmax.default, lower=_position("argmax")),
    _reduction(aten.argmin.default, lower=_position("argmin")),
    _reduction(
        aten.any.default, aten.any.dim, aten.any.dims, takes_no_elements=True, lower=_truth("any")
    ),
    _reduction(
        aten.all.default, aten.all.dim, aten.all.dims, takes_no_elements=True, lower=_truth("all")
    ),
    _reduction(
        aten.count_nonzero.default,
        aten.count_nonzero.dim_IntList,
        decompose=count_nonzero,
        takes_no_elements=True,
    ),
    _reduction(aten.var.correction, decompose=var, lower=lower_var),
    _reduction(aten.std.correction, decompose=std, lower=lower_std),
    _reduction(aten.var_mean.correction, decompose=var_mean, lower=lower_var_mean),
    _reduction(aten.std_mean.correction, decompose=std_mean),
    _reduction(aten.linalg_vector_norm.default, decompose=vector_norm),
    _reduction(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, decompose=norm),
    _reduction(aten.norm.Scalar, aten.norm.ScalarOpt_dtype, decompose=norm_of_all),
)
