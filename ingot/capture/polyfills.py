"""Python versions of C functions, run by the interpreter in their place. They are the user's loop,
so nothing here is clever. (The C iterators have a file of their own.)"""

from __future__ import annotations

import collections
import functools
import heapq
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from ingot.capture.meanings import How, means
from ingot.torch_private import aten, masked_identity, masked_input_mask, masked_where

_MISSING: Any = object()

_replaces = functools.partial(means, how=How.POLYFILL)


# -- what capture answers itself; the bodies are for frames that go on in eager --------------------


def fails(function: Any, *args: Any, **kwargs: Any) -> None:
    """Raises what the C function raises for these arguments."""
    function(*args, **kwargs)


def ranking(ranks: Any, reverse: Any) -> Any:
    """The positions of plain constants in sorted order; None if they are something else."""
    return None


class _Position:
    """The place of an element that is sorted."""

    __slots__ = ("index", "less")

    def __init__(self, index: int, less: Callable[[int, int], Any]) -> None:
        self.index, self.less = index, less

    def __lt__(self, other: _Position) -> Any:
        return self.less(self.index, other.index)


def sorted_positions(count: int, reverse: Any, less: Callable[[int, int], Any]) -> list[int]:
    """The order in which list.sort puts `count` elements, of which `less` compares those at two
    positions."""
    positions = [_Position(i, less) for i in range(count)]
    positions.sort(reverse=reverse)
    return [position.index for position in positions]


def sorting(ranks: Any, reverse: Any, answers: str) -> tuple[list[int] | None, int, int]:
    """The sorted positions, where the first comparisons are known: "1" for less and "0" for not.
    Capture gives None and the two positions that are compared next, until all comparisons are
    known."""
    known = iter(answers)

    def less(i: int, j: int) -> Any:
        answer = next(known, "")
        if answer:
            return answer == "1"
        return ranks[i] < ranks[j]

    return sorted_positions(len(ranks), reverse, less), 0, 0


def slice_indices(start: Any, stop: Any, step: Any, length: Any) -> tuple[Any, Any, Any]:
    """`slice.indices`, where one of the integers varies."""
    if length < 0:
        raise ValueError("length should not be negative")
    if step is None:
        step = 1
    if step == 0:
        raise ValueError("slice step cannot be zero")
    lowest, highest = 0, length
    ends = lowest, highest
    if step < 0:
        lowest, highest = -1, length - 1
        ends = highest, lowest
    bounds = []
    for bound, end in zip((start, stop), ends):
        if bound is None:
            bound = end
        elif bound < 0:
            bound += length
            if bound < lowest:
                bound = lowest
        elif bound > highest:
            bound = highest
        bounds.append(bound)
    return bounds[0], bounds[1], step


def is_number(value: Any) -> bool:
    """Whether it is a plain number that is known."""
    return type(value) in (int, float, bool)


def sum_of_numbers(numbers: Any, start: Any) -> Any:
    """The sum of such numbers, as C adds them up (exactly, or with compensation, as the version of
    Python does)."""
    return sum(numbers, start)


def class_member(cls: type, name: str) -> Any:
    """What a class has under a name, that of a special method; the metaclass is not asked."""
    for owner in cls.__mro__:
        if name in owner.__dict__:
            return owner.__dict__[name]
    return _MISSING


# -- built-in functions ----------------------------------------------------------------------------


@_replaces(all)
def all_(iterable: Any, /) -> bool:
    for item in iterable:
        if not item:
            return False
    return True


@_replaces(any)
def any_(iterable: Any, /) -> bool:
    for item in iterable:
        if item:
            return True
    return False


@_replaces(sum)
def sum_(iterable: Any, /, start: Any = 0) -> Any:
    iterator = iter(iterable)
    if isinstance(start, (str, bytes, bytearray)):
        fails(sum, (), start)
    total, numbers, numeric = start, [], is_number(start)
    for item in iterator:
        if numeric and is_number(item):
            numbers.append(item)
            continue
        if numbers:
            total, numbers = sum_of_numbers(numbers, total), []
        numeric = False
        total = total + item
    if numbers:
        return sum_of_numbers(numbers, total)
    return total


@_replaces(math.prod)
def prod(iterable: Any, /, *, start: Any = 1) -> Any:
    total = start
    for item in iterable:
        total = total * item
    return total


@_replaces(functools.reduce)
def reduce(function: Any, iterable: Any, initial: Any = _MISSING, /) -> Any:
    if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
        fails(functools.reduce, function, iterable)
    iterator = iter(iterable)
    result = initial
    if result is _MISSING:
        result = next(iterator, _MISSING)
    if result is _MISSING:
        fails(functools.reduce, function, ())
    for item in iterator:
        result = function(result, item)
    return result


