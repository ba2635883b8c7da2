"""The questions of match statements."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Raised, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.sequences import TupleValue

_SEQUENCE, _MAPPING, _MATCH_SELF = 1 << 5, 1 << 6, 1 << 22
"""Py_TPFLAGS_SEQUENCE, _MAPPING and _MATCH_SELF: what a class is to match statements."""


@handles("GET_LEN")
def get_len(frame: InterpreterFrame, _: Any) -> None:
    length = frame.peek().length(frame.session)
    frame.push(length if isinstance(length, Value) else ConstantValue(length))


@handles("MATCH_SEQUENCE")
def match_sequence(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(bool(frame.peek().python_type().__flags__ & _SEQUENCE)))


@handles("MATCH_MAPPING")
def match_mapping(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(bool(frame.peek().python_type().__flags__ & _MAPPING)))


@handles("MATCH_KEYS")
def match_keys(frame: InterpreterFrame, _: Any) -> None:
    session, subject = frame.session, frame.peek(2)
    found: list[Value] = []
    for key in map(session.realize, session.unpacked(frame.peek())):
        if isinstance(subject, DictValue):
            value = subject.find(session, key.key(session))
        else:
            missing = ConstantValue(object())
            got = session.call(subject.get_attribute(session, "get"), [key, missing], {})
            if got is missing:
                value = None
            else:
                value = got
        if value is None:
            frame.push(NONE)
            return
        found.append(value)
    frame.push(TupleValue(found, tuple))


@handles("MATCH_CLASS")
def match_class(frame: InterpreterFrame, positional: int) -> None:
    session = frame.session
    names, cls, subject = frame.pop().constant(), frame.pop(), frame.pop()
    if not issubclass(cls.python_type(), type):
        raise session.raised(TypeError, "called match pattern must be a class")
    is_instance = session.call(session.builtin(isinstance), [subject, cls], {})
    if not session.truth(is_instance):
        frame.push(NONE)
        return
    matched: list[Value] = []
    wanted = (*_positional_names(frame, cls, positional), *names)
    try:
        for name in wanted:
            matched.append(subject if name is None else subject.get_attribute(session, name))
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        frame.push(NONE)
        return
    frame.push(TupleValue(matched, tuple))


def _positional_names(frame: InterpreterFrame, cls: Value, count: int) -> tuple[str | None, ...]:
    """The attributes that positional patterns stand for; None is the subject itself."""
    if not count:
        return ()
    session, known = frame.session, cls.constant()
    has_names = hasattr(known, "__match_args__")
    if has_names:
        names = session.known(cls.get_attribute(session, "__match_args__"))
    else:
        names = ()
    if not has_names and known.__flags__ & _MATCH_SELF:
        names = (None,)
    if type(names) is not tuple:
        kind = type(names).__name__
        raise session.raised(
            TypeError, f"{known.__name__}.__match_args__ must be a tuple (got {kind})"
        )
    if count > len(names):
        plural = "s"
        if len(names) == 1:
            plural = ""
        accepted = f"{len(names)} positional sub-pattern{plural}"
        message = f"{known.__name__}() accepts {accepted} ({count} given)"
        raise session.raised(TypeError, message)
    return names[:count]
