"""The iterators of itertools in Python, run by the interpreter in their place.

They are `Iterator`s, as those of ingot.capture.iterators are, and can be rebuilt as the real ones.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

from ingot.capture.iterators import NONE, Iterator, replaces_in_c
from ingot.capture.meanings import How, means
from ingot.capture.polyfills import _MISSING, fails


@replaces_in_c(itertools.chain)
class chain(Iterator):
    def __init__(self, *iterables: Any) -> None:
        self.iterables, self.active = iter(iterables), NONE

    def __next__(self) -> Any:
        while True:
            if self.active is None:
                try:
                    self.active = iter(next(self.iterables))
                except BaseException:
                    self.iterables = iter(())
                    raise
            item = next(self.active, _MISSING)
            if item is not _MISSING:
                return item
            self.active = NONE

    @staticmethod
    def rebuild(iterables: Any, active: Any) -> Any:
        if active is not None:
            iterables = itertools.chain((active,), iterables)
        return itertools.chain.from_iterable(iterables)


@means(itertools.chain.from_iterable, how=How.POLYFILL)
def chain_from_iterable(iterables: Any, /) -> Any:
    result = chain()
    result.iterables = iter(iterables)
    return result


@replaces_in_c(itertools.islice)
class islice(Iterator):
    def __init__(self, iterable: Any, *bounds: Any) -> None:
        if not bounds or len(bounds) > 3:
            fails(itertools.islice, (), *bounds)
        for bound in bounds:
            if bound is not None and not hasattr(type(bound), "__index__"):
                fails(itertools.islice, (), *bounds)
        bounds = tuple([None if bound is None else operator.index(bound) for bound in bounds])
        limits = slice(*bounds)
        for bound in bounds:
            if bound is not None and bound < 0:
                fails(itertools.islice, (), *bounds)
        if limits.step == 0:
            fails(itertools.islice, (), *bounds)
        self.iterator, self.position, self.ended = iter(iterable), 0, False
        self.next_position, self.stop, self.step = limits.start or 0, limits.stop, limits.step or 1

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            while self.position < self.next_position:
                next(self.iterator)
                self.position += 1
            if self.stop is not None and self.position >= self.stop:
                raise StopIteration
            item = next(self.iterator)
        except BaseException:
            self.ended = True
            raise
        self.position += 1
        self.next_position += self.step
        if self.stop is not None and self.next_position > self.stop:
            self.next_position = self.stop
        return item

    @staticmethod
    def rebuild(
        iterator: Any, position: Any, next_position: Any, stop: Any, step: Any, ended: Any
    ) -> Any:
        if ended:
            return itertools.islice((), 0)
        return itertools.islice(
            iterator, next_position - position, None if stop is None else stop - position, step
        )


@replaces_in_c(itertools.accumulate)
class accumulate(Iterator):
    def __init__(self, iterable: Any, func: Any = None, *, initial: Any = None) -> None:
        self.iterator, self.function = iter(iterable), func
        self.total, self.initial = _MISSING, initial

    def __next__(self) -> Any:
        if self.total is _MISSING:
            if self.initial is None:
                self.total = next(self.iterator)
            else:
                self.total = self.initial
            return self.total
        item = next(self.iterator)
        if self.function is None:
            self.total = self.total + item
        else:
            self.total = self.function(self.total, item)
        return self.total

    @staticmethod
    def rebuild(iterator: Any, function: Any, total: Any, initial: Any) -> Any:
        if total is _MISSING:
            return itertools.accumulate(iterator, function, initial=initial)
        result = itertools.accumulate(itertools.chain((total,), iterator), function)
        next(result)
        return result


@replaces_in_c(itertools.repeat)
class repeat(Iterator):
    def __init__(self, object: Any, times: Any = _MISSING) -> None:
        if times is not _MISSING and not hasattr(type(times), "__index__"):
            fails(itertools.repeat, None, times)
        self.object = object
        if times is _MISSING:
            self.times = None
        else:
            self.times = operator.index(times)

    def __next__(self) -> Any:
        if self.times is not None:
            if self.times <= 0:
                raise StopIteration
            self.times -= 1
        return self.object

    def __length_hint__(self) -> Any:
        return self.times

    @staticmethod
    def rebuild(object: Any, times: Any) -> Any:
        if times is None:
            return itertools.repeat(object)
        return itertools.repeat(object, times)


@replaces_in_c(itertools.count)
class count(Iterator):
    def __init__(self, start: Any = 0, step: Any = 1) -> None:
        for number in (start, step):
            cls = type(number)
            if not (
                hasattr(cls, "__index__")
                or hasattr(cls, "__float__")
                or hasattr(cls, "__complex__")
            ):
                fails(itertools.count, start, step)
        by_one = isinstance(step, int) and operator.index(step) == 1
        if by_one and isinstance(start, int) and type(start) is not int:
            start, step = operator.index(start), 1  # then C counts in plain integers
        self.position, self.step = start, step

    def __next__(self) -> Any:
        item = self.position
        self.position = item + self.step
        return item

    @staticmethod
    def rebuild(position: Any, step: Any) -> Any:
        return itertools.count(position, step)


@replaces_in_c(itertools.cycle)
class cycle(Iterator):
    def __init__(self, iterable: Any) -> None:
        self.iterator, self.position = iter(iterable), -1
        self.saved: list[Any] = []

    def __next__(self) -> Any:
        if self.position < 0:
            item = next(self.iterator, _MISSING)
            if item is not _MISSING:
                self.saved.append(item)
                return item
        if not self.saved:
            raise StopIteration
        self.position = (self.position + 1) % len(self.saved)
        return self.saved[self.position]

    @staticmethod
    def rebuild(iterator: Any, saved: Any, position: Any) -> Any:
        result = itertools.cycle(itertools.chain(saved, iterator) if position < 0 else saved)
        for _ in range(len(saved) if position < 0 else position + 1):
            next(result)
        return result


@replaces_in_c(itertools.pairwise)
class pairwise(Iterator):
    def __init__(self, iterable: Any, /) -> None:
        self.iterator, self.previous = iter(iterable), _MISSING

    def __next__(self) -> Any:
        if self.previous is _MISSING:
            previous = next(self.iterator)
        else:
            previous = self.previous
        self.previous = next(self.iterator)
        return previous, self.previous

    @staticmethod
    def rebuild(iterator: Any, previous: Any) -> Any:
        if previous is not _MISSING:
            iterator = itertools.chain((previous,), iterator)
        return itertools.pairwise(iterator)


@replaces_in_c(itertools.takewhile)
class takewhile(Iterator):
    def __init__(self, predicate: Any, iterable: Any, /) -> None:
        self.predicate, self.iterator, self.ended = predicate, iter(iterable), False

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        item = next(self.iterator)
        if not self.predicate(item):
            self.ended = True
            raise StopIteration
        return item

    @staticmethod
    def rebuild(predicate: Any, iterator: Any, ended: Any) -> Any:
        return itertools.takewhile(predicate, () if ended else iterator)


def _never(item: Any) -> bool:
    return False


@replaces_in_c(itertools.dropwhile)
class dropwhile(Iterator):
    def __init__(self, predicate: Any, iterable: Any, /) -> None:
        self.predicate, self.iterator, self.dropping = predicate, iter(iterable), True

    def __next__(self) -> Any:
        item = next(self.iterator)
        while self.dropping:
            if not self.predicate(item):
                self.dropping = False
            else:
                item = next(self.iterator)
        return item

    @staticmethod
    def rebuild(predicate: Any, iterator: Any, dropping: Any) -> Any:
        return itertools.dropwhile(predicate if dropping else _never, iterator)


@replaces_in_c(itertools.compress)
class compress(Iterator):
    def __init__(self, data: Any, selectors: Any) -> None:
        self.data, self.selectors = iter(data), iter(selectors)

    def __next__(self) -> Any:
        while True:
            item = next(self.data)
            if next(self.selectors):
                return item

    @staticmethod
    def rebuild(data: Any, selectors: Any) -> Any:
        return itertools.compress(data, selectors)


@replaces_in_c(itertools.starmap)
class starmap(Iterator):
    def __init__(self, function: Any, iterable: Any, /) -> None:
        self.function, self.iterator = function, iter(iterable)

    def __next__(self) -> Any:
        items = tuple(next(self.iterator))
        return self.function(*items)

    @staticmethod
    def rebuild(function: Any, iterator: Any) -> Any:
        return itertools.starmap(function, iterator)


@replaces_in_c(itertools.zip_longest)
class zip_longest(Iterator):
    def __init__(self, *iterables: Any, fillvalue: Any = None) -> None:
        self.iterators: list[Any] = [iter(iterable) for iterable in iterables]
        self.active, self.fill = len(iterables), fillvalue

    def __next__(self) -> Any:
        if not self.active:
            raise StopIteration
        row = []
        for i in range(len(self.iterators)):
            item = self.fill
            if self.iterators[i] is not None:
                element = next(self.iterators[i], _MISSING)
                if element is not _MISSING:
                    item = element
                else:
                    self.active -= 1
                    self.iterators[i] = None
                    if not self.active:
                        raise StopIteration
            row.append(item)
        return tuple(row)

    @staticmethod
    def rebuild(iterators: Any, fill: Any) -> Any:
        return itertools.zip_longest(*[() if i is None else i for i in iterators], fillvalue=fill)


class _Grouper(Iterator):
    """One group of groupby: it ends with its key, or when the next group is asked for."""

    replaces: Any = type(next(itertools.groupby([1]))[1])

    def __init__(self, parent: Any, key: Any) -> None:
        self.parent, self.key = parent, key

    def __next__(self) -> Any:
        parent = self.parent
        if parent.group is not self:
            raise StopIteration
        if parent.value is _MISSING:
            parent.step()
        if not (self.key is parent.current or self.key == parent.current):
            raise StopIteration
        item, parent.value = parent.value, _MISSING
        return item


@replaces_in_c(itertools.groupby)
class groupby(Iterator):
    def __init__(self, iterable: Any, key: Any = None) -> None:
        self.iterator, self.key, self.group = iter(iterable), key, None
        self.value = self.current = self.target_key = _MISSING

    def step(self) -> None:
        item = next(self.iterator)
        if self.key is None:
            self.current = item
        else:
            self.current = self.key(item)
        self.value = item

    def __next__(self) -> Any:
        self.group = None
        while self.current is _MISSING or self.target_key is not _MISSING and self._same():
            self.step()
        self.target_key = self.current
        self.group = _Grouper(self, self.target_key)  # type: ignore[assignment]
        return self.target_key, self.group

    def _same(self) -> Any:
        return self.target_key is self.current or self.target_key == self.current


_tee_type: Any = type(itertools.tee([1])[0])


class _Tee(Iterator):
    """One of the iterators that tee gives. `link` is where it stands in the chain of items that
    they share."""

    replaces = _tee_type

    def __init__(self, iterator: Any, link: Any) -> None:
        self.iterator, self.link = iterator, link

    def __next__(self) -> Any:
        if self.link[1] is None:
            self.link[0] = next(self.iterator)
            self.link[1] = [None, None]
        item, self.link = self.link
        return item

    def __copy__(self) -> Any:
        return _Tee(self.iterator, self.link)


@means(itertools.tee, how=How.POLYFILL)
def tee(iterable: Any, n: Any = 2, /) -> Any:
    if n < 0:
        fails(itertools.tee, (), n)
    iterator, link = iter(iterable), [None, None]
    if isinstance(iterator, _tee_type):
        iterator, link = iterator.iterator, iterator.link  # type: ignore[attr-defined]
    return tuple([_Tee(iterator, link) for _ in range(n)])


class _Counted(Iterator):
    """Goes through `rows()`; the real iterator in its state is one that has given as many."""

    def __init__(self, pools: Any, options: Any) -> None:
        self.pools, self.options, self.count = pools, options, 0
        self.generator = self.rows(*pools, **options)

    def rows(self, *pools: Any, **options: Any) -> Any:
        raise NotImplementedError

    def __next__(self) -> Any:
        item = next(self.generator)
        self.count += 1
        return item


def _advanced(real: Any) -> Any:
    """The `rebuild` of a _Counted iterator."""

    def rebuild(pools: Any, options: Any, count: Any) -> Any:
        iterator = real(*pools, **options)
        for _ in range(count):
            next(iterator, None)
        return iterator

    return staticmethod(rebuild)


@replaces_in_c(itertools.product)
class product(_Counted):
    rebuild = _advanced(itertools.product)

    def __init__(self, *iterables: Any, repeat: Any = 1) -> None:
        if not hasattr(type(repeat), "__index__"):
            fails(itertools.product, repeat=repeat)
        repeat = operator.index(repeat)
        if repeat < 0:
            fails(itertools.product, repeat=repeat)
        super().__init__([tuple(iterable) for iterable in iterables], {"repeat": repeat})

    def rows(self, *pools: Any, repeat: Any) -> Any:
        pools = pools * repeat
        for pool in pools:
            if not pool:
                return
        places = [0] * len(pools)
        while True:
            yield tuple([pools[i][places[i]] for i in range(len(pools))])
            i = len(pools) - 1
            while i >= 0 and places[i] == len(pools[i]) - 1:
                places[i] = 0
                i -= 1
            if i < 0:
                return
            places[i] += 1


def _count(real: Any, r: Any) -> Any:
    """How many elements a C iterator is to choose, or the error that it raises."""
    if not hasattr(type(r), "__index__"):
        fails(real, (), r)
    r = operator.index(r)
    if r < 0:
        fails(real, (), r)
    return r


@replaces_in_c(itertools.combinations)
class combinations(_Counted):
    rebuild = _advanced(itertools.combinations)

    def __init__(self, iterable: Any, r: Any) -> None:
        r = _count(itertools.combinations, r)
        super().__init__([tuple(iterable)], {"r": r})

    def rows(self, pool: Any, r: Any) -> Any:
        n = len(pool)
        if r > n:
            return
        places = list(range(r))
        while True:
            yield tuple([pool[i] for i in places])
            i = r - 1
            while i >= 0 and places[i] == i + n - r:
                i -= 1
            if i < 0:
                return
            places[i] += 1
            for j in range(i + 1, r):
                places[j] = places[j - 1] + 1


@replaces_in_c(itertools.combinations_with_replacement)
class combinations_with_replacement(_Counted):
    rebuild = _advanced(itertools.combinations_with_replacement)

    def __init__(self, iterable: Any, r: Any) -> None:
        r = _count(itertools.combinations_with_replacement, r)
        super().__init__([tuple(iterable)], {"r": r})

    def rows(self, pool: Any, r: Any) -> Any:
        n = len(pool)
        if not n and r:
            return
        places = [0] * r
        while True:
            yield tuple([pool[i] for i in places])
            i = r - 1
            while i >= 0 and places[i] == n - 1:
                i -= 1
            if i < 0:
                return
            places[i:] = [places[i] + 1] * (r - i)


@replaces_in_c(itertools.permutations)
class permutations(_Counted):
    rebuild = _advanced(itertools.permutations)

    def __init__(self, iterable: Any, r: Any = None) -> None:
        pool = tuple(iterable)
        if r is not None and not isinstance(r, int):
            fails(itertools.permutations, (), r)
        if r is None:
            r = len(pool)
        super().__init__([pool], {"r": _count(itertools.permutations, r)})

    def rows(self, pool: Any, r: Any) -> Any:
        n = len(pool)
        if r > n:
            return
        places, cycles = list(range(n)), list(range(n, n - r, -1))
        yield tuple([pool[i] for i in places[:r]])
        while n:
            i = r - 1
            while i >= 0:
                cycles[i] -= 1
                if cycles[i]:
                    j = n - cycles[i]
                    places[i], places[j] = places[j], places[i]
                    yield tuple([pool[k] for k in places[:r]])
                    break
                places[i:] = places[i + 1 :] + places[i : i + 1]
                cycles[i] = n - i
                i -= 1
            if i < 0:
                return


if hasattr(itertools, "batched"):  # from Python 3.12 on

    @replaces_in_c(getattr(itertools, "batched"))  # noqa: B009
    class batched(Iterator):
        def __init__(self, iterable: Any, n: Any, *, strict: Any = False) -> None:
            if n < 1:
                fails(itertools.batched, (), n)  # type: ignore[attr-defined]
            self.iterator, self.n, self.strict = iter(iterable), n, strict

        def __next__(self) -> Any:
            row: list[Any] = []
            while len(row) < self.n:
                item = next(self.iterator, _MISSING)
                if item is _MISSING:
                    break
                row.append(item)
            if not row:
                raise StopIteration
            if self.strict and len(row) < self.n:
                raise ValueError("batched(): incomplete batch")
            return tuple(row)

        @staticmethod
        def rebuild(iterator: Any, n: Any, strict: Any) -> Any:
            return itertools.batched(iterator, n, **({"strict": strict} if strict else {}))  # type: ignore[attr-defined]
