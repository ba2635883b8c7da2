"""Calls."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL, Keywords, Value
from ingot.capture.values.keys import ArgumentName, plain_key
from ingot.capture.values.objects import IdentityKey


def _call(frame: InterpreterFrame, args: list[Any], kwargs: Keywords) -> InterpreterFrame | None:
    """Calls what lies on the stack as (NULL, callable), (callable, NULL) or (callable, self). A
    Python function's frame is returned, to be run next."""
    above, below = frame.stack.pop(), frame.stack.pop()
    if below is NULL:
        callable_ = above
    elif above is NULL:
        callable_ = below
    else:
        callable_, args = below, [above, *args]
    session = frame.session
    callable_ = session.realize(callable_)
    target = callable_.callee(session, args, kwargs)
    if target is not None:
        return session.frame_of(*target)
    frame.push(callable_.call(session, args, kwargs))
    return None


@handles("CALL")
def call(frame: InterpreterFrame, count: int) -> InterpreterFrame | None:
    return _call(frame, frame.pop_many(count), {})


@handles("CALL_KW")
def call_kw(frame: InterpreterFrame, count: int) -> InterpreterFrame | None:
    names = frame.pop().constant()
    args = frame.pop_many(count)
    split = count - len(names)
    return _call(frame, args[:split], dict(zip(names, args[split:])))


def _unpacked(frame: InterpreterFrame, args: Value) -> list[Value]:
    """The elements of what stands behind the star."""
    session, cls = frame.session, args.python_type()
    if not hasattr(cls, "__iter__") and not hasattr(cls, "__getitem__"):
        if frame.stack[-1] is not NULL:
            callee = frame.stack[-1]
        else:
            callee = frame.stack[-2]
        text = session.function_text(callee)
        raise session.raised(
            TypeError, f"{text} argument after * must be an iterable, not {cls.__name__}"
        )
    return session.unpacked(args)


def _name(frame: InterpreterFrame, key: Any) -> Any:
    """The name of an argument, which may be an instance of a subclass of str."""
    plain = plain_key(key)
    is_text = isinstance(plain, IdentityKey) and issubclass(plain.value.python_type(), str)
    name = plain
    if is_text:
        name = frame.session.known(plain.value)
    if type(name) is not str or not isinstance(key, IdentityKey):
        return name
    argument = ArgumentName(name)
    argument.key = key
    return argument


@handles("CALL_FUNCTION_EX")
def call_function_ex(frame: InterpreterFrame, has_keywords: bool) -> InterpreterFrame | None:
    if has_keywords:
        kwargs = frame.session.entries_of(frame.pop())
    else:
        kwargs = {}
    kwargs = {_name(frame, key): value for key, value in kwargs.items()}
    args = _unpacked(frame, frame.pop())
    if not all(isinstance(name, str) for name in kwargs):
        raise frame.session.raised(TypeError, "keywords must be strings")
    return _call(frame, args, kwargs)