def are_in_graph(item: Any, best: Any) -> bool:
    """Whether they are floats, ints, or tensors of rank 0, between which the graph chooses: one is
    read from a tensor."""
    return False


def better_of(better: Any, item: Any, best: Any) -> Any:
    """What max and min keep of these."""
    if better(item, best):
        return item
    return best


def _best(function: Any, args: Any, key: Any, default: Any, better: Any) -> Any:
    if len(args) != 1 and (not args or default is not _MISSING):
        fails(function, *args, default=None) if args else fails(function)
    iterator = iter(args[0] if len(args) == 1 else args)
    best = next(iterator, _MISSING)
    if best is _MISSING:
        if default is _MISSING:
            fails(function, ())
        return default
    if key is None:
        rank = best
    else:
        rank = key(best)
    for item in iterator:
        if key is None:
            its_rank = item
        else:
            its_rank = key(item)
        if key is None and are_in_graph(item, best):
            best = rank = better_of(better, item, best)
        elif better(its_rank, rank):
            best, rank = item, its_rank
    return best


@_replaces(max)
def max_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(max, args, key, default, operator.gt)


@_replaces(min)
def min_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(min, args, key, default, operator.lt)


@_replaces(sorted)
def sorted_(iterable: Any, /, *, key: Any = None, reverse: Any = False) -> list[Any]:
    items = list(iterable)
    if key is None:
        ranks = items
    else:
        ranks = [key(item) for item in items]
    order, answers = ranking(ranks, reverse), ""
    while order is None:
        order, first, second = sorting(ranks, reverse, answers)
        if order is None:
            if ranks[first] < ranks[second]:
                answers += "1"
            else:
                answers += "0"
    return [items[i] for i in order]


@_replaces(dict.fromkeys)
def fromkeys(keys: Any, value: Any = None, /) -> Any:
    return {key: value for key in keys}


@_replaces(collections.defaultdict.fromkeys)
def defaultdict_of_keys(keys: Any, value: Any = None, /) -> Any:
    made: Any = collections.defaultdict()
    for key in keys:
        made[key] = value
    return made


@_replaces(collections.OrderedDict.fromkeys)
def ordered_dict_of_keys(iterable: Any, value: Any = None) -> Any:
    made: Any = collections.OrderedDict()
    for key in iterable:
        made[key] = value
    return made


@_replaces(operator.iconcat)
def iconcat(a: Any, b: Any, /) -> Any:
    if not hasattr(type(a), "__getitem__"):
        raise TypeError(f"'{type(a).__name__}' object can't be concatenated")
    a += b
    return a


# -- objects ---------------------------------------------------------------------------------------


@_replaces(object.__reduce_ex__)
def reduce_ex(self: Any, protocol: Any, /) -> Any:
    """As for protocol 4, which copies are made with."""
    cls = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    args: Any = ()
    if hasattr(cls, "__getnewargs_ex__"):
        args, named = self.__getnewargs_ex__()
        if named:
            fails(object.__reduce_ex__, object(), "keyword arguments")
    elif hasattr(cls, "__getnewargs__"):
        args = self.__getnewargs__()
    items = None
    if isinstance(self, list):
        items = iter(self)
    entries = None
    if isinstance(self, dict):
        entries = iter(self.items())
    return _new_object, (cls, *args), self.__getstate__(), items, entries


def _new_object(cls: Any, *args: Any) -> Any:
    return cls.__new__(cls, *args)


def getstate(self: Any, /) -> Any:
    attributes = {}
    if hasattr(self, "__dict__"):
        attributes = dict(self.__dict__)
    members = {}
    for cls in type(self).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(self, name):
                members[name] = getattr(self, name)
    if members:
        return attributes or None, members
    return attributes or None


_replaces(object.__getstate__)(getstate)  # type: ignore[attr-defined]


@_replaces(set.__reduce__, frozenset.__reduce__)
def reduce_set(self: Any, /) -> Any:
    return type(self), (list(self),), self.__getstate__()


@_replaces(collections.OrderedDict.__reduce__)
def reduce_ordered(self: Any, /) -> Any:
    return type(self), (), self.__getstate__(), None, iter(self.items())


@_replaces(collections.defaultdict.__reduce__)
def reduce_defaultdict(self: Any, /) -> Any:
    args = () if self.default_factory is None else (self.default_factory,)
    return type(self), args, None, None, iter(self.items())


# -- functools, collections, heapq -----------------------------------------------------------------


class _Comparing:
    """What functools.cmp_to_key gives: its keys compare by the function."""

    replaces = type(functools.cmp_to_key(lambda a, b: 0))

    def __init__(self, compare: Any) -> None:
        self.compare = compare

    def __call__(self, obj: Any) -> Any:
        return _Key(self.compare, obj)

    @staticmethod
    def rebuild(compare: Any) -> Any:
        return functools.cmp_to_key(compare)


