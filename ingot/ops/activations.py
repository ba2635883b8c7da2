"""Activations and their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph.checks import number_overflows
from ingot.graph.decompositions import in_float32, rounded_once, widened
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.families import like_self, pointwise_meta
from ingot.graph.meta.trials import tried_out
from ingot.graph.meta.untried import sized_as, unless_known
from ingot.graph.schemas import Cost, bind
from ingot.loops import ops
from ingot.loops.lowering.pointwise import apply, constant_like
from ingot.ops.arithmetic import clamped
from ingot.ops.op import op, unary
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

_SIXTH = in_float32(1 / 6)


# -- as loops --------------------------------------------------------------------------------------


def _relu(x: int) -> int:
    return clamped(x, 0)


def _gelu(x: int, *, approximate: str = "none") -> int:
    if approximate == "none" and ops.supported("gelu", ops.dtype_of(x)):
        return apply("gelu", x)
    half = apply("mul", x, constant_like(x, 0.5))
    if approximate == "none":
        inner = apply("erf", apply("mul", x, constant_like(x, math.sqrt(0.5))))
    else:
        cube = apply("mul", apply("mul", x, x), x)
        # as in `gelu_backward`, to be computed once
        inner = apply("fma", cube, constant_like(x, 0.044715), x)
        inner = apply("tanh", apply("mul", inner, constant_like(x, math.sqrt(2 / math.pi))))
    return apply("mul", half, apply("add", inner, constant_like(x, 1)))


def _softshrink(x: int, limit: float = 0.5) -> int:
    bound = constant_like(x, limit)
    low = apply(
        "where",
        apply("lt", x, apply("neg", bound)),
        apply("add", x, bound),
        apply("mul", x, constant_like(x, 0)),
    )
    return apply("where", apply("gt", x, bound), apply("sub", x, bound), low)


def _hardshrink(x: int, limit: float = 0.5) -> int:
    bound = constant_like(x, limit)
    inside = apply("logical_and", apply("ge", x, apply("neg", bound)), apply("le", x, bound))
    return apply("where", inside, constant_like(x, 0), x)


# -- as other ops, each before its gradient --------------------------------------------------------


@rounded_once
def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@rounded_once
def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@rounded_once
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


@rounded_once
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    power = torch.exp(x * beta)
    return torch.where(x * beta > threshold, grad, grad * power / (power + 1))


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = widened(x)
    tail = torch.exp(-torch.abs(wide))
    return (torch.clamp(wide, max=0) - torch.log1p(tail)).to(x.dtype), tail.to(x.dtype)


@rounded_once
def log_sigmoid_backward(grad: Tensor, x: Tensor, tail: Tensor) -> Tensor:
    """`tail` is exp(-|x|), of the forward."""
    share = tail / (1 + tail)
    return grad * torch.where(x < 0, 1 - share, share)


def hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    if x.is_floating_point():
        return torch.clamp(x, low, high)
    return torch.clamp(x, int(low), int(high))


def hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where(torch.logical_or(x <= low, x >= high), 0, grad)


@rounded_once
def hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


@rounded_once
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0, torch.where(x < 3, grad * (x / 3 + 0.5), grad))


@rounded_once
def hardsigmoid(x: Tensor) -> Tensor:
    return torch.clamp(x + 3, 0, 6) / 6


@rounded_once
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(torch.logical_and(x > -3, x < 3), grad * _SIXTH, 0)


@rounded_once
def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * slope)


@rounded_once
def leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, of_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


@rounded_once
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    g, value = widened(grad), widened(x)
    inward = torch.where(value > 0, g, widened(weight) * g)
    return inward.to(x.dtype), torch.where(value > 0, 0, value * g).to(x.dtype)


@rounded_once
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.where(x <= 0, torch.expm1(x * input_scale) * (alpha * scale), x * scale)


@rounded_once
def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, of_result: bool, x: Tensor
) -> Tensor:
    """Of the result, or of the input, as eager kept it."""
    low = alpha * scale
    if of_result:
        below = grad * input_scale * (x + low)
    else:
        below = grad * input_scale * low * torch.exp(x * input_scale)
    return torch.where(x <= 0, below, grad * scale)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(x, alpha, 1.0, 1.0 / alpha)


@rounded_once
def threshold(x: Tensor, limit: float, value: float) -> Tensor:
    if not x.is_floating_point():
        limit, value = int(limit), int(value)
    return torch.where(x <= limit, value, x)


def threshold_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where(x <= limit, 0, grad)


@rounded_once
def glu(x: Tensor, dim: int = -1) -> Tensor:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half) * torch.sigmoid(x.narrow(dim, half, half))


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """Eager keeps the gate in memory, and so rounds it."""
    half = x.shape[dim] // 2
    value, gate = x.narrow(dim, 0, half), torch.sigmoid(x.narrow(dim, half, half))
    a, b, g = widened(value), widened(gate), widened(grad)
    return torch.cat([gate * grad, ((1 - b) * b * g * a).to(x.dtype)], dim)


@rounded_once
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    if y.is_complex():
        return NotImplemented
    return grad * (1 - y) * y


@rounded_once
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    if y.is_complex():
        return NotImplemented
    return grad * (1 - y * y)


@rounded_once
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (below + x * density)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    curve = torch.tanh(scale * torch.add(x, x * x * x, alpha=cubic))  # as in the forward
    slope = (1 - curve * curve) * (scale * (1 + 3 * cubic * (x * x)))
    return grad * (0.5 * (1 + curve) + 0.5 * x * slope)


def shrink_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where(torch.logical_and(x >= -limit, x <= limit), 0, grad)


# -- what they look like, and what eager refuses ---------------------------------------------------


@unless_known
def glu_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    x, sizes = args[0], list(args[0].shape)
    dim = bind(op, args, kwargs)["dim"] % x.dim()
    if sizes[dim] % 2 != 0:
        raise EagerRaises("halves of an odd size")
    sizes[dim] = sizes[dim] // 2
    return sized_as(op, sizes, tried_out(op, args, kwargs))


@unless_known
def log_sigmoid_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """The result, and what the backward takes."""
    x = args[0]
    return fresh(x.shape, x.dtype), fresh(x.shape, x.dtype)


def softshrink_refusal(x: Tensor, lambd: float = 0.5) -> str:
    if x.is_floating_point():
        most = torch.finfo(x.dtype).max
    else:
        most = math.inf
    if 0 <= lambd <= most:
        return ""
    return "a limit that is negative, or that the tensor's type cannot hold"


def threshold_refusal(x: Tensor, threshold: float, value: float) -> str:
    return number_overflows(x, threshold) or number_overflows(x, value)


OPS = (
    unary(aten.relu.default, scalar=_relu, cost=Cost.LIGHT),
    unary(aten.gelu.default, scalar=_gelu),
    op(aten.gelu_backward.default, decompose=gelu_backward),
    op(aten.sigmoid_backward.default, decompose=sigmoid_backward),
    op(aten.tanh_backward.default, decompose=tanh_backward),
    op(aten.silu.default, decompose=silu),
    op(aten.mish.default, decompose=mish),
    op(aten.softplus.default, decompose=softplus),
    op(aten.softplus_backward.default, decompose=softplus_backward),
    op(aten.log_sigmoid_forward.default, decompose=log_sigmoid, meta=log_sigmoid_meta),
    op(aten.log_sigmoid_backward.default, decompose=log_sigmoid_backward),
    op(aten.hardtanh.default, decompose=hardtanh, meta=like_self),
    op(aten.hardtanh_backward.default, decompose=hardtanh_backward),
    op(aten.hardswish.default, decompose=hardswish, meta=pointwise_meta),
    op(aten.hardswish_backward.default, decompose=hardswish_backward),
    op(aten.hardsigmoid.default, decompose=hardsigmoid, meta=pointwise_meta),
    op(aten.hardsigmoid_backward.default, decompose=hardsigmoid_backward),
    op(aten.leaky_relu.default, decompose=leaky_relu),
    op(aten.leaky_relu_backward.default, decompose=leaky_relu_backward, last_operand_first=True),
    op(aten._prelu_kernel.default, decompose=prelu),
    op(aten._prelu_kernel_backward.default, decompose=prelu_backward),
    op(aten.elu.default, decompose=elu),
    op(aten.elu_backward.default, decompose=elu_backward),
    op(aten.celu.default, decompose=celu),
    op(aten.threshold.default, decompose=threshold, refuses=threshold_refusal),
    op(aten.threshold_backward.default, decompose=threshold_backward, last_operand_first=True),
    op(aten.glu.default, decompose=glu, meta=glu_meta),
    op(aten.glu_backward.default, decompose=glu_backward),
    unary(aten.softshrink.default, scalar=_softshrink, refuses=softshrink_refusal),
    unary(aten.hardshrink.default, scalar=_hardshrink),
    op(
        aten.softshrink_backward.default,
        aten.hardshrink_backward.default,
        decompose=shrink_backward,
    ),
)
