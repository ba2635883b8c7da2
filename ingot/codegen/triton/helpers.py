"""Functions that generated kernels call, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def nan_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def add_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def add_five(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def divide_by_few(a, b):
    """a / b, rounded once, where there are many `a` to each `b`: by its inverse, and the rest that
    this leaves (Markstein, 1990). A tiny `b`, whose inverse is infinite, is scaled."""
    tiny = tl.abs(b) < 2.0**-100
    scaled = tl.where(tiny, b * 2.0**64, b)
    inverse = tl.div_rn(1.0, scaled)
    near = a * inverse
    quotient = tl.fma(tl.fma(near * -1.0, scaled, a), inverse, near)
    quotient = tl.where((quotient == quotient) & (near != 0), quotient, near)
    return tl.where(tiny, quotient * 2.0**64, quotient)


@triton.jit
def floor_divide(a, b):
    """Rounds down; Triton's // rounds to zero."""
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floor_remainder(a, b):
    """Has the sign of the divisor; Triton's % has that of the dividend."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def shift_left(a, b, bits: tl.constexpr):
    outside = (b < 0) | (b >= bits)
    return tl.where(outside, 0, a << tl.where(outside, 0, b)).to(a.dtype)


@triton.jit
def shift_right(a, b, bits: tl.constexpr):
    """By the width or more leaves the sign."""
    return a >> tl.where((b < 0) | (b >= bits), bits - 1, b).to(a.dtype)


@triton.jit
def shift_right_unsigned(a, b, bits: tl.constexpr):
    outside = b >= bits
    return tl.where(outside, 0, a >> tl.where(outside, 0, b)).to(a.dtype)


@triton.jit
def copy_sign_of_half(a, b):
    magnitude = a.to(tl.int16, bitcast=True) & 0x7FFF
    return (magnitude | (b.to(tl.int16, bitcast=True) & -0x8000)).to(a.dtype, bitcast=True)


@tl.core.builtin
def exp2_flushed(x, _semantic=None):
    """exp2(x) of float32, 0 in place of what is too small to be normal, which it takes more
    instructions to keep."""
    if getattr(_semantic.builder.options, "backend_name", None) != "cuda":
        return tl.exp2(x, _semantic=_semantic)
    text = "ex2.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(text, "=f,f", [x], tl.float32, True, 1, _semantic=_semantic)


@triton.jit
def power(x):
    """exp(x) of what is not above 0, to be summed beside a term of 1.

    That of float32 is right within abs(x) and a few units in the last place, at a quarter of the
    instructions of exp.
    """
    if x.dtype == tl.float32:
        return exp2_flushed(x * 1.4426950408889634)
    else:
        return libdevice.exp(x)


@triton.jit
def finite_top(top):
    """What is subtracted of exponents: not what is infinite."""
    return tl.where(tl.abs(top) == float("inf"), 0.0, top)


@triton.jit
def add_powers(top, total, value, GROUP: tl.constexpr, WIDE: tl.constexpr):
    """The largest elements, and the sums of exp(v - largest), of groups of a row's elements, with
    those of `value`. A thread has all of a group's: neighbours where they are loaded at once
    (`WIDE`), else those that lie apart evenly."""
    if GROUP == 1:
        larger = nan_maximum(top, value)
        base = finite_top(larger)
        return larger, total * power(top - base) + power(value - base)
    elif WIDE:
        groups = tl.reshape(value, [value.shape[0], value.shape[1] // GROUP, GROUP])
        larger = nan_maximum(top, tl.reduce(groups, 2, nan_maximum))
        base = finite_top(larger)
        added = tl.sum(power(groups - base[:, :, None]), 2)
        return larger, total * power(top - base) + added
    else:
        groups = tl.reshape(value, [value.shape[0], GROUP, value.shape[1] // GROUP])
        larger = nan_maximum(top, tl.reduce(groups, 1, nan_maximum))
        base = finite_top(larger)
        added = tl.sum(power(groups - base[:, None, :]), 1)
        return larger, total * power(top - base) + added


@triton.jit
def join_powers(top, total):
    """The sum of exp(v - largest) of a row of what its groups have."""
    largest = finite_top(tl.reduce(top, 1, nan_maximum)[:, None])
    return tl.sum(total * libdevice.exp(top - largest), 1)[:, None]


@triton.jit
def normal_cdf(x):
    """The normal distribution function. At -z, for a positive z, it is exp(-z * z / 2) * t * p(t)
    with t = 1 / (1 + 0.26 * z). The polynomial p was fitted to scipy's erfcx, from which it departs
    by at most 2.7e-8 of the value wherever that is a float32."""
    t = libdevice.fast_dividef(1.0, tl.fma(tl.abs(x), 0.26, 1.0))
    p = tl.fma(t, 0.0303944128699558, -0.15229130602524352)
    p = tl.fma(p, t, 0.2503786872732618)
    p = tl.fma(p, t, -0.14967225576965626)
    p = tl.fma(p, t, 0.16006158274023738)
    p = tl.fma(p, t, 0.05140795415376424)
    p = tl.fma(p, t, 0.10293196940296573)
    p = tl.fma(p, t, 0.10303071699066199)
    p = tl.fma(p, t, 0.10375822533013074)
    below = p * t * libdevice.exp(x * x * -0.5)
    return tl.where(x > 0, 1.0 - below, below)


@triton.jit
def one_plus_tanh(x):
    """2 / (1 + exp(-2x)), the quotient within two units in the last place."""
    return libdevice.fast_dividef(2.0, libdevice.exp(x * -2.0) + 1.0)


@triton.jit
def one_minus_square_of_tanh(x):
    above = one_plus_tanh(x)
    return above * (2.0 - above)


@triton.jit
def further_up(a, i, b, j):
    """Of two (value, position) pairs the one of the larger value, NaN being the largest, or of the
    lower position."""
    a_nan, b_nan = a != a, b != b
    beyond = (b > a) | (b_nan & (a_nan == 0))
    tie = (b == a) | (b_nan & a_nan)
    take = beyond | (tie & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def further_down(a, i, b, j):
    """Of two (value, position) pairs the one of the smaller value, NaN being the smallest, or of
    the lower position."""
    a_nan, b_nan = a != a, b != b
    beyond = (b < a) | (b_nan & (a_nan == 0))
    tie = (b == a) | (b_nan & a_nan)
    take = beyond | (tie & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
