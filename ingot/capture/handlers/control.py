"""Jumps and returns."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.size_checks import require_truth
from ingot.capture.values.tensor import TensorValue


@handles("JUMP")
def jump(frame: InterpreterFrame, target: int) -> None:
    frame.index = target


def truth_at_branch(frame: InterpreterFrame, value: Value, if_false: int, if_true: int) -> bool:
    """The truth of a value that decides where a frame goes on. Where one side does nothing but raise an error, the data
    of a tensor are checked to lead to the other when the graph runs, and eager raises the error."""
    if type(value) is ConstantValue:
        return bool(value.object)
    if isinstance(value, TensorValue):
        wanted = only_raises(frame, if_false)
        if wanted is not only_raises(frame, if_true) and require_truth(frame.session, value, wanted):
            return wanted
    return frame.session.truth(value)


def only_raises(frame: InterpreterFrame, index: int) -> bool:
    """Whether the instructions from this one on raise an error, on a straight way."""
    for instruction in frame.program.instructions[index : index + _LONGEST_MESSAGE]:
        if instruction.op == "RAISE_VARARGS":
            return True
        if "JUMP" in instruction.op or instruction.op in _ENDS:
            return False
    return False


_LONGEST_MESSAGE = 100  # instructions
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RERAISE", "FOR_ITER", "SEND", "YIELD_VALUE"})


@handles("POP_JUMP_IF_TRUE")
def pop_jump_if_true(frame: InterpreterFrame, target: int) -> None:
    if truth_at_branch(frame, frame.pop(), frame.index, target):
        frame.index = target


@handles("POP_JUMP_IF_FALSE")
def pop_jump_if_false(frame: InterpreterFrame, target: int) -> None:
    if not truth_at_branch(frame, frame.pop(), target, frame.index):
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


def _jump_or_pop(frame: InterpreterFrame, target: int, wanted: bool) -> None:
    value = frame.pop()
    if frame.session.truth(value) is wanted:
        frame.push(value)
        frame.index = target


@handles("RETURN_VALUE")
def return_value(frame: InterpreterFrame, _: Any) -> Value:
    frame.finished = True
    return frame.stack.pop()
