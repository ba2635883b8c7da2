"""Jumps and returns."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.lookahead import only_raises
from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.objects import ObjectValue


@handles("JUMP")
def jump(frame: InterpreterFrame, target: int) -> None:
    frame.index = target


Side = tuple[int, list[Value]]
"""The instruction that one side of a branch begins with, and the operands there."""


def truth_at_branch(frame: InterpreterFrame, value: Value, if_false: Side, if_true: Side) -> bool:
    """The truth of a value that decides where a frame goes on. Where one side does nothing but
    raise an error, the data of a tensor are checked to lead to the other when the graph runs, and
    eager raises the error."""
    if type(value) is ConstantValue:
        return bool(value.object)
    if isinstance(value, ObjectValue):
        value = frame.session.as_bool(value)
    if value.can_require_truth:
        must_be_true = only_raises(frame, *if_false, value, False)
        must_be_false = only_raises(frame, *if_true, value, True)
        if must_be_true is not must_be_false and value.require_truth(frame.session, must_be_true):
            return must_be_true
    return frame.session.truth(value)


def _truth(frame: InterpreterFrame, value: Value, if_false: int, if_true: int) -> bool:
    return truth_at_branch(frame, value, (if_false, frame.stack), (if_true, frame.stack))


@handles("POP_JUMP_IF_TRUE")
def pop_jump_if_true(frame: InterpreterFrame, target: int) -> None:
    if _truth(frame, frame.pop(), frame.index, target):
        frame.index = target


@handles("POP_JUMP_IF_FALSE")
def pop_jump_if_false(frame: InterpreterFrame, target: int) -> None:
    if not _truth(frame, frame.pop(), target, frame.index):
        frame.index = target


@handles("POP_JUMP_IF_NONE")
def pop_jump_if_none(frame: InterpreterFrame, target: int) -> None:
    if frame.session.same(frame.pop(), NONE):
        frame.index = target


@handles("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(frame: InterpreterFrame, target: int) -> None:
    if not frame.session.same(frame.pop(), NONE):
        frame.index = target


@handles("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(frame: InterpreterFrame, target: int) -> None:
    _jump_or_pop(frame, target, True)


@handles("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(frame: InterpreterFrame, target: int) -> None:
    _jump_or_pop(frame, target, False)


def _jump_or_pop(frame: InterpreterFrame, target: int, jumps_if: bool) -> None:
    value = frame.pop()
    keeps, drops = (target, [*frame.stack, value]), (frame.index, frame.stack)
    sides = [keeps, drops]
    if jumps_if:
        sides = [drops, keeps]
    if truth_at_branch(frame, value, *sides) is jumps_if:
        frame.push(value)
        frame.index = target


@handles("RETURN_VALUE")
def return_value(frame: InterpreterFrame, _: Any) -> Value:
    frame.finished = True
    return frame.stack.pop()
