"""Building and taking apart tuples, lists, dicts, sets, slices."""

from __future__ import annotations

import sys
from typing import Any

from ingot.capture.bytecode import VERSION
from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.reading import KeyTaken
from ingot.capture.values.base import NULL, Raised, Value, type_name
from ingot.capture.values.constant import NONE
from ingot.capture.values.containers import DictValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.keys import dict_key
from ingot.capture.values.sequences import ListValue, SequenceValue, SliceValue, TupleValue


@handles("BUILD_TUPLE")
def build_tuple(frame: InterpreterFrame, count: int) -> None:
    frame.push(TupleValue(frame.pop_many(count), tuple))


@handles("BUILD_LIST")
def build_list(frame: InterpreterFrame, count: int) -> None:
    frame.push(ListValue(frame.pop_many(count), list))


@handles("BUILD_SET")
def build_set(frame: InterpreterFrame, count: int) -> None:
    frame.push(frame.session.set_of(TupleValue(frame.pop_many(count), tuple)))


@handles("BUILD_MAP")
def build_map(frame: InterpreterFrame, count: int) -> None:
    session, flat = frame.session, frame.pop_many(2 * count)
    keys = []
    for key in flat[::2]:
        keys.append(dict_key(session, session.realize(key)))
    frame.push(DictValue(zip(keys, flat[1::2]), dict))


