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


# -- softmax and norms -----------------------------------------------------------------------------


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(s, int) and s == 0 for s in x.shape)


@rule(aten._softmax.default)
@rounded_once
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or _is_empty(x):
        return NotImplemented
    weights = torch.exp(x - torch.amax(x, dim, keepdim=True))
    return weights * torch.reciprocal(torch.sum(weights, dim, keepdim=True))  # one division a row


@rule(aten._log_softmax.default)
@rounded_once
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or _is_empty(x):
        return NotImplemented
    shifted = x - torch.amax(x, dim, keepdim=True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))


@rule(aten.logsumexp.default)
@rounded_once
def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if x.is_complex():
        return NotImplemented
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    if _is_empty(x):
        return torch.log(torch.sum(torch.exp(x), dim, keepdim))
    top = torch.amax(x, dim, keepdim=True)
    top = torch.where(torch.abs(top) == math.inf, 0.0, top)
    total = torch.log(torch.sum(torch.exp(x - top), dim, keepdim=True)) + top
    return total if keepdim else torch.squeeze(total, dim)


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


def _count(x: Tensor, dims: list[int]) -> Any:
    return math.prod(x.shape[d] for d in dims) if dims else 1


def _moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `dims`, both with these dimensions kept; the variance in two
    passes."""
    mean = torch.mean(x, dims, keepdim=True)
    centered = x - mean
    return mean, torch.mean(centered * centered, dims, keepdim=True)


def _dtype_of_statistics(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """That in which eager keeps mean and deviation: on a GPU as they were accumulated."""
    if x.device.type != "cpu":
        return torch.float32 if x.dtype in HALVES else x.dtype
    return weight.dtype if weight is not None else x.dtype


@rule(aten.native_layer_norm.default)
def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    if _is_empty(x):
        return NotImplemented
    stats = _dtype_of_statistics(x, weight)
    wide = widened(x)
    mean, variance = _moments(wide, list(range(-len(shape), 0)))
    scale = torch.rsqrt(variance + eps)
    y = (wide - mean) * scale
    if weight is not None:
        y = y * widened(weight)
    if bias is not None:
        y = y + widened(bias)
    return y.to(x.dtype), mean.to(stats), scale.to(stats)


@rule(aten.native_group_norm.default)
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
    if _is_empty(x):
        return NotImplemented
    stats = weight.dtype if weight is not None else x.dtype
    wide = widened(x).reshape(n, groups, channels // groups, space)
    mean, variance = _moments(wide, [2, 3])
    scale = torch.rsqrt(variance + eps)
    y = (wide - mean) * scale
    if weight is not None:
        y = y * widened(weight).view(1, groups, channels // groups, 1)
    if bias is not None:
        y = y + widened(bias).view(1, groups, channels // groups, 1)
    return (
        y.reshape(x.shape).to(x.dtype),
        mean.view(n, groups).to(stats),
        scale.view(n, groups).to(stats),
    )


def _per_channel(t: Tensor, rank: int) -> Tensor:
    return t.view(1, -1, *[1] * (rank - 2))


@rule(aten.native_batch_norm.default)
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
    if _is_empty(x):
        return NotImplemented
    if not training:
        assert running_mean is not None and running_var is not None
        y = _normalized(
            x, widened(running_mean), torch.rsqrt(widened(running_var) + eps), weight, bias
        )
        stats = _dtype_of_statistics(x, running_mean)
        return y, x.new_empty(0, dtype=stats), x.new_empty(0, dtype=stats)
    dims = [d for d in range(x.dim()) if d != 1]
    count = _count(x, dims)
    if count == 1:
        return NotImplemented  # eager raises
    mean, variance = (m.view(-1) for m in _moments(widened(x), dims))
    if running_mean is not None:
        running_mean.copy_(momentum * mean + (1 - momentum) * widened(running_mean))
    if running_var is not None:
        unbiased = variance * quotient(count, count - 1, variance.dtype)
        running_var.copy_(momentum * unbiased + (1 - momentum) * widened(running_var))
    scale = torch.rsqrt(variance + eps)
    stats = _dtype_of_statistics(x, weight)
    return _normalized(x, mean, scale, weight, bias), mean.to(stats), scale.to(stats)


def _normalized(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """(x - mean) * scale * weight + bias as one multiplication and one addition per element."""
    factor = scale if weight is None else scale * widened(weight)
    offset = -mean * factor if bias is None else widened(bias) - mean * factor
    return (widened(x) * _per_channel(factor, x.dim()) + _per_channel(offset, x.dim())).to(x.dtype)


@rule(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The op that eager calls on a GPU, which writes the running statistics. Its last result is
    room for its backward, which needs none here."""
    found = batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return found if found is NotImplemented else (*found, x.new_empty(0, dtype=torch.uint8))


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    return batch_norm(x, weight, bias, mean, var, False, momentum, eps)