class _Key:
    replaces = _Comparing.replaces
    __hash__: Any = None

    def __init__(self, compare: Any, obj: Any) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) > 0

    def __le__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) >= 0

    def __eq__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) == 0

    @staticmethod
    def rebuild(compare: Any, obj: Any) -> Any:
        return functools.cmp_to_key(compare)(obj)


@_replaces(functools.cmp_to_key)
def cmp_to_key(mycmp: Any) -> Any:
    return _Comparing(mycmp)


class _Getter:
    """What operator.itemgetter and its kin share."""

    replaces: Any = None


@_replaces(operator.itemgetter)
class itemgetter(_Getter):
    replaces = operator.itemgetter

    def __init__(self, item: Any, /, *items: Any) -> None:
        self.items = (item, *items)

    def __call__(self, obj: Any, /) -> Any:
        if len(self.items) == 1:
            return obj[self.items[0]]
        return tuple([obj[item] for item in self.items])

    @staticmethod
    def rebuild(items: Any) -> Any:
        return operator.itemgetter(*items)


@_replaces(operator.attrgetter)
class attrgetter(_Getter):
    replaces = operator.attrgetter

    def __init__(self, attr: Any, /, *attrs: Any) -> None:
        self.names = (attr, *attrs)
        for name in self.names:
            if not isinstance(name, str):
                fails(operator.attrgetter, *self.names)

    def __call__(self, obj: Any, /) -> Any:
        values = []
        for name in self.names:
            value = obj
            for attribute in name.split("."):
                value = getattr(value, attribute)
            values.append(value)
        if len(values) == 1:
            return values[0]
        return tuple(values)

    @staticmethod
    def rebuild(names: Any) -> Any:
        return operator.attrgetter(*names)


@_replaces(operator.methodcaller)
class methodcaller(_Getter):
    replaces = operator.methodcaller

    def __init__(self, name: Any, /, *args: Any, **kwargs: Any) -> None:
        if not isinstance(name, str):
            fails(operator.methodcaller, name)
        self.name, self.args, self.kwargs = name, args, kwargs

    def __call__(self, obj: Any, /) -> Any:
        return getattr(obj, self.name)(*self.args, **self.kwargs)

    @staticmethod
    def rebuild(name: Any, args: Any, kwargs: Any) -> Any:
        return operator.methodcaller(name, *args, **kwargs)


@_replaces(operator.countOf)
def count_of(a: Any, b: Any, /) -> int:
    if not hasattr(type(a), "__iter__") and not hasattr(type(a), "__getitem__"):
        fails(operator.countOf, a, b)
    count = 0
    for item in a:
        if item is b or item == b:
            count += 1
    return count


@_replaces(operator.indexOf)
def index_of(a: Any, b: Any, /) -> int:
    if not hasattr(type(a), "__iter__") and not hasattr(type(a), "__getitem__"):
        fails(operator.indexOf, a, b)
    position = 0
    for item in a:
        if item is b or item == b:
            return position
        position += 1
    raise ValueError("sequence.index(x): x not in sequence")


@_replaces(functools._lru_cache_wrapper)
class CachedFunction:
    """A function made by functools.lru_cache; the least recently used result is dropped when there
    are too many."""

    replaces = functools._lru_cache_wrapper

    def __init__(self, function: Any, maxsize: Any, typed: Any, cache_info: Any) -> None:
        self.__wrapped__, self.maxsize, self.typed = function, maxsize, typed
        self.results: dict[Any, Any] = {}
        self.hits = self.misses = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key: Any = (args, tuple(kwargs.items()))
        if self.typed:
            key = (*key, tuple([type(a) for a in args]), tuple([type(a) for a in kwargs.values()]))
        result = self.results.pop(key, _MISSING)
        if result is _MISSING:
            self.misses += 1
            result = self.__wrapped__(*args, **kwargs)
            if self.maxsize is not None and len(self.results) >= self.maxsize > 0:
                del self.results[next(iter(self.results))]
        else:
            self.hits += 1
        if self.maxsize != 0:
            self.results[key] = result
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def cache_clear(self) -> None:
        self.results.clear()
        self.hits = self.misses = 0

    def cache_info(self) -> Any:
        return functools._CacheInfo(self.hits, self.misses, self.maxsize, len(self.results))  # type: ignore[attr-defined]


