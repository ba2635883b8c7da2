"""Hyperbolic functions and their inverses."""

from __future__ import annotations

from math import nan

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math.arithmetic import (
    FORMATS,
    absolute,
    at_most,
    copysign,
    polynomial,
    power_of_two,
    scale_by_power,
    square_root,
)
from ingot.codegen.llvm.math.coefficients import ATANH_FLOAT, LN2, SINH, TANH
from ingot.codegen.llvm.math.exponential import expm1_small, log1p, quick_exp, reduce_exp


def _half_exp(x: Value) -> Value:
    """exp(x) / 2, which is finite for a little longer than exp(x)."""
    r, k, n = reduce_exp(at_most(x, FORMATS[x.type].exp_range[1] + 1.0))
    return scale_by_power(expm1_small(r) + 1.0, k - 1.0, n - 1)


def sinh(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    half, z = _half_exp(a), x * x
    small = e.fma(x * z, polynomial(z, SINH), x)
    return e.select(e.compare("olt", a, 1.0), small, copysign(half - 0.25 / half, x))


def cosh(x: Value) -> Value:
    half = _half_exp(absolute(x))
    return half + 0.25 / half


def tanh(x: Value) -> Value:
    """A polynomial near 0, then 1 - 2 / (e^(2a) + 1) until it rounds to 1."""
    e = x.emitter
    if x.type == "float":
        a = at_most(absolute(x), 9.1)
        power = quick_exp(a, 2.0)
    else:
        a = at_most(absolute(x), 19.1)
        r, _, n = reduce_exp(a * 2.0)
        power = (expm1_small(r) + 1.0) * power_of_two(n, x.type)
    z = a * a
    small = e.fma(a * z, polynomial(z, TANH[x.type]), a)
    # NaN takes the polynomial's side: the bits of a power may be anything then.
    return copysign(e.select(e.compare("ult", a, 0.625), small, 1.0 - 2.0 / (power + 1.0)), x)


def _large_log1p(large: Value, a: Value, t: Value) -> Value:
    """log1p(t), or log(2a) where `large`."""
    e = a.emitter
    y = log1p(e.select(large, a - 1.0, t))
    return e.select(large, y + LN2, y)


def asinh(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    square = a * a
    t = a + square / (square_root(square + 1.0) + 1.0)
    return copysign(_large_log1p(e.compare("ogt", a, 2.0**28), a, t), x)


def acosh(x: Value) -> Value:
    e, t = x.emitter, x - 1.0
    y = _large_log1p(e.compare("ogt", x, 2.0**28), x, t + square_root(e.fma(t, t, t * 2.0)))
    return e.select(e.compare("olt", x, 1.0), nan, y)


def atanh(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    twice = a * 2.0
    y = log1p(twice + twice * a / (1.0 - a)) * 0.5
    if x.type == "float":
        z = a * a
        y = e.select(e.compare("olt", a, 0.5), e.fma(a * z, polynomial(z, ATANH_FLOAT), a), y)
    return copysign(e.select(e.compare("ogt", a, 1.0), nan, y), x)
