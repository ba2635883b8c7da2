"""Calls."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL, Keywords


def _call(frame: InterpreterFrame, args: list[Any], kwargs: Keywords) -> None:
    """Calls what lies on the stack as (NULL, callable), (callable, NULL) or (callable, self)."""
    below, above = frame.pop_many(2)
    if below is NULL:
        callable_ = above
    elif above is NULL:
        callable_ = below
    else:
        callable_, args = below, [above, *args]
    frame.push(frame.session.call(callable_, args, kwargs))


@handles("CALL")
def call(frame: InterpreterFrame, count: int) -> None:
    _call(frame, frame.pop_many(count), {})


@handles("CALL_KW")
def call_kw(frame: InterpreterFrame, count: int) -> None:
    names = frame.pop().constant()
    args = frame.pop_many(count)
    split = count - len(names)
    _call(frame, args[:split], dict(zip(names, args[split:])))


@handles("CALL_FUNCTION_EX")
def call_function_ex(frame: InterpreterFrame, has_keywords: bool) -> None:
    kwargs = frame.session.entries_of(frame.pop()) if has_keywords else {}
    args = frame.session.unpacked(frame.pop())
    _call(frame, args, dict(kwargs))
