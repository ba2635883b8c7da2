"""f-strings."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.late_text import joined, late_text


@handles("CONVERT_VALUE")
def convert_value(frame: InterpreterFrame, conversion: Any) -> None:
    session, value = frame.session, frame.pop()
    text = late_text(session, conversion, value)
    frame.push(text or ConstantValue(session.text_of(value, conversion)))


@handles("FORMAT_SIMPLE")
def format_simple(frame: InterpreterFrame, _: Any) -> None:
    convert_value(frame, format)


@handles("FORMAT_WITH_SPEC")
def format_with_spec(frame: InterpreterFrame, _: Any) -> None:
    session, spec, value = frame.session, frame.pop(), frame.pop()
    text = late_text(session, format, value, spec)
    frame.push(text or ConstantValue(session.format_of(value, spec.constant())))


@handles("BUILD_INTERPOLATION", "BUILD_TEMPLATE")
def build_template(frame: InterpreterFrame, _: Any) -> None:
    raise frame.session.unsupported("instruction", "a template string")


@handles("BUILD_STRING")
def build_string(frame: InterpreterFrame, count: int) -> None:
    frame.push(joined(frame.session, frame.pop_many(count)))
