"""Pointwise ops: one row each in `TABLE`, and what they share (broadcasting, type promotion,
rounding)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ingot.loops import ops
from ingot.loops.expr import Expr
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import (
    Index,
    Spec,
    TensorValue,
    broadcast_index,
    compute_dtype,
    rounded,
    rounded_number,
)
from ingot.torch_private import aten

apply, constant = ops.apply, ops.constant

Number = bool | int | float | Expr
Operand = TensorValue | Number
Scalar = Callable[..., int]  # from recorded values to a recorded value


# -- promotion -------------------------------------------------------------------------------------

_DTYPE_OF_NUMBER = {bool: torch.bool, int: torch.int64, float: torch.float64, Expr: torch.int64}


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        raise NotLowered("complex numbers")
    return 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def promoted(operands: Sequence[Operand]) -> torch.dtype:
    """The dtype in which eager computes: tensors with dimensions outrank 0-dim tensors, which
    outrank Python numbers, unless a lower rank has the higher category (bool < int < float)."""
    result: torch.dtype | None = None
    ranks: list[list[torch.dtype]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, TensorValue):
            ranks[0 if operand.sizes else 1].append(operand.dtype)
        else:
            kind = Expr if isinstance(operand, Expr) else type(operand)
            number = _DTYPE_OF_NUMBER.get(kind)
            if number is None:
                raise NotLowered("complex numbers")
            ranks[2].append(torch.get_default_dtype() if number is torch.float64 else number)
    for rank in ranks:
        if not rank:
            continue
        dtype = functools.reduce(torch.promote_types, rank)
        if result is None or _category(dtype) > _category(result):
            result = dtype
    if result is None:
        raise NotLowered("no operands")
    return result


# -- the shared machinery --------------------------------------------------------------------------


def read(operand: Operand, index: Index, dtype: torch.dtype) -> int:
    """The operand's value at `index` of the broadcast result, as eager would convert it to `dtype`,
    to be computed with."""
    if isinstance(operand, TensorValue):
        value = operand.load(broadcast_index(index, operand.sizes))
        return value if operand.dtype is dtype else rounded(value, dtype)
    if isinstance(operand, Expr):
        return rounded(ops.index(operand, compute_dtype(dtype)), dtype)
    return constant(rounded_number(operand, dtype), compute_dtype(dtype))


def pointwise(
    lw: Lowering,
    out: Spec,
    scalar: Scalar,
    operands: Sequence[Operand],
    dtypes: Sequence[torch.dtype],
) -> TensorValue:
    """The lazy tensor `scalar(*operands)`, operand k computed with as `dtypes[k]`, the result
    rounded to `out.dtype`.

    Raises NotLowered where the code generator lacks an op.
    """
    cost, heavy = measure(lw, scalar, tuple(compute_dtype(d) for d in dtypes))
    tensors = [operand for operand in operands if isinstance(operand, TensorValue)]
    for tensor in tensors:
        if tensor.sizes != out.sizes:
            lw.share(tensor)  # it is broadcast: computed once per copy otherwise

    def compute(index: Index) -> int:
        values = [read(operand, index, dtype) for operand, dtype in zip(operands, dtypes)]
        return rounded(scalar(*values), out.dtype)

    return lw.computed(out, compute, tensors, cost, heavy)


def measure(lw: Lowering, scalar: Scalar, dtypes: tuple[torch.dtype, ...]) -> tuple[int, bool]:
    """(number of ops, whether one is heavy) of `scalar`, found by recording it once. Raises
    NotLowered for a missing op."""
    with ops.recording() as recorder:
        scalar(*[recorder.emit("load", (), dtype, (f"?{k}",)) for k, dtype in enumerate(dtypes)])
        cost, heavy = 0, False
        for instruction in recorder.instructions:
            if instruction.op in ops.STRUCTURAL:
                continue
            dtype = recorder.instructions[instruction.args[-1]].dtype
            if not ops.supported(instruction.op, dtype) or not lw.supported(instruction.op, dtype):
                raise NotLowered(f"{instruction.op} of {dtype}")
            cost += 1
            heavy = heavy or instruction.op not in ops.CHEAP
    return cost, heavy


def filled(lw: Lowering, out: Spec, number: Any) -> TensorValue:
    dtype = compute_dtype(out.dtype)

    def compute(index: Index) -> int:
        value = ops.index(number, dtype) if isinstance(number, Expr) else constant(number, dtype)
        return rounded(value, out.dtype)

    return lw.computed(out, compute, [], cost=0)


# -- the table -------------------------------------------------------------------------------------


class Row(NamedTuple):
    """How to lower an op. `operands` is how many leading arguments are operands; what follows goes
    to `scalar` by keyword or position as it is. `dtype` says in which dtype to compute: "result"
    (the result's), "compare" (the promoted one), "own" (each operand's), "scaled" (the result's,
    but a last operand that is a number or a 0-dim tensor is not rounded to a half), "summed" (the
    result's, and so is alpha)."""

    scalar: Scalar
    operands: int
    dtype: str


def _simple(name: str) -> Scalar:
    def scalar(*values: int) -> int:
        return apply(name, *values)

    return scalar


def _like(value: int, number: bool | int | float) -> int:
    return constant(number, ops.dtype_of(value))


def _add(a: int, b: int, *, alpha: Any = 1) -> int:
    if alpha == 1:
        return apply("logical_or" if ops.dtype_of(a) is torch.bool else "add", a, b)
    scale = _number(a, alpha)
    if ops.dtype_of(a) in ops.FLOATS:
        return apply("fma", b, scale, a)
    return apply("add", a, apply("mul", b, scale))


def _number(like: int, number: bool | int | float | Expr) -> int:
    return (
        ops.index(number, ops.dtype_of(like)) if isinstance(number, Expr) else _like(like, number)
    )


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
        return apply("trunc", apply("div", a, b)) if is_float else apply("truncdiv", a, b)
    return _floor_divide(a, b)


def _floor_divide(a: int, b: int) -> int:
    """Floor division of floats as eager does it: from the exact remainder, so that (a // b) * b + a
    % b is a."""
    if ops.dtype_of(a) in ops.INTS:
        return apply("floordiv", a, b)
    rest = apply("fmod", a, b)
    quotient = apply("div", apply("sub", a, rest), b)
    zero = _like(a, 0)
    uneven = apply(
        "logical_and",
        apply("ne", rest, zero),
        apply("ne", apply("lt", b, zero), apply("lt", rest, zero)),
    )
    quotient = apply("where", uneven, apply("sub", quotient, _like(a, 1)), quotient)
    floor = apply("floor", quotient)
    adjusted = apply(
        "where",
        apply("gt", apply("sub", quotient, floor), _like(a, 0.5)),
        apply("add", floor, _like(a, 1)),
        floor,
    )
    result = apply(
        "where", apply("ne", quotient, zero), adjusted, apply("mul", zero, apply("div", a, b))
    )
    return apply("where", apply("eq", b, zero), apply("div", a, b), result)


def _relu(x: int) -> int:
    return _clamp(x, 0)


def _gelu(x: int, *, approximate: str = "none") -> int:
    if approximate == "none" and ops.supported("gelu", ops.dtype_of(x)):
        return apply("gelu", x)
    half = apply("mul", x, _like(x, 0.5))
    if approximate == "none":
        inner = apply("erf", apply("mul", x, _like(x, math.sqrt(0.5))))
    else:
        cube = apply("mul", apply("mul", x, x), x)
        # as in `decompositions_backward.gelu`, to be computed once
        inner = apply("fma", cube, _like(x, 0.044715), x)
        inner = apply("tanh", apply("mul", inner, _like(x, math.sqrt(2 / math.pi))))
    return apply("mul", half, apply("add", inner, _like(x, 1)))


def _clamp(x: int, low: Any = None, high: Any = None) -> int:
    """Bounds give way to NaN and to zeros of the other sign."""
    for bound, outside, extreme in ((low, "lt", "maximum"), (high, "gt", "minimum")):
        if bound is None:
            continue
        limit = _number(x, bound)
        if ops.dtype_of(x) in ops.FLOATS and bound == bound:
            x = apply("where", apply(outside, x, limit), limit, x)
        else:
            x = apply(extreme, x, limit)
    return x


def _sign(x: int) -> int:
    return x if ops.dtype_of(x) is torch.bool else apply("sign", x)


def _addcmul(x: int, a: int, b: int, *, value: float = 1) -> int:
    """x + value * a * b, the last two steps in one rounding, as in eager's kernels."""
    scaled = a if value == 1 else apply("mul", _number(x, value), a)
    if ops.dtype_of(x) in ops.FLOATS:
        return apply("fma", scaled, b, x)
    return apply("add", x, apply("mul", scaled, b))


def _addcdiv(x: int, a: int, b: int, *, value: float = 1) -> int:
    return apply("add", x, apply("div", a if value == 1 else apply("mul", _number(x, value), a), b))


def _lerp(start: int, end: int, weight: int) -> int:
    gap = apply("sub", end, start)
    near = apply("fma", weight, gap, start)
    far = apply("sub", end, apply("mul", gap, apply("sub", _like(weight, 1), weight)))
    return apply("where", apply("lt", apply("abs", weight), _like(weight, 0.5)), near, far)


def _lerp_by(start: int, end: int, weight: float) -> int:
    """With a weight that is known, one of the two forms."""
    if isinstance(weight, Expr):
        raise NotLowered("a symbolic weight")
    gap = apply("sub", end, start)
    if abs(weight) < 0.5:
        return apply("fma", _number(gap, weight), gap, start)
    return apply("sub", end, apply("mul", gap, _number(gap, 1 - weight)))


@lowers(aten.pow.Tensor_Scalar)
def _pow_scalar(lw: Lowering, out: Spec, x: TensorValue, exponent: Any) -> TensorValue:
    """x ** exponent, with the exponents that eager treats apart; of float16 it does so with hardly
    any."""
    if isinstance(exponent, Expr):
        raise NotLowered("a symbolic exponent")
    if out.dtype in ops.INTS:
        if exponent < 0:
            raise NotLowered("a negative power of integers, which eager refuses")
        return pointwise(
            lw, out, lambda value: _whole_power(value, int(exponent)), [x], [out.dtype]
        )
    special = _POWERS.get(float(exponent))
    if out.dtype is torch.float16 and abs(exponent) == 0.5:
        special = None

    def scalar(value: int) -> int:
        if special is not None:
            return special(value)
        return apply("pow", value, _like(value, rounded_number(exponent, out.dtype)))

    return pointwise(lw, out, scalar, [x], [out.dtype])


def _square(x: int) -> int:
    return apply("mul", x, x)


def _whole_power(x: int, exponent: int) -> int:
    """By squaring, from the exponent's last binary digit on."""
    result = _like(x, 1)
    while exponent:
        if exponent & 1:
            result = apply("mul", result, x)
        exponent >>= 1
        x = _square(x) if exponent else x
    return result


_POWERS: dict[float, Scalar] = {
    0.5: _simple("sqrt"),
    2.0: _square,
    3.0: lambda x: apply("mul", _square(x), x),
    -0.5: lambda x: apply("div", _like(x, 1), apply("sqrt", x)),
    -1.0: _simple("reciprocal"),
    -2.0: lambda x: apply("div", _like(x, 1), _square(x)),
    1.0: lambda x: x,
    0.0: lambda x: _like(x, 1),
}


def _bitwise(name: str, logical: str) -> Scalar:
    def scalar(*values: int) -> int:
        return apply(logical if ops.dtype_of(values[0]) is torch.bool else name, *values)

    return scalar


def _logical(name: str) -> Scalar:
    def scalar(*values: int) -> int:
        return apply(name, *[ops.to(v, torch.bool) for v in values])

    return scalar


def _float_test(name: str) -> Scalar:
    """A question that only floats can answer with yes."""

    def scalar(x: int) -> int:
        return apply(name, x) if ops.dtype_of(x) in ops.FLOATS else constant(False, torch.bool)

    return scalar


def _rounding(name: str) -> Scalar:
    def scalar(x: int) -> int:
        return apply(name, x) if ops.dtype_of(x) in ops.FLOATS else x

    return scalar


@lowers(aten.logit.default)
def _logit(lw: Lowering, out: Spec, x: TensorValue, eps: float | None = None) -> TensorValue:
    """log(x / (1 - x)); where eager does so, every step is rounded, and so are the bounds."""
    step = out.dtype if lw.target.rounds_in_steps else compute_dtype(out.dtype)
    low = None if eps is None else rounded_number(eps, step)
    high = None if low is None else rounded_number(1 - low, step)

    def scalar(value: int) -> int:
        # which are not in order above a half, and which no NaN is beyond
        if low is not None and high is not None:
            least, most = _like(value, low), _like(value, high)
            bounded = apply("where", apply("gt", value, most), most, value)
            value = apply("where", apply("lt", value, least), least, bounded)
        rest = rounded(apply("sub", _like(value, 1), value), step)
        return apply("log", rounded(apply("div", value, rest), step))

    return pointwise(lw, out, scalar, [x], [out.dtype])


def _times_log(logarithm: str) -> Scalar:
    """x * log(y), and 0 where x is 0, unless y is NaN."""

    def scalar(x: int, y: int) -> int:
        zero = _like(x, 0)
        value = apply("where", apply("eq", x, zero), zero, apply("mul", x, apply(logarithm, y)))
        return apply("where", apply("isnan", y), y, value)

    return scalar


def _comparison(name: str) -> Scalar:
    def scalar(a: int, b: int) -> int:
        if ops.dtype_of(a) is torch.bool and name not in ("eq", "ne"):
            a, b = ops.to(a, torch.uint8), ops.to(b, torch.uint8)
        return apply(name, a, b)

    return scalar


@lowers(aten.nan_to_num.default)
def _nan_to_num(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> TensorValue:
    limits = torch.finfo(out.dtype) if out.dtype.is_floating_point else None

    def scalar(value: int) -> int:
        if limits is None:
            return value
        high = limits.max if posinf is None else rounded_number(posinf, out.dtype)
        low = limits.min if neginf is None else rounded_number(neginf, out.dtype)
        default = _like(value, 0.0 if nan is None else rounded_number(nan, out.dtype))
        infinite = apply(
            "where", apply("gt", value, _like(value, 0)), _like(value, high), _like(value, low)
        )
        finite = apply("where", apply("isinf", value), infinite, value)
        return apply("where", apply("isnan", value), default, finite)

    return pointwise(lw, out, scalar, [x], [out.dtype])


def _infinite(test: str, bound: float) -> Scalar:
    def scalar(x: int) -> int:
        return (
            apply(test, x, _like(x, bound))
            if ops.dtype_of(x) in ops.FLOATS
            else constant(False, torch.bool)
        )

    return scalar


def _sign_bit(x: int) -> int:
    dtype = ops.dtype_of(x)
    if dtype is torch.bool:
        return constant(False, torch.bool)
    return apply("signbit", x) if dtype in ops.FLOATS else apply("lt", x, _like(x, 0))


def _angle(x: int) -> int:
    turned = apply("where", apply("lt", x, _like(x, 0)), _like(x, math.pi), _like(x, 0))
    return apply("where", apply("isnan", x), x, turned)


def _number_wins(extreme: str) -> Scalar:
    """fmax and fmin: NaN gives way to a number."""

    def scalar(a: int, b: int) -> int:
        if ops.dtype_of(a) is torch.bool:
            return apply("logical_or" if extreme == "maximum" else "logical_and", a, b)
        if ops.dtype_of(a) not in ops.FLOATS:
            return apply(extreme, a, b)
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
    return x if ops.dtype_of(x) is torch.bool else apply("abs", x)


def _frac(x: int) -> int:
    return apply("sub", x, apply("trunc", x))


def _heaviside(x: int, values: int) -> int:
    if ops.dtype_of(x) is torch.bool:
        return apply("where", x, x, values)
    step = apply("where", apply("gt", x, _like(x, 0)), _like(x, 1), _like(x, 0))
    return apply("where", apply("eq", x, _like(x, 0)), values, step)


def _log_add_exp(power: str, scale: float | None) -> Scalar:
    """log(e^a + e^b), or the same to the base 2."""

    def scalar(a: int, b: int) -> int:
        tail = apply("log1p", apply(power, apply("neg", apply("abs", apply("sub", a, b)))))
        most = apply("maximum", a, b)
        total = (
            apply("add", most, tail)
            if scale is None
            else apply("fma", tail, _like(tail, scale), most)
        )
        both = apply("logical_and", apply("isinf", a), apply("eq", a, b))
        return apply("where", both, a, total)

    return scalar


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
            "div", small, apply("where", apply("eq", large, _like(a, 0)), _like(a, 1), large)
        )
        length = apply("mul", large, apply("sqrt", apply("fma", ratio, ratio, _like(a, 1))))
    return apply("where", infinite, _like(a, math.inf), length)


def _softshrink(x: int, limit: float = 0.5) -> int:
    bound = _like(x, limit)
    low = apply(
        "where",
        apply("lt", x, apply("neg", bound)),
        apply("add", x, bound),
        apply("mul", x, _like(x, 0)),
    )
    return apply("where", apply("gt", x, bound), apply("sub", x, bound), low)


def _hardshrink(x: int, limit: float = 0.5) -> int:
    bound = _like(x, limit)
    inside = apply("logical_and", apply("ge", x, apply("neg", bound)), apply("le", x, bound))
    return apply("where", inside, _like(x, 0), x)


@lowers(aten.round.decimals)
def _round_decimals(lw: Lowering, out: Spec, x: TensorValue, *, decimals: int = 0) -> TensorValue:
    power = float(10 ** min(abs(decimals), 300))
    there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")

    def scalar(value: int) -> int:
        if decimals == 0:
            return apply("round", value)
        return apply(
            back, apply("round", apply(there, value, _like(value, power))), _like(value, power)
        )

    return pointwise(lw, out, scalar, [x], [out.dtype])


@lowers(aten.nextafter.default)
def _next_after(lw: Lowering, out: Spec, x: TensorValue, y: TensorValue) -> TensorValue:
    scalar = (
        _half_neighbour(torch.finfo(out.dtype)) if out.dtype in ops.HALVES else _simple("nextafter")
    )
    return pointwise(lw, out, scalar, [x, y], [out.dtype] * 2)


def _half_neighbour(limits: torch.finfo) -> Scalar:
    """The half next to x towards y, as a float that rounds to it: between 1/2 and 3/2 of the last
    place from x."""

    def scalar(x: int, y: int) -> int:
        last = apply("mul", apply("abs", x), _like(x, 0.625 * limits.eps))
        last = apply("maximum", last, _like(x, 0.625 * limits.smallest_normal * limits.eps))
        up = apply("gt", y, x)
        near = apply("where", up, apply("add", x, last), apply("sub", x, last))
        near = apply("where", apply("isinf", x), apply("copysign", _like(x, limits.max), x), near)
        near = apply("where", apply("eq", x, y), y, near)
        unknown = apply("logical_or", apply("isnan", x), apply("isnan", y))
        return apply("where", unknown, apply("add", x, y), near)

    return scalar


def _sinc(x: int) -> int:
    angle = apply("mul", x, _like(x, math.pi))
    return apply(
        "where", apply("eq", x, _like(x, 0)), _like(x, 1), apply("div", apply("sin", angle), angle)
    )


def _entropy(x: int) -> int:
    zero = _like(x, 0)
    value = apply("mul", apply("neg", x), apply("log", x))
    rest = apply("where", apply("eq", x, zero), zero, _like(x, -math.inf))
    return apply("where", apply("logical_or", apply("gt", x, zero), apply("isnan", x)), value, rest)


def _least_common_multiple(a: int, b: int) -> int:
    """In 32 bits at least, as in C."""
    dtype = ops.dtype_of(a)
    wide = torch.int32 if dtype in (torch.int8, torch.int16, torch.uint8) else dtype
    divisor, zero = ops.to(apply("gcd", a, b), wide), constant(0, wide)
    none = apply("eq", divisor, zero)
    part = apply("truncdiv", ops.to(a, wide), apply("where", none, constant(1, wide), divisor))
    return ops.to(
        apply("where", none, zero, apply("abs", apply("mul", part, ops.to(b, wide)))), dtype
    )


def _names(text: str) -> list[str]:
    return text.split()


def _build_table() -> dict[Any, Row]:
    """Overload -> row. The overloads of one line share their row."""
    table: dict[Any, Row] = {}

    def row(names: str, scalar: Scalar, operands: int, dtype: str = "result") -> None:
        for name in _names(names):
            packet, _, overload = name.partition(".")
            table[getattr(getattr(aten, packet), overload or "default")] = Row(
                scalar, operands, dtype
            )

    for name in _names(
        "neg sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
        "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid"
    ):
        row(name, _simple(name), 1)
    for name in _names("floor ceil round trunc"):
        row(name, _rounding(name), 1)
    row("abs", _absolute, 1)
    for name in _names("minimum maximum"):
        row(name, _extreme(name), 2)
    for name in _names("atan2 fmod.Tensor remainder.Tensor"):
        row(name, _simple(name.partition(".")[0]), 2)
    for name in _names("fmod remainder"):
        row(f"{name}.Scalar", _simple(name), 2)
    for name in _names("eq ne lt le gt ge"):
        row(f"{name}.Tensor {name}.Scalar", _comparison(name), 2, "compare")
    for name in _names("and or xor"):
        row(
            f"bitwise_{name}.Tensor bitwise_{name}.Scalar",
            _bitwise(f"bitwise_{name}", f"logical_{name}"),
            2,
        )
        row(f"logical_{name}", _logical(f"logical_{name}"), 2, "own")
    row("logical_not", _logical("logical_not"), 1, "own")
    row("bitwise_not", _bitwise("bitwise_not", "logical_not"), 1)
    row("bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar", _simple("shift_left"), 2)
    row("bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar", _simple("shift_right"), 2)
    row("isnan", _float_test("isnan"), 1, "own")
    row("isinf", _float_test("isinf"), 1, "own")
    row("isposinf", _infinite("eq", math.inf), 1, "own")
    row("isneginf", _infinite("eq", -math.inf), 1, "own")
    row("signbit", _sign_bit, 1, "own")
    row("angle", _angle, 1)
    row("fmax", _number_wins("maximum"), 2)
    row("fmin", _number_wins("minimum"), 2)
    row("copysign.Tensor copysign.Scalar", _simple("copysign"), 2)
    row("frac", _frac, 1)
    row("heaviside", _heaviside, 2)
    row("logaddexp", _log_add_exp("exp", None), 2)
    row("logaddexp2", _log_add_exp("exp2", 1 / math.log(2)), 2)
    row("hypot", _hypot, 2)
    row("softshrink", _softshrink, 1)
    row("hardshrink", _hardshrink, 1)
    row("special_entr", _entropy, 1)
    row("sinc", _sinc, 1)
    row("add.Tensor add.Scalar", _add, 2, "summed")
    row("sub.Tensor sub.Scalar", _sub, 2, "summed")
    row("rsub.Scalar", _rsub, 2, "summed")
    row("mul.Tensor mul.Scalar", _mul, 2, "scaled")
    row("div.Tensor div.Scalar", _simple("div"), 2, "scaled")
    row("div.Tensor_mode div.Scalar_mode", _div_mode, 2, "scaled")
    row("floor_divide floor_divide.Scalar", _floor_divide, 2, "scaled")
    row("sign sgn", _sign, 1)
    row("relu", _relu, 1)
    row("gelu", _gelu, 1)
    row("clamp", _clamp, 1)
    row("clamp_min", lambda x, low: _clamp(x, low), 1)
    row("clamp_max", lambda x, high: _clamp(x, None, high), 1)
    row("clamp_min.Tensor", _extreme("maximum"), 2)
    row("clamp_max.Tensor", _extreme("minimum"), 2)
    row("addcmul", _addcmul, 3)
    row("addcdiv", _addcdiv, 3)
    row("lerp.Tensor", _lerp, 3, "scaled")
    row("lerp.Scalar", _lerp_by, 2)
    row("pow.Tensor_Tensor pow.Scalar", _simple("pow"), 2)
    row("gcd", _simple("gcd"), 2)
    row("lcm", _least_common_multiple, 2)
    row("xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self", _times_log("log"), 2)
    row(
        "special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar",
        _times_log("log1p"),
        2,
    )
    return table


TABLE = _build_table()


def lower_row(
    row: Row, lw: Lowering, out: Spec, args: Sequence[Any], kwargs: dict[str, Any]
) -> TensorValue:
    """Lower one op of the table."""
    operands, rest = args[: row.operands], args[row.operands :]
    dtypes = [out.dtype] * len(operands)
    if row.dtype == "compare":
        dtypes = [promoted(operands)] * len(operands)
    elif row.dtype == "own":
        dtypes = [promoted([operand]) for operand in operands]
    elif row.dtype == "scaled" and not (
        isinstance(operands[-1], TensorValue) and operands[-1].sizes
    ):
        dtypes[-1] = compute_dtype(out.dtype)
    elif row.dtype == "summed":
        rest = [_alpha(v, out.dtype) for v in rest]
        kwargs = {k: _alpha(v, out.dtype) for k, v in kwargs.items()}
    scalar = functools.partial(row.scalar, **kwargs) if kwargs else row.scalar
    if rest:
        scalar = _with_rest(scalar, rest)
    return pointwise(lw, out, scalar, operands, dtypes)


def _alpha(number: Number, dtype: torch.dtype) -> Number:
    return number if isinstance(number, Expr) else rounded_number(number, dtype)


def _with_rest(scalar: Scalar, rest: Sequence[Any]) -> Scalar:
    return lambda *values: scalar(*values, *rest)


def _register_table() -> None:
    for overload, row in TABLE.items():

        def rule(
            lw: Lowering, out: Spec, *args: Any, _row: Row = row, **kwargs: Any
        ) -> TensorValue:
            return lower_row(_row, lw, out, args, kwargs)

        lowers(overload)(rule)


_register_table()


# -- ops whose operands are typed in their own way
# -----------------------------------------------------------------------


@lowers(aten.where.self)
def where(lw: Lowering, out: Spec, condition: TensorValue, a: Operand, b: Operand) -> TensorValue:
    return pointwise(
        lw, out, _simple("where"), [condition, a, b], [torch.bool, out.dtype, out.dtype]
    )


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(
    lw: Lowering, out: Spec, x: TensorValue, mask: TensorValue, value: Operand
) -> TensorValue:
    return where(lw, out, mask, value, x)


@lowers(aten._to_copy.default, aten.clone.default, aten._conj_physical.default)
def to_copy(lw: Lowering, out: Spec, x: TensorValue, *_: object, **keywords: object) -> TensorValue:
    """A conversion, or a copy: another name for the same elements until somebody needs it in
    memory."""
    if out.dtype is x.dtype:
        return lw.mapped(x, out, lambda index: index)
    return pointwise(lw, out, lambda v: v, [x], [out.dtype])


@lowers(aten.copy.default)
def copy(
    lw: Lowering, out: Spec, target: TensorValue, source: TensorValue, non_blocking: bool = False
) -> TensorValue:
    return pointwise(lw, out, lambda v: v, [source], [out.dtype])


@lowers(aten.clamp.Tensor)
def clamp_tensor(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    low: TensorValue | None = None,
    high: TensorValue | None = None,
) -> TensorValue:
    bounds = [("maximum", low), ("minimum", high)]
    used = [(name, bound) for name, bound in bounds if bound is not None]

    def scalar(value: int, *limits: int) -> int:
        for (name, bound), limit in zip(used, limits):
            held = apply(name, value, limit)
            # as `_clamp`, where a number stands for a float
            if not bound.sizes and ops.dtype_of(value) in ops.FLOATS:
                held = apply("where", apply("eq", value, limit), value, held)
            value = held
        return value

    operands: list[Operand] = [x, *(bound for _, bound in used)]
    return pointwise(lw, out, scalar, operands, [out.dtype] * len(operands))
