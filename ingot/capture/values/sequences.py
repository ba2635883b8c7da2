"""Lists and tuples, slices, ranges, and iterators over them.

A list from outside has a source. What is done to it is recorded in `Session.effects`; its length is
guarded when it is first asked for, so that a list that is only appended to may be of any length.
"""

from __future__ import annotations

import collections
import functools
import operator
import weakref
from collections.abc import Iterable, Iterator
from types import MemberDescriptorType, NoneType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import polyfills
from ingot.capture.bytecode import VERSION
from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.values.base import (
    IteratorValue,
    Leaf,
    NotConstant,
    Operator,
    OutsideOrMade,
    Value,
    alive,
    constants,
    in_order,
    not_in,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.operator_methods import COMPARISONS, EQUALITIES

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source


class Container(OutsideOrMade):
    """What they share."""

    __slots__ = ()

    def _writable(self, session: Session) -> None:
        """To be called before it is changed."""
        if self.source is not None:
            raise session.unsupported(
                "side-effect",
                f"side effect: {self.describe()} existed before the call and is changed",
            )

    def truth(self, session: Session) -> bool:
        return self.length(session) > 0


class SequenceValue(Container):
    """A list or tuple (`cls` tells which; torch.Size and named tuples are tuples)."""

    __slots__ = ("cls", "items")

    def __init__(
        self, items: Iterable[Value], cls: type, source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(source, object)
        self.items = list(items)
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def _like(self, items: Iterable[Value]) -> SequenceValue:
        if isinstance(self, ListValue):
            return ListValue(items, list)
        return TupleValue(items, tuple)

    def length(self, session: Session) -> int:
        return len(self.items)

    def iterate(self, session: Session) -> Value:
        return SequenceIterator(self)

    def get_item(self, session: Session, key: Value) -> Value:
        if isinstance(key, SliceValue):
            bounds = key.constant()
            if self.cls is tuple and bounds.indices(len(self.items)) == (0, len(self.items), 1):
                return self  # all of a tuple is the tuple
            result = self._like(session.python(operator.getitem, self.items, bounds))
            if self.cls.__name__ == "Size":
                result.cls = self.cls
            return result
        index = session.index(key)
        try:
            return self.items[index]
        except (IndexError, TypeError):
            if isinstance(self, ListValue):
                stand_in: Any = self.items
            else:
                stand_in = tuple(self.items)
            return session.python(operator.getitem, stand_in, index)

    def argument(self, leaf: Leaf) -> Any:
        items = _arguments(self.items, leaf)
        if hasattr(self.cls, "_fields"):
            return self._build(items)
        return tuple(items)

    def python_object(self, session: Session) -> Any:
        return self._build(list(map(session.known, self.items)))

    def _build(self, objects: list[Any]) -> Any:
        """The real one of these objects. A class of the user's is not asked: `__new__` may take
        something else. NotConstant where nobody can make one, as of sys.version_info."""
        if self.cls in (list, tuple) or self.cls.__name__ == "Size":
            return self.cls(objects)
        if not is_struct_sequence(self.cls):
            return tuple.__new__(self.cls, objects)
        try:
            return self.cls(objects)
        except TypeError:
            raise NotConstant(self) from None

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if (
            function in (operator.add, operator.iadd)
            and isinstance(other, SequenceValue)
            and not reflected
        ):
            if isinstance(self, ListValue) == isinstance(other, ListValue):
                return self._like(self.items + other.items)
        if function in (operator.mul, operator.imul) and hasattr(other.python_type(), "__index__"):
            times = session.index_sized(other, OverflowError)
            return self._like(session.python(operator.mul, self.items, times))
        if not isinstance(other, SequenceValue):
            return None
        if isinstance(self, ListValue) != isinstance(other, ListValue):
            return None
        if function in EQUALITIES:
            same = len(self.items) == len(other.items)
            same = same and all(map(session.equal_items, self.items, other.items))
            return ConstantValue(same == (function is operator.eq))
        if function in (operator.lt, operator.le, operator.gt, operator.ge):
            return self._ordered(session, function, *in_order(self, other, reflected))
        return None

    @staticmethod
    def _ordered(
        session: Session, function: Any, left: SequenceValue, right: SequenceValue
    ) -> Value:
        """The order of the first elements that are not equal."""
        for a, b in zip(left.items, right.items):
            if not session.equal(session.realize(a), session.realize(b)):
                return session.binary(function, a, b)
        return ConstantValue(function(len(left.items), len(right.items)))

    def method_index(
        self, session: Session, item: Value, start: Value | None = None, stop: Value | None = None
    ) -> Value:
        bounds = slice(start and session.position(start), stop and session.position(stop))
        for i in range(*bounds.indices(len(self.items))):
            if session.equal(session.realize(self.items[i]), item):
                return ConstantValue(i)
        if isinstance(self, TupleValue):
            raise session.raised(ValueError, "tuple.index(x): x not in tuple")
        raise session.raised(ValueError, not_in(session, item, "list.index"))

    def method_count(self, session: Session, item: Value) -> Value:
        return session.count_of(self.items, item)


def _arguments(values: Iterable[Value], leaf: Leaf) -> list[Any]:
    return [value.argument(leaf) for value in values]


class TypedKey(tuple[Any, ...]):
    """A torch.Size or named tuple as a key of a captured dict."""

    cls: type
    value: Value

    def __new__(cls, value: TupleValue, keys: list[Any]) -> TypedKey:
        key = super().__new__(cls, keys)
        key.cls, key.value = value.cls, value
        return key


def is_struct_sequence(cls: type) -> bool:
    """Whether it is a tuple with names that is written in C: sys.version_info,
    torch.return_types.max."""
    return hasattr(cls, "n_sequence_fields")


_OF_NAMED_TUPLES = {
    *vars(collections.namedtuple("_Example", "a")),
    *("__annotations__", "__firstlineno__", "__orig_bases__", "__parameters__"),
    *("__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
}


def is_named_tuple(cls: type) -> bool:
    """Whether it is a named tuple whose instances have nothing but their elements.

    Those of a subclass may have attributes of their own, or special methods."""
    if not hasattr(cls, "_fields") or cls.__dictoffset__:
        return False
    for owner in cls.__mro__[: cls.__mro__.index(tuple)]:
        for name in vars(owner):
            if name.startswith("__") and name not in _OF_NAMED_TUPLES:
                return False
    return True


class TupleValue(SequenceValue):
    """A tuple, torch.Size or named tuple."""

    __slots__ = ()

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        result = super().binary(session, function, other, reflected)
        classes = {self.cls, other.python_type()}
        if (
            isinstance(result, TupleValue)
            and torch.Size in classes
            and classes <= {torch.Size, tuple, int}
        ):
            result.cls = type(function(self.cls(), other.python_type()()))
        return result

    def constant(self) -> Any:
        return self._build(constants(self.items))

    def _build(self, objects: list[Any]) -> Any:
        if self.source is not None and is_struct_sequence(self.cls):
            return self.object  # which the objects are of, so that nothing else is known of it
        return super()._build(objects)

    def key(self, session: Session) -> Any:
        keys = []
        for item in self.items:
            keys.append(session.realize(item).key(session))
        if self.cls is tuple:
            return tuple(keys)
        return TypedKey(self, keys)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if name in getattr(self.cls, "_fields", ()):
            raise session.raised(AttributeError, "can't set attribute")
        super().set_attribute(session, name, value)

    def get_attribute(self, session: Session, name: str) -> Value:
        # of named tuples, and of torch.return_types
        fields = getattr(self.cls, "__match_args__", ())
        if name in fields:
            return self.items[fields.index(name)]
        if self.source is not None and is_struct_sequence(self.cls):
            if isinstance(getattr(self.cls, name, None), MemberDescriptorType):  # no element of it
                return session.wrap_slot(self.object, self.source, name)
        own = getattr(self.cls, name, None) is not getattr(tuple, name, None)
        if not hasattr(TupleValue, f"method_{name}") and own and name != "__class__":
            return session.class_attribute(self.cls, name, self)
        return super().get_attribute(session, name)

    def method__asdict(self, session: Session) -> Value:
        return session.dict_of_values(dict(zip(self.cls._fields, self.items)))  # type: ignore[attr-defined]

    def method__replace(self, session: Session, **changes: Value) -> Value:
        fields = self.cls._fields  # type: ignore[attr-defined]
        unknown = dict.fromkeys(changes.keys() - set(fields))
        if unknown:
            session.python(self._build([None] * len(fields))._replace, **unknown)
        return TupleValue(list(map(changes.get, fields, self.items)), self.cls)

    def method_numel(self, session: Session) -> Value:
        total: Value = ConstantValue(1)
        for item in self.items:
            total = session.binary(operator.mul, total, item)
        return total


@functools.cache
def _reads_first(adjacent: bool) -> bool:
    """Whether CPython reads what is assigned to a slice of a list before it asks for the list's
    length. It did not before 3.13, and patch releases differ."""
    items = [0]

    def growing() -> Iterator[int]:
        items.extend([0, 0])
        yield from (1, 1)

    try:
        items[0 : None : 1 if adjacent else 2] = growing()
    except ValueError:  # the slice is of one element
        return False
    return len(items) == (2 if adjacent else 3)


class ListValue(SequenceValue):
    """A list."""

    __slots__ = ()

    def argument(self, leaf: Leaf) -> Any:
        return _arguments(self.items, leaf)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function is operator.iadd and not reflected:
            self.method_extend(session, other)
            return self
        if (
            function is operator.imul
            and not reflected
            and hasattr(other.python_type(), "__index__")
        ):
            times = session.index_sized(other, OverflowError)
            items = session.python(operator.mul, self.items, times)
            self._writable(session)
            self.items[:] = items
            return self
        return super().binary(session, function, other, reflected)

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        if isinstance(key, SliceValue):
            self._set_slice(session, key.constant(), value)
            return
        index = session.index(key)
        self._writable(session)
        session.python(operator.setitem, self.items, index, value)

    def _set_slice(self, session: Session, bounds: slice, value: Value) -> None:
        places = range(*session.python(bounds.indices, len(self.items)))
        adjacent = places.step == 1
        reads_first = _reads_first(adjacent)
        usual = adjacent and not reads_first
        text = "must assign iterable to extended slice"
        if usual:
            text = "can only assign an iterable"
        value = session.realize(value)
        items = session.items_of(self if self._is_in(value) else value, text)
        if reads_first:
            places = range(*bounds.indices(len(self.items)))
        if adjacent:
            self._writable(session)
            self.items[places.start : max(places.start, places.stop)] = items
            return
        if len(items) != len(places):
            sizes = f"sequence of size {len(items)} to extended slice of size {len(places)}"
            raise session.raised(ValueError, f"attempt to assign {sizes}")
        if places and max(places) >= len(self.items):
            raise session.unsupported(
                "container-order", "a list that shrinks while an extended slice of it is set"
            )
        self._writable(session)
        for place, item in zip(places, items):
            self.items[place] = item

    def delete_item(self, session: Session, key: Value) -> None:
        self._writable(session)
        session.python(operator.delitem, self.items, session.index(key))

    def append(self, session: Session, items: list[Value]) -> None:
        """Puts items behind the last."""
        self.items.extend(items)

    def method_append(self, session: Session, item: Value) -> Value:
        self.append(session, [item])
        return NONE

    def method_extend(self, session: Session, items: Value) -> Value:
        items = session.realize(items)
        if self._is_in(items):
            items = self if VERSION >= (3, 13) else session.list_of(items)
        if isinstance(items, SequenceValue):
            self.append(session, list(items.items))
            return NONE
        for item in session.elements(items, sized=True):
            self.append(session, [item])
        return NONE

    def _is_in(self, instance: Value) -> bool:
        """Whether an instance of a subclass holds this list.

        Methods take a snapshot of one that is given to itself, and iterate over others.
        """
        return getattr(instance, "content", None) is self

    def method_insert(self, session: Session, index: Value, item: Value) -> Value:
        self._writable(session)
        session.python(self.items.insert, session.index(index), item)
        return NONE

    def method_pop(self, session: Session, index: Value | None = None) -> Value:
        self._writable(session)
        if index is None:
            return session.python(self.items.pop)
        return session.python(self.items.pop, session.index(index))

    def method_remove(self, session: Session, item: Value) -> Value:
        for i, element in enumerate(self.items):
            if session.equal(session.realize(element), item):
                self._writable(session)
                del self.items[i]
                return NONE
        raise session.raised(ValueError, "list.remove(x): x not in list")

    def method_clear(self, session: Session) -> Value:
        self._writable(session)
        self.items.clear()
        return NONE

    def method_reverse(self, session: Session) -> Value:
        self._writable(session)
        self.items.reverse()
        return NONE

    def method_copy(self, session: Session) -> Value:
        return ListValue(self.items, list)

    def method_sort(self, session: Session, **options: Value) -> Value:
        if "reverse" in options:
            session.python([].sort, reverse=session.stand_in(options["reverse"]))
        self._writable(session)
        items = list(self.items)
        self.items.clear()  # as who looks at it meanwhile finds it
        ordered = items
        try:
            ordered = session.list_of(
                session.call(session.builtin(sorted), [TupleValue(items, tuple)], options)
            ).items
        finally:
            is_changed = len(self.items) > 0
            self._writable(session)
            self.items[:] = ordered
        if is_changed:
            raise session.raised(ValueError, "list modified during sort")
        return NONE


class OutsideList(ListValue):
    """A list that existed before the call."""

    __slots__ = ("_added", "_before", "_items", "_session")
    is_shared = True

    def __init__(self, session: Session, source: Source, object: list[Any]) -> None:
        self._session = weakref.ref(session)
        self._items: list[Value] | None = None
        self._before: list[Value] | None = None  # the items when the pending change began
        # while nobody has asked for the items: what was put behind them
        self._added: list[Value] = []
        super().__init__((), list, source, object)

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self._items is None:
            assert self.source is not None
            session = alive(self._session)
            session.guard(self.source, Kind.LENGTH, list.__len__(self.object))
            items = session.wrap_items(list.__iter__(self.object), self.source)
            if self._before is not None:
                self._before = [*items, *self._before]
            self._items = items + self._added
        return self._items

    @items.setter
    def items(self, items: list[Value]) -> None:
        pass  # they are read from the list when they are first asked for

    def append(self, session: Session, items: list[Value]) -> None:
        self._begin(session, self._known_items())
        self._known_items().extend(items)

    def _known_items(self) -> list[Value]:
        if self._items is None:
            return self._added
        return self._items

    def _writable(self, session: Session) -> None:
        self._begin(session, self.items)

    def _begin(self, session: Session, now: list[Value]) -> None:
        session.effects.change(session, self, self.object, self)
        if self._before is None:
            self._before = list(now)

    def operations(self) -> list[Operation]:
        """What makes the list as it was when the change began into what it is now."""
        before, now = self._before or [], self._known_items()
        self._before = None
        same, limit = 0, min(len(before), len(now))
        while same < limit and _same_value(before[same], now[same]):
            same += 1
        if same == len(before) == len(now):
            return []
        if same == len(before):
            return [Operation(list.extend, (self, ListValue(now[same:], list)))]
        if same == len(now):
            return [Operation(list.__delitem__, (self, ConstantValue(slice(same, None))))]
        if len(before) == len(now):
            results = []
            for i, item in enumerate(now):
                if not _same_value(before[i], item):
                    results.append(Operation(list.__setitem__, (self, ConstantValue(i), item)))
            return results
        return [
            Operation(
                list.__setitem__,
                (self, ConstantValue(slice(same, None)), ListValue(now[same:], list)),
            )
        ]


def _same_value(a: Value, b: Value) -> bool:
    return a is b or (a.source is not None and a.source is b.source)


class SequenceIterator(IteratorValue):
    """An iterator over a list or tuple; sees what is appended while it runs."""

    __slots__ = ("ended", "position", "sequence")

    def __init__(self, sequence: SequenceValue) -> None:
        super().__init__()
        self.sequence, self.position, self.ended = sequence, 0, False

    def python_type(self) -> type:
        if isinstance(self.sequence, ListValue):
            return type(iter([]))
        return type(iter(()))

    def next(self, session: Session) -> Value | None:
        if self.ended or self.position >= len(self.sequence.items):
            self.ended = True
            return None
        self.position += 1
        return self.sequence.items[self.position - 1]


class ConstantIterator(SequenceIterator):
    """An iterator over a string or another constant. `start` is a real one at the beginning, where
    it can be copied."""

    __slots__ = ("cls", "start")

    def __init__(self, sequence: SequenceValue, cls: type, start: Any) -> None:
        super().__init__(sequence)
        self.cls, self.start = cls, start

    def python_type(self) -> type:
        return self.cls


class SliceValue(Value):
    """A slice; its parts may be symbolic."""

    __slots__ = ("bounds",)

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        super().__init__()
        self.bounds = (start, stop, step)

    def python_type(self) -> type:
        return slice

    def constant(self) -> Any:
        return slice(*constants(self.bounds))

    def argument(self, leaf: Leaf) -> Any:
        return slice(*_arguments(self.bounds, leaf))

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.bounds[("start", "stop", "step").index(name)]
        return super().get_attribute(session, name)

    def method_indices(self, session: Session, length: Value) -> Value:
        parts = list(map(session.realize, (*self.bounds, length)))
        is_plain = {part.python_type() for part in parts} <= {int, NoneType}
        if is_plain and not all(part.is_constant() for part in parts):
            return session.call(session.builtin(polyfills.slice_indices), parts, {})
        return session.wrap_constant(session.really(self.constant().indices, [length], {}))

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if not isinstance(other, SliceValue) or function not in COMPARISONS:
            return None
        first, second = in_order(self, other, reflected)
        return session.binary(
            function, TupleValue(first.bounds, tuple), TupleValue(second.bounds, tuple)
        )


class RangeValue(Value):
    """A range of known bounds."""

    __slots__ = ("range",)

    def __init__(self, bounds: range, source: Source | None = None) -> None:
        super().__init__(source)
        self.range = bounds

    def python_type(self) -> type:
        return range

    def constant(self) -> Any:
        return self.range

    def truth(self, session: Session) -> bool:
        return bool(self.range)

    def length(self, session: Session) -> int:
        return len(self.range)

    def contains(self, session: Session, item: Value) -> bool:
        return item.constant() in self.range

    def get_item(self, session: Session, key: Value) -> Value:
        return session.wrap_result(operator.getitem, self.range, key.constant())

    def get_attribute(self, session: Session, name: str) -> Value:
        return ConstantValue(self.range).get_attribute(session, name)

    def iterate(self, session: Session) -> Value:
        return RangeIterator(iter(self.range))

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        return ConstantValue(self.range).binary(session, function, other, reflected)


class SymbolicRange(RangeValue):
    """A range by 1 with symbolic bounds. Its length and items guard only whether they exist; all
    else is compiled for the bounds."""

    __slots__ = ("_session", "_start", "_stop")

    def __init__(self, session: Session, start: Value, stop: Value) -> None:
        Value.__init__(self)
        self._session, self._start, self._stop = session, start, stop

    @property
    def range(self) -> range:  # type: ignore[override]
        return range(self._session.integer(self._start), self._session.integer(self._stop))

    def truth(self, session: Session) -> bool:
        return session.truth(session.binary(operator.lt, self._start, self._stop))

    def length(self, session: Session) -> Any:
        if not self.truth(session):
            return 0
        return session.binary(operator.sub, self._stop, self._start)

    def get_item(self, session: Session, key: Value) -> Value:
        key = session.realize(key)
        if key.python_type() is int:
            from_end = session.truth(session.binary(operator.lt, key, ConstantValue(0)))
            element = session.binary(operator.add, self._stop if from_end else self._start, key)
            if self._has(session, element):
                return element
        return super().get_item(session, key)

    def contains(self, session: Session, item: Value) -> bool:
        item = session.realize(item)
        if item.python_type() is int:
            return self._has(session, item)
        return super().contains(session, item)

    def _has(self, session: Session, number: Value) -> bool:
        above = session.truth(session.binary(operator.le, self._start, number))
        return above and session.truth(session.binary(operator.lt, number, self._stop))


class RangeIterator(IteratorValue):
    """An iterator over a range."""

    __slots__ = ("iterator",)

    def __init__(self, iterator: Any) -> None:
        super().__init__()
        self.iterator = iterator

    def python_type(self) -> type:
        return type(self.iterator)

    def next(self, session: Session) -> Value | None:
        number = next(self.iterator, None)
        if number is None:
            return None
        return ConstantValue(number)
