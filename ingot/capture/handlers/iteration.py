"""Iterators and loops."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Raised, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import GeneratorValue
from ingot.capture.values.objects import ObjectValue


@handles("GET_ITER", "GET_YIELD_FROM_ITER")
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


@handles("SEND")
def send(frame: InterpreterFrame, behind: int) -> None:
    value, receiver = frame.pop(), frame.peek()
    if isinstance(receiver, GeneratorValue):
        element = receiver.resume(frame.session, value)
        result: Value = receiver.result
    else:
        element, result = _sent_to(frame, receiver, value)
    if element is not None:
        frame.push(element)
    else:
        frame.stack[-1] = result
        frame.index = behind


def _sent_to(frame: InterpreterFrame, receiver: Value, value: Value) -> tuple[Value | None, Value]:
    """The next element of an iterator of another kind, or else its result."""
    session = frame.session
    try:
        if value.identity() is not None:
            return session.call(receiver.get_attribute(session, "send"), [value], {}), NONE
        if isinstance(receiver, ObjectValue):
            return receiver.step(session), NONE
        return receiver.next(session), NONE
    except Raised as raised:
        if not raised.is_a(StopIteration):
            raise
        return None, session.realize(raised.value.get_attribute(session, "value"))


@handles("CLEANUP_THROW")
def cleanup_throw(frame: InterpreterFrame, _: Any) -> None:
    """Behind a `yield from` whose iterator has raised: StopIteration has the result."""
    _, _, raised = frame.pop_many(3)
    raised = frame.session.realize(raised)
    if not issubclass(raised.python_type(), StopIteration):
        raise Raised(raised)
    frame.push(raised.get_attribute(frame.session, "value"))
