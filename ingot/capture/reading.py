"""How C code reads an iterable: one element at a time.

Its caller stores each before the next one is asked for, so that an iterable that looks at what is
being made, or raises, finds what CPython shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import VERSION
from ingot.capture.iterators import Iterator as IteratorInC
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    Raised,
    Value,
    find_missing,
    map_values,
    type_name,
)
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.keys import dict_key, member_key
from ingot.capture.values.mappings import DictObject
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.sequences import ListValue, SequenceValue, TupleValue
from ingot.capture.values.sets import SetValue
from ingot.capture.values.subclasses import BuiltinObject
from ingot.origins import is_trusted

if TYPE_CHECKING:
    from ingot.capture.session import Session

Entries = Iterator[tuple[Any, Value]]
"""Keys, as `Value.key` makes them, and items."""


class KeyTaken(Exception):
    """A key of a mapping that is given by name to a call which has this name already."""

    def __init__(self, key: Value) -> None:
        super().__init__(key)
        self.key = key


class Reading:
    """Mixed into Session."""

    # -- elements ----------------------------------------------------------------------------------

    def elements(self: Session, value: Value, sized: bool = False) -> Iterator[Value]:  # type: ignore[misc]
        """The elements of an iterable, as its caller asks for them. `sized`: C reserves room for
        them beforehand."""
        value = self.realize(value)
        iterator = self.iterate(value)
        if sized:
            self.ask_length(value)
        return self._elements_of(iterator)

    def _elements_of(self: Session, iterator: Value) -> Iterator[Value]:  # type: ignore[misc]
        while (element := iterator.next(self)) is not None:
            self.count_step()
            yield element

    def unpacked(self: Session, value: Value) -> list[Value]:  # type: ignore[misc]
        """The elements of an iterable, as *args or an unpacking see them."""
        return self.list_of(value).items

    def textual_all(self: Session, values: Iterable[Value]) -> list[Any]:  # type: ignore[misc]
        return [self.textual(self.realize(value)) for value in values]

    def python_of(  # type: ignore[misc]
        self: Session, function: Callable[..., Any], args: Arguments, kwargs: Keywords
    ) -> Any:
        """What a function gives for arguments that must be known now."""
        known = list(map(self.known, args))
        return self.python(function, *known, **map_values(self.known, kwargs))

    def equal_items(self: Session, a: Value, b: Value) -> bool:  # type: ignore[misc]
        """Whether two elements are equal as containers compare them."""
        return self.equal(self.realize(a), self.realize(b))

    def count_of(self: Session, items: Iterable[Value], item: Value) -> Value:  # type: ignore[misc]
        """What count() of a sequence gives."""
        return ConstantValue(sum(self.equal(self.realize(element), item) for element in items))

    def realized_items(self: Session, value: Value) -> list[Value]:  # type: ignore[misc]
        """The same, realized."""
        return list(map(self.realize, self.unpacked(value)))

    def list_of(self: Session, value: Value) -> ListValue:  # type: ignore[misc]
        """A new list of the elements of an iterable."""
        value = self.realize(value)
        if isinstance(value, SequenceValue):
            return ListValue(value.items, list)
        return ListValue(self.elements(value, sized=True), list)

    def tuple_of(self: Session, value: Value) -> TupleValue:  # type: ignore[misc]
        """A tuple of the elements of an iterable, which Python 3.14 does not ask for a length."""
        value = self.realize(value)
        if VERSION < (3, 14) or isinstance(value, SequenceValue):
            return TupleValue(self.list_of(value).items, tuple)
        return TupleValue(self.elements(value), tuple)

    def items_of(self: Session, value: Value, message: str) -> list[Value]:  # type: ignore[misc]
        """PySequence_Fast: the items of a list or tuple, the elements of another iterable;
        TypeError with `message` where it is none."""
        value = self.realize(value)
        if isinstance(value, SequenceValue):
            return list(value.items)
        try:
            iterator = self.iterate(value)
        except Raised as raised:
            if raised.is_a(TypeError):
                raise self.raised(TypeError, message) from None
            raise
        return self.list_of(iterator).items

    def ask_length(self: Session, value: Value) -> None:  # type: ignore[misc]
        """Asks an instance for its length, as C does to reserve room.

        The answer is of no use, but a method of the user's may refuse it, or do more than
        answer."""
        if not isinstance(value, ObjectValue):
            return
        if self._is_own_method(value, "__len__"):
            if self.unless_type_error(value.length) is not None:
                return
        elif not find_missing(value.cls, "__len__"):
            return  # C asks no further
        if self._is_own_method(value, "__length_hint__"):
            self.ask_hint(value)

    def ask_hint(self: Session, value: ObjectValue) -> Value | None:  # type: ignore[misc]
        """What the `__length_hint__` of an instance answers; None where it does not know."""
        return self._checked_hint(
            self.unless_type_error(lambda _: value.special(self, "__length_hint__"))
        )

    def _is_own_method(self: Session, value: ObjectValue, name: str) -> bool:  # type: ignore[misc]
        """Whether an instance has a special method that is the user's, or asks one that may be."""
        if find_missing(value.cls, name):
            return False
        if issubclass(value.cls, IteratorInC):
            return value.cls.asks_length and name == "__length_hint__"
        method = self.class_lookup(value.cls, name)
        return isinstance(method, FunctionType) and not is_trusted(method.__module__)

    def unless_type_error(self: Session, ask: Callable[[Session], Any]) -> Any:  # type: ignore[misc]
        """What a question is answered; None for a TypeError, which C takes for no answer."""
        try:
            return ask(self)
        except Raised as raised:
            if raised.is_a(TypeError):
                return None
            raise

    def _checked_hint(self: Session, answer: Value | None) -> Value | None:  # type: ignore[misc]
        """What `__length_hint__` answers, if it knows. Raises what C does of an answer that is no
        length."""
        if answer is None or (answer := self.realize(answer)).python_type() is type(NotImplemented):
            return None
        if not issubclass(answer.python_type(), int):
            kind = type_name(answer.python_type())
            raise self.raised(TypeError, f"__length_hint__ must be an integer, not {kind}")
        if self.integer(answer) < 0:
            raise self.raised(ValueError, "__length_hint__() should return >= 0")
        return answer

    # -- members -----------------------------------------------------------------------------------

    def members_read(self: Session, value: Value) -> Entries:  # type: ignore[misc]
        """The keys of the elements of an iterable and the elements, as its caller asks for them. Of
        a set the members are taken, whatever a subclass says of them."""
        for element in self.elements(self._as_set(value)):
            member = self.realize(element)
            yield member_key(self, member), member

    def _as_set(self: Session, value: Value) -> Value:  # type: ignore[misc]
        """The plain set that an instance of a subclass holds; other values as they are."""
        value = self.realize(value)
        if isinstance(value, BuiltinObject) and isinstance(value.content, SetValue):
            return value.content
        return value

    def set_of(self: Session, value: Value, cls: type = set) -> SetValue:  # type: ignore[misc]
        """A new set of the elements of an iterable."""
        value = self._as_set(value)
        members: dict[Any, Value] = {}
        for key, member in self.members_read(value):
            members.setdefault(key, member)
        result = SetValue(members.items(), cls)
        if isinstance(value, SetValue):
            result.hashed = cls(value.hashed)
        elif isinstance(value, DictValue) and value.cls is dict:
            result.hashed = cls(value.entries)
        return result

    # -- entries -----------------------------------------------------------------------------------

    def entries_of(self: Session, value: Value) -> dict[Any, Value]:  # type: ignore[misc]
        """The entries of a mapping, or of an iterable of pairs."""
        value = self.realize(value)
        if isinstance(value, DictValue):
            return value.entries
        return dict(self.entries_read(value))

    def entries_read(self: Session, value: Value) -> Entries:  # type: ignore[misc]
        """The entries of a mapping, or of an iterable of pairs, as dict() and dict.update() read
        them."""
        value = self.realize(value)
        if isinstance(value, DictValue) or self.optional_attribute(value, "keys") is not None:
            return self.mapping_read(value)
        return self._pairs_read(value)

    def mapping_read(  # type: ignore[misc]
        self: Session, value: Value, prior_keys: Container[Any] | None = None
    ) -> Entries:
        """The entries of a mapping, as they are read. KeyTaken for one of the `prior_keys`,
        AttributeError where it has no `keys`."""
        value = self.realize(value)
        if isinstance(value, DictObject) and value.is_read_as_dict(self):
            value = value.item_dict
        if not isinstance(value, DictValue):
            return self._items_read(value, self._keys_of(value), prior_keys)
        return self._entries_read(value, prior_keys)

    def _entries_read(  # type: ignore[misc]
        self: Session, value: DictValue, prior_keys: Container[Any] | None
    ) -> Entries:
        for key, item in list(value.entries.items()):
            if prior_keys is not None and key in prior_keys:
                raise KeyTaken(self.wrap_key(key))
            yield key, item

    def optional_attribute(self: Session, value: Value, name: str) -> Value | None:  # type: ignore[misc]
        """An attribute of an object; None where reading it raises AttributeError."""
        try:
            return value.get_attribute(self, name)
        except Raised as raised:
            if raised.is_a(AttributeError):
                return None
            raise

    def _keys_of(self: Session, value: Value) -> list[Value]:  # type: ignore[misc]
        """PyMapping_Keys."""
        keys = self.realize(self.call(value.get_attribute(self, "keys"), [], {}))
        owner, kind = type_name(value.python_type()), type_name(keys.python_type())
        return self.items_of(keys, f"{owner}.keys() returned a non-iterable (type {kind})")

    def _items_read(  # type: ignore[misc]
        self: Session, value: Value, keys: Iterable[Value], prior_keys: Container[Any] | None = None
    ) -> Entries:
        for key in map(self.realize, keys):
            if prior_keys is not None and key.key(self) in prior_keys:
                raise KeyTaken(key)
            item = value.get_item(self, key)
            yield dict_key(self, key), item

    def _pairs_read(self: Session, value: Value) -> Entries:  # type: ignore[misc]
        for position, pair in enumerate(self.elements(value)):
            element = f"dictionary update sequence element #{position}"
            items = self._items_of_pair(pair, element)
            if len(items) != 2:
                raise self.raised(ValueError, f"{element} has length {len(items)}; 2 is required")
            yield dict_key(self, self.realize(items[0])), items[1]

    def _items_of_pair(self: Session, pair: Value, element: str) -> list[Value]:  # type: ignore[misc]
        if VERSION < (3, 14):
            return self.items_of(pair, f"cannot convert {element} to a sequence")
        try:
            return self.items_of(pair, "object is not iterable")
        except Raised as raised:
            if raised.is_a(TypeError) and isinstance(raised.value, ExceptionValue):
                note = f"Cannot convert {element} to a sequence"
                raised.value.method_add_note(self, ConstantValue(note))
            raise

    def ordered_entries_read(self: Session, value: Value) -> Entries:  # type: ignore[misc]
        """The entries of a mapping, or of an iterable of pairs, as OrderedDict reads them."""
        value = self.realize(value)
        if isinstance(value, DictValue):
            return iter(list(value.entries.items()))
        keys = self.optional_attribute(value, "keys")
        if keys is not None:
            return self._items_read(value, self.elements(self.call(keys, [], {})))
        items = self.optional_attribute(value, "items")
        if items is not None:
            value = self.call(items, [], {})
        return self._unpacked_pairs(value)

    def _unpacked_pairs(self: Session, value: Value) -> Entries:  # type: ignore[misc]
        for pair in self.elements(value):
            iterator = self.iterate(pair)
            items: list[Value] = []
            while len(items) < 3 and (item := iterator.next(self)) is not None:
                items.append(item)
            if len(items) < 2:
                count = ("0 values", "1 value")[len(items)]
                raise self.raised(ValueError, f"need more than {count} to unpack")
            if len(items) > 2:
                raise self.raised(ValueError, "too many values to unpack (expected 2)")
            yield self.realize(items[0]).key(self), items[1]
