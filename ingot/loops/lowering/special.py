"""Bessel functions: computed in double for what is stored in 32 bits or less, called in ATen for doubles, where they
would need intermediate results in more than double precision. `polygamma` has its row here as it takes the order first.

The polynomials are fits of the functions named beside them, good to a relative 1e-9 or better unless noted.
"""

from __future__ import annotations

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


def _square(x: int) -> int:
    return apply("mul", x, x)


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


# -- the table ---------------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[torch._ops.OpOverload, Function] = {
    aten.i0.default: _bessel(0, scaled=False),
    aten.special_i0e.default: _bessel(0, scaled=True),
    aten.special_i1.default: _bessel(1, scaled=False),
    aten.special_i1e.default: _bessel(1, scaled=True),
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
    return pointwise(lw, out, lambda value: apply("digamma", value), [x], [out.dtype])
