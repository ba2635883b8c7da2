"""Exponentials, logarithms and powers.

The quick forms are for floats whose result needs less than full precision, or is computed in
double; the long ones keep a double's logarithm as a sum, which a power needs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math.arithmetic import (
    FORMATS,
    absolute,
    at_least,
    at_most,
    fast_two_sum,
    nearest,
    polynomial,
    power_of_two,
    scale_by_power,
    two_product,
)
from ingot.codegen.llvm.math.coefficients import (
    EXP,
    EXP2_QUICK,
    EXP_TWICE,
    LN2,
    LOG,
    LOG2_E,
    LOG2_E_FLOAT,
    LOG2_QUICK,
    LOG10_2,
    LOG10_E,
    LOG_TAIL,
    TWO_THIRDS_LOW,
)


def reduce_exp(x: Value) -> tuple[Value, Value, Value]:
    """r and the integer k, as a float and as an integer, with x = k ln2 + r, |r| <= ln2 / 2."""
    e, (high, low) = x.emitter, FORMATS[x.type].ln2
    k, n = nearest(x, LOG2_E)
    return e.fma(k, -low, e.fma(k, -high, x)), k, n


def expm1_small(r: Value) -> Value:
    return r.emitter.fma(r * r, polynomial(r, EXP[r.type]), r)


def _or_zero(vanishes: Value, argument: Value, function: Callable[[Value], Value]) -> Value:
    """`function` of `argument`, or 0 where it `vanishes`.

    A result that underflows takes some processors a hundred times as long, and softmax with a
    mask of minus infinity would have one at each masked place.
    """
    e = argument.emitter
    return e.select(vanishes, 0.0, function(e.select(vanishes, 0.0, argument)))


def exp(x: Value) -> Value:
    low, high = FORMATS[x.type].exp_range
    return _or_zero(x.emitter.compare("olt", x, low), at_most(x, high), _moderate_exp)


def _moderate_exp(x: Value) -> Value:
    """exp of what is in the type's `exp_range`."""
    r, k, n = reduce_exp(x)
    return scale_by_power(expm1_small(r) + 1.0, k, n)


def quick_exp(x: Value, scale: float) -> Value:
    """exp(scale * x) of floats for a sum with 1: to 1e-8, where it is in 2**-60 .. 2**60."""
    e, form = x.emitter, FORMATS["float"]
    shifted = e.fma(x, scale * LOG2_E, form.shifter)
    r = e.fma(shifted - form.shifter, -LN2 / scale, x)
    coefficients = []
    for k, c in enumerate(EXP_TWICE):
        coefficients.append(c * (scale / 2.0) ** (len(EXP_TWICE) - 1 - k))
    return e.cast("bitcast", scaled_bits(polynomial(r, coefficients), shifted), "float")


def exp_of_negative(x: Value) -> Value:
    """exp of floats that are at most 0, for a sum of which one is 1: to 1e-8.

    It is NaN for NaN, and zero where it is less than 2**-124.
    """
    vanishes = x.emitter.compare("olt", x, -86.0)
    return x.emitter.select(vanishes, 0.0, quick_exp(x, 1.0))


def scaled_bits(y: Value, shifted: Value) -> Value:
    """The bits of y * 2**k, where `shifted` is the integer k plus the format's shifter.

    The shifter's own bits leave the word, and those of the integer reach the exponent.
    """
    e = y.emitter
    return e.bits(y) + (e.bits(shifted) << FORMATS[y.type].mantissa)


def exp2(x: Value) -> Value:
    low, high = FORMATS[x.type].exp_range

    def moderate(x: Value) -> Value:
        k, n = nearest(x, 1.0)
        return scale_by_power(expm1_small((x - k) * LN2) + 1.0, k, n)

    return _or_zero(x.emitter.compare("olt", x, low * LOG2_E), at_most(x, high * LOG2_E), moderate)


