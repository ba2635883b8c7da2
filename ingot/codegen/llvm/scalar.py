"""The scalar ops of `loops/ops.py` as LLVM: one row each, over values of the emitter."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from ingot.codegen.llvm import integers, special
from ingot.codegen.llvm import math as vector_math
from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math import absolute
from ingot.codegen.llvm.types import BITS, FLOATS, REPRESENTATIONS, vector_type
from ingot.loops.ops import HALVES

BOOL = {torch.bool}
INTS = {dtype for dtype, row in REPRESENTATIONS.items() if row.kind in ("signed", "unsigned")}
REALS = {torch.float32, torch.float64}
NUMBERS = INTS | REALS

UNSIGNED = "unsigned"  # the kind of the integer types whose order and shifts differ


# -- conversion ------------------------------------------------------------------------------------


def convert(a: Value, source: torch.dtype, target: torch.dtype) -> Value:
    """`a` of dtype `source` as dtype `target`: floats are truncated to integers, anything not 0 is
    True."""
    if source is target:
        return a
    e = a.emitter
    have, want = REPRESENTATIONS[source], REPRESENTATIONS[target]
    if have.kind == "brain":
        a = e.cast("bitcast", e.cast("zext", a, "i32") << 16, "float")
        return convert(a, torch.float32, target)
    if want.kind == "bool":
        return e.compare("une" if a.type in FLOATS else "ne", a, 0)
    if want.kind == "brain":
        return _to_brain(convert(a, source, torch.float32))
    if want.kind == "float":
        return _to_float(a, have.kind, want.register)
    if have.kind == "float":
        return _truncated(a, want.register, want.kind)
    if BITS[have.register] > BITS[want.register]:
        return e.cast("trunc", a, want.register)
    return e.cast("sext" if have.kind == "signed" else "zext", a, want.register)


def _to_brain(a: Value) -> Value:
    """The upper half of a float's bits, rounded to nearest even; NaN becomes a quiet NaN."""
    e = a.emitter
    bits = e.bits(a)
    if e.rounds_brains:  # normal numbers: subnormal ones, and zeros, pass with an exponent of 1
        small = e.compare("eq", bits & 0x7F800000, 0)
        normal = e.cast("bitcast", e.select(small, bits | 0x00800000, bits), "float")
        rounded = e.cast("bitcast", e.cast("fptrunc", normal, "bfloat"), "i16")
        return e.select(small, rounded - 0x0080, rounded)
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    return e.cast("trunc", e.select(e.compare("uno", a, a), 0x7FC0, rounded), "i16")


def _to_float(a: Value, kind: str, want: str) -> Value:
    e = a.emitter
    if kind == "float":
        if BITS[a.type] < BITS[want]:
            wide = e.cast("fpext", a, want)
            # else LLVM would round halves to whole numbers as they are, for which there is no
            # instruction
            return e.intrinsic("arithmetic.fence", (wide,)) if a.type == "half" else wide
        if (a.type, want) == ("double", "half"):  # as eager: through float
            return _to_half(e.cast("fptrunc", a, "float"))
        return e.cast("fptrunc", a, want) if want != "half" else _to_half(a)
    opcode = "sitofp" if kind == "signed" else "uitofp"
    if want == "half":
        return _to_half(e.cast(opcode, a, "float"))
    return e.cast(opcode, a, want)


def _to_half(a: Value) -> Value:
    """A float as a half. Of scalars LLVM is not shown the conversion: it would combine it with
    others into one from double, for which it has no instruction."""
    e = a.emitter
    if a.lanes > 1:
        return e.cast("fptrunc", a, "half")
    e.declare("i16", "llvm.convert.to.fp16.f32", "float")
    return e.cast(
        "bitcast",
        e.place(f"call i16 @llvm.convert.to.fp16.f32(float {a.text})", "i16", 1, a.depth),
        "half",
    )


def _truncated(a: Value, want: str, kind: str) -> Value:
    """A float as an integer: any value will do where it does not fit, as in C, but it must be one
    value."""
    e = a.emitter
    if a.type == "half":
        a = e.cast("fpext", a, "float")
    if kind == UNSIGNED and want == "i64":  # in two halves, of which the lower one may be negative
        large = e.compare("oge", a, 2.0**63)
        low = _truncated(e.select(large, a - 2.0**63, a), want, "signed")
        return e.select(large, low ^ -(2**63), low)
    middle = "i32" if BITS[want] < 32 else "i64" if kind == UNSIGNED else want
    result = e.instruction("freeze", (e.cast("fptosi", a, middle),), middle)
    return e.cast("trunc", result, want)


