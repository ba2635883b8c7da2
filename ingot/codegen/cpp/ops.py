"""The scalar ops of `loops/ops.py` as C++ expressions: one row each, over the code of arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ingot.codegen.cpp.prelude import TRACED
from ingot.codegen.cpp.types import (
    TYPES,
    Code,
    atom,
    binary,
    call,
    choice,
    float_literal,
    kind_of,
    prefix,
)
from ingot.loops.ops import HALVES

Rule = Callable[..., Code]  # of the dtype of the arguments, and these


def _infix(operator: str) -> Rule:
    """Narrow integers are computed as wider ones, and wrap around afterwards."""

    def rule(dtype: torch.dtype, a: Code, b: Code) -> Code:
        return narrowed(dtype, binary(operator, a, b))

    return rule


def narrowed(dtype: torch.dtype, code: Code) -> Code:
    """What was computed from integers of `dtype` as one of these."""
    if not dtype.is_floating_point and dtype is not torch.bool and dtype.itemsize < 4:
        return call(TYPES[dtype], code)
    return code


def _compared(operator: str) -> Rule:
    return lambda dtype, a, b: binary(operator, a, b)


def _named(function: str) -> Rule:
    return lambda dtype, *args: call(function, *args)


def _either(of_floats: str, of_integers: str) -> Rule:
    def rule(dtype: torch.dtype, *args: Code) -> Code:
        return call(of_floats if dtype.is_floating_point else of_integers, *args)

    return rule


def _negated(dtype: torch.dtype, a: Code) -> Code:
    if dtype in HALVES:
        return call("ingot::half_negated", a)
    return narrowed(dtype, prefix("-", a))


def _absolute(dtype: torch.dtype, a: Code) -> Code:
    if dtype in HALVES:
        return call("ingot::half_magnitude", a)
    if kind_of(dtype) == "unsigned":
        return a
    return call("std::fabs" if dtype.is_floating_point else "ingot::magnitude", a)


def _copysign(dtype: torch.dtype, a: Code, b: Code) -> Code:
    return call("ingot::half_copysign" if dtype in HALVES else "std::copysign", a, b)


def _reciprocal(dtype: torch.dtype, a: Code) -> Code:
    return binary("/", float_literal(1.0, TYPES[dtype]), a)


def _signbit(dtype: torch.dtype, a: Code) -> Code:
    bits = "int32_t" if dtype is torch.float32 else "int64_t"
    return binary("<", call(f"ingot::bits_as<{bits}>", a), atom("0"))


def _infinite(dtype: torch.dtype, a: Code) -> Code:
    return binary("==", call("std::fabs", a), float_literal(float("inf"), TYPES[dtype]))


def _sqrt(dtype: torch.dtype, a: Code) -> Code:
    return call("std::sqrt", a)


ROWS: dict[str, Rule] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "div": _infix("/"),
    "floordiv": _named("ingot::floor_divide"),
    "truncdiv": _named("ingot::quotient"),
    "remainder": _either("ingot::remainder_of_floats", "ingot::remainder"),
    "fmod": _either("ingot::fmod", "ingot::fmod_of_integers"),
    "gcd": _named("ingot::gcd"),
    "neg": _negated,
    "abs": _absolute,
    "sign": _named("ingot::sign"),
    "signbit": _signbit,
    "copysign": _copysign,
    "minimum": _named("ingot::minimum"),
    "maximum": _named("ingot::maximum"),
    "fma": _named("std::fma"),
    "eq": _compared("=="),
    "ne": _compared("!="),
    "lt": _compared("<"),
    "le": _compared("<="),
    "gt": _compared(">"),
    "ge": _compared(">="),
    "logical_and": _compared("&"),
    "logical_or": _compared("|"),
    "logical_xor": _compared("^"),
    "logical_not": lambda dtype, a: prefix("!", a),
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
    "bitwise_not": lambda dtype, a: narrowed(dtype, prefix("~", a)),
    "shift_left": _named("ingot::shift_left"),
    "shift_right": _named("ingot::shift_right"),
    "where": lambda dtype, condition, a, b: choice(condition, a, b),
    "isnan": lambda dtype, a: binary("!=", a, a),
    "isinf": _infinite,
    "reciprocal": _reciprocal,
    "sqrt": _sqrt,
    "rsqrt": lambda dtype, a: _reciprocal(dtype, _sqrt(dtype, a)),
    "floor": _named("std::floor"),
    "ceil": _named("std::ceil"),
    "round": _named("std::nearbyint"),
    "trunc": _named("std::trunc"),
    "pow": _either("ingot::pow", "ingot::power"),
}
ROWS |= {name: _named(f"ingot::{name}") for name in TRACED if name not in ROWS}


def elementary(op: str, dtype: torch.dtype) -> tuple[str, str] | None:
    """The function of the prelude that an op calls, by name and type; None if there is none."""
    if not dtype.is_floating_point or dtype in HALVES:
        return None
    name = op
    if op == "remainder":
        name = "remainder_of_floats"
    elif op in ("sqrt", "rsqrt", "abs") or op not in TRACED:
        return None
    return name, TYPES[dtype]


# -- conversions -----------------------------------------------------------------------------------


def converted(a: Code, source: torch.dtype, target: torch.dtype) -> Code:
    """`a` of dtype `source` as dtype `target`, as `codegen.llvm.scalar.convert` does it."""
    if source is target:
        return a
    if source in HALVES:
        function = "ingot::from_brain" if source is torch.bfloat16 else "ingot::from_half"
        return converted(call(function, a), torch.float32, target)
    want = TYPES[target]
    if target is torch.bool:
        return binary("!=", a, atom("0"))
    if target in HALVES:
        if source is not torch.float32:
            a = call("float", a)
        return call("ingot::to_brain" if target is torch.bfloat16 else "ingot::to_half", a)
    if target.is_floating_point or not source.is_floating_point:
        return call(want, a)
    if target is torch.uint64:
        return call("ingot::to_uint64", a)
    if target.itemsize < 4:
        return call(want, call("int32_t", a))
    if target is torch.uint32:
        return call(want, call("int64_t", a))
    return call(want, a)


# -- reductions ------------------------------------------------------------------------------------


def combined(kind: str, dtype: torch.dtype, before: Code, value: Code) -> Code:
    """What has been reduced and one value more."""
    if dtype is torch.bool:
        return binary("&" if kind in ("all", "min", "prod") else "|", before, value)
    if kind in ("sum", "prod"):
        return narrowed(dtype, binary("+" if kind == "sum" else "*", before, value))
    return call("ingot::maximum" if kind == "max" else "ingot::minimum", value, before)