@_replaces(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(mapping: Any, iterable: Any) -> None:
    for element in iterable:
        if type(element).__hash__ is None:
            hash(element)  # whose error does not speak of keys
        mapping[element] = mapping.get(element, 0) + 1


@_replaces(heapq.heappush)
def heappush(heap: Any, item: Any, /) -> None:
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


@_replaces(heapq.heappop)
def heappop(heap: Any, /) -> Any:
    last = heap.pop()
    if heap:
        return _replaced_first(heap, last)
    return last


def _replaced_first(heap: Any, item: Any) -> Any:
    first, heap[0] = heap[0], item
    _sift_up(heap, 0)
    return first


@_replaces(heapq.heapreplace)
def heapreplace(heap: Any, item: Any, /) -> Any:
    return _replaced_first(heap, item)


@_replaces(heapq.heappushpop)
def heappushpop(heap: Any, item: Any, /) -> Any:
    if heap and heap[0] < item:
        return _replaced_first(heap, item)
    return item


@_replaces(heapq.heapify)
def heapify(heap: Any, /) -> None:
    for i in range(len(heap) // 2 - 1, -1, -1):
        _sift_up(heap, i)


def _sift_down(heap: Any, start: int, place: int) -> None:
    item = heap[place]
    while place > start:
        parent = (place - 1) >> 1
        if not item < heap[parent]:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = item


def _sift_up(heap: Any, place: int) -> None:
    item, start, end = heap[place], place, len(heap)
    child = 2 * place + 1
    while child < end:
        if child + 1 < end and not heap[child] < heap[child + 1]:
            child += 1
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = item
    _sift_down(heap, start, place)


# -- torch -----------------------------------------------------------------------------------------


def masked_input(op: Any, input: Any, mask: Any, *args: Any) -> Any:
    """What torch.masked does for a plain tensor; its own defines a class for those that carry a
    mask."""
    if mask is None:
        return input
    identity = masked_identity(op.__name__, input, *args)
    return masked_where(masked_input_mask(input, mask=mask), input, identity)


def one_hot(input: Any, num_classes: Any = -1) -> Any:
    """torch's own does not look at the classes when it is traced."""
    if num_classes == -1:
        num_classes = int(input.max()) + 1
    elif num_classes < 0:
        raise RuntimeError("Class values must be smaller than num_classes.")
    classes = torch.arange(num_classes, device=input.device)
    # an error where it is no class
    known = classes.gather(0, input.reshape(-1)).reshape(input.shape)
    return (known.unsqueeze(-1) == classes).long()


def batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: Any,
    eps: Any,
    cudnn: Any,
) -> Any:
    """torch.batch_norm in training where the momentum is a number read from a tensor.

    That of a cumulative average is one. The running statistics are updated beside it, in float64 as
    in eager."""
    result = torch.batch_norm(input, weight, bias, None, None, True, 0.0, eps, cudnn)
    dims = [d for d in range(input.dim()) if d != 1]
    var, mean = torch.var_mean(
        input.detach().to(torch.promote_types(input.dtype, torch.float32)), dims
    )
    for running, statistic in ((running_mean, mean), (running_var, var)):
        if running is not None:
            running.copy_(momentum * statistic.double() + (1 - momentum) * running.double())
    return result


def unscale_gradients(grads: Any, found_inf: Any, inv_scale: Any) -> Any:
    """How torch.amp.GradScaler divides gradients by their scale; whether all of them are finite is
    seen before."""
    usual = (
        found_inf.numel() == inv_scale.numel() == 1
        and found_inf.dtype is inv_scale.dtype is torch.float32
    )
    for grad in grads:
        usual = (
            usual
            and grad.is_floating_point()
            and grad.device == found_inf.device
            and grad.layout is torch.strided
        )
    if not usual:
        return aten._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)
    for grad in grads:
        found_inf.masked_fill_(~grad.isfinite().all(), 1.0)
        grad.mul_(inv_scale.reshape(()))


def update_scale(
    scale: Any, tracker: Any, found_inf: Any, growth: Any, backoff: Any, interval: Any
) -> Any:
    """How torch.amp.GradScaler finds the next scale.

    It is smaller where a gradient was not finite, larger after a while where all were; products are
    taken in float64, and the scale does not grow to infinity."""
    usual = (
        scale.numel() == tracker.numel() == found_inf.numel() == 1 and tracker.dtype is torch.int32
    )
    if not usual or not scale.dtype is found_inf.dtype is torch.float32:
        return aten._amp_update_scale_(scale, tracker, found_inf, growth, backoff, interval)
    failed, steps = found_inf.reshape(scale.shape) != 0, tracker.reshape(scale.shape) + 1
    grows = (steps == interval) & ~failed
    smaller, larger = (scale.double() * backoff).float(), (scale.double() * growth).float()
    tracker.copy_(torch.where(failed | grows, 0, steps).reshape(tracker.shape))
    scale.copy_(torch.where(failed, smaller, torch.where(grows & larger.isfinite(), larger, scale)))
    return scale
