"""Arithmetic, rounding, extremes and powers, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.checks import overflows
from ingot.graph.decompositions import quotient, rounded_once, widened
from ingot.graph.meta.basis import by_look, fresh
from ingot.graph.meta.families import contiguous_self, pointwise_meta
from ingot.graph.meta.trials import dtype_of
from ingot.graph.schemas import Cost, divides
from ingot.loops import ops
from ingot.loops.expr import Expr
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import (
    Operand,
    Scalar,
    apply,
    constant,
    constant_like,
    elementwise,
    number_like,
    pointwise,
    simple,
)
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import LoopTensor, Spec, rounded_number
from ingot.ops.op import binary, op, unary
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

# -- as loops --------------------------------------------------------------------------------------


def _add(a: int, b: int, *, alpha: Any = 1) -> int:
    if alpha == 1:
        return apply("logical_or" if ops.dtype_of(a) is torch.bool else "add", a, b)
    scale = number_like(a, alpha)
    if ops.dtype_of(a) in ops.FLOATS:
        return apply("fma", b, scale, a)
    return apply("add", a, apply("mul", b, scale))


def _sub(a: int, b: int, *, alpha: Any = 1) -> int:
    if alpha == 1:
        return apply("sub", a, b)
    return _add(a, b, alpha=-alpha)


def _rsub(a: int, b: int, alpha: Any = 1) -> int:
    return _sub(b, a, alpha=alpha)


def _mul(a: int, b: int) -> int:
    return apply("logical_and" if ops.dtype_of(a) is torch.bool else "mul", a, b)


def _div_mode(a: int, b: int, *, rounding_mode: str | None = None) -> int:
    is_float = ops.dtype_of(a) in ops.FLOATS
    if rounding_mode is None:
        return apply("div", a, b)
    if rounding_mode == "trunc":
        if is_float:
            return apply("trunc", apply("div", a, b))
        return apply("truncdiv", a, b)
    return _floor_divide(a, b)


def _floor_divide(a: int, b: int) -> int:
    """Floor division of floats as eager does it: from the exact remainder, so that (a // b) * b + a
    % b is a."""
    if ops.dtype_of(a) in ops.INTS:
        return apply("floordiv", a, b)
    rest = apply("fmod", a, b)
    quotient = apply("div", apply("sub", a, rest), b)
    zero = constant_like(a, 0)
    uneven = apply(
        "logical_and",
        apply("ne", rest, zero),
        apply("ne", apply("lt", b, zero), apply("lt", rest, zero)),
    )
    quotient = apply("where", uneven, apply("sub", quotient, constant_like(a, 1)), quotient)
    floor = apply("floor", quotient)
    adjusted = apply(
        "where",
        apply("gt", apply("sub", quotient, floor), constant_like(a, 0.5)),
        apply("add", floor, constant_like(a, 1)),
        floor,
    )
    result = apply(
        "where", apply("ne", quotient, zero), adjusted, apply("mul", zero, apply("div", a, b))
    )
    return apply("where", apply("eq", b, zero), apply("div", a, b), result)


def clamped(x: int, low: Any = None, high: Any = None) -> int:
    """Bounds give way to NaN and to zeros of the other sign."""
    for bound, outside, extreme in ((low, "lt", "maximum"), (high, "gt", "minimum")):
        if bound is None:
            continue
        limit = number_like(x, bound)
        if ops.dtype_of(x) in ops.FLOATS and bound == bound:
            x = apply("where", apply(outside, x, limit), limit, x)
        else:
            x = apply(extreme, x, limit)
    return x


def _sign(x: int) -> int:
    if ops.dtype_of(x) is torch.bool:
        return x
    return apply("sign", x)


def _addcmul(x: int, a: int, b: int, *, value: float = 1) -> int:
    """x + value * a * b, the last two steps in one rounding, as in eager's kernels."""
    if value == 1:
        scaled = a
    else:
        scaled = apply("mul", number_like(x, value), a)
    if ops.dtype_of(x) in ops.FLOATS:
        return apply("fma", scaled, b, x)
    return apply("add", x, apply("mul", scaled, b))


def _addcdiv(x: int, a: int, b: int, *, value: float = 1) -> int:
    return apply(
        "add", x, apply("div", a if value == 1 else apply("mul", number_like(x, value), a), b)
    )


def _lerp(start: int, end: int, weight: int) -> int:
    gap = apply("sub", end, start)
    near = apply("fma", weight, gap, start)
    far = apply("sub", end, apply("mul", gap, apply("sub", constant_like(weight, 1), weight)))
    return apply("where", apply("lt", apply("abs", weight), constant_like(weight, 0.5)), near, far)


def _lerp_by(start: int, end: int, weight: float) -> int:
    """With a weight that is known, one of the two forms."""
    if isinstance(weight, Expr):
        raise NotLowered("a symbolic weight")
    gap = apply("sub", end, start)
    if abs(weight) < 0.5:
        return apply("fma", number_like(gap, weight), gap, start)
    return apply("sub", end, apply("mul", gap, number_like(gap, 1 - weight)))


def _pow_scalar(lw: Lowering, out: Spec, x: LoopTensor, exponent: Any) -> LoopTensor:
    """x ** exponent, with the exponents that eager treats apart; of float16 it does so with hardly
    any."""
    if isinstance(exponent, Expr):
        raise NotLowered("a symbolic exponent")
    if out.dtype in ops.INTS:
        if exponent < 0:
            raise NotLowered("a negative power of integers, which eager refuses")
        return pointwise(lw, out, lambda value: _whole_power(value, int(exponent)), [x])
    special = _POWERS.get(float(exponent))
    if out.dtype is torch.float16 and abs(exponent) == 0.5:
        special = None

    def scalar(value: int) -> int:
        if special is not None:
            return special(value)
        return apply("pow", value, constant_like(value, rounded_number(exponent, out.dtype)))

    return pointwise(lw, out, scalar, [x])


def _square(x: int) -> int:
    return apply("mul", x, x)


def _whole_power(x: int, exponent: int) -> int:
    """By squaring, from the exponent's last binary digit on."""
    result = constant_like(x, 1)
    while exponent:
        if exponent & 1:
            result = apply("mul", result, x)
        exponent >>= 1
        x = _square(x) if exponent else x
    return result


_POWERS: dict[float, Scalar] = {
    0.5: simple("sqrt"),
    2.0: _square,
    3.0: lambda x: apply("mul", _square(x), x),
    -0.5: lambda x: apply("div", constant_like(x, 1), apply("sqrt", x)),
    -1.0: simple("reciprocal"),
    -2.0: lambda x: apply("div", constant_like(x, 1), _square(x)),
    1.0: lambda x: x,
    0.0: lambda x: constant_like(x, 1),
}


def _rounding(name: str) -> Scalar:
    def scalar(x: int) -> int:
        if ops.dtype_of(x) in ops.FLOATS:
            return apply(name, x)
        return x

    return scalar


def _nan_to_num(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> LoopTensor:
    limits = None
    if out.dtype.is_floating_point:
        limits = torch.finfo(out.dtype)

    def scalar(value: int) -> int:
        if limits is None:
            return value
        if posinf is None:
            high = limits.max
        else:
            high = rounded_number(posinf, out.dtype)
        if neginf is None:
            low = limits.min
        else:
            low = rounded_number(neginf, out.dtype)
        default = constant_like(value, 0.0 if nan is None else rounded_number(nan, out.dtype))
        infinite = apply(
            "where",
            apply("gt", value, constant_like(value, 0)),
            constant_like(value, high),
            constant_like(value, low),
        )
        finite = apply("where", apply("isinf", value), infinite, value)
        return apply("where", apply("isnan", value), default, finite)

    return pointwise(lw, out, scalar, [x])


def _angle(x: int) -> int:
    turned = apply(
        "where", apply("lt", x, constant_like(x, 0)), constant_like(x, math.pi), constant_like(x, 0)
    )
    return apply("where", apply("isnan", x), x, turned)


def _number_wins(extreme: str) -> Scalar:
    """fmax and fmin: NaN gives way to a number."""

    def scalar(a: int, b: int) -> int:
        if ops.dtype_of(a) not in ops.FLOATS:
            return _extreme(extreme)(a, b)
        chosen = apply("where", apply("gt" if extreme == "maximum" else "lt", b, a), b, a)
        return apply("where", apply("isnan", a), b, chosen)

    return scalar


def _extreme(name: str) -> Scalar:
    """maximum and minimum, of truth values too."""

    def scalar(a: int, b: int) -> int:
        if ops.dtype_of(a) is torch.bool:
            return apply("logical_or" if name == "maximum" else "logical_and", a, b)
        return apply(name, a, b)

    return scalar


def _absolute(x: int) -> int:
    if ops.dtype_of(x) is torch.bool:
        return x
    return apply("abs", x)


def _frac(x: int) -> int:
    return apply("sub", x, apply("trunc", x))


def _heaviside(x: int, values: int) -> int:
    if ops.dtype_of(x) is torch.bool:
        return apply("where", x, x, values)
    step = apply(
        "where", apply("gt", x, constant_like(x, 0)), constant_like(x, 1), constant_like(x, 0)
    )
    return apply("where", apply("eq", x, constant_like(x, 0)), values, step)


def _hypot(a: int, b: int) -> int:
    """sqrt(a^2 + b^2): of floats in double, of doubles scaled so that no square overflows."""
    dtype = ops.dtype_of(a)
    infinite = apply("logical_or", apply("isinf", a), apply("isinf", b))
    if dtype is torch.float32:
        x, y = ops.to(a, torch.float64), ops.to(b, torch.float64)
        length = ops.to(apply("sqrt", apply("fma", x, x, apply("mul", y, y))), dtype)
    else:
        x, y = apply("abs", a), apply("abs", b)
        large, small = apply("maximum", x, y), apply("minimum", x, y)
        ratio = apply(
            "div",
            small,
            apply("where", apply("eq", large, constant_like(a, 0)), constant_like(a, 1), large),
        )
        length = apply("mul", large, apply("sqrt", apply("fma", ratio, ratio, constant_like(a, 1))))
    return apply("where", infinite, constant_like(a, math.inf), length)


def _round_decimals(lw: Lowering, out: Spec, x: LoopTensor, *, decimals: int = 0) -> LoopTensor:
    power = float(10 ** min(abs(decimals), 300))
    if decimals >= 0:
        there, back = ("mul", "div")
    else:
        there, back = ("div", "mul")

    def scalar(value: int) -> int:
        if decimals == 0:
            return apply("round", value)
        return apply(
            back,
            apply("round", apply(there, value, constant_like(value, power))),
            constant_like(value, power),
        )

    return pointwise(lw, out, scalar, [x])


def _next_after(lw: Lowering, out: Spec, x: LoopTensor, y: LoopTensor) -> LoopTensor:
    if out.dtype in ops.HALVES:
        scalar = _half_neighbour(torch.finfo(out.dtype))
    else:
        scalar = simple("nextafter")
    return pointwise(lw, out, scalar, [x, y])


def _half_neighbour(limits: torch.finfo) -> Scalar:
    """The half next to x towards y, as a float that rounds to it: between 1/2 and 3/2 of the last
    place from x."""

    def scalar(x: int, y: int) -> int:
        last = apply("mul", apply("abs", x), constant_like(x, 0.625 * limits.eps))
        last = apply("maximum", last, constant_like(x, 0.625 * limits.smallest_normal * limits.eps))
        up = apply("gt", y, x)
        near = apply("where", up, apply("add", x, last), apply("sub", x, last))
        near = apply(
            "where", apply("isinf", x), apply("copysign", constant_like(x, limits.max), x), near
        )
        near = apply("where", apply("eq", x, y), y, near)
        unknown = apply("logical_or", apply("isnan", x), apply("isnan", y))
        return apply("where", unknown, apply("add", x, y), near)

    return scalar


def _least_common_multiple(a: int, b: int) -> int:
    """In 32 bits at least, as in C."""
    dtype = ops.dtype_of(a)
    wide = dtype
    if dtype in (torch.int8, torch.int16, torch.uint8):
        wide = torch.int32
    divisor, zero = ops.to(apply("gcd", a, b), wide), constant(0, wide)
    none = apply("eq", divisor, zero)
    quotient = apply("truncdiv", ops.to(a, wide), apply("where", none, constant(1, wide), divisor))
    return ops.to(
        apply("where", none, zero, apply("abs", apply("mul", quotient, ops.to(b, wide)))), dtype
    )


def clamp_tensor(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    low: LoopTensor | None = None,
    high: LoopTensor | None = None,
) -> LoopTensor:
    bounds = [("maximum", low), ("minimum", high)]
    used = [(name, bound) for name, bound in bounds if bound is not None]

    def scalar(value: int, *limits: int) -> int:
        for (name, bound), limit in zip(used, limits):
            result = apply(name, value, limit)
            # as `clamped`, where a number stands for a float
            if not bound.sizes and ops.dtype_of(value) in ops.FLOATS:
                result = apply("where", apply("eq", value, limit), value, result)
            value = result
        return value

    operands: list[Operand] = [x, *(bound for _, bound in used)]
    return pointwise(lw, out, scalar, operands)


# -- as other ops ----------------------------------------------------------------------------------


def deg2rad(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    if is_scaled_exactly(x, exponent):
        return _scaled(x, exponent.long())
    if x.is_complex() or exponent.is_complex():
        return NotImplemented
    return x * torch.pow(2.0, exponent)


def _scaled(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent, rounded once: 2**exponent itself may be too large or too small for the
    dtype."""
    if x.dtype is not torch.float64:  # whose range squared is within that of float64
        return (x.double() * torch.exp2(exponent.clamp(-300, 300).double())).float().to(x.dtype)
    for _ in range(2):  # numbers stay normal up to the last step, which rounds
        step = torch.where(exponent < -1022, -969, exponent.clamp(-1022, 1023))
        x, exponent = x * torch.exp2(step.double()), exponent - step
    return x * torch.exp2(exponent.clamp(-1022, 1023).double())


# The exponents that eager's kernel treats apart: it rounds bfloat16 after each step.
_POWERS_AS_OPS: dict[float, Callable[[Tensor], Tensor]] = {
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    0.5: torch.sqrt,
    -0.5: torch.rsqrt,
    -1.0: torch.reciprocal,
    -2.0: lambda x: torch.reciprocal(x * x),
}


def power(x: Tensor, exponent: Any) -> Tensor:
    if isinstance(exponent, torch.SymInt):
        return torch.pow(x, int(exponent))
    special = _POWERS_AS_OPS.get(exponent)
    whole = not (x.is_floating_point() or x.is_complex())
    if (
        special is None
        or x.is_complex()
        or (whole and not (isinstance(exponent, int) and exponent > 0))
        or x.dtype == torch.bool
    ):
        return NotImplemented
    if x.dtype is torch.float16 and abs(exponent) == 0.5:
        return NotImplemented  # there eager calls pow, which differs for -0 and -inf
    if x.dtype is torch.bfloat16:
        return special(x)
    return rounded_once(special)(x)


def rsub(x: Tensor, other: Tensor, alpha: Any = 1) -> Tensor:
    return torch.sub(other, x, alpha=alpha)


def times_number(x: Tensor, number: Any) -> Tensor:
    """By one of the factors of torch's formulas that depend on symbolic sizes."""
    if not isinstance(number, torch.SymFloat):
        return NotImplemented
    value, (above, below) = widened(x), number.node.quotient()
    return (value * quotient(above, below, value.dtype)).to(x.dtype)


# -- what they look like, and what eager refuses ---------------------------------------------------


@by_look
def contiguous_exponent(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """A number to the power of a tensor."""
    return fresh(args[1].shape, dtype_of(op, args, kwargs))


def is_scaled_exactly(x: Tensor, exponent: Tensor) -> bool:
    """Whether eager's ldexp rounds once: else it is the product with a power of 2."""
    return _SCALES_EXACTLY and x.is_floating_point() and exponent.dtype in _INTEGERS


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


_SCALES_EXACTLY = math.isfinite(
    torch.ldexp(torch.zeros(1, device="cpu"), torch.full((1,), 2000, device="cpu")).item()
)
"""Since torch 2.12 or 2.13; 0 times infinity before."""


def power_of_two_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """ldexp: the product with a power of 2, which eager makes contiguous for an `x` of float32 and
    of whole numbers."""
    x, exponent = args
    if is_scaled_exactly(x, exponent):
        return pointwise_meta(op, args, kwargs)
    dtype, strides = exponent.dtype, None
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    if x.dtype is not torch.float32 and (x.is_floating_point() or x.is_complex()):
        strides = geometry.preserved(exponent)
    return pointwise_meta(aten.mul.Tensor, (x, fresh(exponent.shape, dtype, strides)), kwargs)


def angle_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return (contiguous_self if args[0].is_complex() else pointwise_meta)(op, args, kwargs)


def pow_refusal(exponent: Any, x: Any = None, **_: Any) -> str:
    """Of halves eager takes powers as of elements."""
    halves = isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    if halves and overflows(x.dtype, exponent):
        return "an exponent that the tensor's type cannot hold"
    return ""


OPS = (
    unary(aten.neg.default, cost=Cost.LIGHT),
    unary(aten.sqrt.default),
    unary(aten.rsqrt.default),
    unary(aten.reciprocal.default),
    unary(aten.abs.default, scalar=_absolute, cost=Cost.LIGHT),
    unary(aten.sign.default, aten.sgn.default, scalar=_sign),
    unary(aten.angle.default, scalar=_angle, meta=angle_meta),
    *(
        unary(packet.default, scalar=_rounding(packet.__name__))
        for packet in (aten.floor, aten.ceil, aten.round, aten.trunc)
    ),
    op(aten.round.decimals, lower=_round_decimals),
    unary(aten.frac.default, scalar=_frac),
    op(aten.nan_to_num.default, lower=_nan_to_num),
    op(aten.deg2rad.default, decompose=deg2rad),
    op(aten.rad2deg.default, decompose=rad2deg),
    binary(aten.add.Tensor, aten.add.Scalar, scalar=_add, dtype="summed", cost=Cost.LIGHT),
    binary(aten.sub.Tensor, aten.sub.Scalar, scalar=_sub, dtype="summed", cost=Cost.LIGHT),
    op(aten.rsub.Tensor, decompose=rsub, meta=pointwise_meta, last_operand_first=True),
    binary(aten.rsub.Scalar, scalar=_rsub, dtype="summed", meta=pointwise_meta),
    binary(aten.mul.Tensor, scalar=_mul, dtype="scaled", cost=Cost.LIGHT),
    binary(aten.mul.Scalar, scalar=_mul, dtype="scaled", decompose=times_number),
    binary(aten.div.Tensor, aten.div.Scalar, dtype="scaled", may_raise=divides, cost=Cost.LIGHT),
    binary(
        aten.div.Tensor_mode,
        aten.div.Scalar_mode,
        scalar=_div_mode,
        dtype="scaled",
        may_raise=divides,
    ),
    binary(
        aten.floor_divide.default,
        aten.floor_divide.Scalar,
        scalar=_floor_divide,
        dtype="scaled",
        meta=pointwise_meta,
        may_raise=divides,
    ),
    binary(aten.fmod.Tensor, aten.fmod.Scalar, may_raise=divides),
    binary(aten.remainder.Tensor, aten.remainder.Scalar, may_raise=divides),
    op(aten.remainder.Scalar_Tensor, may_raise=divides),
    binary(aten.pow.Tensor_Tensor),
    binary(aten.pow.Scalar, meta=contiguous_exponent),
    op(aten.pow.Tensor_Scalar, decompose=power, refuses=pow_refusal, lower=_pow_scalar),
    op(aten.ldexp.Tensor, decompose=ldexp, meta=power_of_two_meta),
    binary(aten.hypot.default, scalar=_hypot),
    binary(aten.atan2.default),
    binary(aten.copysign.Tensor, aten.copysign.Scalar),
    op(aten.nextafter.default, lower=_next_after),
    binary(aten.heaviside.default, scalar=_heaviside),
    binary(aten.gcd.default),
    binary(aten.lcm.default, scalar=_least_common_multiple),
    binary(aten.maximum.default, scalar=_extreme("maximum"), cost=Cost.LIGHT),
    binary(aten.minimum.default, scalar=_extreme("minimum"), cost=Cost.LIGHT),
    binary(aten.fmax.default, scalar=_number_wins("maximum")),
    binary(aten.fmin.default, scalar=_number_wins("minimum")),
    unary(aten.clamp.default, scalar=clamped, cost=Cost.LIGHT),
    op(aten.clamp.Tensor, lower=clamp_tensor),
    unary(aten.clamp_min.default, scalar=lambda x, low: clamped(x, low)),
    unary(aten.clamp_max.default, scalar=lambda x, high: clamped(x, None, high)),
    binary(aten.clamp_min.Tensor, scalar=_extreme("maximum")),
    binary(aten.clamp_max.Tensor, scalar=_extreme("minimum")),
    op(aten.addcmul.default, lower=elementwise(_addcmul, 3)),
    op(aten.addcdiv.default, lower=elementwise(_addcdiv, 3)),
    op(aten.lerp.Tensor, lower=elementwise(_lerp, 3, "scaled")),
    binary(aten.lerp.Scalar, scalar=_lerp_by),
)
