"""The methods that stand behind Python's operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from typing import Any

_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _operator(name: str) -> Any:
    """The function of the module `operator`."""
    return getattr(operator, f"{name}_", None) or getattr(operator, name)


BINARY_METHODS: dict[Any, tuple[str, str]] = {
    **{_operator(name): (f"__{name}__", f"__r{name}__") for name in _ARITHMETIC},
    **{_operator(name): (f"__{name}__", f"__{mirror}__") for name, mirror in _MIRRORED.items()},
}
"""By operator: the left operand's method, and the right operand's."""

EQUALITIES = (operator.eq, operator.ne)
COMPARISONS = frozenset(map(_operator, _MIRRORED))

UNARY_METHODS: dict[Any, str] = {
    operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__", abs: "__abs__"
}  # fmt: skip
INPLACE_METHODS: dict[Any, tuple[str, Callable[[Any, Any], Any]]] = {
    getattr(operator, f"i{name}"): (f"__i{name}__", _operator(name)) for name in _ARITHMETIC
}
"""By in-place operator: its method, and the operator that stands in for it."""


def in_place_forms(operators: Container[Any]) -> dict[Any, Any]:
    """By in-place operator: the operator that stands in for it, where that is one of these."""
    result = {}
    for form, (_, plain) in INPLACE_METHODS.items():
        if plain in operators:
            result[form] = plain
    return result
