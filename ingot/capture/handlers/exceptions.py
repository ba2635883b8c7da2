"""Raising, handling, and with blocks."""

from __future__ import annotations

from typing import Any

from ingot.capture.bytecode import VERSION
from ingot.capture.guards import MISSING
from ingot.capture.handlers.calls import push_call
from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL, Raised, Value, full_name, type_name
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import INHERITED
from ingot.capture.values.objects import ObjectValue


def _exception(frame: InterpreterFrame, value: Value, what: str) -> ExceptionValue:
    """The exception that a raise statement names: an instance, or a class to be called."""
    session = frame.session
    if issubclass(value.python_type(), type) and issubclass(value.constant(), BaseException):
        cls, value = value, session.realize(session.call(value, [], {}))
        if not isinstance(value, ExceptionValue):
            message = f"calling {cls.constant()} should have returned an instance of BaseException"
            raise session.raised(TypeError, f"{message}, not {value.python_type()}")
    if not isinstance(value, ExceptionValue):
        if issubclass(value.python_type(), BaseException):
            raise session.unsupported("exception", f"{value.describe()} is raised")
        raise session.raised(TypeError, f"{what} must derive from BaseException")
    return value


@handles("RAISE_VARARGS")
def raise_varargs(frame: InterpreterFrame, count: int) -> None:
    session = frame.session
    handled = session.handled
    if count == 0:
        if not isinstance(handled, ExceptionValue):
            raise session.raised(RuntimeError, "No active exception to reraise")
        raise Raised(handled)
    cause = None
    if count == 2:
        cause = frame.pop()
    raised = _exception(frame, frame.pop(), "exceptions")
    if cause is not None:
        if cause.identity() is not None:
            cause = _exception(frame, cause, "exception causes")
        raised.set_base_field(session, "__cause__", cause)
    raise session.raising(raised)


@handles("RERAISE")
def reraise(frame: InterpreterFrame, _: int) -> None:
    raise Raised(frame.pop())


@handles("PUSH_EXC_INFO")
def push_exc_info(frame: InterpreterFrame, _: Any) -> None:
    session, raised = frame.session, frame.pop()
    before = session.handled
    if session.inherited is not NONE and before is session.inherited:
        before = INHERITED
    frame.push(before)
    frame.push(raised)
    session.handled = raised


@handles("POP_EXCEPT")
def pop_except(frame: InterpreterFrame, _: Any) -> None:
    handled = frame.pop()
    if handled is INHERITED:
        handled = frame.session.inherited
    frame.session.handled = handled


@handles("CHECK_EXC_MATCH")
def check_exc_match(frame: InterpreterFrame, _: Any) -> None:
    classes = frame.session.known(frame.pop())
    if type(classes) is not tuple:
        classes = (classes,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            message = "catching classes that do not inherit from BaseException is not allowed"
            raise frame.session.raised(TypeError, message)
    order = frame.peek().python_type().__mro__
    frame.push(ConstantValue(any(map(order.__contains__, classes))))


@handles("STOPITERATION_ERROR")
def stopiteration_error(frame: InterpreterFrame, _: Any) -> None:
    raised = frame.peek()
    if issubclass(raised.python_type(), StopIteration):
        frame.pop()
        frame.push(frame.session.stopped_inside(raised))


# -- with ------------------------------------------------------------------------------------------


def _special_method(frame: InterpreterFrame, manager: Value, name: str) -> Value:
    """A method that the class of a context manager has; the instance is not asked."""
    session = frame.session
    try:
        if isinstance(manager, ObjectValue):
            raw = session.class_lookup(manager.cls, name)
            if raw is MISSING:
                raise manager.attribute_error(session, name)
            return manager.bind(session, raw, name)
        return manager.get_attribute(session, name)
    except Raised as raised:
        if not raised.is_a(AttributeError):
            raise
        kind, hint = type_name(manager.python_type()), ""
        if VERSION >= (3, 14):
            kind = full_name(manager.python_type())
        if name == "__exit__" or VERSION >= (3, 14):
            hint = f" (missed {name} method)"
        if VERSION >= (3, 14) and hasattr(manager.python_type(), "__aenter__"):
            raise session.unsupported(
                "exception", f"{manager.describe()} is an asynchronous context manager"
            ) from None
        message = f"'{kind}' object does not support the context manager protocol{hint}"
        raise session.raised(TypeError, message) from None


@handles("BEFORE_WITH")
def before_with(frame: InterpreterFrame, _: Any) -> InterpreterFrame | None:
    manager = frame.pop()
    enter = _special_method(frame, manager, "__enter__")
    frame.push(_special_method(frame, manager, "__exit__"))
    return push_call(frame, enter, [], {})


@handles("LOAD_SPECIAL")
def load_special(frame: InterpreterFrame, name: str) -> None:
    if name not in ("__enter__", "__exit__"):
        raise frame.session.unsupported("coroutine", "an asynchronous context manager")
    frame.push(_special_method(frame, frame.pop(), name))


@handles("WITH_EXCEPT_START")
def with_except_start(frame: InterpreterFrame, depth: int) -> InterpreterFrame | None:
    raised, leave = frame.peek(), frame.peek(depth)
    receiver = []
    if depth == 5 and frame.stack[-4] is not NULL:
        receiver.append(frame.stack[-4])
    traceback: Value = NONE
    if isinstance(raised, ExceptionValue):
        traceback = raised.traceback()
    cls = frame.session.wrap_constant(raised.python_type())
    return push_call(frame, leave, [*receiver, cls, raised, traceback], {})
