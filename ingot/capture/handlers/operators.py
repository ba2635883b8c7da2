"""Operators and comparisons."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ingot.capture.bytecode import VERSION
from ingot.capture.handlers.control import truth_at_branch
from ingot.capture.interpreter import InterpreterFrame, OpcodeHandler, handles
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.late_text import formatted
from ingot.capture.values.membership import answer_of_data
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.unread import counted


@handles("BINARY_OP", "COMPARE_OP")
def binary_op(frame: InterpreterFrame, function: Any) -> None:
    session, right, left = frame.session, frame.stack.pop(), frame.stack.pop()
    if type(left) is TensorValue:
        frame.push(session.binary(function, left, right))
        return
    result = counted(session, function, left, right) or formatted(session, function, left, right)
    frame.push(result or session.binary(function, left, right))


def _unary(function: Callable[[Any], Any]) -> OpcodeHandler:
    return lambda frame, _: frame.push(frame.pop().unary(frame.session, function))


handles("UNARY_NEGATIVE")(_unary(operator.neg))
handles("UNARY_POSITIVE")(_unary(operator.pos))


@handles("UNARY_INVERT")
def unary_invert(frame: InterpreterFrame, _: Any) -> None:
    value = frame.pop()
    if VERSION >= (3, 12) and value.python_type() is bool:
        raise frame.session.unsupported("warning", "Python warns of ~ of a bool")
    frame.push(value.unary(frame.session, operator.invert))


@handles("UNARY_NOT")
def unary_not(frame: InterpreterFrame, _: Any) -> None:
    frame.push(frame.session.negation(frame.pop()))


@handles("TO_BOOL")
def to_bool(frame: InterpreterFrame, _: Any) -> None:
    value, follows = frame.pop(), frame.program.instructions[frame.index]
    sides = (frame.index + 1, frame.stack), (follows.arg, frame.stack)
    if follows.op == "POP_JUMP_IF_TRUE":
        frame.push(ConstantValue(truth_at_branch(frame, value, *sides)))
    elif follows.op == "POP_JUMP_IF_FALSE":
        frame.push(ConstantValue(truth_at_branch(frame, value, *sides[::-1])))
    else:
        frame.push(frame.session.as_bool(value))


@handles("IS_OP")
def is_op(frame: InterpreterFrame, inverted: int) -> None:
    right, left = frame.pop(), frame.pop()
    session, expected = frame.session, not inverted
    answer = left.is_bool(session, right, expected) or right.is_bool(session, left, expected)
    frame.push(answer or ConstantValue(session.same(left, right) is expected))


@handles("CONTAINS_OP")
def contains_op(frame: InterpreterFrame, inverted: int) -> None:
    container, item = frame.pop(), frame.pop()
    answer = answer_of_data(frame.session, container, item)
    if answer is None:
        frame.push(ConstantValue(frame.session.contains(container, item) is not bool(inverted)))
    elif inverted:
        frame.push(frame.session.negation(answer))
    else:
        frame.push(answer)
