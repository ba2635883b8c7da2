"""Dicts and sets that existed before the call. What is done to them is recorded in
`Session.effects`; their keys are guarded when all of them are first asked for, so that a dict that
is only asked for one key may hold any others."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation, dict_base
from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, ItemSource, dict_items, dict_keys, set_members
from ingot.capture.values.base import NULL, LazyValue, Value, alive
from ingot.capture.values.containers import DictValue
from ingot.capture.values.keys import guarded_key, is_guarded_alone, outside_key
from ingot.capture.values.objects import ContentKey, IdentityKey
from ingot.capture.values.sets import SetValue

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source


class OutsideDict(DictValue):
    """A dict that existed before the call. What is asked for one key is guarded for that key."""

    __slots__ = ("_session",)
    is_shared = True

    def __init__(self, session: Session, source: Source, object: dict[Any, Any], cls: type) -> None:
        super().__init__((), cls, source, object)
        self._session = weakref.ref(session)

    def item_source(self, key: Any) -> Source:
        """Where the item of a key is loaded from."""
        assert self.source is not None
        return ItemSource(self.source, key)

    def key_value(self, key: Any) -> Value:
        """The value of a key."""
        return alive(self._session).wrap_key(key)

    @property
    def entries(self) -> dict[Any, Value]:
        session = alive(self._session)
        assert self.source is not None
        fields = session.effects.fields(self.object)
        if fields is not None and fields.entries is not None:
            return fields.entries
        if not self._entries:
            session.guard(self.source, Kind.DICT_KEYS, dict_keys(self.object))
            for key, item in dict_items(self.object):
                self._entries[guarded_key(session, key)] = LazyValue(item, self.item_source(key))
        if fields is None:
            return self._entries
        return fields.fill(dict(self._entries))

    def find(self, session: Session, key: Any) -> Value | None:
        key = outside_key(session, key)
        written = session.effects.written(self.object, key)
        if written is not None:
            if written is NULL:
                return None
            return written
        if self._entries or not is_guarded_alone(key):
            return self.entries.get(key)
        if not dict.__contains__(self.object, key):
            session.guard(self.source, Kind.ABSENT_KEY, key)
            return None
        return session.effects.lazy_value(dict.__getitem__(self.object, key), self.item_source(key))

    def write(self, session: Session, key: Any, value: Value) -> None:
        key = _written_key(session, key)
        fields = session.effects.items_of(self)
        session.effects.change(session, self, self.object, fields)
        fields.write(key, value)

    def clear(self, session: Session) -> None:
        fields = session.effects.items_of(self)
        session.effects.change(session, self, self.object, fields)
        fields.clear(Operation(dict_base(type(self.object)).clear, (self,)))


def _written_key(session: Session, key: Any) -> Any:
    if isinstance(key, ContentKey):  # which becomes the key where there is none yet
        return key
    return outside_key(session, key)


class OutsideSet(SetValue):
    """A set that existed before the call. Whether one member is in it is guarded for that
    member."""

    __slots__ = ("_in_order", "_session", "_whole")
    is_shared = True

    def __init__(self, session: Session, source: Source, object: Any) -> None:
        super().__init__((), set, source, object)
        self._session = weakref.ref(session)
        self._whole = self._in_order = False

    @property
    def entries(self) -> dict[Any, Value]:
        if not self._whole:
            session = alive(self._session)
            assert self.source is not None
            members = set_members(self.object)
            where = DerivedSource(self.source, set_members)
            session.guard(where, Kind.LENGTH, len(members))
            entries = {}
            for member, value in zip(members, session.wrap_items(members, where)):
                value = session.realize(value)
                entries[guarded_key(session, member)] = value
            self._take(session, entries)
        return self._entries

    def _take(self, session: Session, entries: dict[Any, Value]) -> None:
        """Takes the members that the set had before the call, and then what was done to it
        since."""
        self._whole, self._entries = True, entries
        self.hashed = set(self.object)
        if any(isinstance(key, IdentityKey) for key in entries):
            self.hashed = set(iter(entries))
        self._in_order = list(self.hashed) == list(entries)
        fields = session.effects.fields(self.object)
        if fields is None:
            return
        for key, member in fields.written.items():
            if key in fields.moved or member is NULL:
                SetValue.discard(self, session, key)
            if member is not NULL:
                SetValue.add(self, session, key, member)

    def ordered(self, session: Session) -> list[Value]:
        if session.effects.fields(self.object) is None:
            return list(self.entries.values())
        if self.entries and not self._in_order:
            raise session.unsupported(
                "container-order", f"the order of {self.describe()} after it was changed"
            )
        return super().ordered(session)

    def holds(self, session: Session, key: Any) -> bool:
        key = outside_key(session, key)
        written = session.effects.written(self.object, key)
        if written is not None:
            return written is not NULL
        if self._whole or not is_guarded_alone(key):
            return key in self.entries
        answer = set.__contains__(self.object, key)
        session.guard(self.source, Kind.MEMBER, (key, answer))
        return answer

    def add(self, session: Session, key: Any, member: Value) -> None:
        key = _written_key(session, key)
        self._write(session, key, member)
        if self._whole:
            super().add(session, key, member)

    def discard(self, session: Session, key: Any) -> None:
        key = outside_key(session, key)
        self._write(session, key, NULL)
        if self._whole:
            super().discard(session, key)

    def _write(self, session: Session, key: Any, member: Value) -> None:
        fields = session.effects.members_of(self)
        session.effects.change(session, self, self.object, fields)
        fields.write(key, member)

    def method_pop(self, session: Session) -> Value:
        raise session.unsupported(
            "container-order", f"pop() of {self.describe()}: which member it takes is not known"
        )

    def key_value(self, key: Any) -> Value:
        """The value of a key."""
        return alive(self._session).wrap_key(key)
