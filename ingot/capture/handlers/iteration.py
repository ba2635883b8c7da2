"""Iterators and loops."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import GeneratorValue


@handles("GET_ITER")
def get_iter(frame: InterpreterFrame, _: Any) -> None:
    frame.push(frame.session.iterate(frame.pop()))


@handles("FOR_ITER")
def for_iter(frame: InterpreterFrame, behind: int) -> None:
    element = frame.peek().next(frame.session)
    if element is not None:
        frame.push(element)
    else:
        frame.stack.pop()
        frame.index = behind


@handles("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: InterpreterFrame, _: Any) -> None:
    frame.push(frame.session.iterate(frame.pop()))


@handles("SEND")
def send(frame: InterpreterFrame, behind: int) -> None:
    sent, receiver = frame.pop(), frame.peek()
    generator = receiver if isinstance(receiver, GeneratorValue) else None
    element = generator.resume(frame.session, sent) if generator else receiver.next(frame.session)
    if element is not None:
        frame.push(element)
    else:
        frame.stack[-1] = generator.result if generator else NONE
        frame.index = behind