# -- arithmetic ------------------------------------------------------------------------------------


def _extreme(wanted: str) -> Callable[..., Value]:
    """maximum or minimum; of floats, NaN wins."""

    def function(kind: str, a: Value, b: Value) -> Value:
        e = a.emitter
        if a.type in FLOATS:
            chosen = e.select(e.compare("ogt" if wanted == "max" else "olt", a, b), a, b)
            return e.select(e.compare("uno", a, a), a, chosen)
        return e.intrinsic(("u" if kind == UNSIGNED else "s") + wanted, (a, b))

    return function


def _compare(float_predicate: str, order: str) -> Callable[..., Value]:
    def function(kind: str, a: Value, b: Value) -> Value:
        if a.type in FLOATS:
            return a.emitter.compare(float_predicate, a, b)
        sign = "" if order in ("eq", "ne") else "u" if kind == UNSIGNED else "s"
        return a.emitter.compare(sign + order, a, b)

    return function


def _absolute(kind: str, a: Value) -> Value:
    if kind == "brain":
        return a & 0x7FFF
    if a.type in FLOATS:
        return absolute(a)
    return a if kind == UNSIGNED else a.emitter.select(a.emitter.compare("slt", a, 0), -a, a)


def _sign(kind: str, a: Value) -> Value:
    e = a.emitter
    if a.type in FLOATS:
        one, minus = e.constant(1, a.type), e.constant(-1, a.type)
        return e.select(e.compare("ogt", a, 0), one, e.select(e.compare("olt", a, 0), minus, 0))
    if kind == UNSIGNED:
        return e.cast("zext", e.compare("ne", a, 0), a.type)
    return e.intrinsic("smax", (e.intrinsic("smin", (a, 1)), -1))


def _quotient(kind: str, a: Value, b: Value) -> Value:
    """a / b toward zero, b not 0. Narrow types divide as floats, exactly; the quotient of the least
    number by -1 wraps."""
    e = a.emitter
    if BITS[a.type] < 64:
        wide = "float" if BITS[a.type] < 32 else "double"
        to_float, to_int = ("uitofp", "fptoui") if kind == UNSIGNED else ("sitofp", "fptosi")
        exact = e.cast(to_float, a, wide) / e.cast(to_float, b, wide)
        return e.cast("trunc", e.cast(to_int, exact, "i32" if wide == "float" else "i64"), a.type)
    if kind == UNSIGNED:
        return e.binary("udiv", a, b)
    minus_one = e.compare("eq", b, -1)
    return e.select(minus_one, -a, e.binary("sdiv", a, e.select(minus_one, 1, b)))


def floor_divide(kind: str, a: Value, b: Value) -> Value:
    e = a.emitter
    quotient = _quotient(kind, a, b)
    if kind == UNSIGNED:
        return quotient
    rest = a - quotient * b
    below = e.compare("ne", rest, 0) & e.compare("slt", rest ^ b, 0)
    return quotient - e.cast("zext", below, a.type)


def _remainder(kind: str, a: Value, b: Value) -> Value:
    """Python's %: the sign of the divisor."""
    e = a.emitter
    if a.type not in FLOATS:
        return a - floor_divide(kind, a, b) * b
    rest = _fmod(kind, a, b)
    wrong = e.compare("une", rest, 0.0) & (e.compare("olt", b, 0.0) ^ e.compare("olt", rest, 0.0))
    return e.select(wrong, rest + b, rest)


def _fmod(kind: str, a: Value, b: Value) -> Value:
    """C's fmod: the sign of the dividend. With a moderate quotient it is exact: computed in double,
    a float's quotient is right, and a double's too large by one at most, so that the rest can be
    represented either way."""
    e = a.emitter
    if a.type not in FLOATS:
        return a - _quotient(kind, a, b) * b
    lanes = max(a.lanes, b.lanes)
    slow = f"frem {vector_type(a.type, lanes)} {e.argument(a, lanes)}, {e.argument(b, lanes)}"
    x, y = e.cast("fpext", a, "double"), absolute(e.cast("fpext", b, "double"))
    size = absolute(x)
    quotient = e.intrinsic("trunc", (size / y,))
    rest = e.fma(-quotient, y, size)
    if a.type == "double":
        rest = e.select(e.compare("olt", rest, 0.0), rest + y, rest)
    rest = vector_math.copysign(e.cast("fptrunc", rest, a.type), a)
    rare = ~(
        e.compare("olt", quotient, 2.0**28 if a.type == "float" else 2.0**52)
        & e.compare("olt", y, inf)
    )
    return e.unless_rare(e.splat(rare, lanes), e.splat(rest, lanes), slow)


