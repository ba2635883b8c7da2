"""Dicts, their views and iterators. (Those from outside have a file of their own.)"""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import dict_base
from ingot.capture.values.base import NULL, Leaf, Operator, UnaryOperator, Value, in_order
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.keys import (
    argument_key,
    dict_key,
    matching_key,
    ordered_key_error,
    plain_key,
)
from ingot.capture.values.objects import asks_once
from ingot.capture.values.operator_methods import COMPARISONS, EQUALITIES
from ingot.capture.values.sequences import SequenceValue, TupleValue
from ingot.capture.values.sets import (
    SET_RESULTS,
    SET_UPDATES,
    SET_UPDATES_OF,
    EntryIterator,
    Hashed,
    SetValue,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source


class DictValue(Hashed):
    """A dict, OrderedDict or defaultdict. `factory` makes the missing values of a defaultdict."""

    __slots__ = ("factory",)

    def __init__(
        self,
        entries: Iterable[tuple[Any, Value]],
        cls: type,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(entries, cls, source, object)
        self.factory: Value = NONE

    def python_object(self, session: Session) -> Any:
        """A new dict of the real objects; Unsupported where one is not known."""
        entries = self._by_plain_key(session.known)
        if self.cls is defaultdict:
            return defaultdict(session.known(self.factory), entries)
        if self.cls is OrderedDict:
            return OrderedDict(entries)
        return entries

    def _by_plain_key(self, function: UnaryOperator) -> dict[Any, Any]:
        entries = self.entries
        return dict(zip(map(plain_key, entries), map(function, entries.values())))

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "default_factory" and self.cls is defaultdict:
            return session.realize(self.factory)
        return super().get_attribute(session, name)

    # -- one key -----------------------------------------------------------------------------------

    @asks_once
    def find(self, session: Session, key: Any) -> Value | None:
        """What it holds for a key; None where it has no such key."""
        value = self._entries.get(key)
        if value is not None:
            return value
        return self._entries.get(matching_key(session, key, self._entries))

    @asks_once
    def write(self, session: Session, key: Any, value: Value) -> None:
        """Sets a key, or deletes it (NULL)."""
        self._writable(session)
        if key not in self._entries:
            key = matching_key(session, key, self._entries)
        if value is NULL:
            del self._entries[key]
        else:
            self._entries[key] = value

    @asks_once
    def remove(self, session: Session, key: Any) -> Value | None:
        """Deletes a key, and gives what it held; None where it has no such key."""
        value = self.find(session, key)
        if value is not None:
            self.write(session, key, NULL)
        return value

    def contains(self, session: Session, item: Value) -> bool:
        return self.find(session, dict_key(session, item)) is not None

    def get_item(self, session: Session, key: Value) -> Value:
        value = self.find(session, dict_key(session, key))
        if value is not None:
            return value
        factory = session.realize(self.factory)
        if factory.is_constant() and factory.constant() is None:
            raise session.raised(KeyError, key)
        default = session.call(factory, [], {})
        self.set_item(session, key, default)
        return default

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        self.write(session, self._changed_key(session, key), value)

    def _changed_key(self, session: Session, key: Value) -> Any:
        """The key of an entry that is set or deleted, for which OrderedDict asks by itself."""
        if issubclass(self.cls, OrderedDict):
            return key.key(session)
        return dict_key(session, key)

    def delete_item(self, session: Session, key: Value) -> None:
        if self.remove(session, self._changed_key(session, key)) is None:
            raise session.raised(KeyError, key)

    # -- all of it ---------------------------------------------------------------------------------

    def argument(self, leaf: Leaf) -> Any:
        return self._by_plain_key(operator.methodcaller("argument", leaf))

    def iterate(self, session: Session) -> Value:
        return DictIterator(self, "keys")

    def keys(self, session: Session) -> SequenceValue:
        return TupleValue(list(map(session.wrap_key, self.entries)), tuple)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function is operator.ior and not reflected:
            self.method_update(session, other)
            return self
        if not isinstance(other, DictValue):
            return None
        if function is operator.or_:
            return self._union(*in_order(self, other, reflected))
        if function in EQUALITIES:
            if issubclass(self.cls, OrderedDict) and issubclass(other.cls, OrderedDict):
                same = list(self.entries) == list(other.entries)
            else:
                same = self.entries.keys() == other.entries.keys()
            same = same and all(
                session.equal_items(v, other.entries[k]) for k, v in self.entries.items()
            )
            return ConstantValue(same == (function is operator.eq))
        return None

    def _union(self, left: DictValue, right: DictValue) -> DictValue:
        kind = left
        if left.cls is dict:
            kind = self
        union = DictValue({**left.entries, **right.entries}.items(), kind.cls)
        union.factory = kind.factory
        return union

    def clear(self, session: Session) -> None:
        """Deletes all keys."""
        self._entries.clear()

    def method_clear(self, session: Session) -> Value:
        self.clear(session)
        return NONE

    def method_keys(self, session: Session) -> Value:
        return DictView(self, "keys")

    def method_values(self, session: Session) -> Value:
        return DictView(self, "values")

    def method_items(self, session: Session) -> Value:
        return DictView(self, "items")

    def method_get(self, session: Session, key: Value, default: Value = NONE) -> Value:
        return self.find(session, dict_key(session, key)) or default

    def method_pop(self, session: Session, key: Value, default: Value | None = None) -> Value:
        value = self.remove(session, self._changed_key(session, key)) or default
        if value is None:
            if self.cls is OrderedDict:
                raise ordered_key_error(session, key)
            raise session.raised(KeyError, key)
        return value

    def method_popitem(self, session: Session, last: Value | None = None) -> Value:
        if not self.entries:
            what = "dictionary is empty"
            if self.cls is dict:
                what = f"popitem(): {what}"
            raise session.raised(KeyError, what)
        key = list(self.entries)[-1 if last is None or session.truth(last) else 0]
        value = self.remove(session, key)
        assert value is not None
        return TupleValue([session.wrap_key(key), value], tuple)

    @asks_once
    def method_setdefault(self, session: Session, key: Value, default: Value = NONE) -> Value:
        name = dict_key(session, key)
        value = self.find(session, name)
        if value is None:
            self.write(session, name, default)
        return value or default

    def method_update(
        self, session: Session, other: Value | None = None, /, **named: Value
    ) -> Value:
        if other is not None:
            ordered = issubclass(self.cls, OrderedDict)
            if ordered:
                read = session.ordered_entries_read
            else:
                read = session.entries_read
            for key, value in read(other):
                self.write(session, key, value)
        for name, value in named.items():
            self.write(session, argument_key(name), value)
        return NONE

    def method_copy(self, session: Session) -> Value:
        copy = DictValue(self.entries.items(), self.cls)
        copy.factory = self.factory
        return copy

    def method___reduce_ex__(self, session: Session, protocol: Value) -> Value:
        if self.cls not in (OrderedDict, defaultdict):
            raise session.unsupported("library-function", f"__reduce_ex__ of {self.describe()}")
        if session.same(self.factory, NONE):
            factory = []
        else:
            factory = [self.factory]
        args = session.tuple_of_values(factory)
        items = self.method_items(session).iterate(session)
        return session.tuple_of_values((session.wrap_constant(self.cls), args, NONE, NONE, items))

    def method_move_to_end(self, session: Session, key: Value, last: Value | None = None) -> Value:
        name = key.key(session)
        value = self.remove(session, name)
        if value is None:
            raise ordered_key_error(session, key)
        if last is None or session.truth(last):
            others = []
        else:
            others = list(self.entries.items())
        self.write(session, name, value)
        for other, other_value in others:  # all that lay before it is put behind it
            self.write(session, other, NULL)
            self.write(session, other, other_value)
        return NONE


class DictIterator(EntryIterator):
    """An iterator over the keys, values or items of a dict."""

    __slots__ = ("kind",)

    def __init__(self, owner: DictValue, kind: str) -> None:
        super().__init__(owner, list(owner.entries))
        self.kind = kind

    def python_type(self) -> type:
        return type(iter(getattr(dict_base(self.owner.cls)(), self.kind)()))

    def next(self, session: Session) -> Value | None:
        entries = self.owner.entries
        if self._left is None:
            return None
        if len(entries) != len(self._left):
            ordered = issubclass(self.owner.cls, OrderedDict)
            what = "dictionary changed size"
            if ordered:
                what = "OrderedDict mutated"
            raise session.raised(RuntimeError, f"{what} during iteration")
        if self.position >= len(self._left):
            self._left = None
            return None
        key = self._left[self.position]
        if key not in entries:
            raise session.unsupported(
                "container-order", "a dict whose keys change while it is iterated over"
            )
        self.position += 1
        return entry_element(session, self.kind, key, entries[key])


def entry_element(session: Session, kind: str, key: Any, value: Value) -> Value:
    """What keys(), values() or items() give for an entry."""
    if kind == "values":
        return value
    key = session.wrap_key(key)
    if kind == "keys":
        return key  # type: ignore[no-any-return]
    return TupleValue([key, value], tuple)


class DictView(Value):
    """keys(), values() or items() of a dict."""

    __slots__ = ("kind", "owner")

    def __init__(self, owner: DictValue, kind: str) -> None:
        super().__init__()
        self.owner, self.kind = owner, kind

    def python_type(self) -> type:
        return type(getattr(dict_base(self.owner.cls)(), self.kind)())

    def truth(self, session: Session) -> bool:
        return self.length(session) > 0

    def length(self, session: Session) -> int:
        return self.owner.length(session)

    def iterate(self, session: Session) -> Value:
        return DictIterator(self.owner, self.kind)

    def method_isdisjoint(self, session: Session, other: Value) -> Value:
        shorter, longer = session.realize(other), self
        is_set = isinstance(shorter, DictView) or issubclass(
            shorter.python_type(), (set, frozenset)
        )
        if is_set and shorter.length(session) > self.length(session):
            shorter, longer = self, shorter  # type: ignore[assignment]
        for element in session.elements(shorter):
            if session.contains(longer, element):
                return ConstantValue(False)
        return ConstantValue(True)

    def contains(self, session: Session, item: Value) -> bool:
        if self.kind == "keys":
            return self.owner.contains(session, item)
        if self.kind == "values":
            return super().contains(session, item)
        if (
            not isinstance(item, SequenceValue)
            or not issubclass(item.cls, tuple)
            or len(item.items) != 2
        ):
            return False
        key, expected = map(session.realize, item.items)
        value = self.owner.find(session, dict_key(session, key))
        return value is not None and session.equal(session.realize(value), expected)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if self.kind == "values" or function in SET_UPDATES:
            return None
        if function in COMPARISONS:
            if (
                not isinstance(other, (SetValue, DictView))
                or getattr(other, "kind", "") == "values"
            ):
                return None
            return session.set_of(self).binary(session, function, session.set_of(other), reflected)
        if function is operator.and_:
            return self._common(session, other)
        if function not in SET_RESULTS:
            return None
        first, second = in_order(self, other, reflected)
        result = session.set_of(first)
        getattr(result, f"method_{SET_UPDATES_OF[function]}")(session, second)
        return result

    def _common(self, session: Session, other: Value) -> Value:
        """The elements of the other one that are in this view too, in the order of reading."""
        if (
            isinstance(other, SetValue)
            and other.cls is set
            and self.length(session) <= other.length(session)
        ):
            return other.method_intersection(session, self)
        common = SetValue([], set)
        longer = (
            isinstance(other, DictView)
            and other.kind != "values"
            and other.length(session) > self.length(session)
        )
        iterable, container = in_order(other, self, longer)
        for element in session.elements(iterable):
            if session.contains(container, element):
                common.method_add(session, session.realize(element))
        return common
