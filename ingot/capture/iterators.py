"""Python versions of the C iterators (zip, map, itertools.chain, ...), run by the interpreter in
their place.

An instance passes for one of the class that it `replaces`. Where one is alive at the end of a
captured region, `rebuild` makes the real iterator, in the same state, from the attributes that its
parameters name. Nothing here is clever: these are loops of the user's.
"""

from __future__ import annotations

import collections
import itertools
import operator
from typing import Any

from ingot.capture.bytecode import VERSION
from ingot.capture.meanings import How, means
from ingot.capture.polyfills import _MISSING, class_member, fails
from ingot.native import _native

NONE: Any = None


def replaces_in_c(real: Any) -> Any:
    def register(cls: type) -> type:
        cls.replaces = real  # type: ignore[attr-defined]
        return means(real, how=How.POLYFILL)(cls)

    return register


class Iterator:
    """What they share. `__next__` raises StopIteration at the end, and goes on doing so."""

    replaces: Any = None
    asks_length = False
    """Whether `__length_hint__` asks what it goes through for its length, which may be a method of
    the user's."""

    def __iter__(self) -> Any:
        return self


@replaces_in_c(enumerate)
class enumerate_(Iterator):
    def __init__(self, iterable: Any, start: Any = 0) -> None:
        if not hasattr(type(start), "__index__"):
            fails(enumerate, (), start)
        start = operator.index(start)
        self.iterator, self.position = iter(iterable), start

    def __next__(self) -> Any:
        item = next(self.iterator)
        self.position += 1
        return self.position - 1, item

    @staticmethod
    def rebuild(iterator: Any, position: Any) -> Any:
        return enumerate(iterator, position)


@replaces_in_c(zip)
class zip_(Iterator):
    def __init__(self, *iterables: Any, strict: Any = False) -> None:
        self.strict = strict
        self.iterators: list[Any] = []
        for iterable in iterables:
            cls = type(iterable)
            if getattr(cls, "__iter__", None) is None and not hasattr(cls, "__getitem__"):
                fails(zip, *[()] * len(self.iterators), iterable)
            self.iterators.append(iter(iterable))

    def __next__(self) -> Any:
        row: list[Any] = []
        for iterator in self.iterators:
            item = next(iterator, _MISSING)
            if item is _MISSING:
                if self.strict:
                    self._check_strict(len(row))
                raise StopIteration
            row.append(item)
        if not row:
            raise StopIteration
        return tuple(row)

    def _check_strict(self, ended: int) -> None:
        """The one numbered `ended` has ended; those before it have not, those behind it must
        have."""
        if ended:
            raise ValueError(f"zip() argument {ended + 1} is shorter than argument{_up_to(ended)}")
        for i in range(1, len(self.iterators)):
            if next(self.iterators[i], _MISSING) is not _MISSING:
                raise ValueError(f"zip() argument {i + 1} is longer than argument{_up_to(i)}")

    @staticmethod
    def rebuild(iterators: Any, strict: Any) -> Any:
        return zip(*iterators, strict=strict)


def _up_to(n: int) -> str:
    return " 1" if n == 1 else f"s 1-{n}"


@replaces_in_c(map)
class map_(Iterator):
    def __init__(self, function: Any, *iterables: Any) -> None:
        if not iterables:
            fails(map, function)
        self.function, self.iterators = function, [iter(iterable) for iterable in iterables]

    def __next__(self) -> Any:
        return self.function(*[next(iterator) for iterator in self.iterators])

    @staticmethod
    def rebuild(function: Any, iterators: Any) -> Any:
        return map(function, *iterators)


@replaces_in_c(filter)
class filter_(Iterator):
    def __init__(self, function: Any, iterable: Any, /) -> None:
        self.function, self.iterator = function, iter(iterable)

    def __next__(self) -> Any:
        for item in self.iterator:
            if item if self.function is None else self.function(item):
                return item
        raise StopIteration

    @staticmethod
    def rebuild(function: Any, iterator: Any) -> Any:
        return filter(function, iterator)


@replaces_in_c(itertools.filterfalse)
class filterfalse(Iterator):
    def __init__(self, function: Any, iterable: Any, /) -> None:
        self.function, self.iterator = function, iter(iterable)

    def __next__(self) -> Any:
        for item in self.iterator:
            if not (item if self.function is None else self.function(item)):
                return item
        raise StopIteration

    @staticmethod
    def rebuild(function: Any, iterator: Any) -> Any:
        return itertools.filterfalse(function, iterator)


