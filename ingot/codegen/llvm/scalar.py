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
    """`a` of dtype `source` as dtype `target`.

    Floats are truncated to integers, anything not 0 is True.
    """
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
    if kind == "float" and BITS[a.type] < BITS[want]:
        wide = e.cast("fpext", a, want)
        if a.type != "half":
            return wide
        # Else LLVM would round halves to integers as they are, for which there is no instruction.
        return e.intrinsic("arithmetic.fence", (wide,))
    opcode = {"float": "fptrunc", "signed": "sitofp"}.get(kind, "uitofp")
    if want != "half":
        return e.cast(opcode, a, want)
    return _to_half(e.cast(opcode, a, "float"))  # as eager: doubles too, through float


def _to_half(a: Value) -> Value:
    """A float as a half.

    Of scalars LLVM is not shown the conversion: it would combine it with others into one from
    double, for which it has no instruction.
    """
    e = a.emitter
    if a.lanes > 1:
        return e.cast("fptrunc", a, "half")
    e.declare("i16", "llvm.convert.to.fp16.f32", "float")
    text = f"call i16 @llvm.convert.to.fp16.f32(float {a.text})"
    return e.cast("bitcast", e.place(text, "i16", 1, a.depth), "half")


def _truncated(a: Value, want: str, kind: str) -> Value:
    """A float as an integer; where it does not fit, any value as in C, but one value."""
    e = a.emitter
    if a.type == "half":
        a = e.cast("fpext", a, "float")
    # in two halves, of which the lower one may be negative
    if kind == UNSIGNED and want == "i64":
        large = e.compare("oge", a, 2.0**63)
        low = _truncated(e.select(large, a - 2.0**63, a), want, "signed")
        return e.select(large, low ^ -(2**63), low)
    middle = want
    if BITS[want] < 32:
        middle = "i32"
    elif kind == UNSIGNED:
        middle = "i64"
    result = e.instruction("freeze", (e.cast("fptosi", a, middle),), middle)
    return e.cast("trunc", result, want)


# -- arithmetic ------------------------------------------------------------------------------------


def order_of(kind: str) -> str:
    """The letter of unsigned or signed order in LLVM's names."""
    if kind in (UNSIGNED, "bool"):
        return "u"
    return "s"


def _extreme(name: str, predicate: str) -> Callable[..., Value]:
    """max or min; of floats, NaN wins."""

    def function(kind: str, a: Value, b: Value) -> Value:
        e = a.emitter
        if a.type in FLOATS:
            chosen = e.select(e.compare(predicate, a, b), a, b)
            return e.select(e.compare("uno", a, a), a, chosen)
        return e.intrinsic(order_of(kind) + name, (a, b))

    return function


def _compare(float_predicate: str, order: str) -> Callable[..., Value]:
    def function(kind: str, a: Value, b: Value) -> Value:
        if a.type in FLOATS:
            return a.emitter.compare(float_predicate, a, b)
        if order in ("eq", "ne"):
            predicate = order
        else:
            predicate = order_of(kind) + order
        return a.emitter.compare(predicate, a, b)

    return function


def _absolute(kind: str, a: Value) -> Value:
    if kind == "brain":
        return a & 0x7FFF
    if a.type in FLOATS:
        return absolute(a)
    if kind == UNSIGNED:
        return a
    return a.emitter.select(a.emitter.compare("slt", a, 0), -a, a)


def _sign(kind: str, a: Value) -> Value:
    e = a.emitter
    if a.type in FLOATS:
        one, minus = e.constant(1, a.type), e.constant(-1, a.type)
        return e.select(e.compare("ogt", a, 0), one, e.select(e.compare("olt", a, 0), minus, 0))
    if kind == UNSIGNED:
        return e.cast("zext", e.compare("ne", a, 0), a.type)
    return e.intrinsic("smax", (e.intrinsic("smin", (a, 1)), -1))


def _quotient(kind: str, a: Value, b: Value) -> Value:
    """a / b toward zero, b not 0. The quotient of the least number by -1 wraps.

    Narrow types divide as floats, exactly. So do whole vectors of long ones, where each dividend
    has up to 53 bits: a quotient just below an integer is further from it than doubles are apart.
    """
    e, lanes = a.emitter, max(a.lanes, b.lanes)
    if BITS[a.type] < 64:
        if BITS[a.type] < 32:
            wide, integer = ("float", "i32")
        else:
            wide, integer = ("double", "i64")
        letter = order_of(kind)
        exact = e.cast(f"{letter}itofp", a, wide) / e.cast(f"{letter}itofp", b, wide)
        return e.cast("trunc", e.cast(f"fpto{letter}i", exact, integer), a.type)
    if kind == UNSIGNED:
        return e.binary("udiv", a, b)
    minus_one = e.compare("eq", b, -1)
    safe = e.select(minus_one, 1, b)
    if b.constant or lanes == 1 or not e.has_long_floats:
        return e.select(minus_one, -a, e.binary("sdiv", a, safe))
    exact = e.cast("sitofp", a, "double") / e.cast("sitofp", safe, "double")
    usual = e.splat(e.cast("fptosi", exact, "i64"), lanes)
    slow = f"sdiv {vector_type('i64', lanes)} {e.argument(a, lanes)}, {e.argument(safe, lanes)}"
    most = 2**integers.EXACT - 1
    rare = e.compare("ugt", a + most, 2 * most)
    return e.select(minus_one, -a, e.unless_rare(e.splat(rare, lanes), usual, slow))


