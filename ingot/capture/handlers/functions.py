"""Making functions and generators."""

from __future__ import annotations

import builtins
from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Value
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import CellValue, FunctionValue, GeneratorValue
from ingot.capture.values.sequences import TupleValue


@handles("MAKE_FUNCTION")
def make_function(frame: InterpreterFrame, _: Any) -> None:
    frame.push(FunctionValue(frame.pop().constant(), frame.function.namespace))


@handles("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame: InterpreterFrame, flag: int) -> None:
    function, value = frame.pop(), frame.pop()
    assert isinstance(function, FunctionValue)
    if flag == 1 and isinstance(value, TupleValue):
        function.defaults = value.items
    elif flag == 2 and isinstance(value, DictValue):
        function.keyword_defaults = value.entries
    elif flag == 4:
        function.annotations = value
    elif flag == 16:
        function.annotate = value
    elif isinstance(value, TupleValue):
        function.cells = tuple(cell for cell in value.items if isinstance(cell, CellValue))
    frame.push(function)


@handles("LOAD_BUILD_CLASS")
def load_build_class(frame: InterpreterFrame, _: Any) -> None:
    frame.push(frame.session.builtin(builtins.__build_class__))


@handles("RETURN_GENERATOR")
def return_generator(frame: InterpreterFrame, _: Any) -> Value:
    if frame.program.code.co_flags & 0x280:
        raise frame.session.unsupported("coroutine", "a coroutine begins")
    return GeneratorValue(frame)


@handles("YIELD_VALUE")
def yield_value(frame: InterpreterFrame, _: Any) -> Value:
    return frame.stack.pop()
