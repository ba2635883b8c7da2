"""The error function, its complement, and GELU."""

from __future__ import annotations

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math.arithmetic import FORMATS, absolute, at_most, copysign, polynomial
from ingot.codegen.llvm.math.coefficients import (
    ERF_FLOAT,
    ERF_SMALL,
    ERFC_QUICK,
    ERFC_SCALED,
    EXP2_SHORT,
    LOG2_E,
    LOG2_TAIL,
    LOG_ERFC,
)
from ingot.codegen.llvm.math.exponential import exp, quick_exp, quick_exp2, scaled_bits


def _erfc_large(a: Value) -> Value:
    """erfc(a) for a >= 0.47, as exp(-a^2) times a smooth function."""
    e = a.emitter
    a = at_most(a, 27.5)
    square = a * a
    rounding_error = e.fma(a, a, -square)
    power = exp(-square)
    power = e.fma(power, -rounding_error, power)
    return power * polynomial((a - 4.0) / (a + 4.0), ERFC_SCALED) / (a * 2.0 + 1.0)


def erf(x: Value) -> Value:
    e = x.emitter
    a = absolute(x)
    if x.type == "float":
        a = at_most(a, 3.95)
        far = 1.0 - quick_exp(polynomial(a, LOG_ERFC), 1.0)
        near = e.compare("ult", a, 0.845)
        return e.select(near, e.fma(x, polynomial(a * a, ERF_FLOAT), x), copysign(far, x))
    small = e.fma(x, polynomial(x * x, ERF_SMALL), x)
    return e.select(e.compare("olt", a, 1.0), small, copysign(1.0 - _erfc_large(a), x))


def erfc(x: Value) -> Value:
    """erfc of floats: exp(-a^2) times a smooth function, or 2 minus that.

    It is computed in double, where plain formulas are exact enough.
    """
    e = x.emitter
    a = at_most(absolute(x), 10.2)
    wide = e.cast("fpext", a, "double")
    under = e.fma(wide, 0.4, 1.0)
    quotient = e.cast("fpext", 1.0 / e.cast("fptrunc", under, "float"), "double")
    u = e.fma(quotient, e.fma(-quotient, under, 1.0), quotient)
    y = quick_exp2(wide * wide * -LOG2_E) * (u * polynomial(u, ERFC_QUICK))
    y = e.select(e.compare("slt", e.bits(x), 0), 2.0 - y, y)
    return e.cast("fptrunc", e.select(e.compare("ogt", x, 10.06), 0.0, y), "float")


def gelu(x: Value) -> Value:
    """x times the normal distribution function, for floats.

    2**p is the tail beyond |x|, and 1 minus that the other side. In L2 the error is that of
    eager's formula with erf, and less where x is negative.
    """
    e, a, form = x.emitter, absolute(x), FORMATS["float"]
    p = polynomial(a, LOG2_TAIL)
    shifted = p + form.shifter
    power = scaled_bits(polynomial(p - (shifted - form.shifter), EXP2_SHORT), shifted)
    tail = e.select(e.compare("olt", a, 5.5), e.cast("bitcast", power, "float"), 0.0)
    return x * e.select(e.compare("olt", x, 0.0), tail, 1.0 - tail)
