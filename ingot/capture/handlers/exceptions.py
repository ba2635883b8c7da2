"""Raising, handling, and with blocks."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Raised, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.objects import ClassValue, ExceptionValue


def _exception(frame: InterpreterFrame, value: Value) -> ExceptionValue:
    """The exception that a raise statement names: an instance, or a class to be called."""
    if isinstance(value, ClassValue) or (value.is_constant() and isinstance(value.constant(), type)):
        value = frame.session.call(value, [], {})
    if not isinstance(value, ExceptionValue):
        raise frame.session.unsupported(f"{value.describe()} is raised")
    return value


@handles("RAISE_VARARGS")
def raise_varargs(frame: InterpreterFrame, count: int) -> None:
    handled = frame.session.handled
    if count == 0:
        if handled.is_constant():  # None
            raise frame.session.raised(RuntimeError, "No active exception to reraise")
        raise Raised(handled)
    cause = frame.pop() if count == 2 else NONE
    raised = _exception(frame, frame.pop())
    raised.cause = cause
    raise Raised(raised)


@handles("RERAISE")
def reraise(frame: InterpreterFrame, _: int) -> None:
    raise Raised(frame.pop())


@handles("PUSH_EXC_INFO")
def push_exc_info(frame: InterpreterFrame, _: Any) -> None:
    raised = frame.pop()
    frame.push(frame.session.handled)
    frame.push(raised)
    frame.session.handled = raised


@handles("POP_EXCEPT")
def pop_except(frame: InterpreterFrame, _: Any) -> None:
    frame.session.handled = frame.pop()


@handles("CHECK_EXC_MATCH")
def check_exc_match(frame: InterpreterFrame, _: Any) -> None:
    wanted = frame.pop().constant()
    frame.push(ConstantValue(issubclass(frame.peek().python_type(), wanted)))


@handles("STOPITERATION_ERROR")
def stopiteration_error(frame: InterpreterFrame, _: Any) -> None:
    if issubclass(frame.peek().python_type(), StopIteration):
        frame.pop()
        frame.push(ExceptionValue(RuntimeError, [ConstantValue("generator raised StopIteration")]))


@handles("BEFORE_WITH")
def before_with(frame: InterpreterFrame, _: Any) -> None:
    session, manager = frame.session, frame.pop()
    frame.push(manager.get_attribute(session, "__exit__"))
    frame.push(session.call(manager.get_attribute(session, "__enter__"), [], {}))


@handles("WITH_EXCEPT_START")
def with_except_start(frame: InterpreterFrame, _: Any) -> None:
    raised, leave = frame.peek(), frame.peek(4)
    cls = frame.session.wrap_constant(raised.python_type())
    frame.push(frame.session.call(leave, [cls, raised, NONE], {}))
