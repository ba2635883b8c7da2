"""Lists, tuples, sets, dicts and their views. Those from outside have a source and may be read but not changed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE, ConstantValue

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source


class _Container(Value):
    __slots__ = ("object",)

    def __init__(self, source: Source | None, object: Any) -> None:
        super().__init__(source)
        self.object = object

    def identity(self) -> Any:
        return self if self.source is None else self.object

    def _writable(self, session: Session) -> None:
        if self.source is not None:
            raise session.unsupported(f"side effect: {self.describe()} existed before the call and is changed")

    def truth(self, session: Session) -> bool:
        return self.length(session) > 0


class SequenceValue(_Container):
    """A list or tuple (`cls` tells which; torch.Size and named tuples are tuples)."""

    __slots__ = ("cls", "items")

    def __init__(self, items: Iterable[Value], cls: type, source: Source | None = None, object: Any = None) -> None:
        super().__init__(source, object)
        self.items = list(items)
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def _like(self, items: Iterable[Value]) -> SequenceValue:
        return type(self)(items, list if isinstance(self, ListValue) else tuple)

    def length(self, session: Session) -> int:
        return len(self.items)

    def iterate(self, session: Session) -> Value:
        return SequenceIterator(self)

    def get_item(self, session: Session, key: Value) -> Value:
        if isinstance(key, SliceValue):
            bounds = key.constant()
            made = self._like(session.python(operator.getitem, self.items, bounds))
            made.cls = self.cls if self.cls.__name__ == "Size" else made.cls
            return made
        return session.python(operator.getitem, self.items, session.index(key))

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        items = [item.argument(leaf) for item in self.items]
        return self._build(items) if hasattr(self.cls, "_fields") else tuple(items)

    def _build(self, objects: list[Any]) -> Any:
        return self.cls(*objects) if hasattr(self.cls, "_fields") else self.cls(objects)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if function in (operator.add, operator.iadd) and isinstance(other, type(self)) and not reflected:
            return self._like(self.items + other.items)
        if function in (operator.mul, operator.imul) and other.is_constant():
            return self._like(session.python(operator.mul, self.items, other.constant()))
        if function in (operator.eq, operator.ne) and isinstance(other, SequenceValue):
            same = isinstance(self, ListValue) == isinstance(other, ListValue) and len(self.items) == len(other.items)
            same = same and all(
                session.equal(session.realize(a), session.realize(b)) for a, b in zip(self.items, other.items)
            )
            return ConstantValue(same == (function is operator.eq))
        if function in (operator.lt, operator.le, operator.gt, operator.ge) and isinstance(other, SequenceValue):
            pair = (session.known(self), session.known(other))
            return session.wrap_constant(session.python(function, *(pair[::-1] if reflected else pair)))
        return None

    def method_index(self, session: Session, item: Value) -> Value:
        for i, element in enumerate(self.items):
            if session.equal(session.realize(element), item):
                return ConstantValue(i)
        raise session.raised(ValueError, f"{item.describe()} is not in {self.cls.__name__}")

    def method_count(self, session: Session, item: Value) -> Value:
        return ConstantValue(sum(session.equal(session.realize(element), item) for element in self.items))


class TupleValue(SequenceValue):
    """A tuple, torch.Size or named tuple."""

    __slots__ = ()

    def constant(self) -> Any:
        return self._build([item.constant() for item in self.items])

    def key(self, session: Session) -> Any:
        return tuple(session.realize(item).key(session) for item in self.items)

    def get_attribute(self, session: Session, name: str) -> Value:
        fields = getattr(self.cls, "__match_args__", ())  # of named tuples, and of torch.return_types
        if name in fields:
            return self.items[fields.index(name)]
        if not hasattr(TupleValue, f"method_{name}") and self.cls is not tuple and hasattr(self.cls, name):
            return session.class_attribute(self.cls, name, self)
        return super().get_attribute(session, name)

    def method__asdict(self, session: Session) -> Value:
        return DictValue(zip(self.cls._fields, self.items), dict)  # type: ignore[attr-defined]

    def method__replace(self, session: Session, **changes: Value) -> Value:
        fields = self.cls._fields  # type: ignore[attr-defined]
        return TupleValue([changes.get(f, item) for f, item in zip(fields, self.items)], self.cls)

    def method_numel(self, session: Session) -> Value:
        total: Value = ConstantValue(1)
        for item in self.items:
            total = session.binary(operator.mul, total, item)
        return total


class ListValue(SequenceValue):
    """A list."""

    __slots__ = ()

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        return [item.argument(leaf) for item in self.items]

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if function is operator.iadd and not reflected:
            self.method_extend(session, other)
            return self
        return super().binary(session, function, other, reflected)

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        self._writable(session)
        if isinstance(key, SliceValue):
            self.items[key.constant()] = session.list_of(value).items
        else:
            session.python(operator.setitem, self.items, session.index(key), value)

    def delete_item(self, session: Session, key: Value) -> None:
        self._writable(session)
        session.python(operator.delitem, self.items, key.constant())

    def method_append(self, session: Session, item: Value) -> Value:
        self._writable(session)
        self.items.append(item)
        return NONE

    def method_extend(self, session: Session, items: Value) -> Value:
        self._writable(session)
        self.items.extend(session.list_of(items).items)
        return NONE

    def method_insert(self, session: Session, index: Value, item: Value) -> Value:
        self._writable(session)
        self.items.insert(session.index(index), item)
        return NONE

    def method_pop(self, session: Session, index: Value | None = None) -> Value:
        self._writable(session)
        return session.python(self.items.pop, -1 if index is None else session.index(index))

    def method_remove(self, session: Session, item: Value) -> Value:
        self._writable(session)
        del self.items[self.method_index(session, item).constant()]
        return NONE

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
        self._writable(session)
        self.items = session.list_of(session.call(session.builtin(sorted), [self], options)).items
        return NONE


class SequenceIterator(Value):
    """An iterator over a list or tuple; sees what is appended while it runs."""

    __slots__ = ("position", "sequence")

    def __init__(self, sequence: SequenceValue) -> None:
        super().__init__()
        self.sequence, self.position = sequence, 0

    def python_type(self) -> type:
        return type(iter([]))

    def iterate(self, session: Session) -> Value:
        return self

    def next(self, session: Session) -> Value | None:
        if self.position >= len(self.sequence.items):
            return None
        self.position += 1
        return self.sequence.items[self.position - 1]


class SliceValue(Value):
    """A slice; its parts may be symbolic."""

    __slots__ = ("parts",)

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        super().__init__()
        self.parts = (start, stop, step)

    def python_type(self) -> type:
        return slice

    def constant(self) -> Any:
        return slice(*[part.constant() for part in self.parts])

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        return slice(*[part.argument(leaf) for part in self.parts])

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return super().get_attribute(session, name)


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
        return session.wrap_constant(session.python(operator.getitem, self.range, key.constant()))

    def get_attribute(self, session: Session, name: str) -> Value:
        return ConstantValue(self.range).get_attribute(session, name)

    def iterate(self, session: Session) -> Value:
        return RangeIterator(iter(self.range))

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        return ConstantValue(self.range).binary(session, function, other, reflected)


class RangeIterator(Value):
    """An iterator over a range."""

    __slots__ = ("iterator",)

    def __init__(self, iterator: Any) -> None:
        super().__init__()
        self.iterator = iterator

    def python_type(self) -> type:
        return type(self.iterator)

    def iterate(self, session: Session) -> Value:
        return self

    def next(self, session: Session) -> Value | None:
        number = next(self.iterator, None)
        return None if number is None else ConstantValue(number)


class KeyedValue(_Container):
    """What dicts and sets share: `entries` by key, as `Value.key` makes it."""

    __slots__ = ("cls", "entries")

    def __init__(
        self, entries: Iterable[tuple[Any, Value]], cls: type, source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(source, object)
        self.entries = dict(entries)
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def length(self, session: Session) -> int:
        return len(self.entries)

    def contains(self, session: Session, item: Value) -> bool:
        return item.key(session) in self.entries

    def method_clear(self, session: Session) -> Value:
        self._writable(session)
        self.entries.clear()
        return NONE


class DictValue(KeyedValue):
    """A dict, OrderedDict or defaultdict. `factory` makes the missing values of a defaultdict."""

    __slots__ = ("factory",)

    def __init__(
        self, entries: Iterable[tuple[Any, Value]], cls: type, source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(entries, cls, source, object)
        self.factory: Value = NONE

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        return {k: v.argument(leaf) for k, v in self.entries.items()}

    def get_item(self, session: Session, key: Value) -> Value:
        name = key.key(session)
        if name in self.entries:
            return self.entries[name]
        if self.factory is NONE:
            raise session.raised(KeyError, key)
        self.set_item(session, key, session.call(self.factory, [], {}))
        return self.entries[name]

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        self._writable(session)
        self.entries[key.key(session)] = value

    def delete_item(self, session: Session, key: Value) -> None:
        self._writable(session)
        if key.key(session) not in self.entries:
            raise session.raised(KeyError, key)
        del self.entries[key.key(session)]

    def iterate(self, session: Session) -> Value:
        return SequenceIterator(self.keys(session))

    def keys(self, session: Session) -> SequenceValue:
        return TupleValue([session.wrap_key(key) for key in self.entries], tuple)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if not isinstance(other, DictValue) or reflected:
            return None
        if function is operator.or_:
            return DictValue({**self.entries, **other.entries}.items(), self.cls)
        if function is operator.ior:
            self.method_update(session, other)
            return self
        if function in (operator.eq, operator.ne):
            same = self.entries.keys() == other.entries.keys() and all(
                session.equal(session.realize(v), session.realize(other.entries[k])) for k, v in self.entries.items()
            )
            return ConstantValue(same == (function is operator.eq))
        return None

    def method_keys(self, session: Session) -> Value:
        return DictView(self, {}.keys, lambda: self.keys(session).items)

    def method_values(self, session: Session) -> Value:
        return DictView(self, {}.values, lambda: list(self.entries.values()))

    def method_items(self, session: Session) -> Value:
        return DictView(
            self, {}.items, lambda: [TupleValue([session.wrap_key(k), v], tuple) for k, v in self.entries.items()]
        )

    def method_get(self, session: Session, key: Value, default: Value = NONE) -> Value:
        return self.entries.get(key.key(session), default)

    def method_pop(self, session: Session, key: Value, default: Value | None = None) -> Value:
        self._writable(session)
        found = self.entries.pop(key.key(session), default)
        if found is None:
            raise session.raised(KeyError, key)
        return found

    def method_popitem(self, session: Session) -> Value:
        self._writable(session)
        key, value = session.python(self.entries.popitem)
        return TupleValue([session.wrap_key(key), value], tuple)

    def method_setdefault(self, session: Session, key: Value, default: Value = NONE) -> Value:
        if key.key(session) not in self.entries:
            self.set_item(session, key, default)
        return self.entries[key.key(session)]

    def method_update(self, session: Session, other: Value | None = None, **named: Value) -> Value:
        self._writable(session)
        if other is not None:
            self.entries.update(session.entries_of(other))
        self.entries.update(named)
        return NONE

    def method_copy(self, session: Session) -> Value:
        made = DictValue(self.entries.items(), self.cls)
        made.factory = self.factory
        return made

    def method_move_to_end(self, session: Session, key: Value) -> Value:
        self._writable(session)
        self.entries[key.key(session)] = self.entries.pop(key.key(session))
        return NONE


class DictView(Value):
    """keys(), values() or items() of a dict."""

    __slots__ = ("elements", "owner", "view")

    def __init__(self, owner: DictValue, view: Callable[[], Any], elements: Callable[[], list[Value]]) -> None:
        super().__init__()
        self.owner, self.view, self.elements = owner, view, elements

    def python_type(self) -> type:
        return type(self.view())

    def truth(self, session: Session) -> bool:
        return self.length(session) > 0

    def length(self, session: Session) -> int:
        return len(self.owner.entries)

    def iterate(self, session: Session) -> Value:
        return SequenceIterator(TupleValue(self.elements(), tuple))

    def contains(self, session: Session, item: Value) -> bool:
        if self.python_type() is type({}.keys()):
            return self.owner.contains(session, item)
        return super().contains(session, item)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        return session.set_of(self).binary(session, function, session.set_of(other), reflected)


_SET_RESULTS = (operator.or_, operator.and_, operator.sub, operator.xor)
_SET_TESTS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


class SetValue(KeyedValue):
    """A set or frozenset."""

    __slots__ = ()

    def constant(self) -> Any:
        if self.cls is frozenset:
            return frozenset(member.constant() for member in self.entries.values())
        return super().constant()

    def iterate(self, session: Session) -> Value:
        return SequenceIterator(TupleValue(self.entries.values(), tuple))

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if not isinstance(other, SetValue):
            return None
        first, second = (other, self) if reflected else (self, other)
        if function in _SET_TESTS:
            return ConstantValue(function(set(first.entries), set(second.entries)))
        if function not in _SET_RESULTS:
            return None
        kept = function(set(first.entries), set(second.entries))
        members = {**first.entries, **second.entries}
        return SetValue([(key, value) for key, value in members.items() if key in kept], first.cls)

    def method_add(self, session: Session, item: Value) -> Value:
        self._writable(session)
        self.entries.setdefault(item.key(session), item)
        return NONE

    def method_discard(self, session: Session, item: Value) -> Value:
        self._writable(session)
        self.entries.pop(item.key(session), None)
        return NONE

    def method_remove(self, session: Session, item: Value) -> Value:
        if not self.contains(session, item):
            raise session.raised(KeyError, item)
        return self.method_discard(session, item)

    def method_update(self, session: Session, *others: Value) -> Value:
        self._writable(session)
        for other in others:
            self.entries.update(session.set_of(other).entries)
        return NONE

    def method_union(self, session: Session, *others: Value) -> Value:
        made = SetValue(self.entries.items(), self.cls)
        for other in others:
            made.entries.update(session.set_of(other).entries)
        return made

    def method_intersection(self, session: Session, other: Value) -> Value:
        return self.binary(session, operator.and_, session.set_of(other), False)  # type: ignore[return-value]

    def method_difference(self, session: Session, other: Value) -> Value:
        return self.binary(session, operator.sub, session.set_of(other), False)  # type: ignore[return-value]

    def method_issubset(self, session: Session, other: Value) -> Value:
        return self.binary(session, operator.le, session.set_of(other), False)  # type: ignore[return-value]

    def method_copy(self, session: Session) -> Value:
        return SetValue(self.entries.items(), self.cls)
