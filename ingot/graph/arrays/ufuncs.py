"""What NumPy's universal functions compute, in torch.

In: tensors that all have the type of one of the function's loops; a function of `TAKES_NUMBER` also
takes a Python number that this type holds. Out: new tensors, whose type is NumPy's up to a
conversion. The tables are by universal function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.graph.arrays import private


def _is_inexact(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


# -- arithmetic ------------------------------------------------------------------------------------


def absolute(x: Tensor) -> Tensor:
    if x.dtype in (torch.bool, torch.uint8):
        return x.clone()
    return torch.abs(x)


def conjugate(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.conj_physical(x)
    return x.clone()


def sign(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.sgn(x)
    if x.is_floating_point():
        return torch.where(torch.isnan(x), x, torch.sign(x))
    return torch.sign(x)


def cbrt(x: Tensor) -> Tensor:
    root = torch.sign(x) * torch.pow(torch.abs(x), 1 / 3)
    better = root - (root * root * root - x) / (3 * root * root)  # a step of Newton's method
    return torch.where(torch.isfinite(better), better, torch.where(x == 0, x, root))


def _safe_divisor(x: Tensor, y: Tensor) -> Tensor:
    """A divisor by which no integer division fails: it is 1 where `y` is 0 or -1."""
    special = y == 0
    if y.dtype is not torch.uint8:
        special = special | (y == -1)
    return torch.where(special, torch.ones_like(y), y)


def floor_divide(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.floor_divide(x, y)
    result = torch.floor_divide(x, _safe_divisor(x, y))
    if y.dtype is not torch.uint8:
        result = torch.where(y == -1, -x, result)
    return torch.where(y == 0, torch.zeros_like(result), result)


def remainder(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        result = torch.remainder(x, y)
        return torch.where(result == 0, torch.copysign(result, y), result)
    result = torch.remainder(x, _safe_divisor(x, y))
    return torch.where(y == 0, torch.zeros_like(result), result)


def fmod(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.fmod(x, y)
    result = torch.fmod(x, _safe_divisor(x, y))
    return torch.where(y == 0, torch.zeros_like(result), result)


def divmod_(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return floor_divide(x, y), remainder(x, y)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = torch.trunc(x)
    part = torch.where(torch.isinf(x), torch.zeros_like(x), x - whole)
    return torch.copysign(part, x), whole


def rounded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that rounds, which leaves integers as they are."""

    def of_any(x: Tensor) -> Tensor:
        if x.is_floating_point():
            return function(x)
        return x.clone()

    of_any.__name__ = of_any.__qualname__ = function.__name__
    return of_any


def heaviside(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.heaviside(x, y))


def ldexp(x: Tensor, y: Tensor) -> Tensor:
    # in two steps, as 2 ** y may be too large or too small where the result is not
    half = torch.div(y, 2, rounding_mode="floor")
    return torch.ldexp(torch.ldexp(x, half), y - half)


def clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    if x.dim() == 0 or y.dim() == 0:
        raise ValueError("matmul: an operand does not have enough dimensions")
    if x.dtype is torch.bool:
        return torch.matmul(x.to(torch.int32), y.to(torch.int32)) != 0
    return torch.matmul(x, y)


def vecdot(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        return (x & y).any(-1)
    return (conjugate(x) * y).sum(-1, dtype=x.dtype)


def not_negative(x: Tensor) -> Tensor:
    """numpy.positive."""
    return x.clone()


UFUNCS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: torch.true_divide,
    np.floor_divide: floor_divide,
    np.remainder: remainder,
    np.fmod: fmod,
    np.divmod: divmod_,
    np.power: operator.pow,
    np.float_power: operator.pow,
    np.negative: torch.neg,
    np.positive: not_negative,
    np.absolute: absolute,
    np.fabs: torch.abs,
    np.sign: sign,
    np.conjugate: conjugate,
    np.exp: torch.exp,
    np.exp2: torch.exp2,
    np.expm1: torch.expm1,
    np.log: torch.log,
    np.log2: torch.log2,
    np.log10: torch.log10,
    np.log1p: torch.log1p,
    np.sqrt: torch.sqrt,
    np.cbrt: cbrt,
    np.square: torch.square,
    np.reciprocal: torch.reciprocal,
    np.sin: torch.sin,
    np.cos: torch.cos,
    np.tan: torch.tan,
    np.arcsin: torch.asin,
    np.arccos: torch.acos,
    np.arctan: torch.atan,
    np.arctan2: torch.atan2,
    np.hypot: torch.hypot,
    np.sinh: torch.sinh,
    np.cosh: torch.cosh,
    np.tanh: torch.tanh,
    np.arcsinh: torch.asinh,
    np.arccosh: torch.acosh,
    np.arctanh: torch.atanh,
    np.degrees: torch.rad2deg,
    np.rad2deg: torch.rad2deg,
    np.radians: torch.deg2rad,
    np.deg2rad: torch.deg2rad,
    np.rint: torch.round,
    np.floor: rounded(torch.floor),
    np.ceil: rounded(torch.ceil),
    np.trunc: rounded(torch.trunc),
    np.modf: modf,
    np.ldexp: ldexp,
    np.copysign: torch.copysign,
    np.nextafter: torch.nextafter,
    np.heaviside: heaviside,
    np.isfinite: torch.isfinite,
    np.isinf: torch.isinf,
    np.isnan: torch.isnan,
    np.signbit: torch.signbit,
    np.maximum: torch.maximum,
    np.minimum: torch.minimum,
    np.fmax: torch.fmax,
    np.fmin: torch.fmin,
    np.logaddexp: torch.logaddexp,
    np.logaddexp2: torch.logaddexp2,
    np.gcd: torch.gcd,
    np.lcm: torch.lcm,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.invert: torch.bitwise_not,
    np.left_shift: torch.bitwise_left_shift,
    np.right_shift: torch.bitwise_right_shift,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.logical_and: torch.logical_and,
    np.logical_or: torch.logical_or,
    np.logical_xor: torch.logical_xor,
    np.logical_not: torch.logical_not,
    np.matmul: matmul,
}

