"""Building and taking apart tuples, lists, dicts, sets, slices."""

from __future__ import annotations

from typing import Any

from ingot.capture.bytecode import VERSION
from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL, Value, type_name
from ingot.capture.values.constant import NONE
from ingot.capture.values.containers import DictValue, ListValue, SequenceValue, SliceValue, TupleValue


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
    frame.push(DictValue([(session.realize(k).key(session), v) for k, v in zip(flat[::2], flat[1::2])], dict))


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
    frame.push(TupleValue(frame.session.list_of(frame.pop()).items, tuple))


def _method(name: str) -> Any:
    """A handler that calls a method of the container `depth` below the top with the top."""

    def handler(frame: InterpreterFrame, depth: int) -> None:
        value = frame.pop()
        getattr(frame.peek(depth), f"method_{name}")(frame.session, value)

    return handler


handles("SET_ADD")(_method("add"))
handles("SET_UPDATE")(_method("update"))


def _is_iterable(value: Value) -> bool:
    cls = value.python_type()
    return getattr(cls, "__iter__", None) is not None or hasattr(cls, "__getitem__")


@handles("LIST_EXTEND")
def list_extend(frame: InterpreterFrame, depth: int) -> None:
    session, items = frame.session, frame.pop()
    if not _is_iterable(items):
        kind = type_name(items.python_type())
        raise session.raised(TypeError, f"Value after * must be an iterable, not {kind}")
    owner = frame.peek(depth)
    assert isinstance(owner, ListValue)
    owner.append(session, session.unpacked(items))


@handles("DICT_UPDATE")
def dict_update(frame: InterpreterFrame, depth: int) -> None:
    session, other = frame.session, frame.pop()
    if not hasattr(other.python_type(), "keys"):
        raise session.raised(TypeError, f"'{type_name(other.python_type())}' object is not a mapping")
    session.call(frame.peek(depth).get_attribute(session, "update"), [other], {})


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
    session, other = frame.session, frame.pop()
    if not hasattr(other.python_type(), "keys"):
        kind = type_name(other.python_type())
        raise session.raised(TypeError, f"{_callee_text(frame, depth)} argument after ** must be a mapping, not {kind}")
    entries = session.entries_of(other)
    owner = frame.peek(depth)
    assert isinstance(owner, DictValue)
    for key in entries:
        if key in owner.entries:
            callee = _callee_text(frame, depth)
            raise session.raised(TypeError, f"{callee} got multiple values for keyword argument {key!r}")
    for key, value in entries.items():
        owner.set_item(session, session.wrap_key(key), value)


def _callee_text(frame: InterpreterFrame, depth: int) -> str:
    """What Python calls the function that is about to be called with the keywords `depth` below the top."""
    above, below = frame.peek(depth + 2), frame.peek(depth + 3) if len(frame.stack) > depth + 2 else NULL
    return frame.session.function_text(above if above is not NULL else below)


@handles("UNPACK_SEQUENCE")
def unpack_sequence(frame: InterpreterFrame, count: int) -> None:
    items = _first_items(frame, frame.pop(), count + 1)
    if len(items) != count:
        problem = f"not enough values to unpack (expected {count}, got {len(items)})"
        if len(items) > count:
            problem = f"too many values to unpack (expected {count})"
            if VERSION >= (3, 14):
                raise frame.session.unsupported(problem)
        raise frame.session.raised(ValueError, problem)
    frame.stack.extend(reversed(items))


def _first_items(frame: InterpreterFrame, value: Value, limit: int) -> list[Value]:
    """The first elements of an iterable: no more than `limit` are taken from it."""
    session = frame.session
    if isinstance(value, SequenceValue):
        return value.items[:limit]
    if not _is_iterable(value):
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
    items = frame.session.unpacked(value) if _is_iterable(value) else _first_items(frame, value, 0)
    if len(items) < before + after:
        problem = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise frame.session.raised(ValueError, problem)
    end = len(items) - after
    parts: list[Value] = [*items[:before], ListValue(items[before:end], list), *items[end:]]
    frame.stack.extend(reversed(parts))
