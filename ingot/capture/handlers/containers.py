"""Building and taking apart tuples, lists, dicts, sets, slices; the queries of match statements."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE, ConstantValue
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


handles("LIST_EXTEND")(_method("extend"))
handles("SET_ADD")(_method("add"))
handles("SET_UPDATE")(_method("update"))
handles("DICT_UPDATE")(_method("update"))


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
    session = frame.session
    entries = session.entries_of(frame.pop())
    owner = frame.peek(depth)
    assert isinstance(owner, DictValue)
    twice = owner.entries.keys() & entries.keys()
    if twice:
        raise session.raised(TypeError, f"got multiple values for keyword argument {next(iter(twice))!r}")
    for key, value in entries.items():
        owner.set_item(session, session.wrap_key(key), value)


@handles("UNPACK_SEQUENCE")
def unpack_sequence(frame: InterpreterFrame, count: int) -> None:
    items = frame.session.unpacked(frame.pop())
    if len(items) != count:
        problem = f"not enough values to unpack (expected {count}, got {len(items)})"
        if len(items) > count:
            problem = f"too many values to unpack (expected {count})"
        raise frame.session.raised(ValueError, problem)
    frame.stack.extend(reversed(items))


@handles("UNPACK_EX")
def unpack_ex(frame: InterpreterFrame, counts: tuple[int, int]) -> None:
    before, after = counts
    items = frame.session.unpacked(frame.pop())
    if len(items) < before + after:
        problem = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise frame.session.raised(ValueError, problem)
    end = len(items) - after
    parts: list[Value] = [*items[:before], ListValue(items[before:end], list), *items[end:]]
    frame.stack.extend(reversed(parts))


@handles("GET_LEN")
def get_len(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(frame.peek().length(frame.session)))


@handles("MATCH_SEQUENCE")
def match_sequence(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(isinstance(frame.peek(), SequenceValue)))


@handles("MATCH_MAPPING")
def match_mapping(frame: InterpreterFrame, _: Any) -> None:
    frame.push(ConstantValue(isinstance(frame.peek(), DictValue)))


@handles("MATCH_KEYS")
def match_keys(frame: InterpreterFrame, _: Any) -> None:
    subject, keys = frame.peek(2), frame.peek().constant()
    assert isinstance(subject, DictValue)
    found = all(key in subject.entries for key in keys)
    frame.push(TupleValue([subject.entries[key] for key in keys], tuple) if found else NONE)


_MATCH_SELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@handles("MATCH_CLASS")
def match_class(frame: InterpreterFrame, positional: int) -> None:
    names, cls, subject = frame.pop().constant(), frame.pop().constant(), frame.pop()
    if not issubclass(subject.python_type(), cls):
        frame.push(NONE)
        return
    if positional and cls in _MATCH_SELF:
        frame.push(TupleValue([subject], tuple))
        return
    names = (*getattr(cls, "__match_args__", ())[:positional], *names)
    frame.push(TupleValue([subject.get_attribute(frame.session, name) for name in names], tuple))