def _shift(left: bool) -> Callable[..., Value]:
    """Shifts by less than 0 or by the width or more give 0, or the sign in shifts to the right."""

    def function(kind: str, a: Value, b: Value) -> Value:
        e, bits = a.emitter, BITS[a.type]
        outside = e.compare("uge", b, bits)
        if left:
            return e.select(outside, 0, a << e.select(outside, 0, b))
        opcode = "lshr" if kind == UNSIGNED else "ashr"
        shifted = e.binary(opcode, a, e.select(outside, bits - 1, b))
        return e.select(outside, 0, shifted) if kind == UNSIGNED else shifted

    return function


def _where(kind: str, condition: Value, a: Value, b: Value) -> Value:
    return condition.emitter.select(condition, a, b)


def _signbit(kind: str, a: Value) -> Value:
    return a.emitter.compare("slt", a.emitter.bits(a), 0)


def _copysign(kind: str, a: Value, b: Value) -> Value:
    return (a & 0x7FFF) | (b & 0x8000) if kind == "brain" else vector_math.copysign(a, b)


def _next_after(kind: str, a: Value, b: Value) -> Value:
    """The neighbour of `a` on the way to `b`: floats are ordered as the integers of their bits, but
    for the sign."""
    e = a.emitter
    outwards = e.compare("olt", a, b) ^ _signbit(kind, a)
    bits = e.bits(a)
    neighbour = e.cast("bitcast", e.select(outwards, bits + 1, bits - 1), a.type)
    smallest = e.cast(
        "bitcast", e.select(_signbit(kind, b), e.bits(e.constant(-0.0, a.type)), 0) | 1, a.type
    )
    result = e.select(e.compare("oeq", a, 0.0), smallest, neighbour)
    result = e.select(e.compare("oeq", a, b), b, result)
    return e.select(e.compare("uno", a, b), a + b, result)


def _isinf(kind: str, a: Value) -> Value:
    return a.emitter.compare("oeq", absolute(a), inf)


def _isnan(kind: str, a: Value) -> Value:
    return a.emitter.compare("uno", a, a)


def _rounding(intrinsic: str) -> Callable[..., Value]:
    return lambda kind, a: a.emitter.intrinsic(intrinsic, (a,))


def _power(kind: str, a: Value, b: Value) -> Value:
    return vector_math.power(a, b) if a.type in FLOATS else integers.power(kind != UNSIGNED, a, b)