def floor_divide(kind: str, a: Value, b: Value) -> Value:
    e = a.emitter
    quotient = _quotient(kind, a, b)
    if kind == UNSIGNED:
        return quotient
    remainder = a - quotient * b
    below = e.compare("ne", remainder, 0) & e.compare("slt", remainder ^ b, 0)
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
    """C's fmod: the sign of the dividend.

    With a moderate quotient it is exact: computed in double, a float's quotient is right, and a
    double's too large by one at most, so that the remainder can be represented either way.
    """
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
    if a.type == "float":
        most = 2.0**28
    else:
        most = 2.0**52
    rare = ~(e.compare("olt", quotient, most) & e.compare("olt", y, inf))
    return e.unless_rare(e.splat(rare, lanes), e.splat(rest, lanes), slow)


def _shift(left: bool) -> Callable[..., Value]:
    """Shifts by less than 0 or by the width or more give 0, or the sign in shifts to the right."""

    def function(kind: str, a: Value, b: Value) -> Value:
        e, bits = a.emitter, BITS[a.type]
        outside = e.compare("uge", b, bits)
        if left:
            return e.select(outside, 0, a << e.select(outside, 0, b))
        within = e.select(outside, bits - 1, b)
        if kind == UNSIGNED:
            return e.select(outside, 0, e.binary("lshr", a, within))
        return e.binary("ashr", a, within)

    return function


def _where(kind: str, condition: Value, a: Value, b: Value) -> Value:
    return condition.emitter.select(condition, a, b)


def _signbit(kind: str, a: Value) -> Value:
    return a.emitter.compare("slt", a.emitter.bits(a), 0)


def _copysign(kind: str, a: Value, b: Value) -> Value:
    if kind == "brain":
        return (a & 0x7FFF) | (b & 0x8000)
    return vector_math.copysign(a, b)


def _next_after(kind: str, a: Value, b: Value) -> Value:
    """The neighbour of `a` on the way to `b`.

    Floats are ordered as the integers of their bits, but for the sign.
    """
    e = a.emitter
    outwards = e.compare("olt", a, b) ^ _signbit(kind, a)
    bits = e.bits(a)
    neighbour = e.cast("bitcast", e.select(outwards, bits + 1, bits - 1), a.type)
    sign = e.select(_signbit(kind, b), e.bits(e.constant(-0.0, a.type)), 0)
    smallest = e.cast("bitcast", sign | 1, a.type)
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
    if a.type in FLOATS:
        return vector_math.power(a, b)
    return integers.power(kind != UNSIGNED, a, b)


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
    "minimum": (NUMBERS, _extreme("min", "olt")),
    "maximum": (NUMBERS, _extreme("max", "ogt")),
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


# -- reductions ------------------------------------------------------------------------------------

Accumulator = tuple[Value, ...]  # (value,), or (value, position) for argmax and argmin


def identity(
    kind: str, dtype: torch.dtype, make: Callable[[Any, str], Value], position: str = "i64"
) -> Accumulator:
    """The accumulator of nothing.

    `make(number, type)` gives constants, `position` is the type of positions.
    """
    type = REPRESENTATIONS[dtype].register
    if kind in ("sum", "prod", "any", "all"):
        return (make(kind in ("prod", "all"), type),)
    if dtype.is_floating_point:
        least, most = -inf, inf
    elif dtype is torch.bool:
        least, most = False, True
    else:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    value = make(least if kind in ("max", "argmax") else most, type)
    if not kind.startswith("arg"):
        return (value,)
    return value, make(2 ** (BITS[position] - 1) - 1, position)


def combine(kind: str, dtype: torch.dtype, a: Accumulator, b: Accumulator) -> Accumulator:
    """The accumulator of both."""
    if kind.startswith("arg"):
        return _further(kind == "argmax", REPRESENTATIONS[dtype].kind, a, b)
    x, y = a[0], b[0]
    if dtype is torch.bool:
        if kind in ("all", "min", "prod"):
            return (x & y,)
        return (x | y,)
    if kind in ("any", "all"):
        raise ValueError(f"{kind} of {dtype}: convert to bool first")
    op = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[kind]
    # the new value first: the maximum of floats is then cheaper
    return (TABLE[op][1](REPRESENTATIONS[dtype].kind, y, x),)


def _further(largest: bool, kind: str, a: Accumulator, b: Accumulator) -> Accumulator:
    """The pair of the more extreme value, or of the smaller position where they tie.

    NaN is the most extreme value.
    """
    (x, i), (y, j) = a, b
    e, relation = x.emitter, "gt" if largest else "lt"
    if x.type in FLOATS:
        x_nan, y_nan = e.compare("uno", x, x), e.compare("uno", y, y)
        beyond = e.compare(f"o{relation}", y, x) | (y_nan & ~x_nan)
        tie = e.compare("oeq", y, x) | (y_nan & x_nan)
    else:
        beyond = e.compare(order_of(kind) + relation, y, x)
        tie = e.compare("eq", y, x)
    take = beyond | (tie & e.compare("slt", j, i))
    return e.select(take, y, x), e.select(take, j, i)