UFUNCS[private.clip] = clip
if hasattr(np, "vecdot"):  # since NumPy 2
    UFUNCS[np.vecdot] = vecdot

COMPARISONS = frozenset(
    {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
)

TAKES_NUMBER = COMPARISONS | {
    np.add, np.subtract, np.multiply, np.power, np.float_power,
    np.bitwise_and, np.bitwise_or, np.bitwise_xor,
}  # fmt: skip
"""Of two operands, one of which may be a number."""

OF_REAL_NUMBERS = frozenset({
    np.maximum, np.minimum, np.fmax, np.fmin, np.less, np.less_equal, np.greater, np.greater_equal,
    np.exp2, np.log2, np.rint,
})  # fmt: skip
"""Functions that torch computes of real numbers alone, or otherwise of complex ones."""

# -- reductions ------------------------------------------------------------------------------------


def _over_each(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reduction along one dimension as one along several."""

    def reduce(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
        for dim in sorted(dims, reverse=True):
            x = function(x, dim, keepdim)
        return x

    reduce.__name__ = reduce.__qualname__ = f"{function.__name__}_over_each"
    return reduce


def _prod(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return torch.prod(x, dim, keepdim, dtype=x.dtype)


def _add(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if x.dtype is torch.bool:
        return torch.any(x, dims, keepdim)
    return torch.sum(x, dims, keepdim, dtype=x.dtype)


def _any(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    return torch.any(x.to(torch.bool), dims, keepdim)


def _all(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    return torch.all(x.to(torch.bool), dims, keepdim)


def _fmax(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if not x.is_floating_point():
        return torch.amax(x, dims, keepdim)
    is_nan = torch.isnan(x)
    result = torch.amax(torch.where(is_nan, float("-inf"), x), dims, keepdim)
    return torch.where(torch.all(is_nan, dims, keepdim), float("nan"), result)


def _fmin(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if not x.is_floating_point():
        return torch.amin(x, dims, keepdim)
    is_nan = torch.isnan(x)
    result = torch.amin(torch.where(is_nan, float("inf"), x), dims, keepdim)
    return torch.where(torch.all(is_nan, dims, keepdim), float("nan"), result)


REDUCTIONS: dict[np.ufunc, Callable[..., Tensor]] = {
    np.add: _add,
    np.multiply: _over_each(_prod),
    np.maximum: torch.amax,
    np.minimum: torch.amin,
    np.fmax: _fmax,
    np.fmin: _fmin,
    np.logical_and: _all,
    np.logical_or: _any,
    np.logaddexp: torch.logsumexp,
}
"""`(x, dims, keepdim)`; `x` has the loop's type."""


def _cumulative(function: Callable[..., Any]) -> Callable[[Tensor, int], Tensor]:
    def accumulate(x: Tensor, dim: int) -> Tensor:
        return function(x, dim)[0]  # type: ignore[no-any-return]

    accumulate.__name__ = accumulate.__qualname__ = function.__name__
    return accumulate


def _cumsum(x: Tensor, dim: int) -> Tensor:
    return torch.cumsum(x, dim, dtype=x.dtype)


def _cumprod(x: Tensor, dim: int) -> Tensor:
    return torch.cumprod(x, dim, dtype=x.dtype)


ACCUMULATIONS: dict[np.ufunc, Callable[[Tensor, int], Tensor]] = {
    np.add: _cumsum,
    np.multiply: _cumprod,
    np.maximum: _cumulative(torch.cummax),
    np.minimum: _cumulative(torch.cummin),
    np.logaddexp: torch.logcumsumexp,
}
"""`(x, dim)`; `x` has the loop's type."""
