"""The questions of match statements."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.keys import dict_key
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
    items: list[Value] = []
    for key in map(session.realize, session.unpacked(frame.peek())):
        if isinstance(subject, DictValue):
            value = subject.find(session, dict_key(session, key))
        else:
            missing = ConstantValue(object())
            value = session.call(subject.get_attribute(session, "get"), [key, missing], {})
            if value is missing:
                value = None
        if value is None:
            frame.push(NONE)
            return
        items.append(value)
    frame.push(TupleValue(items, tuple))


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
    attributes: list[Value] = []
    for name in (*_positional_names(frame, cls, positional), *names):
        value: Value | None = subject
        if name is not None:
            value = session.optional_attribute(subject, name)
        if value is None:
            frame.push(NONE)
            return
        attributes.append(value)
    frame.push(TupleValue(attributes, tuple))


def _positional_names(frame: InterpreterFrame, cls: Value, count: int) -> tuple[str | None, ...]:
    """The attributes that positional patterns stand for; None is the subject itself."""
    if not count:
        return ()
    session, known = frame.session, cls.constant()
    names: Any = ()
    if hasattr(known, "__match_args__"):
        names = session.known(cls.get_attribute(session, "__match_args__"))
    elif known.__flags__ & _MATCH_SELF:
        names = (None,)
    if type(names) is not tuple:
        message = f".__match_args__ must be a tuple (got {type(names).__name__})"
        raise session.raised(TypeError, f"{known.__name__}{message}")
    if count > len(names):
        accepted = f"{len(names)} positional sub-patterns"
        if len(names) == 1:
            accepted = "1 positional sub-pattern"
        message = f"{known.__name__}() accepts {accepted} ({count} given)"
        raise session.raised(TypeError, message)
    return names[:count]
