"""Sines, tangents and their inverses."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import NamedTuple

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math.arithmetic import (
    FORMATS,
    absolute,
    at_least,
    at_most,
    copysign,
    fast_two_sum,
    nearest,
    polynomial,
    square_root,
)
from ingot.codegen.llvm.math.coefficients import (
    ASIN,
    ATAN,
    ATAN_FLOAT,
    COS,
    PI_2,
    PI_2_LOW,
    PI_2_TERMS,
    PI_4_FLOAT,
    QUARTER_TURN,
    SIN,
    TAN_FLOAT,
    TWO_OVER_PI,
)
from ingot.codegen.llvm.types import BITS, mangled, vector_type

REDUCED = {"float": 2.0**22, "double": 2.0**20}  # up to here `_reduce_angle` is exact enough


NEAREST = 2.0**18  # up to here a float's quadrant is the nearest one, but for a hundredth


class _Angle(NamedTuple):
    """The remainder by pi/2, as a sum, and the number of the quadrant.

    The latter is the two low bits of an integer of the float's size.
    """

    high: Value
    low: Value
    quadrant: Value


def _reduce_angle(x: Value) -> _Angle:
    e = x.emitter
    k, n = nearest(x, TWO_OVER_PI)
    if x.type == "double":
        rest = e.fma(-k, PI_2, x)  # exact
        high = e.fma(-k, PI_2_LOW, rest)
        return _Angle(high, e.fma(-k, PI_2_LOW, rest - high), n)
    first, second, third = PI_2_TERMS
    rest = e.fma(-k, first, x)  # exact
    product = k * second
    high = rest - product
    low = e.fma(-k, third, ((rest - high) - product) - e.fma(k, second, -product))
    return _Angle(high, low, n)


def _sine(angle: _Angle) -> Value:
    e, r, z = angle.high.emitter, angle.high, angle.high * angle.high
    return r + e.fma(z * r, polynomial(z, SIN[r.type]), angle.low)


def _cosine(angle: _Angle) -> Value:
    """1 - z/2, plus its rounding error and the polynomial."""
    e, r, z = angle.high.emitter, angle.high, angle.high * angle.high
    high = e.fma(z, -0.5, 1.0)
    left = e.fma(-r, angle.low, e.fma(z, -0.5, 1.0 - high))
    return high + e.fma(z * z, polynomial(z, COS[r.type]), left)


def _circular(name: str, quadrants: int) -> Callable[[Value], Value]:
    """sin, or cos as sin shifted by one quadrant."""

    def function(x: Value) -> Value:
        e = x.emitter
        integer = FORMATS[x.type].integer
        angle = _reduce_angle(x)
        n = angle.quadrant + quadrants
        y = e.select(e.compare("ne", n & 1, 0), _cosine(angle), _sine(angle))
        sign = (n & 2) << (BITS[x.type] - 2)
        y = e.cast("bitcast", e.cast("bitcast", y, integer) ^ sign, x.type)
        if name == "sin":
            y = _keep_zero(x, y)
        return _unless_huge(name, x, y)

    return function


def _unless_huge(name: str, x: Value, y: Value, limit: float | None = None) -> Value:
    """`y`, or the C library's function where x is too large for the reduction, infinite or NaN.

    It is called for each lane, by one LLVM function for all bodies.
    """
    e = x.emitter
    rare = e.compare("uge", absolute(x), limit or REDUCED[x.type])
    type = vector_type(x.type, y.lanes)
    suffix = f"{name}.{mangled(x.type, y.lanes)}"
    e.declare(type, f"llvm.{suffix}", type)
    e.declarations.add(
        f"define internal {type} @huge.{suffix}({type} %x) noinline cold nounwind {{\n"
        f"  %y = call {type} @llvm.{suffix}({type} %x)\n  ret {type} %y\n}}"
    )
    return e.unless_rare(rare, y, f"call {type} @huge.{suffix}({type} {e.argument(x, y.lanes)})")


def _keep_zero(x: Value, y: Value) -> Value:
    """`y`, or `x` where it is a zero: adding a term of the opposite sign to -0 gives +0."""
    return x.emitter.select(x.emitter.compare("oeq", x, 0.0), x, y)


sin = _circular("sin", 0)


cos = _circular("cos", 1)


def tan(x: Value) -> Value:
    e = x.emitter
    angle = _reduce_angle(x)
    odd = e.compare("ne", angle.quadrant & 1, 0)
    if x.type == "float":
        t, rest = _tangent(angle)
        y = e.select(odd, _negative_inverse(t, rest), t + rest)
        return _unless_huge("tan", x, _keep_zero(x, y), NEAREST)
    s, c = _sine(angle), _cosine(angle)
    return _unless_huge("tan", x, _keep_zero(x, e.select(odd, -c, s) / e.select(odd, s, c)))


def _tangent(angle: _Angle) -> tuple[Value, Value]:
    """The tangent of a reduced angle, a float, as a sum."""
    e, r, z = angle.high.emitter, angle.high, angle.high * angle.high
    cube, p = z * r, polynomial(z, TAN_FLOAT)
    t = e.fma(cube, p, r)
    rest = e.fma(cube, p, e.fma(t * t, angle.low, angle.low))  # the derivative is 1 + tan^2
    return fast_two_sum(r, rest)


def _negative_inverse(t: Value, rest: Value) -> Value:
    """-1 / (t + rest), rounded nearly once."""
    e = t.emitter
    y = -1.0 / t
    return e.fma(y, e.fma(y, rest, e.fma(y, t, 1.0)), y)


def asin(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    large = e.compare("ogt", a, 0.5)
    z = e.select(large, (1.0 - a) * 0.5, a * a)
    root = square_root(z)
    s = e.select(large, root, a)
    rest = s * z * polynomial(z, ASIN[x.type])
    if x.type == "double":  # the rounding error of the root, which counts twice
        rest = rest + e.select(large, e.fma(-root, root, z) / at_least(root * 2.0, 1e-9), 0.0)
    high, low = QUARTER_TURN[x.type]
    far, error = fast_two_sum(e.constant(high, x.type), s * -2.0)
    near, correction = e.select(large, far, s), e.fma(rest, -2.0, error + low)
    return copysign(near + e.select(large, correction, rest), x)


def acos(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    large = e.compare("ogt", a, 0.5)
    z = e.select(large, (1.0 - a) * 0.5, a * a)
    s = e.select(large, square_root(z), x)
    p = e.fma(s * z, polynomial(z, ASIN[x.type]), s)
    twice = p * 2.0
    high, low = QUARTER_TURN[x.type]
    far = e.select(e.compare("olt", x, 0.0), 2.0 * high - (twice - 2.0 * low), twice)
    return e.select(large, far, high - (p - low))


def atan(x: Value) -> Value:
    """atan(t) added to 0, pi/4 or pi/2, with t = a, (a-1)/(a+1) or -1/a."""
    e, a = x.emitter, absolute(x)
    if x.type == "float":
        steep, one = e.compare("ogt", a, 1.0), e.constant(1.0, "float")
        angle = _first_octant(e.select(steep, one, a), e.select(steep, a, one))
        quarter, correction = QUARTER_TURN["float"]
        return copysign(e.select(steep, quarter - (angle - correction), angle), x)
    middle, large = e.compare("ogt", a, 0.4142135623730950), e.compare("ogt", a, 2.414213562373095)
    over = e.select(large, e.constant(-1.0, x.type), e.select(middle, a - 1.0, a))
    under = e.select(large, a, e.select(middle, a + 1.0, e.constant(1.0, x.type)))
    t = over / under
    z = t * t

    def turned(quarter: float) -> Value:
        """A quarter turn where `large`, half of one in the `middle`."""
        eighth = e.select(middle, e.constant(quarter / 2, "double"), 0.0)
        return e.select(large, e.constant(quarter, "double"), eighth)

    high, low = turned(PI_2), turned(PI_2_LOW)
    return copysign(high + (t + e.fma(t * z, polynomial(z, ATAN), low)), x)


def atan2(y: Value, x: Value) -> Value:
    e = x.emitter
    a, b = absolute(y), absolute(x)
    steep = e.compare("ogt", a, b)
    small, large = e.select(steep, b, a), e.select(steep, a, b)
    if x.type == "float":
        angle = _place_angle(_first_octant(small, large), steep, e.compare("slt", e.bits(x), 0))
        return e.select(e.compare("uno", x, y), nan, copysign(angle, y))
    equal = e.compare("oeq", a, b)
    angle = atan(e.select(equal, e.select(e.compare("oeq", a, 0.0), a, 1.0), small / large))
    angle = e.select(steep, PI_2 - (angle - PI_2_LOW), angle)
    angle = e.select(e.compare("slt", e.bits(x), 0), 2.0 * PI_2 - (angle - 2.0 * PI_2_LOW), angle)
    return e.select(e.compare("uno", x, y), nan, copysign(angle, y))


def _first_octant(small: Value, large: Value) -> Value:
    """atan(small / large) of floats with 0 <= small <= large: atan(t) added to 0 or pi/4.

    It takes one division, whose dividend is exact.
    """
    e = small.emitter
    # so that small + large does not overflow
    scale = e.select(e.compare("ogt", large, 2.0**126), e.constant(0.25, "float"), 1.0)
    equal = e.compare("oeq", small, large)
    small, large = small * scale, large * scale
    upper = e.compare("ogt", small, at_most(large * 0.5, 1e38))  # infinity is above, too
    over, under = e.select(upper, small - large, small), e.select(upper, small + large, large)
    t = e.select(equal, 0.0, over / under)
    z = t * t
    high, low = (e.select(upper, e.constant(term, "float"), 0.0) for term in PI_4_FLOAT)
    angle, rest = fast_two_sum(high, t)
    return angle + (rest + e.fma(t * z, polynomial(z, ATAN_FLOAT), low))


def _place_angle(angle: Value, steep: Value, left: Value) -> Value:
    """An angle of the first octant in its place among the first four."""
    e, (high, low) = angle.emitter, PI_4_FLOAT
    two, four = e.constant(2.0, "float"), e.constant(4.0, "float")
    quarters = e.select(steep, two, e.select(left, four, 0.0))
    angle = e.select(steep ^ left, -angle, angle)
    return e.fma(quarters, high, e.fma(quarters, low, angle))
