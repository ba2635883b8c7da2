"""Iterators that existed before the call, over lists, tuples, ranges and dicts: what is left of them is read without
taking anything from them, and what capture takes is taken for real after the graph has run."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictIterator, DictValue, RangeIterator, SequenceIterator, SequenceValue
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


class _Outside(Value):
    """The part of it that is the same for all kinds."""

    __slots__ = ()
    is_shared = True

    object: Any
    taken: int
    ended: bool

    def take(self, session: Session, element: Value | None) -> Value | None:
        """Notes that the iterator is moved on."""
        session.effects.change(session, self, self.object, self)
        self.taken += 1
        return element

    def python_type(self) -> type:
        return type(self.object)

    def identity(self) -> Any:
        return self.object

    def operations(self) -> Iterable[Operation]:
        """What moves the iterator itself on by as much as was taken."""
        taken, self.taken = self.taken, 0
        yield Operation(_advance, (self, ConstantValue(taken)))


def _advance(iterator: Any, count: int) -> None:
    for _ in range(count):
        next(iterator, None)


def _sequence_under(iterator: Any) -> Any:
    """The list or tuple that an iterator walks over; an empty one at its end."""
    return iterator.__reduce__()[1][0]


def _position_in(iterator: Any) -> int:
    """How many elements an iterator over a list or tuple has given; -1 where it has said that there are no more."""
    reduced = iterator.__reduce__()
    return reduced[2] if len(reduced) > 2 else -1


class OutsideSequenceIterator(_Outside, SequenceIterator):
    """An iterator over a list or tuple."""

    __slots__ = ("object", "taken")

    def __init__(self, sequence: SequenceValue, position: int, object_: Any, source: Source) -> None:
        SequenceIterator.__init__(self, sequence)
        self.position, self.ended = max(position, 0), position < 0
        self.object, self.source, self.taken = object_, source, 0

    def next(self, session: Session) -> Value | None:
        return self.take(session, SequenceIterator.next(self, session))


@wraps(type(iter([])), type(iter(())))
def wrap_sequence_iterator(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, type(object_))
    position = _position_in(object_)
    session.guard(DerivedSource(source, _position_in), Kind.EQUALS, position)
    sequence = session.realize(session.wrap(_sequence_under(object_), DerivedSource(source, _sequence_under)))
    if not isinstance(sequence, SequenceValue):
        raise session.unsupported(f"an iterator over {sequence.describe()}")
    return OutsideSequenceIterator(sequence, position, object_, source)


def _rest_of_range(iterator: Any) -> tuple[int, int, int]:
    """Start, stop and step of what an iterator over a range has left."""
    reduced = iterator.__reduce__()
    rest = reduced[1][0][(reduced[2] if len(reduced) > 2 else None) or 0 :]
    return rest.start, rest.stop, rest.step


class OutsideRangeIterator(_Outside, RangeIterator):
    """An iterator over a range."""

    __slots__ = ("object", "taken")

    def __init__(self, iterator: Any, object_: Any, source: Source) -> None:
        RangeIterator.__init__(self, iterator)
        self.object, self.source, self.taken = object_, source, 0

    def next(self, session: Session) -> Value | None:
        return self.take(session, RangeIterator.next(self, session))


@wraps(type(iter(range(0))))
def wrap_range_iterator(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, type(object_))
    rest = _rest_of_range(object_)
    session.guard(DerivedSource(source, _rest_of_range), Kind.EQUALS, rest)
    return OutsideRangeIterator(iter(range(*rest)), object_, source)


_DICT_ITERATORS: dict[type, str] = {type(iter(getattr({}, kind)())): kind for kind in ("keys", "values", "items")}
_NO_DICT: dict[Any, Any] = {}


def _dict_under(iterator: Any) -> Any:
    """The dict that an iterator walks over; an empty one at its end."""
    return next((held for held in gc.get_referents(iterator) if isinstance(held, dict)), _NO_DICT)


def _left_of_dict(iterator: Any) -> int:
    """How many elements an iterator over a dict has left. Raises RuntimeError where the dict has changed its size."""
    return len(iterator.__reduce__()[1][0])


class OutsideDictIterator(_Outside, DictIterator):
    """An iterator over the keys, values or items of a dict."""

    __slots__ = ("object", "taken")

    def __init__(self, owner: DictValue, left: int, object_: Any, source: Source) -> None:
        DictIterator.__init__(self, owner, _DICT_ITERATORS[type(object_)])
        self.position = len(owner.entries) - left
        self.object, self.source, self.taken = object_, source, 0

    def next(self, session: Session) -> Value | None:
        return self.take(session, DictIterator.next(self, session))


@wraps(*_DICT_ITERATORS)
def wrap_dict_iterator(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, type(object_))
    left = session.python(_left_of_dict, object_)
    session.guard(DerivedSource(source, _left_of_dict), Kind.EQUALS, left)
    owner = session.realize(session.wrap(_dict_under(object_), DerivedSource(source, _dict_under)))
    if not isinstance(owner, DictValue):
        raise session.unsupported(f"an iterator over {owner.describe()}")
    return OutsideDictIterator(owner, left, object_, source)
