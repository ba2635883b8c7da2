"""Outside iterators over lists, tuples, ranges, strings and dicts.

What is left of one is read without advancing it. What capture takes of it is taken after the graph
has run."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, ItemSource, Source
from ingot.capture.values.base import IteratorValue, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictIterator, DictValue
from ingot.capture.values.sequences import (
    RangeIterator,
    SequenceIterator,
    SequenceValue,
    TupleValue,
)
from ingot.capture.values.wrap import wrapper_of, wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


class OutsideIterator(IteratorValue):
    """What the outside iterators of all kinds share."""

    is_shared = True

    object: Any
    steps = 0  # by which it is moved on after the graph has run
    ended: bool

    def take(self, session: Session, element: Value | None) -> Value | None:
        """Notes that the iterator is moved on."""
        session.effects.change(session, self, self.object, self)
        self.steps += 1
        return element

    def python_type(self) -> type:
        return type(self.object)

    def identity(self) -> Any:
        return self.object

    def operations(self) -> Iterable[Operation]:
        """What moves the iterator itself on by as many steps."""
        steps, self.steps = self.steps, 0
        yield Operation(_advance, (self, ConstantValue(steps)))


def _advance(iterator: Any, count: int) -> None:
    for _ in range(count):
        next(iterator, None)


_LOOK_AHEAD = 2
"""How many elements a region reads without a guard on the position of the iterator.

A loop with a graph break in its body takes one element in each region, so one entry serves all
positions. A region that takes more elements is specialized to the position."""


_BUILTIN_SEQUENCES = (list, tuple, range, str, bytes)


def _builtin_base(sequence: Any) -> Any:
    """The built-in type that an iterator goes by: what a subclass overrides is not asked."""
    return next(cls for cls in _BUILTIN_SEQUENCES if isinstance(sequence, cls))


@functools.cache
def _ahead(count: int) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the element `count` places ahead in a tuple, an empty one where there
    is none."""

    def ahead(iterator: Any) -> tuple[Any, ...]:
        _, (sequence,), *state = iterator.__reduce__()
        if isinstance(sequence, range):
            place = (state[0] if state else None) or 0
        elif state:
            place = state[0]
        else:  # it has said that there are no more
            return ()
        base = _builtin_base(sequence)
        there = place + count < base.__len__(sequence)
        if there:
            return (base.__getitem__(sequence, place + count),)
        return ()

    ahead.__name__ = f"ahead_{count}"
    return ahead


class _LooksAhead(OutsideIterator):
    """An iterator that is read element by element, as long as few are taken and what it walks over
    stays as it is."""

    passed = 0
    is_fixed = False

    def next(self, session: Session) -> Value | None:
        if not self.is_fixed and (
            self.passed >= _LOOK_AHEAD or session.effects.is_changed(self.under(session))
        ):
            self.fix_position(session)
            self.is_fixed = True
        if self.is_fixed:
            return self.take(session, super().next(session))
        source = DerivedSource(self.source, _ahead(self.passed))  # type: ignore[arg-type]
        items = _ahead(self.passed)(self.object)
        session.guard(source, Kind.LENGTH, len(items))
        self.passed += 1
        return self.take(session, session.wrap(items[0], ItemSource(source, 0)) if items else None)

    def under(self, session: Session) -> Any:
        """The object that it walks over, where that can change."""
        return None

    def fix_position(self, session: Session) -> None:
        """Guards where it stands."""
        raise NotImplementedError


def sequence_under(iterator: Any) -> Any:
    """The sequence that an iterator walks over, backwards too; an empty one at its end."""
    return iterator.__reduce__()[1][0]


def position_in(iterator: Any) -> int:
    """The index of the element that an iterator over a sequence gives next; -1 where it has said
    that there are no more."""
    _, _, *position = iterator.__reduce__()
    return [*position, -1][0]


class OutsideSequenceIterator(_LooksAhead, SequenceIterator):
    """An iterator over a list or tuple."""

    def __init__(self, sequence: SequenceValue, object_: Any, source: Source) -> None:
        SequenceIterator.__init__(self, sequence)
        self.object, self.source = object_, source

    def under(self, session: Session) -> Any:
        return self.sequence.object

    def fix_position(self, session: Session) -> None:
        position = session.guard_derived(position_in, self.object, self.source)
        self.position, self.ended = max(position, 0) + self.passed, position < 0


