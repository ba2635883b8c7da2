"""C iterators over other iterators that existed before the call: enumerate, zip, reversed.

What is taken from one is taken from the iterators beneath it as well. They are moved on by the
outer one when it is moved on for real, so what is taken through it is not noted with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import Raised, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.foreign import ForeignValue
from ingot.capture.values.iterators import (
    OutsideDictIterator,
    OutsideIterator,
    OutsideRangeIterator,
    OutsideSequenceIterator,
    OutsideTextIterator,
    position_in,
    sequence_under,
)
from ingot.capture.values.sequences import SequenceValue, TupleValue
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


class _Outer(OutsideIterator):
    """What enumerate and zip share."""

    def __init__(self, inner: list[Value], object_: Any, source: Source) -> None:
        super().__init__(source)
        self.inner, self.object, self.ended = inner, object_, False


def _next_inside(session: Session, inner: Any) -> Value | None:
    """The next element of an iterator that an outer one goes through."""
    before = inner.steps
    element = inner.next(session)
    inner.steps = before
    return element


_INNER = (
    OutsideSequenceIterator,
    OutsideRangeIterator,
    OutsideTextIterator,
    OutsideDictIterator,
    _Outer,
)


def _inner_iterators(iterator: Any) -> tuple[Any, ...]:
    """The iterators that an enumerate or zip goes through; an enumerate's number follows."""
    return tuple(iterator.__reduce__()[1])


def _inner_of(session: Session, source: Source, iterators: list[Any]) -> list[Value] | None:
    """The values of the iterators beneath; None where one is of another kind."""
    if not _KINDS.issuperset(map(type, iterators)):
        return None
    place = DerivedSource(source, _inner_iterators)
    values = list(map(session.realize, session.wrap_items(iterators, place)))
    if all(isinstance(value, _INNER) for value in values):
        return values
    return None


class OutsideEnumerate(_Outer):
    """An enumerate. Its numbers are guarded when they are used."""

    passed = 0

    def next(self, session: Session) -> Value | None:
        element = _next_inside(session, self.inner[0])
        if element is not None:
            number = session.wrap_derived(_position(self.passed), self.object, self.source)
            element = TupleValue([number, element], tuple)
            self.passed += 1
        return self.take(session, element)


@functools.cache
def _position(ahead: int) -> Callable[[Any], int]:
    """A function that gives the number that an enumerate gives `ahead` elements later."""

    def position(iterator: Any) -> int:
        return iterator.__reduce__()[1][1] + ahead

    return position


@wraps(enumerate)
def wrap_enumerate(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, enumerate)
    inner = _inner_of(session, source, [_inner_iterators(object_)[0]])
    if inner is None:
        return ForeignValue(object_, source)
    return OutsideEnumerate(inner, object_, source)


class OutsideZip(_Outer):
    """A zip."""

    strict: bool

    def next(self, session: Session) -> Value | None:
        row: list[Value] = []
        for iterator in self.inner:
            element = _next_inside(session, iterator)
            if element is None:
                if self.strict:
                    raise session.unsupported(
                        "iterator", f"the end of {self.object!r}, which is strict"
                    )
                # those before it have given an element each, for nothing
                return self.take(session, None)
            row.append(element)
        return self.take(session, TupleValue(row, tuple) if row else None)


def _is_strict(iterator: Any) -> bool:
    """Whether a zip is strict."""
    return len(iterator.__reduce__()) > 2


@wraps(zip)
def wrap_zip(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, zip)
    session.guard_derived(_count, object_, source)
    inner = _inner_of(session, source, list(_inner_iterators(object_)))
    if inner is None:
        return ForeignValue(object_, source)
    value = OutsideZip(inner, object_, source)
    value.strict = session.guard_derived(_is_strict, object_, source)
    return value


def _count(iterator: Any) -> int:
    """How many iterators a zip goes through."""
    return len(_inner_iterators(iterator))


class OutsideReversed(_Outer):
    """A sequence from its end to its beginning."""

    position: int | None
    sequence: Value

    def next(self, session: Session) -> Value | None:
        if self.position is None:
            self.position = session.guard_derived(position_in, self.object, self.source)
        if self.position < 0:
            return self.take(session, None)
        try:
            element = session.get_item(self.sequence, ConstantValue(self.position))
        except Raised:
            self.position = -1
            return self.take(session, None)
        self.position -= 1
        return self.take(session, element)


@wraps(reversed, type(reversed([1])), guards=Kind.TYPE)
def wrap_reversed(session: Session, object_: Any, source: Source) -> Value:
    sequence = session.realize(session.wrap_derived(sequence_under, object_, source))
    if not isinstance(sequence, SequenceValue):
        return ForeignValue(object_, source)
    value = OutsideReversed([], object_, source)
    value.sequence, value.position = sequence, None
    return value


_WALKED: tuple[Any, ...] = ([], (), range(0), "a", "\xe4", b"", {}, {}.values(), {}.items())
_KINDS = frozenset([enumerate, zip, reversed, *map(type, map(iter, _WALKED)), type(reversed([1]))])
