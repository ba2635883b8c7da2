"""Ops that are recorded as simpler ones: one small function per op, run under the recorder.

float32 results agree with eager's to rounding; bfloat16 and float16 are computed in float32 and
rounded once, as eager's kernels do. A rule may return NotImplemented: the op is then recorded
whole. Strides need no care here: the recorder gives every result those of eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ingot.graph.meta.families import is_scaled_exactly
from ingot.torch_private import aten

Rule = Callable[..., Any]

DECOMPOSITIONS: dict[Any, Rule] = {}

HALVES = (torch.bfloat16, torch.float16)


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Register the decorated function for these ops."""

    def register(function: Rule) -> Rule:
        for op in ops:
            DECOMPOSITIONS[op] = function
        return function

    return register


def widened(value: Any) -> Any:
    return value.to(torch.float32) if isinstance(value, Tensor) and value.dtype in HALVES else value


def rounded_once(function: Rule) -> Rule:
    """Compute in float32 if the first tensor is bfloat16 or float16, and round the (first) result
    back to its dtype."""

    @wraps(function)
    def wrapper(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        if first.dtype not in HALVES:
            return function(first, *args, **kwargs)
        result = function(
            widened(first), *map(widened, args), **{k: widened(v) for k, v in kwargs.items()}
        )
        return result if result is NotImplemented else _narrow(result, first.dtype)

    return wrapper


def in_float32(number: float) -> float:
    """As eager's code holds some of its constants, for each type of tensor."""
    return torch.tensor(number, dtype=torch.float32).item()


def _narrow(result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, tuple):
        return (result[0].to(dtype), *result[1:])
    return result.to(dtype)


# -- activations -----------------------------------------------------------------------------------


@rule(aten.silu.default)
@rounded_once
def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@rule(aten.mish.default)
@rounded_once
def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@rule(aten.softplus.default)
@rounded_once
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = widened(x)
    tail = torch.exp(-torch.abs(wide))
    return (torch.clamp(wide, max=0) - torch.log1p(tail)).to(x.dtype), tail.to(x.dtype)


@rule(aten.hardtanh.default)
def hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    return (
        torch.clamp(x, low, high) if x.is_floating_point() else torch.clamp(x, int(low), int(high))
    )


@rule(aten.hardswish.default)
@rounded_once
def hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


@rule(aten.hardsigmoid.default)
@rounded_once
def hardsigmoid(x: Tensor) -> Tensor:
    return torch.clamp(x + 3, 0, 6) / 6


@rule(aten.leaky_relu.default)
@rounded_once
def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * slope)


@rule(aten._prelu_kernel.default)
@rounded_once
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


@rule(aten.elu.default)
@rounded_once
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.where(x <= 0, torch.expm1(x * input_scale) * (alpha * scale), x * scale)


@rule(aten.celu.default)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(x, alpha, 1.0, 1.0 / alpha)


@rule(aten.threshold.default)
@rounded_once
def threshold(x: Tensor, limit: float, value: float) -> Tensor:
    if not x.is_floating_point():
        limit, value = int(limit), int(value)
    return torch.where(x <= limit, value, x)


@rule(aten.glu.default)
@rounded_once
def glu(x: Tensor, dim: int = -1) -> Tensor:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half) * torch.sigmoid(x.narrow(dim, half, half))


# -- arithmetic ------------------------------------------------------------------------------------


@rule(aten.deg2rad.default)
def deg2rad(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


@rule(aten.rad2deg.default)
def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


@rule(aten.ldexp.Tensor)
def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    if is_scaled_exactly(x, exponent):
        return _scaled(x, exponent.long())
    return (
        NotImplemented if x.is_complex() or exponent.is_complex() else x * torch.pow(2.0, exponent)
    )


def _scaled(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent, rounded once: 2**exponent itself may be too large or too small for the
    dtype."""
    if x.dtype is not torch.float64:  # whose range squared is within that of float64
        return (x.double() * torch.exp2(exponent.clamp(-300, 300).double())).float().to(x.dtype)
    for _ in range(2):  # numbers stay normal up to the last step, which rounds
        step = torch.where(exponent < -1022, -969, exponent.clamp(-1022, 1023))
        x, exponent = x * torch.exp2(step.double()), exponent - step
    return x * torch.exp2(exponent.clamp(-1022, 1023).double())


# The exponents that eager's kernel treats apart: it rounds bfloat16 after each step.
_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    0.5: torch.sqrt,
    -0.5: torch.rsqrt,
    -1.0: torch.reciprocal,
    -2.0: lambda x: torch.reciprocal(x * x),
}


@rule(aten.pow.Tensor_Scalar)
def power(x: Tensor, exponent: Any) -> Tensor:
    if isinstance(exponent, torch.SymInt):
        return torch.pow(x, int(exponent))
    special = _POWERS.get(exponent)
    whole = not (x.is_floating_point() or x.is_complex())
    if (
        special is None
        or x.is_complex()
        or (whole and not (isinstance(exponent, int) and exponent > 0))
        or x.dtype == torch.bool
    ):
        return NotImplemented
    if x.dtype is torch.float16 and abs(exponent) == 0.5:
        return NotImplemented  # there eager calls pow, which differs for -0 and -inf
    return special(x) if x.dtype is torch.bfloat16 else rounded_once(special)(x)


@rule(aten.rsub.Tensor)
def rsub(x: Tensor, other: Tensor, alpha: Any = 1) -> Tensor:
    return torch.sub(other, x, alpha=alpha)


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(s, int) and s == 0 for s in x.shape)


@rule(aten.mul.Scalar)
def times_number(x: Tensor, number: Any) -> Tensor:
    """By one of the factors of torch's formulas that depend on symbolic sizes."""
    if not isinstance(number, torch.SymFloat):
        return NotImplemented
    value, (above, below) = widened(x), number.node.quotient()
    return (value * quotient(above, below, value.dtype)).to(x.dtype)


def quotient(a: Any, b: Any, dtype: torch.dtype) -> Any:
    """a / b of numbers; a tensor of the dtype where one is a symbolic size."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return (torch.full((), a, dtype=torch.float64) / torch.full((), b, dtype=torch.float64)).to(
            dtype
        )
    if b == 0:
        return math.copysign(math.inf, a) if a else math.nan
    return a / b
