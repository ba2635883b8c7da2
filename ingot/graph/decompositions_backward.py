"""The backward ops that autograd's formulas call, recorded as simpler ops, so that they fuse like a
forward's.

The rules of `decompositions.py` apply. A gradient that was not asked for is not computed: its place
holds None.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ingot.graph.decompositions import in_float32, rounded_once, rule, widened
from ingot.torch_private import aten

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
