"""How torch's dtypes and their numbers appear in C++."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np
import torch

from ingot.codegen.llvm.types import REPRESENTATIONS

TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "ingot::half",
    torch.bfloat16: "ingot::bfloat16",
    torch.bool: "bool",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}


def memory_type(dtype: torch.dtype) -> str:
    """The type of elements in memory: a bool there is any byte, not 0 where it is true."""
    if dtype is torch.bool:
        return "uint8_t"
    return TYPES[dtype]


def kind_of(dtype: torch.dtype) -> str:
    """ "float", "signed", "unsigned", "bool" or "brain"."""
    return REPRESENTATIONS[dtype].kind


class Code(NamedTuple):
    """A C++ expression and the level of its outermost operator: greater ones bind tighter."""

    text: str
    level: int

    def inside(self, level: int) -> str:
        """The text as an operand of an operator of that level."""
        if self.level >= level:
            return self.text
        return f"({self.text})"


# levels of C++'s operators
CHOICE, OR, XOR, AND, EQUAL, ORDER, SHIFT, SUM, PRODUCT, PREFIX, ATOM = range(1, 12)

_LEVELS = {
    "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "+": SUM, "-": SUM, "<<": SHIFT, ">>": SHIFT,
    "<": ORDER, ">": ORDER, "<=": ORDER, ">=": ORDER, "==": EQUAL, "!=": EQUAL,
    "&": AND, "^": XOR, "|": OR,
}  # fmt: skip

# of these, compilers warn where they stand beside others without parentheses
_MIXED = frozenset(("<<", ">>", "&", "^", "|", "==", "!="))


def atom(text: str) -> Code:
    return Code(text, ATOM)


def call(function: str, *args: Code) -> Code:
    return Code(f"{function}({', '.join([a.text for a in args])})", ATOM)


def binary(operator: str, a: Code, b: Code) -> Code:
    level = _LEVELS[operator]
    left = right = level
    if operator in _MIXED:
        left = right = PREFIX
    elif operator in "<=>=":
        left = right = SHIFT
    right = max(right, level + 1)
    if operator == "+" and b.level == SUM and not b.text.startswith("-"):
        right = level + 1  # sums of floats are added in the order that is written
    if operator in ("&", "|", "^") and a.level == level and f" {operator} " in a.text:
        left = level
    return Code(f"{a.inside(left)} {operator} {b.inside(right)}", level)


def prefix(operator: str, a: Code) -> Code:
    text = a.inside(PREFIX)
    if text.startswith(operator):
        text = f"({text})"
    return Code(operator + text, PREFIX)


def choice(condition: Code, a: Code, b: Code) -> Code:
    return Code(f"{condition.inside(OR)} ? {a.inside(CHOICE + 1)} : {b.inside(CHOICE)}", CHOICE)


# -- numbers ---------------------------------------------------------------------------------------


def float_literal(value: float, type: str) -> Code:
    """The shortest literal that is read as `value` rounded to `type`, "float" or "double"."""
    if math.isnan(value):
        return atom("double(NAN)" if type == "double" else "NAN")
    suffix, text = "", repr(float(value))
    if type == "float":
        value = _as_float(value)
        suffix, text = "f", str(np.float32(value))
    if math.isinf(value):
        text, suffix = "INFINITY", ""
        if type == "double":
            text = "double(INFINITY)"
        if value < 0:
            return Code(f"-{text}", PREFIX)
        return atom(text)
    if math.copysign(1, value) < 0:
        return Code(text + suffix, PREFIX)
    return atom(text + suffix)


def _as_float(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


_INTEGER_MACROS = {"int64_t": "INT64_C", "uint64_t": "UINT64_C"}


def integer_literal(value: int, type: str) -> Code:
    """A literal of just this integer type."""
    bits = int(type.strip("uint_"))
    least = -(1 << bits - 1)
    if value == least and not type.startswith("u"):
        return atom(f"INT{bits}_MIN" if bits >= 32 else f"{type}({value})")
    if type == "int32_t":
        text = str(value)
    elif type in _INTEGER_MACROS:
        text = f"{_INTEGER_MACROS[type]}({value})"
    elif type == "uint32_t":
        text = f"{value}u"
    else:
        text = f"{type}({value})"
    if text.startswith("-"):
        return Code(text, PREFIX)
    return atom(text)


def literal(value: Any, dtype: torch.dtype) -> Code:
    """The constant `value` of `dtype`."""
    if dtype is torch.bool:
        return atom("true" if value else "false")
    if dtype.itemsize == 2 and dtype.is_floating_point:
        bits = int(torch.tensor(value, dtype=dtype).view(torch.int16).item()) & 0xFFFF
        return atom(f"{TYPES[dtype]}{{0x{bits:04x}}}")
    if dtype.is_floating_point:
        return float_literal(float(value), TYPES[dtype])
    return integer_literal(int(value), TYPES[dtype])