class indexed(Iterator):
    """Through a sequence by its `__getitem__`, as iter() and reversed() do for classes without
    their own method."""

    asks_length = True

    def __init__(self, sequence: Any) -> None:
        self.sequence, self.position = sequence, 0

    def __next__(self) -> Any:
        if self.position is None:
            raise StopIteration
        try:
            item = self.sequence[self.position]
        except (IndexError, StopIteration):
            self.position = None  # type: ignore[assignment]
            raise StopIteration from None
        self.position += 1
        return item

    def __length_hint__(self) -> Any:
        if self.position is None:
            return 0
        if class_member(type(self.sequence), "__len__") is _MISSING:
            return NotImplemented
        return max(len(self.sequence) - self.position, 0)

    @staticmethod
    def rebuild(sequence: Any, position: Any) -> Any:
        iterator = _sequence_iterator(_Any() if position is None else sequence)
        if position is None:
            next(iterator, None)
        else:
            iterator.__setstate__(position)
        return iterator


class _Any:
    """Has the C iterator over what only has `__getitem__`."""

    def __getitem__(self, position: int) -> Any:
        raise IndexError


replaces_in_c(type(iter(_Any())))(indexed)  # type: ignore[call-overload]


def _sequence_iterator(sequence: Any) -> Any:
    """What iter() gives for an instance of a class that has no `__iter__`."""
    return iter(sequence)


@replaces_in_c(reversed)
class reversed_(Iterator):
    def __new__(cls, sequence: Any) -> Any:
        method = class_member(type(sequence), "__reversed__")
        if method is None or (
            method is _MISSING and class_member(type(sequence), "__getitem__") is _MISSING
        ):
            fails(reversed, sequence)
        if method is _MISSING:
            return object.__new__(cls)
        return method(sequence)

    asks_length = True

    def __init__(self, sequence: Any) -> None:
        self.sequence, self.position, self.ended = sequence, len(sequence) - 1, False

    def __next__(self) -> Any:
        if self.position >= 0:
            try:
                item = self.sequence[self.position]
                self.position -= 1
                return item
            except (IndexError, StopIteration):
                self.position = -1
        self.ended = True
        raise StopIteration from None

    def __length_hint__(self) -> Any:
        if self.ended or self.position < 0 and VERSION >= (3, 14):
            return 0
        length, left = len(self.sequence), self.position + 1
        return 0 if length < left else left

    @staticmethod
    def rebuild(sequence: Any, position: Any, ended: Any) -> Any:
        return _native.reversed_at(sequence, position, ended)


class _Backwards(Iterator):
    """Through the items of a list, or of what a dict holds, from the last to the first."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.elements = owner, owner if isinstance(owner, list) else list(owner)
        self.position = self.size = len(owner)

    def __next__(self) -> Any:
        if self.position == 0:
            raise StopIteration
        if len(self.owner) != self.size and not isinstance(self.owner, list):
            raise RuntimeError("dictionary changed size during iteration")
        self.position -= 1
        if self.position >= len(self.elements):
            self.position = 0
            raise StopIteration
        return self.elements[self.position]

    def __length_hint__(self) -> Any:
        length = len(self.owner)
        if isinstance(self.owner, list):
            if length < self.position:
                return 0
            return self.position
        if length == self.size:
            return self.position
        return 0

    @staticmethod
    def rebuild(owner: Any, position: Any, size: Any) -> Any:
        iterator = _backwards(owner)
        if isinstance(owner, list):
            iterator.__setstate__(position - 1)
        else:
            for _ in range(size - position):
                next(iterator, None)
        return iterator


def _backwards(owner: Any) -> Any:
    """What reversed() gives for a list or what a dict holds, whatever a subclass says."""
    base: Any = next(
        (c for c in (list, collections.OrderedDict, dict) if isinstance(owner, c)), type(owner)
    )
    return base.__reversed__(owner)


class list_reversed(_Backwards):
    replaces: Any = type(reversed([1]))


class keys_reversed(_Backwards):
    replaces: Any = type(reversed({1: 1}))


class values_reversed(_Backwards):
    replaces: Any = type(reversed({1: 1}.values()))


class items_reversed(_Backwards):
    replaces: Any = type(reversed({1: 1}.items()))


for _reversed, _polyfill in {
    list.__reversed__: list_reversed,
    dict.__reversed__: keys_reversed,
    type({}.keys()).__reversed__: keys_reversed,
    type({}.values()).__reversed__: values_reversed,
    type({}.items()).__reversed__: items_reversed,
    collections.OrderedDict.__reversed__: keys_reversed,
}.items():
    means(_reversed, how=How.POLYFILL)(_polyfill)


@replaces_in_c(type(iter(lambda: 0, 0)))
class calls_until(Iterator):
    """iter(function, sentinel)."""

    def __init__(self, function: Any, sentinel: Any) -> None:
        self.function, self.sentinel, self.ended = function, sentinel, False

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        item = self.function()
        if item is self.sentinel or item == self.sentinel:
            self.ended = True
            raise StopIteration
        return item

    @staticmethod
    def rebuild(function: Any, sentinel: Any, ended: Any) -> Any:
        iterator = iter(function, sentinel)
        if ended:
            iterator = iter(lambda: sentinel, sentinel)
            next(iterator, None)
        return iterator
