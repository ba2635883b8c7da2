"""Texts that show tensors or numbers read from them: `f"loss {loss:.3f}"`. They are made when the
graph has run, and can be printed, logged, stored and returned; what asks for their characters
before that ends the graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.values.base import NotConstant, Operator, Value, constants, in_order, map_values
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.deferred import snapshots
from ingot.capture.values.foreign import OpaqueValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.wording import operator_text

if TYPE_CHECKING:
    from ingot.capture.session import Session

_SPECIAL: dict[type, tuple[Any, ...]] = {
    float: (0.0, -1.5, math.nan, math.inf),
    complex: (0j, complex(math.nan, math.inf)),
    int: (0, -1, 2**63 - 1),
    bool: (False, True),
    str: ("text",),
}
"""Values on which a function is tried that is to be called later: it must not fail then."""


class LateText(OpaqueValue):
    """What `function` will give for `args`."""

    __slots__ = ("function", "args")
    is_late = True

    def __init__(self, function: Callable[..., str], args: Sequence[Value]) -> None:
        super().__init__()
        self.function, self.args = function, list(args)

    def python_type(self) -> type:
        return str

    def describe(self) -> str:
        return "a text that shows tensors"

    def truth(self, session: Session) -> bool:
        raise session.unsupported("text", f"a branch on {self.describe()}")

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function.__name__ in ("add", "iadd") and other.python_type() is str:
            return LateText(_joined, in_order(self, other, reflected))
        raise session.unsupported("text", f"{operator_text(function)} of {self.describe()}")


def _joined(*texts: str) -> str:
    return "".join(texts)


def late_text(session: Session, function: Callable[..., str], *args: Value) -> Value | None:
    """The text that a function makes of values, some of which only the running program knows. None
    where there are none such, or where it might fail."""
    values = list(map(session.realize, args))
    if not any(map(_is_late, values)):
        return None
    texts = snapshots(session, values)
    if texts is None:
        return None
    try:
        for turn in range(4):
            function(*map(partial(_sample, turn=turn), values))
    except (NotConstant, ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return None
    return LateText(function, texts)


def formatted(
    session: Session, function: Callable[..., Any], template: Value, args: Value
) -> Value | None:
    """`template % args` of a text, where `late_text` has an answer."""
    if function is not operator.mod or not (
        isinstance(template, ConstantValue) and type(template.object) is str
    ):
        return None
    return late_text(session, operator.mod, template, args)


def joined(session: Session, texts: Sequence[Value]) -> Value:
    """The texts in a row."""
    if all(isinstance(text, ConstantValue) for text in texts):
        return ConstantValue("".join(constants(texts)))
    return LateText(_joined, texts)


def _is_late(value: Value) -> bool:
    if isinstance(value, (TupleValue, ListValue)) and value.source is None:
        return any(map(_is_late, value.items))
    if isinstance(value, DictValue) and value.source is None:
        return any(map(_is_late, value.entries.values()))
    return isinstance(value, (TensorValue, NumberValue, LateText))


def _sample(value: Value, turn: int) -> Any:
    """An object like the one that the running program will have."""
    if isinstance(value, (TupleValue, ListValue)):
        return value._build(list(map(partial(_sample, turn=turn), value.items)))
    if isinstance(value, DictValue):
        return map_values(partial(_sample, turn=turn), value.entries)
    if isinstance(value, NumberValue):
        return _pick(value.cls, turn)
    if isinstance(value, LateText):
        return _pick(str, turn)
    if isinstance(value, TensorValue):
        dtype = value.fake.dtype
        if dtype.is_floating_point:
            kind: type = float
        elif dtype.is_complex:
            kind = complex
        else:
            kind = int
        number = _pick(bool if dtype is torch.bool else kind, turn)
        number = number % 100 if kind is int else number  # small integers fit every type
        return torch.full((1,) * value.fake.dim(), number, dtype=dtype, device="cpu")
    return value.constant()


def _pick(kind: type, turn: int) -> Any:
    return _SPECIAL[kind][turn % len(_SPECIAL[kind])]
