"""Functions of each element that are scalar ops of loop IR, or a few of these."""

from __future__ import annotations

import math

from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import (
    Scalar,
    apply,
    constant_like,
    pointwise,
)
from ingot.loops.lowering.values import LoopTensor, Spec, compute_dtype, rounded, rounded_number
from ingot.ops.op import binary, op, unary
from ingot.torch_private import aten

_UNARY = (
    aten.exp, aten.exp2, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p, aten.sin,
    aten.cos, aten.tan, aten.asin, aten.acos, aten.atan, aten.sinh, aten.cosh, aten.tanh,
    aten.asinh, aten.acosh, aten.atanh, aten.erf, aten.erfc, aten.erfinv, aten.lgamma,
    aten.digamma, aten.sigmoid,
)  # fmt: skip


def _logit(lw: Lowering, out: Spec, x: LoopTensor, eps: float | None = None) -> LoopTensor:
    """log(x / (1 - x)); where eager does so, every step is rounded, and so are the bounds."""
    step_dtype = compute_dtype(out.dtype)
    if lw.target.rounds_in_steps:
        step_dtype = out.dtype
    bounds = None
    if eps is not None:
        low = rounded_number(eps, step_dtype)
        bounds = low, rounded_number(1 - low, step_dtype)

    def scalar(value: int) -> int:
        # With eps > 0.5 the bounds cross: the lower one is tested last and wins, as in eager. A
        # NaN is beyond neither.
        if bounds is not None:
            least, most = constant_like(value, bounds[0]), constant_like(value, bounds[1])
            bounded = apply("where", apply("gt", value, most), most, value)
            value = apply("where", apply("lt", value, least), least, bounded)
        rest = rounded(apply("sub", constant_like(value, 1), value), step_dtype)
        return apply("log", rounded(apply("div", value, rest), step_dtype))

    return pointwise(lw, out, scalar, [x])


def _times_log(logarithm: str) -> Scalar:
    """x * log(y), and 0 where x is 0, unless y is NaN."""

    def scalar(x: int, y: int) -> int:
        zero = constant_like(x, 0)
        value = apply("where", apply("eq", x, zero), zero, apply("mul", x, apply(logarithm, y)))
        return apply("where", apply("isnan", y), y, value)

    return scalar


def _log_add_exp(power: str, scale: float | None) -> Scalar:
    """log(e^a + e^b), or the same to the base 2."""

    def scalar(a: int, b: int) -> int:
        tail = apply("log1p", apply(power, apply("neg", apply("abs", apply("sub", a, b)))))
        most = apply("maximum", a, b)
        if scale is None:
            total = apply("add", most, tail)
        else:
            total = apply("fma", tail, constant_like(tail, scale), most)
        both = apply("logical_and", apply("isinf", a), apply("eq", a, b))
        return apply("where", both, a, total)

    return scalar


def _sinc(x: int) -> int:
    angle = apply("mul", x, constant_like(x, math.pi))
    return apply(
        "where",
        apply("eq", x, constant_like(x, 0)),
        constant_like(x, 1),
        apply("div", apply("sin", angle), angle),
    )


def _entropy(x: int) -> int:
    zero = constant_like(x, 0)
    value = apply("mul", apply("neg", x), apply("log", x))
    rest = apply("where", apply("eq", x, zero), zero, constant_like(x, -math.inf))
    return apply("where", apply("logical_or", apply("gt", x, zero), apply("isnan", x)), value, rest)


OPS = (
    *(unary(packet.default) for packet in _UNARY),
    unary(aten.sinc.default, scalar=_sinc),
    op(aten.logit.default, lower=_logit),
    unary(aten.special_entr.default, scalar=_entropy),
    binary(aten.logaddexp.default, scalar=_log_add_exp("exp", None)),
    binary(aten.logaddexp2.default, scalar=_log_add_exp("exp2", 1 / math.log(2))),
    binary(
        aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self, scalar=_times_log("log")
    ),
    binary(
        aten.special_xlog1py.default,
        aten.special_xlog1py.other_scalar,
        aten.special_xlog1py.self_scalar,
        scalar=_times_log("log1p"),
    ),
)