def _plain(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda kind, *args: function(*args)


# name -> (dtypes of the arguments, function of the representation's kind and the arguments)
TABLE: dict[str, tuple[set[torch.dtype], Callable[..., Value]]] = {
    "add": (NUMBERS, lambda kind, a, b: a + b),
    "sub": (NUMBERS, lambda kind, a, b: a - b),
    "mul": (NUMBERS, lambda kind, a, b: a * b),
    "div": (REALS, lambda kind, a, b: a / b),
    "floordiv": (INTS, floor_divide),
    "truncdiv": (INTS, _quotient),
    "remainder": (NUMBERS, _remainder),
    "fmod": (NUMBERS, _fmod),
    "gcd": (INTS, lambda kind, a, b: integers.greatest_common_divisor(kind != UNSIGNED, a, b)),
    "neg": (NUMBERS | HALVES, lambda kind, a: a ^ 0x8000 if kind == "brain" else -a),
    "abs": (NUMBERS | HALVES, _absolute),
    "sign": (NUMBERS, _sign),
    "signbit": (REALS, _signbit),
    "copysign": (REALS | HALVES, _copysign),
    "nextafter": (REALS, _next_after),
    "reciprocal": (REALS, lambda kind, a: 1.0 / a),
    "fma": (REALS, lambda kind, a, b, c: a.emitter.fma(a, b, c)),
    "minimum": (NUMBERS, _extreme("min")),
    "maximum": (NUMBERS, _extreme("max")),
    "eq": (NUMBERS | BOOL, _compare("oeq", "eq")),
    "ne": (NUMBERS | BOOL, _compare("une", "ne")),
    "lt": (NUMBERS, _compare("olt", "lt")),
    "le": (NUMBERS, _compare("ole", "le")),
    "gt": (NUMBERS, _compare("ogt", "gt")),
    "ge": (NUMBERS, _compare("oge", "ge")),
    "logical_and": (BOOL, lambda kind, a, b: a & b),
    "logical_or": (BOOL, lambda kind, a, b: a | b),
    "logical_xor": (BOOL, lambda kind, a, b: a ^ b),
    "logical_not": (BOOL, lambda kind, a: a ^ 1),
    "bitwise_and": (INTS, lambda kind, a, b: a & b),
    "bitwise_or": (INTS, lambda kind, a, b: a | b),
    "bitwise_xor": (INTS, lambda kind, a, b: a ^ b),
    "bitwise_not": (INTS, lambda kind, a: ~a),
    "shift_left": (INTS, _shift(left=True)),
    "shift_right": (INTS, _shift(left=False)),
    "where": (NUMBERS | BOOL | HALVES, _where),
    "isnan": (REALS, _isnan),
    "isinf": (REALS, _isinf),
    "floor": (REALS, _rounding("floor")),
    "ceil": (REALS, _rounding("ceil")),
    "round": (REALS, _rounding("roundeven")),
    "trunc": (REALS, _rounding("trunc")),
}
TABLE |= {name: (REALS, _plain(f)) for name, f in vector_math.FUNCTIONS.items() if name != "abs"}
TABLE["pow"] = (NUMBERS, _power)
TABLE |= {
    name: ({torch.float32}, _plain(f))
    for name, f in (vector_math.FLOAT_ONLY | special.FLOAT_ONLY).items()
}

# What code generation can emit: op -> dtypes of its arguments (of the values chosen, for `where`).
supported_ops: dict[str, set[torch.dtype]] = {name: row[0] for name, row in TABLE.items()}

INTEGER_DIVISIONS = frozenset(("floordiv", "truncdiv", "remainder", "fmod"))


# -- reductions ------------------------------------------------------------------------------------

Accumulator = tuple[Value, ...]  # (value,), or (value, position) for argmax and argmin


def identity(
    kind: str, dtype: torch.dtype, make: Callable[[Any, str], Value], position: str = "i64"
) -> Accumulator:
    """The accumulator of nothing; `make(number, type)` gives constants, `position` is the type of
    positions."""
    type = REPRESENTATIONS[dtype].register
    if kind in ("sum", "prod", "any", "all"):
        return (make(kind in ("prod", "all"), type),)
    sign = -1 if kind in ("max", "argmax") else 1
    if dtype.is_floating_point:
        extreme: Any = sign * inf
    elif dtype is torch.bool:
        extreme = sign > 0
    else:
        info = torch.iinfo(dtype)
        extreme = info.max if sign > 0 else info.min
    value = make(extreme, type)
    return (
        (value, make(2 ** (BITS[position] - 1) - 1, position))
        if kind.startswith("arg")
        else (value,)
    )


def combine(kind: str, dtype: torch.dtype, a: Accumulator, b: Accumulator) -> Accumulator:
    """The accumulator of both."""
    if kind.startswith("arg"):
        return _further(kind == "argmax", REPRESENTATIONS[dtype].kind, a, b)
    x, y = a[0], b[0]
    if dtype is torch.bool:
        return (x & y,) if kind in ("all", "min", "prod") else (x | y,)
    if kind in ("any", "all"):
        raise ValueError(f"{kind} of {dtype}: convert to bool first")
    op = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[kind]
    return (
        TABLE[op][1](REPRESENTATIONS[dtype].kind, y, x),
    )  # the new value first: the maximum of floats is then cheaper


def _further(largest: bool, kind: str, a: Accumulator, b: Accumulator) -> Accumulator:
    """The pair of the more extreme value, NaN being the most extreme, or of the smaller position
    where they tie."""
    (x, i), (y, j) = a, b
    e = x.emitter
    if x.type in FLOATS:
        x_nan, y_nan = e.compare("uno", x, x), e.compare("uno", y, y)
        beyond = e.compare("ogt" if largest else "olt", y, x) | (y_nan & ~x_nan)
        tie = e.compare("oeq", y, x) | (y_nan & x_nan)
    else:
        sign = "u" if kind in (UNSIGNED, "bool") else "s"
        beyond = e.compare(sign + ("gt" if largest else "lt"), y, x)
        tie = e.compare("eq", y, x)
    take = beyond | (tie & e.compare("slt", j, i))
    return e.select(take, y, x), e.select(take, j, i)
