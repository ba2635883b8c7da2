"""f-strings."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue


def text(frame: InterpreterFrame, value: Value, make: Any) -> str:
    """The text of a value, by str, repr, format or a kin of theirs."""
    return frame.session.text_of(value, make)


@handles("CONVERT_VALUE")
def convert_value(frame: InterpreterFrame, conversion: Any) -> None:
    frame.push(ConstantValue(text(frame, frame.pop(), conversion)))


@handles("FORMAT_SIMPLE")
def format_simple(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(text(frame, frame.pop(), format)))


@handles("FORMAT_WITH_SPEC")
def format_with_spec(frame: InterpreterFrame, _: Any) -> None:
    spec = frame.pop().constant()
    frame.push(ConstantValue(text(frame, frame.pop(), lambda value: format(value, spec))))


@handles("BUILD_STRING")
def build_string(frame: InterpreterFrame, count: int) -> None:
    frame.push(ConstantValue("".join(part.constant() for part in frame.pop_many(count))))
