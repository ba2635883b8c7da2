"""Jumps and returns."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE


@handles("JUMP")
def jump(frame: InterpreterFrame, target: int) -> None:
    frame.index = target


@handles("POP_JUMP_IF_TRUE")
def pop_jump_if_true(frame: InterpreterFrame, target: int) -> None:
    if frame.session.truth(frame.pop()):
        frame.index = target


@handles("POP_JUMP_IF_FALSE")
def pop_jump_if_false(frame: InterpreterFrame, target: int) -> None:
    if not frame.session.truth(frame.pop()):
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
