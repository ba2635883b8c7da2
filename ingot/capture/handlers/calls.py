"""Calls."""

from __future__ import annotations

from typing import Any

from ingot.capture.handlers.containers import callee_text, is_iterable
from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL, Keywords, Value
from ingot.capture.values.keys import ArgumentName, plain_key
from ingot.capture.values.module import ModuleValue
from ingot.capture.values.objects import IdentityKey


def _call(frame: InterpreterFrame, args: list[Value], kwargs: Keywords) -> InterpreterFrame | None:
    callable_, args = frame.pop_callable(args)
    return push_call(frame, callable_, args, kwargs)


def push_call(
    frame: InterpreterFrame, callable_: Value, args: list[Value], kwargs: Keywords
) -> InterpreterFrame | None:
    """Calls a value and pushes the result. A Python function's frame is returned, to be run
    next."""
    session = frame.session
    callable_ = session.realize(callable_)
    layer = None
    if type(callable_) is ModuleValue:
        repeated = session.layers.repeated(callable_, args, kwargs)
        if isinstance(repeated, Value):
            frame.push(repeated)
            return None
        layer = repeated
    target = callable_.callee(session, args, kwargs)
    if target is not None:
        called = session.frame_of(*target)
        if layer is not None:
            session.layers.begin(layer, called)
        return called
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
    session, kind = frame.session, args.python_type().__name__
    if not is_iterable(args):
        text = callee_text(frame, 1)
        raise session.raised(TypeError, f"{text} argument after * must be an iterable, not {kind}")
    return session.tuple_of(args).items


def _name(frame: InterpreterFrame, key: Any) -> Any:
    """The name of an argument, which may be an instance of a subclass of str."""
    plain = plain_key(key)
    name = plain
    if isinstance(plain, IdentityKey) and issubclass(plain.value.python_type(), str):
        name = frame.session.known(plain.value)
    if type(name) is not str or not isinstance(key, IdentityKey):
        return name
    argument = ArgumentName(name)
    argument.key = key
    return argument


@handles("CALL_FUNCTION_EX")
def call_function_ex(frame: InterpreterFrame, has_keywords: bool) -> InterpreterFrame | None:
    entries: Keywords = {}
    if has_keywords and (keywords := frame.pop()) is not NULL:
        entries = frame.session.entries_of(keywords)
    kwargs = {}
    for key, value in entries.items():
        kwargs[_name(frame, key)] = value
    args = _unpacked(frame, frame.pop())
    if not all(isinstance(name, str) for name in kwargs):
        raise frame.session.raised(TypeError, "keywords must be strings")
    return _call(frame, args, kwargs)
