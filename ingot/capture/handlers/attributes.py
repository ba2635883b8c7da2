"""Attributes and items."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import LazyValue


@handles("LOAD_ATTR")
def load_attr(frame: InterpreterFrame, name: str) -> None:
    owner = frame.stack.pop()
    session = frame.session
    if type(owner) is LazyValue:
        owner = session.realize(owner)
    frame.push(owner.get_attribute(session, name))


@handles("STORE_ATTR")
def store_attr(frame: InterpreterFrame, name: str) -> None:
    owner = frame.pop()
    owner.set_attribute(frame.session, name, frame.stack.pop())


@handles("DELETE_ATTR")
def delete_attr(frame: InterpreterFrame, name: str) -> None:
    frame.pop().delete_attribute(frame.session, name)


@handles("LOAD_SUPER_ATTR")
def load_super_attr(frame: InterpreterFrame, name: str) -> None:
    callee, *args = frame.pop_many(3)
    frame.push(frame.session.call(callee, args, {}).get_attribute(frame.session, name))


@handles("BINARY_SUBSCR")
def binary_subscr(frame: InterpreterFrame, _: Any) -> None:
    key = frame.pop()
    frame.push(frame.session.get_item(frame.pop(), key))


@handles("STORE_SUBSCR")
def store_subscr(frame: InterpreterFrame, _: Any) -> None:
    key, owner = frame.pop(), frame.pop()
    owner.set_item(frame.session, key, frame.stack.pop())


@handles("DELETE_SUBSCR")
def delete_subscr(frame: InterpreterFrame, _: Any) -> None:
    key = frame.pop()
    frame.pop().delete_item(frame.session, key)
