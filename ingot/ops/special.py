"""Bessel functions, computed in double, with shorter polynomials for what is stored in 32 bits or
less. `polygamma` has its row here as it takes the order first.

The polynomials are fits of the functions named beside them, good to a relative 1e-9 or better,
those for doubles to 2**-56.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ingot.graph.decompositions import HALVES
from ingot.graph.meta.families import contiguous_self
from ingot.loops import ops
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import LoopTensor, Spec
from ingot.ops.op import op
from ingot.torch_private import aten

apply = ops.apply

Function = Callable[[int], int]  # from a recorded double to one

# I0(x) and 2 I1(x) / x in (x / 2)^2 on |x| <= 8; sqrt(x) e^-x I0(x), and the same of I1, in 1 / x
# on x >= 8
I0_SMALL = (
    2.23255736222208e-22, 2.04207455570172e-20, 4.537694335120969e-18, 6.237106743862066e-16,
    7.59991030159938e-14, 7.593433999439913e-12, 6.151235175550393e-10, 3.9367572637369246e-08,
    1.929012447259465e-06, 6.944444417536013e-05, 0.0017361111115757838, 0.027777777777295013,
    0.25000000000026246, 0.9999999999999437,
    1.000000000000002,
)  # fmt: skip
I1_SMALL = (
    1.4410248078252634e-23, 1.5133826177465734e-21, 3.4621572996179035e-19, 5.206285813797676e-17,
    6.907257247137957e-15, 7.593677951032699e-13, 6.834681727991281e-11, 4.920948262918319e-09,
    2.755731984231898e-07, 1.1574074057697613e-05, 0.0003472222222504983, 0.00694444444441507,
    0.0833333333333493,
    0.49999999999999656, 1.0000000000000002,
)  # fmt: skip
I0_LARGE = (
    -522.5756547355124, 300.09020212204325, -63.483678269927175, 7.443977187611162,
    -0.37308256192896233, 0.062000068433749236, 0.02886299206751995, 0.028054270879825125,
    0.049867770922352526, 0.3989422804104039,
)  # fmt: skip
I1_LARGE = (
    536.3929189540918, -311.7568659987734, 66.13769722013424, -7.817768534883968,
    0.3752551596694886, -0.07563858099639995, -0.04053274363912258, -0.046754876615206276,
    -0.1496033402950983, 0.398942280392104,
)  # fmt: skip
# the same for doubles
I0_SMALL_WIDE = (
    3.6454386812677436e-27, 4.940670282542572e-25, 1.35095827969477e-22, 2.5698743857514957e-20,
    4.3600362269175774e-18, 6.275862820937522e-16, 7.594079950279469e-14, 7.594056846699174e-12,
    6.151187413177668e-10, 3.936759885673581e-08, 1.9290123457790406e-06, 6.944444444424399e-05,
    0.0017361111111113758, 0.027777777777777565, 0.2500000000000001, 1.0, 1.0,
)  # fmt: skip
I1_SMALL_WIDE = (
    2.0903513298308396e-28, 3.1590697545594773e-26, 8.963806609001204e-24, 1.837156865691237e-21,
    3.3535043207335216e-19, 5.22994881944532e-17, 6.903701192957936e-15, 7.594057567711265e-13,
    6.834652632309533e-11, 4.920949859540306e-09, 2.755731922452985e-07, 1.1574074074063174e-05,
    0.0003472222222222366, 0.006944444444444433, 0.08333333333333334, 0.5, 1.0,
)  # fmt: skip
I0_LARGE_WIDE = (
    -5.600643591189384e+18, 8.305822238247505e+18, -5.741051601541834e+18, 2.455800821052574e+18,
    -7.28113071478553e+17, 1.5884371689407466e+17, -2.642698484193498e+16, 3430474150302842.5,
    -352684459522730.44, 28995309493732.324, -1917066463932.758, 102176673569.71931,
    -4387504292.305902, 151252291.96833244, -4158078.529055365, 90234.60260369422,
    -1520.1922406015099, 20.269336815758873, 0.041867553052489785, 0.09186835338785593,
    0.044736440760098806, 0.029219421543987153, 0.02805062906637483, 0.04986778505019367,
    0.3989422804014327,
)  # fmt: skip
I1_LARGE_WIDE = (
    5.82176194070419e+18, -8.645989645738646e+18, 5.985262190246717e+18, -2.5644311395643663e+18,
    7.616431529148128e+17, -1.664668800226937e+17, 2.7749920723754812e+16, -3609740806140345.5,
    371934534752526.6, -30648893660896.82, 2031309776937.209, -108538151249.31473,
    4672744610.898563, -161511049.8588042, 4451918.858415646, -96867.10626189086,
    1635.9950951583075, -21.920601704189888, -0.0682130798642775, -0.11210814099335882,
    -0.0575194369046085, -0.04090718507851543, -0.04675104845804639, -0.14960335515055315,
    0.3989422804014327,
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


# -- Bessel functions ------------------------------------------------------------------------------


_NEAR_AND_FAR = {  # by the order, and whether doubles are stored
    (0, False): (I0_SMALL, I0_LARGE), (1, False): (I1_SMALL, I1_LARGE),
    (0, True): (I0_SMALL_WIDE, I0_LARGE_WIDE), (1, True): (I1_SMALL_WIDE, I1_LARGE_WIDE),
}  # fmt: skip


def _bessel(order: int, scaled: bool, wide: bool) -> Function:
    """I0 or I1, or either times e^-|x|."""
    near, far = _NEAR_AND_FAR[order, wide]

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
        if order == 0:
            return value
        return apply("where", apply("lt", x, _number(0)), apply("neg", value), value)

    return function


# -- the table -------------------------------------------------------------------------------------


def _lower_bessel(order: int, scaled: bool) -> Callable[..., LoopTensor]:
    def lower(lw: Lowering, out: Spec, x: LoopTensor) -> LoopTensor:
        """The function in double, rounded once."""
        if out.dtype is torch.float64:
            stored = out.dtype
        else:
            stored = torch.float32
        function = _bessel(order, scaled, wide=stored is torch.float64)

        def scalar(value: int) -> int:
            return ops.to(function(ops.to(value, torch.float64)), stored)

        return pointwise(lw, out, scalar, [x])

    return lower


def polygamma(lw: Lowering, out: Spec, order: int, x: LoopTensor) -> LoopTensor:
    if order != 0:  # near its poles eager's answer for the others is a matter of its own rounding
        raise NotLowered("a higher derivative of the gamma function")
    return pointwise(lw, out, lambda value: apply("digamma", value), [x])


# -- the gamma function of several dimensions ------------------------------------------------------


def mvlgamma(x: Tensor, p: int) -> Tensor:
    if x.dtype in HALVES or not x.is_floating_point():
        return NotImplemented
    shifted = x.unsqueeze(-1) + torch.arange(
        0.5 - 0.5 * p, 0.5, 0.5, dtype=x.dtype, device=x.device
    )
    return torch.sum(torch.lgamma(shifted), -1) + p * (p - 1) / 4 * math.log(math.pi)


def mvlgamma_refusal(x: Tensor, p: int) -> str:
    if p < 1:
        return "less than one dimension"
    return ""


OPS = (
    op(aten.i0.default, lower=_lower_bessel(0, scaled=False)),
    op(aten.special_i0e.default, lower=_lower_bessel(0, scaled=True)),
    op(aten.special_i1.default, lower=_lower_bessel(1, scaled=False)),
    op(aten.special_i1e.default, lower=_lower_bessel(1, scaled=True)),
    op(aten.polygamma.default, lower=polygamma),
    op(aten.mvlgamma.default, decompose=mvlgamma, meta=contiguous_self, refuses=mvlgamma_refusal),
)