@handles("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: InterpreterFrame, count: int) -> None:
    keys = frame.pop().constant()
    frame.push(DictValue(zip(keys, frame.pop_many(count)), dict))


@handles("BUILD_SLICE")
def build_slice(frame: InterpreterFrame, count: int) -> None:
    start, stop, step = [*map(frame.session.realize, frame.pop_many(count)), NONE][:3]
    frame.push(SliceValue(start, stop, step))


@handles("LIST_TO_TUPLE")
def list_to_tuple(frame: InterpreterFrame, _: Any) -> None:
    frame.push(frame.session.tuple_of(frame.pop()))


def _method(name: str) -> Any:
    """A handler that calls a method of the container `depth` below the top with the top."""

    def handler(frame: InterpreterFrame, depth: int) -> None:
        value = frame.pop()
        getattr(frame.peek(depth), f"method_{name}")(frame.session, value)

    return handler


handles("SET_ADD")(_method("add"))
handles("SET_UPDATE")(_method("update"))


def is_iterable(value: Value) -> bool:
    """Whether its class has a method by which C goes through it."""
    cls = value.python_type()
    return hasattr(cls, "__iter__") or hasattr(cls, "__getitem__")


@handles("LIST_EXTEND")
def list_extend(frame: InterpreterFrame, depth: int) -> None:
    session, items = frame.session, frame.pop()
    if not is_iterable(items):
        kind = type_name(items.python_type())
        raise session.raised(TypeError, f"Value after * must be an iterable, not {kind}")
    owner = frame.peek(depth)
    assert isinstance(owner, ListValue)
    owner.append(session, session.unpacked(items))


@handles("DICT_UPDATE")
def dict_update(frame: InterpreterFrame, depth: int) -> None:
    session, other, owner = frame.session, frame.pop(), frame.peek(depth)
    assert isinstance(owner, DictValue)
    try:
        for key, value in session.mapping_read(other):
            owner.write(session, key, value)
    except Raised as raised:
        if not raised.is_a(AttributeError):
            raise
        raise session.raised(
            TypeError, f"'{type_name(other.python_type())}' object is not a mapping"
        ) from None


@handles("LIST_APPEND")
def list_append(frame: InterpreterFrame, depth: int) -> None:
    value = frame.stack.pop()
    owner = frame.peek(depth)
    assert isinstance(owner, ListValue)
    owner.append(frame.session, [value])


@handles("MAP_ADD")
def map_add(frame: InterpreterFrame, depth: int) -> None:
    value, key = frame.stack.pop(), frame.pop()
    frame.peek(depth).set_item(frame.session, key, value)


@handles("DICT_MERGE")
def dict_merge(frame: InterpreterFrame, depth: int) -> None:
    session, other, owner = frame.session, frame.pop(), frame.peek(depth)
    assert isinstance(owner, DictValue)
    try:
        for key, value in session.mapping_read(other, owner.entries):
            owner.write(session, key, value)
    except (Raised, KeyTaken) as error:
        message = _refusal(error, other)
        if not message:
            raise
        raise session.raised(TypeError, f"{callee_text(frame, depth + 2)} {message}") from None


def _refusal(error: Raised | KeyTaken, other: Value) -> str:
    """What Python makes of an error while a mapping is read for a call; "" where it is the error
    itself."""
    if isinstance(error, KeyTaken):
        return _key_refusal(error.key)
    if error.is_a(AttributeError):
        return f"argument after ** must be a mapping, not {type_name(other.python_type())}"
    raised = error.value
    assert isinstance(raised, ExceptionValue)
    # Python takes a KeyError of the mapping's own for one of a key that is taken
    if VERSION >= (3, 12) and error.is_a(KeyError) and len(raised.args) == 1:
        return _key_refusal(raised.args[0])
    return ""


def _key_refusal(key: Value) -> str:
    if key.is_constant():
        return f"got multiple values for keyword argument '{key.constant()}'"
    return "keywords must be strings"


def callee_text(frame: InterpreterFrame, depth: int) -> str:
    """What Python calls the function that is about to be called; at `depth` it or a marker lies."""
    if frame.stack[-depth] is NULL:
        depth += 1
    return frame.session.function_text(frame.stack[-depth])


@handles("UNPACK_SEQUENCE")
def unpack_sequence(frame: InterpreterFrame, count: int) -> None:
    value = frame.pop()
    items = _first_items(frame, value, count + 1)
    if len(items) != count:
        problem = f"not enough values to unpack (expected {count}, got {len(items)})"
        if len(items) > count:
            problem = f"too many values to unpack (expected {count}{_found(frame, value)})"
        raise frame.session.raised(ValueError, problem)
    frame.stack.extend(reversed(items))


def _found(frame: InterpreterFrame, value: Value) -> str:
    """How many there are, as Python 3.14 tells of containers that know it."""
    if VERSION < (3, 14) or value.python_type() not in (list, tuple, dict):
        return ""
    length = value.length(frame.session)
    if isinstance(length, Value):
        length = frame.session.known(length)
    return f", got {length}"


def _first_items(frame: InterpreterFrame, value: Value, limit: int) -> list[Value]:
    """The first elements of an iterable: no more than `limit` are taken from it."""
    session = frame.session
    if isinstance(value, SequenceValue):
        return value.items[:limit]
    if not is_iterable(value):
        kind = type_name(value.python_type())
        raise session.raised(TypeError, f"cannot unpack non-iterable {kind} object")
    iterator = session.iterate(value)
    items: list[Value] = []
    while len(items) < limit and (item := iterator.next(session)) is not None:
        items.append(item)
    return items


@handles("UNPACK_EX")
def unpack_ex(frame: InterpreterFrame, counts: tuple[int, int]) -> None:
    before, after = counts
    value = frame.pop()
    items = _items_to_split(frame, value, before)
    if len(items) < before + after:
        problem = (
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
        raise frame.session.raised(ValueError, problem)
    end = len(items) - after
    elements: list[Value] = [*items[:before], ListValue(items[before:end], list), *items[end:]]
    frame.stack.extend(reversed(elements))


def _items_to_split(frame: InterpreterFrame, value: Value, before: int) -> list[Value]:
    """All elements of an iterable, of which the first ones are taken one by one."""
    session = frame.session
    if isinstance(value, SequenceValue) or not is_iterable(value):
        return _first_items(frame, value, sys.maxsize)
    iterator = session.iterate(value)
    items: list[Value] = []
    while len(items) < before:
        item = iterator.next(session)
        if item is None:
            return items
        items.append(item)
    return [*items, *session.unpacked(iterator)]
