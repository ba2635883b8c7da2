"""collections.deque."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import AttrSource, DerivedSource, Source
from ingot.capture.values.base import (
    Arguments,
    IteratorValue,
    Keywords,
    Operator,
    Rule,
    Value,
    alive,
    find_missing,
    not_in,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.operator_methods import COMPARISONS
from ingot.capture.values.sequences import Container, ListValue
from ingot.capture.values.subclasses import BuiltinObject
from ingot.capture.values.wording import described
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


class DequeValue(Container):
    """A deque: `elements` is a real one, of values."""

    __slots__ = ("_elements", "changes")

    def __init__(
        self, elements: deque[Value], source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(source, object)
        self._elements = elements
        self.changes = 0  # an iterator ends when there was one

    @property
    def elements(self) -> deque[Value]:
        """The elements, as they are now."""
        return self._elements

    def python_type(self) -> type:
        return deque

    # -- questions ---------------------------------------------------------------------------------

    def length(self, session: Session) -> int:
        return len(self.elements)

    def get_item(self, session: Session, key: Value) -> Value:
        return session.python(operator.getitem, self.elements, session.index(key))

    def iterate(self, session: Session) -> Value:
        return DequeIterator(self, False)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "maxlen":
            return ConstantValue(self.elements.maxlen)
        return super().get_attribute(session, name)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function is operator.iadd and not reflected:
            self.method_extend(session, other)
            return self
        is_count = hasattr(other.python_type(), "__index__")
        if function is operator.imul and not reflected and is_count:
            self.change(session, "__imul__", other)
            return self
        if function is operator.mul and is_count:
            return DequeValue(session.python(operator.mul, self.elements, session.integer(other)))
        if not isinstance(other, DequeValue) or reflected:
            return None
        if function is operator.add:
            return DequeValue(self.elements + other.elements)
        if function in COMPARISONS:
            return session.binary(
                function, ListValue(self.elements, list), ListValue(other.elements, list)
            )
        return None

    def method___getitem__(self, session: Session, key: Value) -> Value:
        if find_missing(key.python_type(), "__index__"):
            session.python(deque.__getitem__, deque(), session.refused(key))
        return self.get_item(session, key)

    def python_object(self, session: Session) -> deque[Any]:
        """A new deque of the real objects; Unsupported where one is not known."""
        return deque(map(session.known, self.elements), self.elements.maxlen)

    def method_index(self, session: Session, item: Value, *bounds: Value) -> Value:
        start, stop = (*map(session.position, bounds), None, None)[:2]
        start, stop, _ = slice(start, stop).indices(len(self.elements))
        for i in range(start, stop):
            if session.equal(session.realize(self.elements[i]), item):
                return ConstantValue(i)
        raise session.raised(ValueError, not_in(session, item, "deque.index"))

    def method_count(self, session: Session, item: Value) -> Value:
        return session.count_of(self.elements, item)

    def method_copy(self, session: Session) -> Value:
        return DequeValue(self.elements.copy())

    def method___reduce_ex__(self, session: Session, protocol: Value) -> Value:
        limit = self.elements.maxlen
        if limit is None:
            args = session.tuple_of_values([])
        else:
            args = session.tuple_of_values([session.tuple_of_values([]), ConstantValue(limit)])
        cls, items = session.wrap_constant(deque), self.iterate(session)
        return session.tuple_of_values((cls, args, NONE, items))

    def method___reversed__(self, session: Session) -> Value:
        return DequeIterator(self, True)

    # -- changes -----------------------------------------------------------------------------------

    def change(self, session: Session, name: str, *args: Value) -> Any:
        """Calls a method that changes the deque. Elements are values; numbers must be known."""
        operands: list[Any] = list(args)
        if args and name in ("insert", "rotate", "__setitem__", "__delitem__", "__imul__"):
            operands[0] = session.known(args[0])
        witness = iter(self.elements)
        result = session.python(getattr(self.elements, name), *operands)
        self.changes += _is_stale(witness)
        return result

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        session.python(
            operator.setitem, deque([None] * len(self.elements)), session.index(key), None
        )
        self.change(session, "__setitem__", key, value)

    def delete_item(self, session: Session, key: Value) -> None:
        session.python(operator.delitem, deque([None] * len(self.elements)), session.index(key))
        self.change(session, "__delitem__", key)

    def method___delitem__(self, session: Session, key: Value) -> Value:
        """Unlike `del`, the method has the error of what cannot be made an integer."""
        session.python(deque.__delitem__, deque([None] * len(self.elements)), session.index(key))
        self.change(session, "__delitem__", key)
        return NONE

    def method_remove(self, session: Session, item: Value) -> Value:
        for i, element in enumerate(self.elements):
            if session.equal(session.realize(element), item):
                self.change(session, "__delitem__", ConstantValue(i))
                return NONE
        raise session.raised(ValueError, not_in(session, item, "deque.remove"))

    def method_extend(self, session: Session, items: Value) -> Value:
        self._put_all(session, "append", items)
        return NONE

    def method_extendleft(self, session: Session, items: Value) -> Value:
        self._put_all(session, "appendleft", items)
        return NONE

    def _put_all(self, session: Session, name: str, items: Value) -> None:
        items = session.realize(items)
        for element in list(self.elements) if items is self else session.elements(items):
            if self._elements.maxlen != 0:  # else no iterator over the deque notices
                self.change(session, name, element)


def _is_stale(iterator: Any) -> bool:
    """Whether the deque has changed since the iterator was made, so that it ends with an error."""
    try:
        next(iterator, None)
    except RuntimeError:
        return True
    return False


def _changing(name: str) -> Rule:
    def method(self: DequeValue, session: Session, *args: Value) -> Value:
        return self.change(session, name, *args) or NONE

    return method


for _name in ("append", "appendleft", "clear", "insert", "pop", "popleft", "reverse", "rotate"):
    setattr(DequeValue, f"method_{_name}", _changing(_name))


class OutsideDeque(DequeValue):
    """A deque that existed before the call. Its length is guarded when its elements are first
    used."""

    __slots__ = ("_session", "_early_changes", "_whole", "pending")
    is_shared = True

    def __init__(self, session: Session, source: Source, object: deque[Any]) -> None:
        super().__init__(deque(), source, object)
        self._session = weakref.ref(session)
        self._whole = False
        # changes before its elements were first used
        self._early_changes: list[tuple[str, tuple[Value, ...]]] = []
        self.pending: list[Operation] = []

    @property
    def elements(self) -> deque[Value]:
        if not self._whole:
            session = alive(self._session)
            assert self.source is not None
            items = DerivedSource(self.source, tuple)
            session.guard(items, Kind.LENGTH, len(self.object))
            session.guard(
                AttrSource(self.source, "maxlen", "slot"), Kind.EQUALS, self.object.maxlen
            )
            self._elements, self._whole = deque(maxlen=self.object.maxlen), True
            self._elements.extend(session.wrap_items(self.object, items))
            for name, args in self._early_changes:
                super().change(session, name, *args)
        return self._elements

    def change(self, session: Session, name: str, *args: Value) -> Any:
        session.effects.change(session, self, self.object, self)
        needs_no_elements = not self._whole and name in ("append", "appendleft", "clear")
        if needs_no_elements:
            self._early_changes.append((name, args))
        result = None
        if not needs_no_elements:
            result = super().change(session, name, *args)
        self.pending.append(Operation(getattr(deque, name), (self, *args)))
        return result

    def operations(self) -> Iterable[Operation]:
        """The changes since the last side effect that others can see."""
        done, self.pending = self.pending, []
        for function, run in itertools.groupby(done, operator.attrgetter("function")):
            changes = list(run)
            at_once = _AT_ONCE.get(function)
            if at_once is None or len(changes) == 1:
                yield from changes
            else:
                items = [change.args[1] for change in changes]
                yield Operation(at_once, (self, ListValue(items, list)))


_AT_ONCE: dict[Any, Any] = {deque.append: deque.extend, deque.appendleft: deque.extendleft}


class DequeIterator(IteratorValue):
    """An iterator over a deque."""

    __slots__ = ("backwards", "changes", "ended", "owner", "position")

    def __init__(self, owner: DequeValue, backwards: bool) -> None:
        super().__init__()
        self.owner, self.backwards, self.position, self.ended = owner, backwards, 0, False
        self.changes = owner.changes

    def python_type(self) -> type:
        if self.backwards:
            return type(reversed(deque()))
        return type(iter(deque()))

    def next(self, session: Session) -> Value | None:
        elements = self.owner.elements
        if self.changes != self.owner.changes:
            raise session.raised(RuntimeError, "deque mutated during iteration")
        if self.ended or self.position == len(elements):
            self.ended = True
            return None
        self.position += 1
        if self.backwards:
            return elements[-self.position]
        return elements[self.position - 1]


@wraps(deque)
def wrap_deque(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) is not deque:
        raise session.unsupported(
            "builtin-subclass", f"{described(type(object_).__name__, source)}: a subclass of deque"
        )
    session.guard(source, Kind.TYPE, deque)
    return OutsideDeque(session, source, object_)


@means(deque)
def make_deque(session: Session, items: Value = NONE, maxlen: Value = NONE) -> Value:
    limit = session.known(maxlen)
    result = DequeValue(session.python(deque, (), limit))
    if items is not NONE:
        result.method_extend(session, items)
    return result


@means(deque.__new__, how=How.NEW)
def _new_deque(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return BuiltinObject(cls, DequeValue(deque()))
