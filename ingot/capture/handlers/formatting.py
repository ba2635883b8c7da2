"""f-strings."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.constant import ConstantValue


@handles("CONVERT_VALUE")
def convert_value(frame: InterpreterFrame, conversion: Any) -> None:
    frame.push(ConstantValue(frame.session.text_of(frame.pop(), conversion)))


@handles("FORMAT_SIMPLE")
def format_simple(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(frame.session.text_of(frame.pop(), format)))


@handles("FORMAT_WITH_SPEC")
def format_with_spec(frame: InterpreterFrame, _: Any) -> None:
    spec = frame.pop().constant()
    frame.push(ConstantValue(frame.session.format_of(frame.pop(), spec)))


@handles("BUILD_STRING")
def build_string(frame: InterpreterFrame, count: int) -> None:
    frame.push(ConstantValue("".join(part.constant() for part in frame.pop_many(count))))