@wraps(type(iter([])), type(iter(())), guards=Kind.TYPE)
def wrap_sequence_iterator(session: Session, object_: Any, source: Source) -> Value:
    sequence = session.realize(session.wrap_derived(sequence_under, object_, source))
    if not isinstance(sequence, SequenceValue):
        raise session.unsupported("iterator", f"an iterator over {sequence.describe()}")
    return OutsideSequenceIterator(sequence, object_, source)


class OutsideTextIterator(_LooksAhead, SequenceIterator):
    """An iterator over a string or bytes. The whole of it is looked at when more than a few
    elements are taken."""

    def __init__(self, object_: Any, source: Source) -> None:
        SequenceIterator.__init__(self, TupleValue([], tuple))
        self.object, self.source = object_, source

    def fix_position(self, session: Session) -> None:
        rest = session.wrap_derived(_rest_of_text, self.object, self.source)
        self.sequence = TupleValue(
            list(map(ConstantValue, session.realize(rest).constant())), tuple
        )
        self.position = self.passed


def _rest_of_text(iterator: Any) -> str | bytes:
    """What an iterator over a string or bytes has left."""
    _, (text,), *position = iterator.__reduce__()
    if not position:
        return ""
    base: Any = _builtin_base(text)
    return base.__getitem__(text, slice(position[0], None))  # type: ignore[no-any-return]


wraps(*map(type, map(iter, ("a", "\xe4", b"a"))), guards=Kind.TYPE)(wrapper_of(OutsideTextIterator))


def _rest_of_range(iterator: Any) -> tuple[int, int, int]:
    """Start, stop and step of what an iterator over a range has left."""
    _, (whole,), *position = iterator.__reduce__()
    rest = whole[[*position, 0][0] or 0 :]
    return rest.start, rest.stop, rest.step


class OutsideRangeIterator(_LooksAhead, RangeIterator):
    """An iterator over a range."""

    def __init__(self, object_: Any, source: Source) -> None:
        RangeIterator.__init__(self, iter(()))
        self.object, self.source = object_, source

    def fix_position(self, session: Session) -> None:
        rest = session.guard_derived(_rest_of_range, self.object, self.source)
        self.iterator = iter(range(*rest)[self.passed :])


wraps(type(iter(range(0))), guards=Kind.TYPE)(wrapper_of(OutsideRangeIterator))


_DICT_ITERATORS: dict[type, str] = {
    type(iter(getattr({}, kind)())): kind for kind in ("keys", "values", "items")
}
_NO_DICT: dict[Any, Any] = {}


def _dict_under(iterator: Any) -> Any:
    """The dict that an iterator walks over; an empty one at its end."""
    for referent in gc.get_referents(iterator):
        if isinstance(referent, dict):
            return referent
    return _NO_DICT


def _left_of_dict(iterator: Any) -> int:
    """How many elements an iterator over a dict has left; -1 where the dict has changed its
    size."""
    try:
        return len(iterator.__reduce__()[1][0])
    except RuntimeError:
        return -1


class OutsideDictIterator(OutsideIterator, DictIterator):
    """An iterator over the keys, values or items of a dict."""

    def __init__(self, owner: DictValue, left: int, object_: Any, source: Source) -> None:
        DictIterator.__init__(self, owner, _DICT_ITERATORS[type(object_)])
        size = len(_dict_under(object_))
        # it has grown or shrunk in this capture, before the iterator was looked at
        if len(owner.entries) != size:
            left = -1
        self.position = len(owner.entries) - left
        self.object, self.source = object_, source

    def next(self, session: Session) -> Value | None:
        if self.position > len(self.owner.entries):
            raise session.raised(RuntimeError, "dictionary changed size during iteration")
        return self.take(session, DictIterator.next(self, session))


@wraps(*_DICT_ITERATORS, guards=Kind.TYPE)
def wrap_dict_iterator(session: Session, object_: Any, source: Source) -> Value:
    left = session.guard_derived(_left_of_dict, object_, source)
    owner = session.realize(session.wrap_derived(_dict_under, object_, source))
    if not isinstance(owner, DictValue):
        raise session.unsupported("iterator", f"an iterator over {owner.describe()}")
    return OutsideDictIterator(owner, left, object_, source)