# -- statistics ------------------------------------------------------------------------------------


def _variance(x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    dims = _dims(x, dim)
    mean = torch.mean(x, dims, keepdim=True)
    centered = x - mean
    divisor = _count(x, dims) - (1 if correction is None else correction)
    if isinstance(divisor, (int, float)):
        divisor = max(divisor, 0)
    squares = torch.sum(centered * centered, dims, keepdim=keepdim)
    variance = squares / divisor if not _is_zero(divisor) else squares * math.inf
    return variance, mean if keepdim else mean.squeeze(dims)


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


def _dims(x: Tensor, dim: Any) -> list[int]:
    """The dimensions meant; none given means all."""
    listed = [dim] if isinstance(dim, int) else dim
    return [d % x.dim() for d in listed] if listed and x.dim() else list(range(x.dim()))


def _refuses(x: Tensor) -> bool:
    return _is_empty(x) or x.is_complex() or not x.is_floating_point()


@rule(aten.var.correction)
@rounded_once
def var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return NotImplemented if _refuses(x) else _variance(x, dim, correction, keepdim)[0]


@rule(aten.std.correction)
@rounded_once
def std(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return NotImplemented if _refuses(x) else torch.sqrt(_variance(x, dim, correction, keepdim)[0])


@rule(aten.var_mean.correction)
def var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if _refuses(x):
        return NotImplemented
    variance, mean = _variance(widened(x), dim, correction, keepdim)
    return variance.to(x.dtype), mean.to(x.dtype)


@rule(aten.std_mean.correction)
def std_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if x.is_complex():
        return NotImplemented
    if _is_empty(x):
        variance, mean = torch.var_mean(x, dim, correction=correction, keepdim=keepdim)
        return torch.sqrt(variance), mean
    variance, mean = _variance(widened(x), dim, correction, keepdim)
    return torch.sqrt(variance).to(x.dtype), mean.to(x.dtype)


@rule(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    if not x.is_floating_point() or (dtype is not None and dtype.is_complex):
        return NotImplemented
    return _norm(widened(x if dtype is None else x.to(dtype)), order, _dims(x, dim), keepdim).to(
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


@rule(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)
def norm(x: Tensor, order: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return vector_norm(x, 2 if order is None else order, dim, keepdim, dtype=dtype)


@rule(aten.norm.Scalar, aten.norm.ScalarOpt_dtype)
def norm_of_all(x: Tensor, order: Any = 2, *, dtype: Any = None) -> Tensor:
    return vector_norm(x, 2 if order is None else order, dtype=dtype)


@rule(aten.nansum.default)
def nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if x.is_complex() or (dtype is not None and dtype.is_complex):
        return NotImplemented
    known = torch.where(torch.isnan(x), 0, x) if x.is_floating_point() else x
    return torch.sum(known, _dims(x, dim), keepdim=keepdim, dtype=dtype)


@rule(aten.count_nonzero.dim_IntList, aten.count_nonzero.default)
def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    return NotImplemented if x.is_complex() else torch.sum(x != 0, _dims(x, dim))


@rule(aten.aminmax.default)
def aminmax(x: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    dims = _dims(x, dim)
    return torch.amin(x, dims, keepdim=keepdim), torch.amax(x, dims, keepdim=keepdim)


# -- copies ----------------------------------------------------------------------------------------


@rule(aten.native_dropout.default)
def dropout(x: Tensor, p: float, train: bool | None) -> Any:
    if train or train is None:
        return NotImplemented
    return x.clone(), torch.ones_like(x, dtype=torch.bool)