def expm1(x: Value) -> Value:
    e = x.emitter
    high = FORMATS[x.type].exp_range[1]
    r, _, n = reduce_exp(at_least(at_most(x, high), -40.0))
    half = power_of_two(n - 1, x.type)  # half of 2**n, which may itself overflow
    y = e.fma(half, expm1_small(r), half - 0.5) * 2.0
    return e.select(e.compare("oeq", x, 0.0), x, y)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)). The exponential is at least e^-40: less would not change the sum."""
    high = FORMATS[x.type].exp_range[1]
    return 1.0 / (_moderate_exp(at_least(at_most(-x, high), -40.0)) + 1.0)


def _split(x: Value) -> tuple[Value, Value]:
    """The integer k and f with x = 2**k (1 + f) and 1 + f in [sqrt(1/2), sqrt(2)), for normal x."""
    e, form = x.emitter, FORMATS[x.type]
    bits = e.bits(x)
    exponent = e.binary("ashr", bits - form.sqrt_half_bits, form.mantissa)
    return exponent, e.cast("bitcast", bits - (exponent << form.mantissa), x.type) - 1.0


def _split_any(x: Value) -> tuple[Value, Value]:
    """As `_split`, with k as a float, for x > 0 that may be subnormal."""
    e, form = x.emitter, FORMATS[x.type]
    tiny = e.compare("olt", x, form.smallest)
    lift = form.mantissa + 2
    exponent, f = _split(e.select(tiny, x * 2.0**lift, x))
    k = e.cast("sitofp", exponent - e.select(tiny, e.constant(lift, form.integer), 0), x.type)
    return k, f


def _split_log(x: Value) -> tuple[Value, Value, Value]:
    """k, f and the correction c with log(x) = k ln2 + f + c, for finite x > 0."""
    e = x.emitter
    k, f = _split_any(x)
    square = f * f
    if x.type == "float":
        return k, f, e.fma(square * f, polynomial(f, LOG["float"]), square * -0.5)
    s = f / (f + 2.0)
    half_square = square * 0.5
    z = s * s
    return k, f, e.fma(s, e.fma(z, polynomial(z, LOG["double"]), half_square), -half_square)


def _finish_log(x: Value, y: Value) -> Value:
    """A logarithm `y` of `x`, completed for x that is zero, negative, infinite or NaN."""
    e = x.emitter
    at_edge = e.select(e.compare("oeq", x, 0.0), e.constant(-inf, x.type), nan)
    return e.select(e.compare("ogt", x, 0.0), e.select(e.compare("olt", x, inf), y, x), at_edge)


def _join_log(k: Value, f: Value, correction: Value) -> Value:
    """k ln2 + f + correction."""
    e, (high, low) = k.emitter, FORMATS[k.type].ln2
    return e.fma(k, high, f + e.fma(k, low, correction))


def log(x: Value) -> Value:
    return _finish_log(x, _join_log(*_split_log(x)))


def log2(x: Value) -> Value:
    e = x.emitter
    k, f, correction = _split_log(x)
    if x.type == "float":  # f log2(e) as a sum, of which the second term is small
        high, low = LOG2_E_FLOAT
        return _finish_log(x, e.fma(f, high, e.fma(correction, LOG2_E, f * low)) + k)
    return _finish_log(x, e.fma(f + correction, LOG2_E, k))


def log10(x: Value) -> Value:
    e = x.emitter
    k, f, correction = _split_log(x)
    return _finish_log(x, e.fma(k, LOG10_2, (f + correction) * LOG10_E))


def log1p(x: Value) -> Value:
    """log(u) + c / u, where u is 1 + x rounded and c the rounding error."""
    e = x.emitter
    u = x + 1.0
    error = e.select(e.compare("ogt", x, 1.0), 1.0 - (u - x), x - (u - 1.0))
    k, f, correction = _split_log(u)
    y = _finish_log(u, _join_log(k, f, correction + error / u))
    return e.select(e.compare("oeq", u, 1.0), x, y)


def _quick_log2(x: Value) -> Value:
    """log2 of a float >= 0, in double, to 5e-12 of itself. No float is subnormal as a double."""
    e = x.emitter
    wide = e.cast("fpext", x, "double")
    exponent, f = _split(wide)
    s = f / (f + 2.0)
    y = e.fma(s, polynomial(s * s, LOG2_QUICK), e.cast("sitofp", exponent, "double"))
    y = e.select(e.compare("oeq", wide, 0.0), -inf, y)
    return e.select(e.compare("olt", wide, inf), y, wide)


def quick_exp2(x: Value) -> Value:
    """2**x of a double between -160 and 160 (or NaN), to 3e-9 of itself."""
    k, n = nearest(x, 1.0)
    return polynomial(x - k, EXP2_QUICK) * power_of_two(n, "double")


def _quick_power(x: Value, y: Value) -> Value:
    """x**y of floats, x >= 0, by way of double."""
    e = x.emitter
    product = at_least(at_most(e.cast("fpext", y, "double") * _quick_log2(x), 160.0), -160.0)
    return e.cast("fptrunc", quick_exp2(product), "float")


def _long_log(x: Value) -> tuple[Value, Value]:
    """log of a finite double > 0 as a sum, good to 2**-63 of itself.

    It is k ln2 + 2 s + s^3 (2/3 + ...) for s = f / (2 + f), where each term is a sum of two.
    """
    e, (ln2, ln2_low) = x.emitter, FORMATS["double"].ln2
    k, f = _split_any(x)
    divisor = f + 2.0
    s = f / divisor
    s_low = (e.fma(-s, divisor, f) - s * (f - (divisor - 2.0))) / divisor
    z, z_low = two_product(s, s)
    z_low = e.fma(s * 2.0, s_low, z_low)
    tail = polynomial(z, LOG_TAIL)
    rest, rest_low = two_product(z, tail)
    factor, factor_low = fast_two_sum(e.constant(2.0 / 3.0, "double"), rest)
    factor_low = factor_low + (e.fma(z_low, tail, rest_low) + TWO_THIRDS_LOW)
    cube, cube_low = two_product(s, z)
    cube_low = cube_low + e.fma(s, z_low, s_low * z)
    third, third_low = two_product(cube, factor)
    third_low = third_low + e.fma(cube, factor_low, cube_low * factor)
    twos, twos_low = two_product(k, e.constant(ln2, "double"))
    high, low = fast_two_sum(twos, s * 2.0)
    high, lower = fast_two_sum(high, third)
    return high, low + lower + (e.fma(k, ln2_low, twos_low) + e.fma(s_low, 2.0, third_low))


def _long_power(x: Value, y: Value) -> Value:
    """x**y of doubles, x >= 0: the exponential of a product that is a sum of two."""
    e = x.emitter
    log_high, log_low = _long_log(x)
    low, high = FORMATS["double"].exp_range
    product, rest = two_product(y, log_high)
    bounded = at_least(at_most(product, high), low)
    rest = e.select(e.compare("oeq", bounded, product), e.fma(y, log_low, rest), 0.0)
    r, k, n = reduce_exp(bounded)
    result = scale_by_power(expm1_small(r + rest) + 1.0, k, n)
    at_end = e.compare("oeq", x, 0.0) | e.compare("oeq", x, inf)
    falls = e.compare("oeq", x, 0.0) ^ e.compare("olt", y, 0.0)
    result = e.select(at_end, e.select(falls, e.constant(0.0, "double"), inf), result)
    return e.select(e.compare("uno", x, y), nan, result)


def power(x: Value, y: Value) -> Value:
    """x**y with C's special cases."""
    e = x.emitter
    magnitude = absolute(x)
    result = (_quick_power if x.type == "float" else _long_power)(magnitude, y)
    whole = e.compare("oeq", e.intrinsic("trunc", (y,)), y)
    half = y * 0.5
    odd = whole & e.compare("one", e.intrinsic("trunc", (half,)), half)
    negative = e.compare("slt", e.bits(x), 0)
    result = e.select(negative & odd, -result, result)
    undefined = e.compare("olt", x, 0.0) & e.compare("ogt", x, -inf) & ~whole
    result = e.select(undefined & e.compare("oeq", y, y), nan, result)
    endless = e.compare("oeq", absolute(y), inf)
    one = (
        e.compare("oeq", y, 0.0)
        | e.compare("oeq", x, 1.0)
        | (e.compare("oeq", magnitude, 1.0) & endless)
    )
    return e.select(one, 1.0, result)
