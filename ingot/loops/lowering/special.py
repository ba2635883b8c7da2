"""Special functions of one argument: computed in double for what is stored in 32 bits or less, called in ATen for
doubles, where they would need intermediate results in more than double precision.

The polynomials are fits of the functions named beside them, good to a relative 1e-9 or better unless noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ingot.loops import ops
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Spec, TensorValue

aten = torch.ops.aten
apply = ops.apply

Function = Callable[[int], int]  # from a recorded double to one

# I0(x) and 2 I1(x) / x in (x / 2)^2 on |x| <= 8; sqrt(x) e^-x I0(x), and the same of I1, in 1 / x on x >= 8
I0_SMALL = (
    2.23255736222208e-22, 2.04207455570172e-20, 4.537694335120969e-18, 6.237106743862066e-16, 7.59991030159938e-14,
    7.593433999439913e-12, 6.151235175550393e-10, 3.9367572637369246e-08, 1.929012447259465e-06,
    6.944444417536013e-05, 0.0017361111115757838, 0.027777777777295013, 0.25000000000026246, 0.9999999999999437,
    1.000000000000002,
)  # fmt: skip
I1_SMALL = (
    1.4410248078252634e-23, 1.5133826177465734e-21, 3.4621572996179035e-19, 5.206285813797676e-17,
    6.907257247137957e-15, 7.593677951032699e-13, 6.834681727991281e-11, 4.920948262918319e-09,
    2.755731984231898e-07, 1.1574074057697613e-05, 0.0003472222222504983, 0.00694444444441507, 0.0833333333333493,
    0.49999999999999656, 1.0000000000000002,
)  # fmt: skip
I0_LARGE = (
    -522.5756547355124, 300.09020212204325, -63.483678269927175, 7.443977187611162, -0.37308256192896233,
    0.062000068433749236, 0.02886299206751995, 0.028054270879825125, 0.049867770922352526, 0.3989422804104039,
)  # fmt: skip
I1_LARGE = (
    536.3929189540918, -311.7568659987734, 66.13769722013424, -7.817768534883968, 0.3752551596694886,
    -0.07563858099639995, -0.04053274363912258, -0.046754876615206276, -0.1496033402950983, 0.398942280392104,
)  # fmt: skip
# erfinv(x) / x in w = -log(1 - x^2) on w <= 5, and in sqrt(w) from there to 17: to 2e-7, for a step of Newton's method
ERFINV_MIDDLE = (
    2.2605977741170975e-08, -1.098948458299626e-07, -5.48766581695036e-06, 7.257810853178963e-05,
    -0.0001761591830400175, -0.0022867828511138845, 0.011525431199929647, 0.2320181828567194, 0.8862267858628946,
)  # fmt: skip
ERFINV_TAIL = (
    -9.046616354647206e-05, 0.0021707410402664238, -0.02157149507414614, 0.11123716824406547, -0.2890197645437606,
    0.17485653689929456, 0.9874246181843254, -1.5241719472411717, 1.7492716854421495,
)  # fmt: skip
# Of Stirling's series in 1 / x^2, highest first: B(2k) / (2k (2k - 1)) and B(2k) / 2k
LGAMMA_SERIES = (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
DIGAMMA_SERIES = (-691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
STIRLING_FROM = 8  # the series are used from here on


def _number(value: float) -> int:
    return ops.constant(value, torch.float64)


def _polynomial(x: int, coefficients: Sequence[float]) -> int:
    """Horner's scheme, the highest coefficient first."""
    total = _number(coefficients[0])
    for c in coefficients[1:]:
        total = apply("fma", total, x, _number(c))
    return total


def _times(x: int, number: float) -> int:
    return apply("mul", x, _number(number))


def _plus(x: int, number: float) -> int:
    return apply("add", x, _number(number))


def _square(x: int) -> int:
    return apply("mul", x, x)


def _from_one(x: int) -> int:
    return apply("sub", _number(1), x)


# -- Bessel functions --------------------------------------------------------------------------------------------------


def _bessel(order: int, scaled: bool) -> Function:
    """I0 or I1, or either times e^-|x|."""
    near, far = (I0_SMALL, I0_LARGE) if order == 0 else (I1_SMALL, I1_LARGE)

    def function(x: int) -> int:
        a = apply("abs", x)
        small = _polynomial(_square(_times(a, 0.5)), near)
        if order == 1:
            small = apply("mul", small, _times(a, 0.5))
        large = apply("div", _polynomial(apply("reciprocal", a), far), apply("sqrt", a))
        if scaled:
            small = apply("mul", small, apply("exp", apply("neg", a)))
        else:
            large = apply("mul", large, apply("exp", a))
        value = apply("where", apply("le", a, _number(8)), small, large)
        return value if order == 0 else apply("where", apply("lt", x, _number(0)), apply("neg", value), value)

    return function


# -- the gamma function and its derivative -----------------------------------------------------------------------------


def _raised(x: int, total: int, step: Callable[[int, int], int]) -> tuple[int, int]:
    """x + n, from which on a series of Stirling's holds, and `total` after `step(total, x + k)` for each k < n."""
    for _ in range(STIRLING_FROM):
        low = apply("lt", x, _number(STIRLING_FROM))
        total = apply("where", low, step(total, x), total)
        x = apply("where", low, _plus(x, 1), x)
    return x, total


