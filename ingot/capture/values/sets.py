"""Sets and frozensets, in the order of the real ones. (Those from outside have a file of their
own.)"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import IteratorValue, Operator, Raised, Value, constants, in_order
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.keys import matching_key, member_key
from ingot.capture.values.objects import ContentKey, IdentityKey, asks_once
from ingot.capture.values.operator_methods import COMPARISONS
from ingot.capture.values.sequences import Container

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source


class Hashed(Container):
    """A dict or set: values by key, as `Value.key` makes it."""

    __slots__ = ("_entries", "cls")

    def __init__(
        self,
        entries: Iterable[tuple[Any, Value]],
        cls: type,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(source, object)
        self._entries, self.cls = dict(entries), cls

    @property
    def entries(self) -> dict[Any, Value]:
        """All that it holds, in the order in which it was added."""
        return self._entries

    def python_type(self) -> type:
        return self.cls

    def length(self, session: Session) -> int:
        return len(self.entries)


class SetValue(Hashed):
    """A set or frozenset. `hashed` is a set of its keys that has gone through the same operations,
    and so has the same order."""

    __slots__ = ("hashed",)

    def __init__(
        self,
        entries: Iterable[tuple[Any, Value]],
        cls: type,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(entries, cls, source, object)
        self.hashed: Any = set(iter(self._entries))
        if cls is frozenset:
            self.hashed = frozenset(iter(self._entries))

    def python_object(self, session: Session) -> Any:
        return self.cls(map(session.known, self.entries.values()))

    def constant(self) -> Any:
        if self.cls is frozenset:
            return frozenset(constants(self.entries.values()))
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
            return member_key(session, item)
        try:
            return member_key(session, item)
        except Raised as raised:
            if not raised.is_a(TypeError):
                raise
        content = session.realize(getattr(item, "content", item))
        return session.set_of(content, frozenset).key(session)

    # -- all of them -------------------------------------------------------------------------------

    def ordered(self, session: Session) -> list[Value]:
        """The members in the order of iteration. It follows from the hashes, where these are the
        same at every call."""
        entries = self.entries
        if all(map(_hashes_alike, entries)):
            return list(map(entries.__getitem__, self.hashed))
        return list(entries.values())

    def iterate(self, session: Session) -> Value:
        return SetIterator(self, self.ordered(session))

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function in SET_UPDATES and not reflected:
            other = getattr(other, "content", other)  # of a subclass, whatever it overrides
        if not isinstance(other, SetValue):
            return None
        if function in SET_UPDATES and not reflected and self.cls is set:
            getattr(self, f"method_{SET_UPDATES[function]}")(session, other)
            return self
        first, second = in_order(self, other, reflected)
        if function not in COMPARISONS and function not in SET_RESULTS:
            return None
        members: dict[int, Value] = {}
        for operand in (first, second):
            _note_members(operand, members)
        result = function(first.hashed, second.hashed)
        if function in COMPARISONS:
            return ConstantValue(result)
        return _set_like(result, members)

    def _operand(self, session: Session, other: Value, members: dict[int, Value]) -> Any:
        """What another set, a dict or an iterable is for a method of `hashed`; `members` gets its
        members by the id of their keys."""
        other = session.realize(other)
        if isinstance(other, Container) and other.python_type() in (set, frozenset, dict):
            if isinstance(other, SetValue):
                value = other
            else:
                value = session.set_of(other)
            _note_members(value, members)
            if value is other:
                return value.hashed
            return dict.fromkeys(value.entries)
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
        hashed = self.hashed.copy()
        for other in others:
            operand = self._operand(session, other, members)
            hashed = getattr(hashed, name)(operand)
        return _set_like(hashed, members)

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
        hashed: set[Any] = set()
        for key in self._keys_read(session, other, members):
            if self.holds(session, key):
                hashed.add(key)
                if len(hashed) >= self.length(session):
                    break
        if self.cls is not set:
            hashed = self.cls(hashed)
        return _set_like(hashed, members)

    def _become(self, session: Session, other: SetValue) -> Value:
        """Takes over the members of another set."""
        for key in [key for key in self.entries if key not in other.entries]:
            self.discard(session, key)
        for key, member in other.entries.items():
            self.add(session, key, member)
        if self.source is None:
            self.hashed = other.hashed
        return NONE

    def method_add(self, session: Session, item: Value) -> Value:
        self.add(session, member_key(session, item), item)
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
        if not others:
            return self._combined(session, "copy", ())
        result = self
        for other in others:
            result = result._common(session, other)
        return result

    def method_difference(self, session: Session, *others: Value) -> Value:
        return self._combined(session, "difference", others)

    def method_symmetric_difference(self, session: Session, other: Value) -> Value:
        members: dict[int, Value] = {}
        operand = self._operand(session, other, members)
        _note_members(self, members)
        return _set_like(self.hashed.symmetric_difference(operand), members)

    def method_intersection_update(self, session: Session, *others: Value) -> Value:
        result = self.method_intersection(session, *others)
        assert isinstance(result, SetValue)
        return self._become(session, result)

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
        if not isinstance(other, Container) or not issubclass(other.python_type(), dict):
            other = session.set_of(other)
        for key, member in list(session.members_read(other)):
            if self.holds(session, key):
                self.discard(session, key)
            else:
                self.add(session, key, member)
        return NONE

    def method_issubset(self, session: Session, other: Value) -> Value:
        return ConstantValue(len(self._common(session, other).entries) == len(self.entries))

    def method_issuperset(self, session: Session, other: Value) -> Value:
        return ConstantValue(
            all(self.holds(session, key) for key, _ in session.members_read(other))
        )

    def method_isdisjoint(self, session: Session, other: Value) -> Value:
        other = session.realize(other)
        if other is self:
            return ConstantValue(not self.entries)
        # of a subclass too, as its iterator gives them
        for element in session.elements(other):
            if self.holds(session, member_key(session, session.realize(element))):
                return ConstantValue(False)
        return ConstantValue(True)

    def method_copy(self, session: Session) -> Value:
        if self.cls is frozenset:
            return self
        return self._combined(session, "copy", ())

    def method___reduce_ex__(self, session: Session, protocol: Value) -> Value:
        members = session.tuple_of_values([session.list_of(self)])
        return session.tuple_of_values([session.wrap_constant(self.cls), members, NONE])


SET_RESULTS = (operator.or_, operator.and_, operator.sub, operator.xor)
SET_UPDATES: dict[Any, str] = {
    operator.ior: "update",
    operator.iand: "intersection_update",
    operator.isub: "difference_update",
    operator.ixor: "symmetric_difference_update",
}
SET_UPDATES_OF = dict(zip(SET_RESULTS, SET_UPDATES.values()))


def _note_members(value: SetValue, members: dict[int, Value]) -> None:
    """Notes the members of a set by the id of their keys, in `hashed` too."""
    for key, member in value.entries.items():
        members[id(key)] = member
    for key in value.hashed:
        if id(key) not in members:
            members[id(key)] = value.entries[key]


def _set_like(hashed: Any, members: dict[int, Value]) -> SetValue:
    """A new set with these keys; `members` has their values by the id of a key."""
    result = SetValue(zip(hashed, map(members.__getitem__, map(id, hashed))), type(hashed))
    result.hashed = hashed
    return result


def _hashes_alike(key: Any) -> bool:
    """Whether a key has the same hash at every call: it is a constant, or an outside object that is
    guarded itself."""
    if isinstance(key, ContentKey):
        return _hashes_alike(key.content)
    if isinstance(key, IdentityKey):
        return key.value.source is not None and not key.value.decides_operators
    return not isinstance(key, (tuple, frozenset)) or all(map(_hashes_alike, key))


class EntryIterator(IteratorValue):
    """An iterator over a set or dict, which raises an error where the size of that changes."""

    __slots__ = ("_left", "owner", "position")

    def __init__(self, owner: Any, left: list[Any]) -> None:
        super().__init__()
        self.owner, self.position = owner, 0
        self._left: list[Any] | None = left

    @property
    def ended(self) -> bool:
        """Whether it has said that there are no more."""
        return self._left is None


class SetIterator(EntryIterator):
    """An iterator over a set."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(iter(set()))

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
