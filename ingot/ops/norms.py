"""Layer, group, batch and RMS norms, and their gradients.

A gradient that was not asked for is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.decompositions import HALVES, quotient, widened
from ingot.graph.meta.basis import Rule, fresh, like
from ingot.graph.meta.trials import dtypes
from ingot.graph.meta.untried import gradients_of, unless_known
from ingot.graph.schemas import bind
from ingot.loops import ops
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.values import LoopTensor, Spec, compute_dtype
from ingot.ops.op import op
from ingot.ops.reductions import count_of_elements, dropped, moments, squared_deviations
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply

Mask = Sequence[bool]  # which gradients are wanted


# -- as other ops ----------------------------------------------------------------------------------


def _moments_of(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `dims`, both with these dimensions kept; the variance in two
    passes."""
    squares, mean = squared_deviations(x, dims)
    return mean, squares / count_of_elements(x, dims)


SAMPLED, FEWEST_SAMPLED = 32, 1 << 14
"""One of so many elements is sampled before they are summed in one pass, of so many at least."""


def moments_in_one_pass(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `dims`, both with these dimensions kept, after one pass over
    all that `x` holds.

    Deviations are summed from the mean of a sample, which then is corrected for. If a part f of all
    elements is sampled, that mean is off by at most sqrt(1/f) standard deviations, whatever the
    elements are, so that the variance loses at most 1/f roundings.
    """
    count = count_of_elements(x, dims)
    if geometry.has_symbols(x.shape) or count < FEWEST_SAMPLED:
        return _moments_of(x, dims)
    longest = max(dims, key=lambda dim: min(x.shape[dim], SAMPLED))  # the first of many elements
    sample = x.narrow(longest, 0, -(-x.shape[longest] // SAMPLED))
    near = torch.mean(sample, dims, keepdim=True)
    centered = x - near
    rest = torch.sum(centered, dims, keepdim=True)
    squares = torch.sum(centered * centered, dims, keepdim=True)
    drift = rest / count
    excess = (rest * drift).clamp(max=torch.finfo(x.dtype).max)  # so that squares may be infinite
    variance = (squares - excess).clamp(min=0.0) / count
    return near + drift, variance + (rest - rest)  # which is nan where an element is infinite


def _dtype_of_statistics(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """That in which eager keeps mean and deviation: on a GPU as they were accumulated."""
    if x.device.type != "cpu":
        return _accumulated(x.dtype)
    return _dtype_of(weight, x)


def _dtype_of(weight: Tensor | None, x: Tensor) -> torch.dtype:
    if weight is None:
        return x.dtype
    return weight.dtype


def _weighted(x: Tensor, weight: Tensor | None, shape: Sequence[Any] | None = None) -> Tensor:
    """`x` times a weight, if there is one, which may be seen in another shape."""
    if weight is None:
        return x
    if shape is None:
        return x * widened(weight)
    return x * widened(weight).view(shape)


def _shifted(x: Tensor, bias: Tensor | None, shape: Sequence[Any] | None = None) -> Tensor:
    """`x` plus a bias, which may be seen in another shape.

    Where there is none, eager's kernels for CPUs add 0, and -0.0 becomes 0.
    """
    if bias is None:
        if x.device.type != "cpu":
            return x
        return x + 0.0
    if shape is None:
        return x + widened(bias)
    return x + widened(bias).view(shape)


def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    if geometry.is_empty(x):
        return NotImplemented
    stats = _dtype_of_statistics(x, weight)
    wide = widened(x)
    mean, variance = _moments_of(wide, list(range(-len(shape), 0)))
    scale = torch.rsqrt(variance + eps)
    y = _shifted(_weighted((wide - mean) * scale, weight), bias)
    return y.to(x.dtype), mean.to(stats), scale.to(stats)


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    channels: Any,
    space: Any,
    groups: int,
    eps: float,
) -> Any:
    if geometry.is_empty(x):
        return NotImplemented
    stats = _dtype_of(weight, x)
    wide = widened(x).reshape(n, groups, channels // groups, space)
    mean, variance = _moments_of(wide, [2, 3])
    scale = torch.rsqrt(variance + eps)
    shape = (1, groups, channels // groups, 1)
    y = (wide - mean) * scale
    if weight is not None or bias is not None:
        y = _shifted(_weighted(y, weight, shape), bias, shape)
    return (
        y.reshape(x.shape).to(x.dtype),
        mean.view(n, groups).to(stats),
        scale.view(n, groups).to(stats),
    )


def _per_channel(t: Tensor, rank: int) -> Tensor:
    return t.view(1, -1, *[1] * (rank - 2))


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if geometry.is_empty(x):
        return NotImplemented
    if not training:
        assert running_mean is not None and running_var is not None
        y = _scaled_and_shifted(
            x, widened(running_mean), torch.rsqrt(widened(running_var) + eps), weight, bias
        )
        stats = _dtype_of_statistics(x, running_mean)
        return y, x.new_empty(0, dtype=stats), x.new_empty(0, dtype=stats)
    dims = [0, *range(2, x.dim())]
    count = count_of_elements(x, dims)
    if count == 1:
        return NotImplemented  # eager raises
    moments_of = _moments_of if x.device.type == "cpu" else moments_in_one_pass
    mean, variance = (m.view(-1) for m in moments_of(widened(x), dims))
    if running_mean is not None:
        running_mean.copy_(momentum * mean + (1 - momentum) * widened(running_mean))
    if running_var is not None:
        unbiased = variance * quotient(count, count - 1, variance.dtype)
        running_var.copy_(momentum * unbiased + (1 - momentum) * widened(running_var))
    scale = torch.rsqrt(variance + eps)
    stats = _dtype_of_statistics(x, weight)
    return _scaled_and_shifted(x, mean, scale, weight, bias), mean.to(stats), scale.to(stats)


def _scaled_and_shifted(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """(x - mean) * scale * weight + bias as one multiplication and one addition per element."""
    factor = _weighted(scale, weight)
    if bias is None:
        offset = 0.0 - mean * factor
    else:
        offset = widened(bias) - mean * factor
    return (widened(x) * _per_channel(factor, x.dim()) + _per_channel(offset, x.dim())).to(x.dtype)


def cudnn_batch_norm(x: Tensor, *arguments: Any) -> Any:
    """The op that eager calls on a GPU, which writes the running statistics. Its last result is
    room for its backward, which needs none here."""
    results = batch_norm(x, *arguments)
    if results is NotImplemented:
        return results
    return (*results, x.new_empty(0, dtype=torch.uint8))


def batch_norm_inference(*arguments: Any) -> Any:
    in_full: list[Any] = [*arguments[:5], False, *arguments[5:]]
    return batch_norm(*in_full)


# -- gradients -------------------------------------------------------------------------------------


def _summed(x: Tensor, dims: list[int], dtype: torch.dtype) -> Tensor:
    return (torch.sum(x, dims) if dims else x).to(dtype)


def _asked_for(mask: Sequence[Any], *gradients: Callable[[], Tensor]) -> tuple[Tensor | None, ...]:
    """Each gradient that was asked for; None for others."""
    return tuple([gradient() if needed else None for needed, gradient in zip(mask, gradients)])


def _normalized(
    grad: Tensor, centered: Tensor, scale: Tensor, dims: list[int]
) -> tuple[Tensor, Tensor]:
    """(gradient of x, y) where y = `centered` * `scale`.

    `centered` is x less its mean over `dims`, and `scale` is 1 / its standard deviation there.
    """
    y = centered * scale
    inward = (
        grad - torch.mean(grad, dims, keepdim=True) - y * torch.mean(grad * y, dims, keepdim=True)
    )
    return inward * scale, y


def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[Any], mean: Tensor, scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None, mask: Mask,
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    first = x.dim() - len(shape)
    outer, inner = list(range(first)), list(range(first, x.dim()))
    g = widened(grad)
    weighted = _weighted(g, weight)
    inward, y = _normalized(weighted, widened(x) - widened(mean), widened(scale), inner)
    return _asked_for(
        (mask[0], mask[1] and weight is not None, mask[2] and bias is not None),
        lambda: inward.to(x.dtype),
        lambda: _summed(g * y, outer, _dtype_of(weight, x)),
        lambda: _summed(g, outer, _dtype_of(bias, x)),
    )


def rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[Any], scale: Tensor, weight: Tensor | None, mask: Mask
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    first = x.dim() - len(shape)
    outer, inner = list(range(first)), list(range(first, x.dim()))
    g, y = widened(grad), widened(x) * widened(scale)
    weighted = _weighted(g, weight)
    inward = (weighted - y * torch.mean(weighted * y, inner, keepdim=True)) * widened(scale)
    return _asked_for(
        (mask[0], mask[1] and weight is not None),
        lambda: inward.to(x.dtype),
        lambda: _summed(g * y, outer, _dtype_of(weight, x)),
    )


def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, n: Any,
    channels: Any, space: Any,
    groups: int, mask: Mask,
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    sizes = (n, groups, channels // groups, space)
    g, stats = widened(grad).reshape(sizes), (n, groups, 1, 1)
    weighted = _weighted(g, weight, (1, groups, channels // groups, 1))
    centered = widened(x).reshape(sizes) - widened(mean).view(stats)
    inward, y = _normalized(weighted, centered, widened(scale).view(stats), [2, 3])
    dtype = _dtype_of(weight, x)
    return _asked_for(
        mask,
        lambda: inward.reshape(x.shape).to(x.dtype),
        lambda: _summed(g * y, [0, 3], dtype).view(-1),
        lambda: _summed(g, [0, 3], dtype).view(-1),
    )


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, mean: Tensor | None, scale: Tensor | None, train: bool, eps: float,
    mask: Mask,
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    if not train:
        assert running_mean is not None and running_var is not None
        mean, scale = running_mean, torch.rsqrt(widened(running_var) + eps)
    assert mean is not None and scale is not None
    dims = [0, *range(2, x.dim())]
    shape = (1, -1, *[1] * (x.dim() - 2))
    g, factor = widened(grad), widened(scale)
    centered = widened(x) - widened(mean).view(shape)
    total, moment = torch.sum(g, dims), torch.sum(g * centered, dims)
    slope = _weighted(factor, weight)
    inward = g
    if train:
        count = math.prod(x.shape[d] for d in dims)
        inward = (
            g
            - (total / count).view(shape)
            - centered * (moment * factor * factor / count).view(shape)
        )
    dtype = _dtype_of(weight, x)
    return _asked_for(
        mask,
        lambda: (inward * slope.view(shape)).to(x.dtype),
        lambda: (moment * factor).to(dtype),
        lambda: total.to(dtype),
    )


def cudnn_batch_norm_backward(x: Tensor, grad: Tensor, *arguments: Any) -> Any:
    *tensors, eps, _ = arguments
    in_full: list[Any] = [grad, x, *tensors, True, eps, (True, True, True)]
    return batch_norm_backward(*in_full)


# -- as loops: a layer norm of no elements ---------------------------------------------------------


def normalized(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    average: LoopTensor | None,
    scale: LoopTensor,
    weight: LoopTensor | None,
    bias: LoopTensor | None,
) -> LoopTensor:
    """(x - average) * scale * weight + bias, in the compute dtype, rounded once."""
    affine = [("sub", average), ("mul", scale), ("mul", weight), ("add", bias)]
    steps = [(name, operand) for name, operand in affine if operand is not None]

    def scalar(value: int, *operands: int) -> int:
        for (name, _), operand in zip(steps, operands):
            value = apply(name, value, operand)
        return value

    dtype = compute_dtype(out.dtype)
    operands = [x, *(operand for _, operand in steps)]
    return pointwise(lw, out, scalar, operands, [dtype] * len(operands))


def reciprocal_root(lw: Lowering, variance: LoopTensor, epsilon: float) -> LoopTensor:
    """1 / sqrt(variance + epsilon), in memory."""

    def scalar(v: int) -> int:
        root = apply("sqrt", apply("add", v, ops.constant(epsilon, ops.dtype_of(v))))
        return apply("div", ops.constant(1, ops.dtype_of(v)), root)

    spec = Spec(variance.sizes, variance.strides, variance.dtype)
    return lw.realize(pointwise(lw, spec, scalar, [variance]))


def native_layer_norm(
    lw: Lowering,
    outs: Sequence[Spec],
    x: LoopTensor,
    normalized_shape: Sequence[int],
    weight: LoopTensor | None,
    bias: LoopTensor | None,
    epsilon: float,
) -> tuple[LoopTensor, ...]:
    rank = len(x.sizes)
    dims = tuple(range(rank - len(normalized_shape), rank))
    variance, average = moments(lw, x, dims, compute_dtype(x.dtype))
    scale = reciprocal_root(lw, variance, epsilon)
    result = normalized(lw, outs[0], x, average, scale, weight, bias)
    return result, dropped(lw, outs[1], average), dropped(lw, outs[2], scale)


# -- what they look like, and what eager refuses ---------------------------------------------------


def _statistics(sizes: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    return [fresh(sizes, dtype) for dtype in dtypes]


def layer_norm_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    t, normalized = args[0], len(args[1])
    stats = [*t.shape[: t.dim() - normalized], *[1] * normalized]
    small = (t, [1] * normalized, *args[2:])
    first, *rest = dtypes(op, small, kwargs)
    return (fresh(t.shape, first), *_statistics(stats, rest))


def batch_norm_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    t = args[0]
    bound = bind(op, args, kwargs)
    training = bound.get("training", bound.get("train", False))
    first, *rest = dtypes(op, args, kwargs)
    if training:
        stats = (t.shape[1],)
    else:
        stats = (0,)
    return (fresh(t.shape, first, geometry.suggested(t)), *_statistics(stats, rest))


def group_norm_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    t, groups = args[0], args[6]
    small = (t, args[1], args[2], 1, 1, 1, 1, args[7])
    first, *rest = dtypes(op, small, {})
    stats = (t.shape[0], groups)
    return (fresh(t.shape, first, geometry.suggested(t)), *_statistics(stats, rest))


def layer_norm_backward_meta(
    op: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[Tensor | None, ...]:
    return _alike((args[1], *args[5:7]), args[7])


def _alike(tensors: Sequence[Any], mask: Mask) -> tuple[Tensor | None, ...]:
    """Gradients, of those that there are and that were asked for."""
    return tuple([like(t, t is not None and needed) for t, needed in zip(tensors, mask)])


_group_norm_tried_out = gradients_of("input", "C", "C")


def group_norm_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The rule of GPUs, whose gradients are contiguous; nothing runs on the CPU."""
    grad, x, _, _, weight, _, channels, _, _, mask = args
    if geometry.is_empty(grad) or geometry.is_empty(x):
        return _group_norm_tried_out(op, args, kwargs)
    dtype = _dtype_of(weight, x)
    return _asked_for(
        mask,
        lambda: fresh(x.shape, x.dtype),
        lambda: fresh((channels,), dtype),
        lambda: fresh((channels,), dtype),
    )


@unless_known
def batch_norm_backward_meta(
    op: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[Tensor | None, ...]:
    x, weight, mask = args[1], args[2], args[9]
    slopes = fresh((x.shape[1],), x.dtype if weight is None else weight.dtype)
    first = fresh(x.shape, x.dtype, geometry.suggested(x))
    return tuple(
        [t if needed else None for t, needed in zip((first, slopes, slopes.clone()), mask)]
    )


def rms_norm_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    t, normalized = args[0], len(args[1])
    stats = [*t.shape[: t.dim() - normalized], *[1] * normalized]
    return fresh(t.shape, t.dtype), fresh(stats, _accumulated(t.dtype))


def rms_norm_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor | None, ...]:
    return _alike((args[1], args[4]), args[5])


def cudnn_batch_norm_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    x, training = args[0], args[5]
    stats = []
    for _ in range(2):
        stats.append(fresh((x.shape[1],) if training else (0,), _accumulated(x.dtype)))
    return fresh(x.shape, x.dtype, geometry.suggested(x)), *stats, fresh((0,), torch.uint8)


def cudnn_batch_norm_backward_meta(
    op: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[Tensor, ...]:
    x, weight = args[0], args[2]
    slopes = []
    for _ in range(2):
        slopes.append(fresh((x.shape[1],), weight.dtype))
    return fresh(x.shape, x.dtype, geometry.suggested(x)), *slopes


def with_wide_statistics(rule: Rule) -> Rule:
    """The rule of a norm whose mean and deviation are kept as they were accumulated."""

    @wraps(rule)
    def widened(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
        first, *stats = rule(op, args, kwargs)
        return first, *(fresh(t.shape, _accumulated(args[0].dtype)) for t in stats)

    return widened


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    if dtype in HALVES:
        return torch.float32
    return dtype


def norm_refusal(
    x: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None = None,
    **_: Any,
) -> str:
    shapes = [
        x.shape[x.dim() - len(normalized_shape) :],
        *(t.shape for t in (weight, bias) if t is not None),
    ]
    fits = len(normalized_shape) > 0 and all(
        geometry.expect_same_sizes(s, normalized_shape) for s in shapes
    )
    if fits:
        return ""
    return "sizes other than normalized_shape"


def group_norm_refusal(x: Tensor, **_: Any) -> str:
    plain = not geometry.has_symbols((*x.shape, *x.stride()))
    dense = not plain or geometry.same_sizes(x.stride(), geometry.suggested(x)) or x.is_contiguous()
    if dense:
        return ""
    return "a tensor with gaps, or laid out in an order of its own"


OPS = (
    op(
        aten.native_layer_norm.default,
        decompose=layer_norm,
        meta=layer_norm_meta,
        gpu_meta=with_wide_statistics(layer_norm_meta),
        refuses=norm_refusal,
        lower=native_layer_norm,
    ),
    op(
        aten.native_layer_norm_backward.default,
        decompose=layer_norm_backward,
        meta=layer_norm_backward_meta,
    ),
    op(aten._fused_rms_norm.default, gpu_meta=rms_norm_meta, refuses=norm_refusal),
    op(
        aten._fused_rms_norm_backward.default,
        decompose=rms_norm_backward,
        gpu_meta=rms_norm_backward_meta,
    ),
    op(
        aten.native_group_norm.default,
        decompose=group_norm,
        meta=group_norm_meta,
        refuses=group_norm_refusal,
    ),
    op(
        aten.native_group_norm_backward.default,
        decompose=group_norm_backward,
        meta=_group_norm_tried_out,
        gpu_meta=group_norm_backward_meta,
    ),
    op(
        aten.native_batch_norm.default,
        decompose=batch_norm,
        meta=batch_norm_meta,
        gpu_meta=with_wide_statistics(batch_norm_meta),
    ),
    op(
        aten._native_batch_norm_legit_no_training.default,
        decompose=batch_norm_inference,
        meta=batch_norm_meta,
    ),
    op(
        aten.native_batch_norm_backward.default,
        decompose=batch_norm_backward,
        meta=batch_norm_backward_meta,
    ),
    op(aten.cudnn_batch_norm.default, decompose=cudnn_batch_norm, gpu_meta=cudnn_batch_norm_meta),
    op(
        aten.cudnn_batch_norm_backward.default,
        decompose=cudnn_batch_norm_backward,
        gpu_meta=cudnn_batch_norm_backward_meta,
    ),
)