def _sine_of_pi(x: int) -> tuple[int, int]:
    """sin(pi x) and cos(pi x) up to a sign that they share."""
    angle = _times(apply("sub", x, apply("round", x)), math.pi)
    return apply("sin", angle), apply("cos", angle)


def _is_pole(x: int) -> int:
    """Whether it is an integer and not positive."""
    return apply("logical_and", apply("le", x, _number(0)), apply("eq", x, apply("trunc", x)))


def _lgamma(x: int) -> int:
    negative = apply("lt", x, _number(0.5))
    raised, product = _raised(
        apply("where", negative, _from_one(x), x), _number(1), lambda total, k: apply("mul", total, k)
    )
    inverse = apply("reciprocal", raised)
    tail = apply("mul", _polynomial(_square(inverse), LGAMMA_SERIES), inverse)
    main = apply("mul", _plus(raised, -0.5), _plus(apply("log", raised), -1))
    stirling = apply("add", main, _plus(tail, 0.5 * math.log(2 * math.pi) - 0.5))
    value = apply("sub", stirling, apply("log", product))
    sine, _ = _sine_of_pi(x)
    mirrored = apply("sub", apply("log", apply("div", _number(math.pi), apply("abs", sine))), value)
    value = apply("where", negative, mirrored, value)
    endless = apply("logical_or", apply("isinf", x), _is_pole(x))
    value = apply("where", endless, _number(math.inf), value)
    root = apply("logical_or", apply("eq", x, _number(1)), apply("eq", x, _number(2)))
    return apply("where", root, _number(0), value)


def _digamma(x: int) -> int:
    negative = apply("lt", x, _number(0))
    raised, total = _raised(
        apply("where", negative, _from_one(x), x),
        _number(0),
        lambda total, k: apply("sub", total, apply("reciprocal", k)),
    )
    inverse = apply("reciprocal", raised)
    square = _square(inverse)
    tail = apply("fma", _polynomial(square, DIGAMMA_SERIES), square, _times(inverse, 0.5))
    value = apply("add", total, apply("sub", apply("log", raised), tail))
    sine, cosine = _sine_of_pi(x)
    mirrored = apply("sub", value, _times(apply("div", cosine, sine), math.pi))
    value = apply("where", negative, mirrored, value)
    value = apply("where", _is_pole(x), _number(math.nan), value)
    at_zero = apply("copysign", _number(math.inf), apply("neg", x))
    return apply("where", apply("eq", x, _number(0)), at_zero, value)


# -- the inverse error function ----------------------------------------------------------------------------------------


def _erfinv(x: int) -> int:
    """A first guess, and a step of Newton's method."""
    w = apply("neg", apply("log", apply("mul", _from_one(x), _plus(x, 1))))
    middle = _polynomial(w, ERFINV_MIDDLE)
    tail = _polynomial(apply("sqrt", w), ERFINV_TAIL)
    guess = apply("mul", x, apply("where", apply("lt", w, _number(5)), middle, tail))
    slope = _times(apply("exp", apply("neg", _square(guess))), 2 / math.sqrt(math.pi))
    value = apply("sub", guess, apply("div", apply("sub", apply("erf", guess), x), slope))
    value = apply("where", apply("eq", x, _number(0)), x, value)
    at_edge = apply("where", apply("gt", x, _number(0)), _number(math.inf), _number(-math.inf))
    return apply("where", apply("eq", apply("abs", x), _number(1)), at_edge, value)


# -- the table ---------------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[torch._ops.OpOverload, Function] = {
    aten.i0.default: _bessel(0, scaled=False),
    aten.special_i0e.default: _bessel(0, scaled=True),
    aten.special_i1.default: _bessel(1, scaled=False),
    aten.special_i1e.default: _bessel(1, scaled=True),
    aten.lgamma.default: _lgamma,
    aten.digamma.default: _digamma,
    aten.erfinv.default: _erfinv,
}


def in_double(lw: Lowering, out: Spec, x: TensorValue, function: Function) -> TensorValue:
    """`function` of values that are no doubles themselves, rounded once."""
    if out.dtype is torch.float64 or not out.dtype.is_floating_point:
        raise NotLowered("a special function of doubles")

    def scalar(value: int) -> int:
        return ops.to(function(ops.to(value, torch.float64)), torch.float32)

    return pointwise(lw, out, scalar, [x], [out.dtype])


def _register() -> None:
    for overload, function in _FUNCTIONS.items():

        def rule(lw: Lowering, out: Spec, x: TensorValue, _function: Function = function) -> TensorValue:
            return in_double(lw, out, x, _function)

        lowers(overload)(rule)


_register()


@lowers(aten.polygamma.default)
def polygamma(lw: Lowering, out: Spec, order: int, x: TensorValue) -> TensorValue:
    if order != 0:  # near its poles eager's answer for the others is a matter of its own rounding
        raise NotLowered("a higher derivative of the gamma function")
    return in_double(lw, out, x, _digamma)
