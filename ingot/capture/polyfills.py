"""Python versions of C builtins, inlined in their place. They are the user's loop, so nothing here is clever."""

from __future__ import annotations

import operator
from typing import Any

import torch

OF_BUILTINS = "all any sum enumerate zip map filter max min sorted reversed".split()
OF_ITERTOOLS = "accumulate chain combinations count cycle dropwhile islice pairwise permutations product repeat".split()
OF_ITERTOOLS += "starmap takewhile zip_longest".split()

_MISSING: Any = object()


def all_(iterable: Any) -> bool:
    for item in iterable:
        if not item:
            return False
    return True


def any_(iterable: Any) -> bool:
    for item in iterable:
        if item:
            return True
    return False


def sum_(iterable: Any, start: Any = 0) -> Any:
    total = start
    for item in iterable:
        total = total + item
    return total


def prod(iterable: Any, *, start: Any = 1) -> Any:
    total = start
    for item in iterable:
        total = total * item
    return total


def reduce(function: Any, iterable: Any, initial: Any = _MISSING) -> Any:
    iterator = iter(iterable)
    result = next(iterator) if initial is _MISSING else initial
    for item in iterator:
        result = function(result, item)
    return result


def enumerate_(iterable: Any, start: Any = 0) -> Any:
    position = start
    for item in iterable:
        yield position, item
        position += 1


def zip_(*iterables: Any, strict: bool = False) -> Any:
    iterators = [iter(iterable) for iterable in iterables]
    while iterators:
        row: list[Any] = []
        for iterator in iterators:
            item = next(iterator, _MISSING)
            if item is _MISSING:
                if strict and (row or _any_left(iterators[1:])):
                    raise ValueError("zip() argument lengths differ")
                return
            row.append(item)
        yield tuple(row)


def _any_left(iterators: Any) -> bool:
    for iterator in iterators:
        if next(iterator, _MISSING) is not _MISSING:
            return True
    return False


def zip_longest(*iterables: Any, fillvalue: Any = None) -> Any:
    iterators = [iter(iterable) for iterable in iterables]
    while iterators:
        row = [next(iterator, _MISSING) for iterator in iterators]
        if all_([item is _MISSING for item in row]):
            return
        yield tuple([fillvalue if item is _MISSING else item for item in row])


def map_(function: Any, *iterables: Any) -> Any:
    for items in zip_(*iterables):
        yield function(*items)


def starmap(function: Any, iterable: Any) -> Any:
    for items in iterable:
        yield function(*items)


def filter_(function: Any, iterable: Any) -> Any:
    for item in iterable:
        if item if function is None else function(item):
            yield item


def reversed_(sequence: Any) -> Any:
    if not isinstance(sequence, (list, tuple, dict, range, str)) and hasattr(sequence, "__reversed__"):
        yield from sequence.__reversed__()
        return
    items = list(sequence)
    position = len(items)
    while position > 0:
        position -= 1
        yield items[position]


def _best(args: Any, key: Any, default: Any, better: Any) -> Any:
    iterator = iter(args[0] if len(args) == 1 else args)
    best = next(iterator, _MISSING)
    if best is _MISSING:
        if default is _MISSING:
            raise ValueError("iterable argument is empty")
        return default
    for item in iterator:
        if better(item if key is None else key(item), best if key is None else key(best)):
            best = item
    return best


def max_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(args, key, default, operator.gt)


def min_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(args, key, default, operator.lt)


def sorted_(iterable: Any, *, key: Any = None, reverse: bool = False) -> Any:
    """Insertion sort: stable, and it asks `<` only, as list.sort does."""
    done: list[Any] = []
    for item in iterable:
        rank = item if key is None else key(item)
        position = len(done)
        while position > 0 and (done[position - 1][0] < rank if reverse else rank < done[position - 1][0]):
            position -= 1
        done.insert(position, (rank, item))
    return [item for _, item in done]


def chain(*iterables: Any) -> Any:
    for iterable in iterables:
        yield from iterable


def chain_from_iterable(iterables: Any) -> Any:
    for iterable in iterables:
        yield from iterable


def product(*iterables: Any, repeat: int = 1) -> Any:
    rows: list[Any] = [()]
    for pool in [tuple(iterable) for iterable in iterables] * repeat:
        rows = [(*row, item) for row in rows for item in pool]
    yield from rows


def islice(iterable: Any, *bounds: Any) -> Any:
    limits = slice(*bounds)
    start, stop, step = limits.start or 0, limits.stop, limits.step or 1
    position = 0
    iterator = iter(iterable)
    while stop is None or position < stop:
        item = next(iterator, _MISSING)
        if item is _MISSING:
            return
        if position >= start and (position - start) % step == 0:
            yield item
        position += 1


def accumulate(iterable: Any, func: Any = None, *, initial: Any = _MISSING) -> Any:
    iterator = iter(iterable)
    total = next(iterator, _MISSING) if initial is _MISSING else initial
    if total is _MISSING:
        return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


def repeat(item: Any, times: Any = None) -> Any:
    while times is None or times > 0:
        yield item
        times = None if times is None else times - 1


def count(start: Any = 0, step: Any = 1) -> Any:
    while True:
        yield start
        start = start + step


def cycle(iterable: Any) -> Any:
    items = list(iterable)
    while items:
        yield from items


def pairwise(iterable: Any) -> Any:
    iterator = iter(iterable)
    previous = next(iterator, _MISSING)
    for item in iterator:
        yield previous, item
        previous = item


def takewhile(predicate: Any, iterable: Any) -> Any:
    for item in iterable:
        if not predicate(item):
            return
        yield item


def dropwhile(predicate: Any, iterable: Any) -> Any:
    dropping = True
    for item in iterable:
        dropping = dropping and predicate(item)
        if not dropping:
            yield item


def combinations(iterable: Any, r: int) -> Any:
    pool = tuple(iterable)
    for indices in product(range(len(pool)), repeat=r):
        if all_([a < b for a, b in pairwise(indices)]):
            yield tuple([pool[i] for i in indices])


def permutations(iterable: Any, r: Any = None) -> Any:
    pool = tuple(iterable)
    size = len(pool) if r is None else r
    for indices in product(range(len(pool)), repeat=size):
        if len(set(indices)) == size:
            yield tuple([pool[i] for i in indices])


def fromkeys(keys: Any, value: Any = None) -> Any:
    return {key: value for key in keys}


def one_hot(input: Any, num_classes: Any = -1) -> Any:
    """torch's own does not look at the classes when it is traced."""
    if num_classes < 0:
        num_classes = int(input.max()) + 1
    classes = torch.arange(num_classes, device=input.device)
    known = classes.gather(0, input.reshape(-1)).reshape(input.shape)  # an error where it is no class
    return (known.unsqueeze(-1) == classes).long()
