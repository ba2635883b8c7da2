"""How torch's dtypes appear in LLVM: in registers and in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Representation(NamedTuple):
    """`register` and `memory` are LLVM element types; `kind` is "float", "signed", "unsigned",
    "bool" or "brain"."""

    register: str
    memory: str
    kind: str


# A brain float travels as its bits: every value is converted to float before arithmetic.
REPRESENTATIONS: dict[torch.dtype, Representation] = {
    torch.float32: Representation("float", "float", "float"),
    torch.float64: Representation("double", "double", "float"),
    torch.float16: Representation("half", "half", "float"),
    torch.bfloat16: Representation("i16", "i16", "brain"),
    torch.bool: Representation("i1", "i8", "bool"),
    torch.uint8: Representation("i8", "i8", "unsigned"),
    torch.uint16: Representation("i16", "i16", "unsigned"),
    torch.uint32: Representation("i32", "i32", "unsigned"),
    torch.uint64: Representation("i64", "i64", "unsigned"),
    torch.int8: Representation("i8", "i8", "signed"),
    torch.int16: Representation("i16", "i16", "signed"),
    torch.int32: Representation("i32", "i32", "signed"),
    torch.int64: Representation("i64", "i64", "signed"),
}

BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "half": 16,
    "float": 32,
    "double": 64,
    "ptr": 64,
}
MANGLED = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}
FLOATS = frozenset(("half", "float", "double"))
SAME_SIZE_INTEGER = {"half": "i16", "float": "i32", "double": "i64"}


def vector_type(element: str, lanes: int) -> str:
    """The LLVM type of `lanes` elements; one lane is a scalar."""
    if lanes == 1:
        return element
    return f"<{lanes} x {element}>"


def mangled(element: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic's name for this type."""
    name = MANGLED.get(element, element)
    if lanes == 1:
        return name
    return f"v{lanes}{name}"
