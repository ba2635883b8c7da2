"""The backward ops that autograd's formulas call, recorded as simpler ops, so that they fuse like a
forward's.

The rules of `decompositions.py` apply. A gradient that was not asked for is not computed: its place
holds None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.decompositions import in_float32, rounded_once, rule, widened
from ingot.torch_private import aten

Mask = Sequence[bool]  # which gradients are wanted


_SIXTH = in_float32(1 / 6)


# -- activations -----------------------------------------------------------------------------------


@rule(aten.threshold_backward.default)
def threshold(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where(x <= limit, 0, grad)


@rule(aten.hardtanh_backward.default)
def hardtanh(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where(torch.logical_or(x <= low, x >= high), 0, grad)


@rule(aten.leaky_relu_backward.default)
@rounded_once
def leaky_relu(grad: Tensor, x: Tensor, slope: float, of_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


@rule(aten._prelu_kernel_backward.default)
def prelu(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    g, value = widened(grad), widened(x)
    inward = torch.where(value > 0, g, widened(weight) * g)
    return inward.to(x.dtype), torch.where(value > 0, 0, value * g).to(x.dtype)


@rule(aten.elu_backward.default)
@rounded_once
def elu(
    grad: Tensor, alpha: float, scale: float, input_scale: float, of_result: bool, x: Tensor
) -> Tensor:
    """Of the result, or of the input, as eager kept it."""
    low = alpha * scale
    if of_result:
        below = grad * input_scale * (x + low)
    else:
        below = grad * input_scale * low * torch.exp(x * input_scale)
    return torch.where(x <= 0, below, grad * scale)


@rule(aten.sigmoid_backward.default)
@rounded_once
def sigmoid(grad: Tensor, y: Tensor) -> Tensor:
    return NotImplemented if y.is_complex() else grad * (1 - y) * y


@rule(aten.tanh_backward.default)
@rounded_once
def tanh(grad: Tensor, y: Tensor) -> Tensor:
    return NotImplemented if y.is_complex() else grad * (1 - y * y)


@rule(aten.gelu_backward.default)
@rounded_once
def gelu(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (below + x * density)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    curve = torch.tanh(scale * torch.add(x, x * x * x, alpha=cubic))  # as in the forward
    slope = (1 - curve * curve) * (scale * (1 + 3 * cubic * (x * x)))
    return grad * (0.5 * (1 + curve) + 0.5 * x * slope)


@rule(aten.softplus_backward.default)
@rounded_once
def softplus(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    power = torch.exp(x * beta)
    return torch.where(x * beta > threshold, grad, grad * power / (power + 1))


@rule(aten.log_sigmoid_backward.default)
@rounded_once
def log_sigmoid(grad: Tensor, x: Tensor, tail: Tensor) -> Tensor:
    """`tail` is exp(-|x|), of the forward."""
    share = tail / (1 + tail)
    return grad * torch.where(x < 0, 1 - share, share)


@rule(aten.hardsigmoid_backward.default)
@rounded_once
def hardsigmoid(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(torch.logical_and(x > -3, x < 3), grad * _SIXTH, 0)


@rule(aten.hardswish_backward.default)
@rounded_once
def hardswish(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0, torch.where(x < 3, grad * (x / 3 + 0.5), grad))


@rule(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where(torch.logical_and(x >= -limit, x <= limit), 0, grad)


@rule(aten.glu_backward.default)
def glu(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """Eager keeps the gate in memory, and so rounds it."""
    half = x.shape[dim] // 2
    value, gate = x.narrow(dim, 0, half), torch.sigmoid(x.narrow(dim, half, half))
    a, b, g = widened(value), widened(gate), widened(grad)
    return torch.cat([gate * grad, ((1 - b) * b * g * a).to(x.dtype)], dim)


@rule(aten.native_dropout_backward.default)
def dropout(grad: Tensor, kept: Tensor, scale: float) -> Tensor:
    return grad * kept * scale


# -- softmax ---------------------------------------------------------------------------------------


@rule(aten._softmax_backward_data.default)
def softmax(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if geometry.is_empty(y) or dtype is not y.dtype:
        return NotImplemented
    g, value = widened(grad), widened(y)
    return (value * (g - torch.sum(g * value, dim, keepdim=True))).to(dtype)


@rule(aten._log_softmax_backward_data.default)
def log_softmax(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if geometry.is_empty(y) or dtype is not y.dtype:
        return NotImplemented
    g = widened(grad)
    return (g - torch.exp(widened(y)) * torch.sum(g, dim, keepdim=True)).to(dtype)


# -- norms -----------------------------------------------------------------------------------------


def _summed(x: Tensor, dims: list[int], dtype: torch.dtype) -> Tensor:
    return (torch.sum(x, dims) if dims else x).to(dtype)


def _normalized(
    grad: Tensor, centered: Tensor, scale: Tensor, dims: list[int]
) -> tuple[Tensor, Tensor]:
    """(gradient of x, y) where y = `centered` * `scale`, `centered` is x less its mean over `dims`,
    and `scale` is 1 / its standard deviation there."""
    y = centered * scale
    inward = (
        grad - torch.mean(grad, dims, keepdim=True) - y * torch.mean(grad * y, dims, keepdim=True)
    )
    return inward * scale, y


@rule(aten.native_layer_norm_backward.default)
def layer_norm(
    grad: Tensor, x: Tensor, shape: Sequence[Any], mean: Tensor, scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None, mask: Mask,
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    first = x.dim() - len(shape)
    outer, inner = list(range(first)), list(range(first, x.dim()))
    g = widened(grad)
    weighted = g if weight is None else g * widened(weight)
    inward, y = _normalized(weighted, widened(x) - widened(mean), widened(scale), inner)
    return (
        inward.to(x.dtype) if mask[0] else None,
        _summed(g * y, outer, weight.dtype) if mask[1] and weight is not None else None,
        _summed(g, outer, bias.dtype) if mask[2] and bias is not None else None,
    )


@rule(aten._fused_rms_norm_backward.default)
def rms_norm(
    grad: Tensor, x: Tensor, shape: Sequence[Any], scale: Tensor, weight: Tensor | None, mask: Mask
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    first = x.dim() - len(shape)
    outer, inner = list(range(first)), list(range(first, x.dim()))
    g, y = widened(grad), widened(x) * widened(scale)
    weighted = g if weight is None else g * widened(weight)
    inward = (weighted - y * torch.mean(weighted * y, inner, keepdim=True)) * widened(scale)
    return (
        inward.to(x.dtype) if mask[0] else None,
        _summed(g * y, outer, weight.dtype) if mask[1] and weight is not None else None,
    )


@rule(aten.native_group_norm_backward.default)
def group_norm(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, n: Any,
    channels: Any, space: Any,
    groups: int, mask: Mask,
) -> Any:  # fmt: skip
    if geometry.is_empty(x):
        return NotImplemented
    sizes = (n, groups, channels // groups, space)
    g, stats = widened(grad).reshape(sizes), (n, groups, 1, 1)
    weighted = g if weight is None else g * widened(weight).view(1, groups, channels // groups, 1)
    centered = widened(x).reshape(sizes) - widened(mean).view(stats)
    inward, y = _normalized(weighted, centered, widened(scale).view(stats), [2, 3])
    dtype = x.dtype if weight is None else weight.dtype
    return (
        inward.reshape(x.shape).to(x.dtype) if mask[0] else None,
        _summed(g * y, [0, 3], dtype).view(-1) if mask[1] else None,
        _summed(g, [0, 3], dtype).view(-1) if mask[2] else None,
    )


@rule(aten.native_batch_norm_backward.default)
def batch_norm(
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
    dims = [d for d in range(x.dim()) if d != 1]
    shape = (1, -1, *[1] * (x.dim() - 2))
    g, factor = widened(grad), widened(scale)
    centered = widened(x) - widened(mean).view(shape)
    total, moment = torch.sum(g, dims), torch.sum(g * centered, dims)
    slope = factor if weight is None else factor * widened(weight)
    inward = g
    if train:
        count = math.prod(x.shape[d] for d in dims)
        inward = (
            g
            - (total / count).view(shape)
            - centered * (moment * factor * factor / count).view(shape)
        )
    dtype = x.dtype if weight is None else weight.dtype
    return (
        (inward * slope.view(shape)).to(x.dtype) if mask[0] else None,
        (moment * factor).to(dtype) if mask[1] else None,
        total.to(dtype) if mask[2] else None,
    )


@rule(aten.cudnn_batch_norm_backward.default)
def cudnn_batch_norm(
    x: Tensor, grad: Tensor, weight: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None, scale: Tensor | None, eps: float, room: Tensor,
) -> Any:  # fmt: skip
    return batch_norm(
        grad, x, weight, running_mean, running_var, mean, scale, True, eps, (True, True, True)
    )
