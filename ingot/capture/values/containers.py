"""Dicts, sets and their views and iterators. (Those from outside have a file of their own.)"""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import dict_base
from ingot.capture.values.base import NULL, Raised, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.keys import (
    argument_key,
    is_plain_key,
    matching_key,
    ordered_key_error,
    plain_key,
)
from ingot.capture.values.objects import ContentKey, IdentityKey, asks_once
from ingot.capture.values.sequences import (
    Container,
    ListValue,
    OutsideList,
    RangeIterator,
    RangeValue,
    SequenceIterator,
    SequenceValue,
    SliceValue,
    TupleValue,
    VaryingRange,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source

__all__ = [
    "Container",
    "DictIterator",
    "DictValue",
    "DictView",
    "ListValue",
    "OutsideList",
    "RangeIterator",
    "RangeValue",
    "SequenceIterator",
    "SequenceValue",
    "SetIterator",
    "SetValue",
    "SliceValue",
    "TupleValue",
    "VaryingRange",
    "is_plain_key",
]


class DictValue(Container):
    """A dict, OrderedDict or defaultdict. `factory` makes the missing values of a defaultdict."""

    __slots__ = ("_entries", "cls", "factory")

    def __init__(
        self,
        entries: Iterable[tuple[Any, Value]],
        cls: type,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(source, object)
        self._entries = dict(entries)
        self.cls = cls
        self.factory: Value = NONE

    @property
    def entries(self) -> dict[Any, Value]:
        """All that it holds: values by key, as `Value.key` makes it."""
        return self._entries

    def python_type(self) -> type:
        return self.cls

    def python_object(self, session: Session) -> Any:
        entries = {plain_key(k): session.known(item) for k, item in self.entries.items()}
        if self.cls is defaultdict:
            return defaultdict(session.known(self.factory), entries)
        return OrderedDict(entries) if self.cls is OrderedDict else entries

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "default_factory" and self.cls is defaultdict:
            return session.realize(self.factory)
        return super().get_attribute(session, name)

    # -- one key -----------------------------------------------------------------------------------

    @asks_once
    def find(self, session: Session, key: Any) -> Value | None:
        """What it holds for a key; None where it has no such key."""
        found = self._entries.get(key)
        return (
            found
            if found is not None
            else self._entries.get(matching_key(session, key, self._entries))
        )

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
        found = self.find(session, key)
        if found is not None:
            self.write(session, key, NULL)
        return found

    def contains(self, session: Session, item: Value) -> bool:
        return self.find(session, item.key(session)) is not None

    def get_item(self, session: Session, key: Value) -> Value:
        found = self.find(session, key.key(session))
        if found is not None:
            return found
        factory = session.realize(self.factory)
        if factory.is_constant() and factory.constant() is None:
            raise session.raised(KeyError, key)
        made = session.call(factory, [], {})
        self.set_item(session, key, made)
        return made

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        self.write(session, key.key(session), value)

    def delete_item(self, session: Session, key: Value) -> None:
        if self.remove(session, key.key(session)) is None:
            raise session.raised(KeyError, key)

    # -- all of it ---------------------------------------------------------------------------------

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        return {plain_key(k): v.argument(leaf) for k, v in self.entries.items()}

    def length(self, session: Session) -> int:
        return len(self.entries)

    def iterate(self, session: Session) -> Value:
        return DictIterator(self, "keys")

    def keys(self, session: Session) -> SequenceValue:
        return TupleValue([session.wrap_key(key) for key in self.entries], tuple)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if function is operator.ior and not reflected:
            self.method_update(session, other)
            return self
        if not isinstance(other, DictValue):
            return None
        if function is operator.or_:
            return self._union(*((other, self) if reflected else (self, other)))
        if function in (operator.eq, operator.ne):
            ordered = issubclass(self.cls, OrderedDict) and issubclass(other.cls, OrderedDict)
            mine, its = (list(d.entries) if ordered else d.entries.keys() for d in (self, other))
            same = mine == its and all(
                session.equal(session.realize(v), session.realize(other.entries[k]))
                for k, v in self.entries.items()
            )
            return ConstantValue(same == (function is operator.eq))
        return None

    def _union(self, left: DictValue, right: DictValue) -> DictValue:
        kind = left if left.cls is not dict else self
        made = DictValue({**left.entries, **right.entries}.items(), kind.cls)
        made.factory = kind.factory
        return made

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
        return self.find(session, key.key(session)) or default

    def method_pop(self, session: Session, key: Value, default: Value | None = None) -> Value:
        found = self.remove(session, key.key(session)) or default
        if found is None:
            if self.cls is OrderedDict:
                raise ordered_key_error(session, key)
            raise session.raised(KeyError, key)
        return found

    def method_popitem(self, session: Session, last: Value | None = None) -> Value:
        if not self.entries:
            raise session.raised(
                KeyError, f"{'popitem(): ' if self.cls is dict else ''}dictionary is empty"
            )
        key = list(self.entries)[-1 if last is None or session.truth(last) else 0]
        value = self.remove(session, key)
        assert value is not None
        return TupleValue([session.wrap_key(key), value], tuple)

    @asks_once
    def method_setdefault(self, session: Session, key: Value, default: Value = NONE) -> Value:
        name = key.key(session)
        found = self.find(session, name)
        if found is None:
            self.write(session, name, default)
        return found or default

    def method_update(
        self, session: Session, other: Value | None = None, /, **named: Value
    ) -> Value:
        if other is not None:
            ordered = issubclass(self.cls, OrderedDict)
            read = session.ordered_entries_read if ordered else session.entries_read
            for key, value in read(other):
                self.write(session, key, value)
        for name, value in named.items():
            self.write(session, argument_key(name), value)
        return NONE

    def method_copy(self, session: Session) -> Value:
        made = DictValue(self.entries.items(), self.cls)
        made.factory = self.factory
        return made

    def method___reduce_ex__(self, session: Session, protocol: Value) -> Value:
        if self.cls not in (OrderedDict, defaultdict):
            raise session.unsupported("library-function", f"__reduce_ex__ of {self.describe()}")
        factory = [] if session.same(self.factory, NONE) else [self.factory]
        items = self.method_items(session).iterate(session)
        made = (
            session.wrap_constant(self.cls),
            session.tuple_of_values(factory),
            NONE,
            NONE,
            items,
        )
        return session.tuple_of_values(made)

    def method_move_to_end(self, session: Session, key: Value, last: Value | None = None) -> Value:
        name = key.key(session)
        value = self.remove(session, name)
        if value is None:
            raise ordered_key_error(session, key)
        others = [] if last is None or session.truth(last) else list(self.entries.items())
        self.write(session, name, value)
        for other, held in others:  # all that lay before it is put behind it
            self.write(session, other, NULL)
            self.write(session, other, held)
        return NONE


class DictIterator(Value):
    """An iterator over the keys, values or items of a dict."""

    __slots__ = ("_left", "kind", "owner", "position")

    def __init__(self, owner: DictValue, kind: str) -> None:
        super().__init__()
        self.owner, self.kind, self.position = owner, kind, 0
        self._left: list[Any] | None = list(owner.entries)

    @property
    def ended(self) -> bool:
        """Whether it has said that there are no more."""
        return self._left is None

    def python_type(self) -> type:
        return type(iter(getattr(dict_base(self.owner.cls)(), self.kind)()))

    def iterate(self, session: Session) -> Value:
        return self

    def next(self, session: Session) -> Value | None:
        entries = self.owner.entries
        if self._left is None:
            return None
        if len(entries) != len(self._left):
            ordered = issubclass(self.owner.cls, OrderedDict)
            what = "OrderedDict mutated" if ordered else "dictionary changed size"
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
    return (
        session.wrap_key(key)
        if kind == "keys"
        else TupleValue([session.wrap_key(key), value], tuple)
    )


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
        return ConstantValue(
            not any(session.contains(longer, element) for element in session.elements(shorter))
        )

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
        key, value = map(session.realize, item.items)
        found = self.owner.find(session, key.key(session))
        return found is not None and session.equal(session.realize(found), value)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if self.kind == "values" or function in _SET_UPDATES:
            return None
        if function in _SET_TESTS:
            if (
                not isinstance(other, (SetValue, DictView))
                or getattr(other, "kind", "") == "values"
            ):
                return None
            return session.set_of(self).binary(session, function, session.set_of(other), reflected)
        if function is operator.and_:
            return self._common(session, other)
        if function not in _SET_RESULTS:
            return None
        first, second = (other, self) if reflected else (self, other)
        made = session.set_of(first)
        getattr(made, f"method_{_SET_UPDATES_OF[function]}")(session, second)
        return made

    def _common(self, session: Session, other: Value) -> Value:
        """The elements of the other one that are here too, as they are read."""
        if (
            isinstance(other, SetValue)
            and other.cls is set
            and self.length(session) <= other.length(session)
        ):
            return other.method_intersection(session, self)
        made = SetValue([], set)
        longer = (
            isinstance(other, DictView)
            and other.kind != "values"
            and other.length(session) > self.length(session)
        )
        for element in session.elements(self if longer else other):
            if session.contains(other if longer else self, element):
                made.method_add(session, session.realize(element))
        return made


class SetValue(Container):
    """A set or frozenset: `entries` by key, as `Value.key` makes it. `hashed` is a set of these
    keys that has gone through the same operations, and so has the same order."""

    __slots__ = ("_entries", "cls", "hashed")

    def __init__(
        self,
        entries: Iterable[tuple[Any, Value]],
        cls: type,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(source, object)
        self._entries = dict(entries)
        self.hashed: Any = (frozenset if cls is frozenset else set)(iter(self._entries))
        self.cls = cls

    @property
    def entries(self) -> dict[Any, Value]:
        """All members, by key, in the order in which they were added."""
        return self._entries

    def python_type(self) -> type:
        return self.cls

    def python_object(self, session: Session) -> Any:
        return self.cls([session.known(item) for item in self.entries.values()])

    def constant(self) -> Any:
        if self.cls is frozenset:
            return frozenset(member.constant() for member in self.entries.values())
        return super().constant()

    def key(self, session: Session) -> Any:
        if self.cls is not frozenset:
            raise session.raised(TypeError, f"unhashable type: '{self.cls.__name__}'")
        return super().key(session)

    # -- one member --------------------------------------------------------------------------------

    @asks_once
    def holds(self, session: Session, key: Any) -> bool:
        """Whether a key is a member."""
        return key in self._entries or matching_key(session, key, self._entries) in self._entries

    @asks_once
    def add(self, session: Session, key: Any, member: Value) -> None:
        """set.add."""
        key = matching_key(session, key, self._entries)
        if key not in self._entries:
            self._entries[key] = member
            self.hashed.add(key)

    @asks_once
    def discard(self, session: Session, key: Any) -> None:
        """set.discard."""
        key = matching_key(session, key, self._entries)
        self._entries.pop(key, None)
        self.hashed.discard(key)

    def contains(self, session: Session, item: Value) -> bool:
        return self.holds(session, self._sought(session, item))

    @staticmethod
    def _sought(session: Session, item: Value) -> Any:
        """The key of what is looked for: in the place of a set, a frozenset of its members."""
        if not issubclass(item.python_type(), set):
            return item.key(session)
        try:
            return item.key(session)
        except Raised as raised:
            if not issubclass(raised.value.python_type(), TypeError):
                raise
        content = session.realize(getattr(item, "content", item))
        return session.set_of(content, frozenset).key(session)

    # -- all of them -------------------------------------------------------------------------------

    def length(self, session: Session) -> int:
        return len(self.entries)

    def ordered(self, session: Session) -> list[Value]:
        """The members in the order of iteration. It follows from the hashes, where these are the
        same at every call."""
        entries = self.entries
        if all(map(_hashes_alike, entries)):
            return [entries[key] for key in self.hashed]
        return list(entries.values())

    def iterate(self, session: Session) -> Value:
        return SetIterator(self, self.ordered(session))

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if function in _SET_UPDATES and not reflected:
            other = getattr(other, "content", other)  # of a subclass, whatever it overrides
        if not isinstance(other, SetValue):
            return None
        if function in _SET_UPDATES and not reflected and self.cls is set:
            getattr(self, f"method_{_SET_UPDATES[function]}")(session, other)
            return self
        first, second = (other, self) if reflected else (self, other)
        if function not in _SET_TESTS and function not in _SET_RESULTS:
            return None
        members: dict[int, Value] = {}
        for held in (first, second):
            _note_members(held, members)
        made = function(first.hashed, second.hashed)
        return ConstantValue(made) if function in _SET_TESTS else _set_like(made, members)

    def _operand(self, session: Session, other: Value, members: dict[int, Value]) -> Any:
        """What another set, a dict or an iterable is for a method of `hashed`; `members` gets its
        members by the id of their keys."""
        other = session.realize(other)
        if isinstance(other, (SetValue, DictValue)) and other.python_type() in (
            set,
            frozenset,
            dict,
        ):
            held = other if isinstance(other, SetValue) else session.set_of(other)
            _note_members(held, members)
            return held.hashed if held is other else dict.fromkeys(held.entries)
        return list(self._keys_read(session, other, members))

    @staticmethod
    def _keys_read(session: Session, other: Value, members: dict[int, Value]) -> Iterator[Any]:
        for key, member in session.members_read(other):
            members[id(key)] = member
            yield key

    def _combined(self, session: Session, name: str, others: Iterable[Value]) -> SetValue:
        """The result of a method that makes a new set and reads others to their end."""
        members: dict[int, Value] = {}
        _note_members(self, members)
        made = self.hashed.copy()
        for other in others:
            operand = self._operand(session, other, members)
            made = getattr(made, name)(operand)
        return _set_like(made, members)

    def _common(self, session: Session, other: Value) -> SetValue:
        """set.intersection: whether a key is here is asked as each is read."""
        members: dict[int, Value] = {}
        _note_members(self, members)
        other = session.realize(other)
        if other is self:
            return _set_like(self.hashed.copy(), members)
        if isinstance(other, SetValue):
            return _set_like(
                self.hashed.intersection(self._operand(session, other, members)), members
            )
        found: set[Any] = set()
        for key in self._keys_read(session, other, members):
            if self.holds(session, key):
                found.add(key)
                if len(found) >= self.length(session):
                    break
        return _set_like(found if self.cls is set else self.cls(found), members)

    def _become(self, session: Session, made: SetValue) -> Value:
        """Takes over the members of another set."""
        for key in [key for key in self.entries if key not in made.entries]:
            self.discard(session, key)
        for key, member in made.entries.items():
            self.add(session, key, member)
        if self.source is None:
            self.hashed = made.hashed
        return NONE

    def method_add(self, session: Session, item: Value) -> Value:
        self.add(session, item.key(session), item)
        return NONE

    def method_discard(self, session: Session, item: Value) -> Value:
        self.discard(session, self._sought(session, item))
        return NONE

    @asks_once
    def method_remove(self, session: Session, item: Value) -> Value:
        if not self.contains(session, item):
            raise session.raised(KeyError, item)
        return self.method_discard(session, item)

    def method_pop(self, session: Session) -> Value:
        if not self.entries:
            raise session.raised(KeyError, "pop from an empty set")
        if all(map(_hashes_alike, self.entries)):
            key = self.hashed.pop()
            self.hashed.add(key)
        else:
            key = next(iter(self.entries))
        member = self.entries[key]
        self.discard(session, key)
        return member

    def method_clear(self, session: Session) -> Value:
        for key in list(self.entries):
            self.discard(session, key)
        return NONE

    def method_update(self, session: Session, *others: Value) -> Value:
        for other in others:
            self._update(session, session.realize(other))
        return NONE

    def _update(self, session: Session, other: Value) -> None:
        if not isinstance(other, SetValue):
            for key, member in session.members_read(other):
                self.add(session, key, member)
        elif other is not self:
            members = list(other.entries.items())
            if self.source is None:
                self.hashed.update(other.hashed)  # as a whole, for the order
            for key, member in members:
                self.add(session, key, member)

    def method_union(self, session: Session, *others: Value) -> Value:
        return self._combined(session, "union", others)

    def method_intersection(self, session: Session, *others: Value) -> Value:
        made = self if others else self._combined(session, "copy", ())
        for other in others:
            made = made._common(session, other)
        return made

    def method_difference(self, session: Session, *others: Value) -> Value:
        return self._combined(session, "difference", others)

    def method_symmetric_difference(self, session: Session, other: Value) -> Value:
        members: dict[int, Value] = {}
        operand = self._operand(session, other, members)
        _note_members(self, members)
        return _set_like(self.hashed.symmetric_difference(operand), members)

    def method_intersection_update(self, session: Session, *others: Value) -> Value:
        made = self.method_intersection(session, *others)
        assert isinstance(made, SetValue)
        return self._become(session, made)

    def method_difference_update(self, session: Session, *others: Value) -> Value:
        for other in map(session.realize, others):
            if other is self:
                self.method_clear(session)
                continue
            for key, _ in session.members_read(other):
                self.discard(session, key)
        return NONE

    def method_symmetric_difference_update(self, session: Session, other: Value) -> Value:
        other = session.realize(other)
        if other is self:
            return self.method_clear(session)
        if not isinstance(other, DictValue):
            other = session.set_of(other)
        for key, member in list(session.members_read(other)):
            if self.holds(session, key):
                self.discard(session, key)
            else:
                self.add(session, key, member)
        return NONE

    def method_issubset(self, session: Session, other: Value) -> Value:
        found = self._common(session, other)
        return ConstantValue(len(found.entries) == len(self.entries))

    def method_issuperset(self, session: Session, other: Value) -> Value:
        return ConstantValue(
            all(self.holds(session, key) for key, _ in session.members_read(other))
        )

    def method_isdisjoint(self, session: Session, other: Value) -> Value:
        other = session.realize(other)
        if other is self:
            return ConstantValue(not self.entries)
        # of a subclass too, as its iterator gives them
        return ConstantValue(
            not any(
                self.holds(session, session.realize(element).key(session))
                for element in session.elements(other)
            )
        )

    def method_copy(self, session: Session) -> Value:
        return self if self.cls is frozenset else self._combined(session, "copy", ())

    def method___reduce_ex__(self, session: Session, protocol: Value) -> Value:
        members = session.tuple_of_values([session.list_of(self)])
        return session.tuple_of_values([session.wrap_constant(self.cls), members, NONE])


_SET_RESULTS = (operator.or_, operator.and_, operator.sub, operator.xor)
_SET_TESTS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_SET_UPDATES: dict[Any, str] = {
    operator.ior: "update",
    operator.iand: "intersection_update",
    operator.isub: "difference_update",
    operator.ixor: "symmetric_difference_update",
}
_SET_UPDATES_OF = dict(zip(_SET_RESULTS, _SET_UPDATES.values()))


def _note_members(held: SetValue, members: dict[int, Value]) -> None:
    """Notes the members of a set by the id of their keys, in `hashed` too."""
    for key, member in held.entries.items():
        members[id(key)] = member
    for key in held.hashed:
        if id(key) not in members:
            members[id(key)] = held.entries[key]


def _set_like(hashed: Any, members: dict[int, Value]) -> SetValue:
    """A new set with these keys; `members` has their values by the id of a key."""
    made = SetValue([(key, members[id(key)]) for key in hashed], type(hashed))
    made.hashed = hashed
    return made


def _hashes_alike(key: Any) -> bool:
    """Whether a key has the same hash at every call: it is a constant, or an outside object that is
    guarded itself."""
    if isinstance(key, ContentKey):
        return _hashes_alike(key.content)
    if isinstance(key, IdentityKey):
        return key.value.source is not None and not key.value.decides_operators
    return all(map(_hashes_alike, key)) if isinstance(key, (tuple, frozenset)) else True


class SetIterator(Value):
    """An iterator over a set."""

    __slots__ = ("_left", "owner", "position")

    def __init__(self, owner: SetValue, members: list[Value]) -> None:
        super().__init__()
        self.owner, self.position = owner, 0
        self._left: list[Value] | None = members

    @property
    def ended(self) -> bool:
        """Whether it has said that there are no more."""
        return self._left is None

    def python_type(self) -> type:
        return type(iter(set()))

    def iterate(self, session: Session) -> Value:
        return self

    def next(self, session: Session) -> Value | None:
        if self._left is None:
            return None
        if len(self._left) != len(self.owner.entries):
            raise session.raised(RuntimeError, "Set changed size during iteration")
        if self.position == len(self._left):
            self._left = None
            return None
        self.position += 1
        return self._left[self.position - 1]
