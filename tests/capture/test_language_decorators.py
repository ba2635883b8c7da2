"""PYTEST_DONT_REWRITE. Decorators and functools."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import functools
import operator
import sys

import torch

from tests.capture.language import Table
from tests.capture.test_language_functions import Cell, every_kind

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- decorators and functools ----------------------------------------------------------------------


def logged(log):
    def decorator(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            log.append((fn.__name__, len(args)))
            return fn(*args, **kwargs)

        return wrapper

    return decorator


@whole
def decorators_inside(x, y):
    log = []

    @logged(log)
    @logged(log)
    def work(z, k=1):
        """Doc."""
        return z * k

    return work(x, k=2), log, work.__name__, work.__doc__, work.__wrapped__.__wrapped__(y, 3)


class CountsCalls:
    def __init__(self, fn):
        functools.update_wrapper(self, fn)
        self.fn, self.calls = fn, 0

    def __call__(self, *args):
        self.calls += 1
        return self.fn(*args)

    def __get__(self, instance, owner):
        return functools.partial(self, instance)


@whole
def class_decorator_inside(x, y):
    @CountsCalls
    def work(z):
        return z + 1

    work(x)
    return work(y), work.calls, work.__name__


@whole
def partials(x, y):
    base = functools.partial(every_kind, 1, d=4)
    more = functools.partial(base, 2, e=6)
    return (
        base(), more(9, d=0, k=1), more.func is every_kind, more.args, more.keywords,
        functools.partial(x.add, 1)(), functools.partial(int, base=2)("101"),
        functools.partial(max, key=lambda v: -v)([1, 2]),
    )  # fmt: skip


@whole
def partial_is_a_result(x, y):
    return functools.partial(torch.add, x, alpha=2), functools.partial(every_kind, y, d=[x])


@whole
def partial_methods(x, y):
    cell = Cell()
    cell.revive()
    first = cell.alive, cell.note
    cell.kill(note="down")
    return x * 2, first, cell.alive, cell.note


@whole
def reductions(x, y):
    return (
        functools.reduce(operator.add, [x, y, x]),
        functools.reduce(lambda a, b: a * b, range(1, 6)),
        functools.reduce(max, [3, 1, 4], 10),
        functools.reduce(operator.add, [], x),
    )


@whole
def reduce_of_nothing(x, y):
    try:
        functools.reduce(operator.add, [])
    except TypeError as error:
        return x + 1, str(error)


@whole
def caches_inside(x, y):
    calls = []

    @functools.lru_cache(maxsize=None)
    def slow(n):
        calls.append(n)
        return n * 2

    @functools.cache
    def other(n, k=1):
        calls.append((n, k))
        return n + k

    values = slow(1), slow(1), slow(2), other(1), other(1), other(1, k=1)
    return x * slow(2), values, calls


@functools.lru_cache(maxsize=8)
def cached_outside(n):
    return n * 3


@whole
def caches_outside(x, y):
    return x * cached_outside(2) + cached_outside(2), cached_outside.__wrapped__(1)


class Lazy:
    def __init__(self, n):
        self.n, self.computed = n, 0

    @functools.cached_property
    def value(self):
        self.computed += 1
        return self.n * 2

    @functools.cached_property
    def tensor(self):
        return torch.ones(2) * self.n


@whole
def cached_properties(x, y):
    lazy = Lazy(3)
    a, b = lazy.value, lazy.value
    lazy.value = 7
    c = lazy.value
    del lazy.value
    return x * lazy.value, a, b, c, lazy.computed, lazy.tensor is lazy.tensor, sorted(vars(lazy))


@functools.singledispatch
def shown(value, *rest):
    return "object"


@shown.register
def _(value: int, *rest):
    return "int", value


@shown.register(list)
def _(value, *rest):
    return "list", [shown(v) for v in value]


@shown.register(torch.Tensor)
def _(value, *rest):
    return value * 2


class Shows:
    @functools.singledispatchmethod
    def of(self, value):
        return "any"

    @of.register
    def _(self, value: str):
        return "str", value


@whole
def single_dispatch(x, y):
    return shown(x), shown(1), shown(True), shown([1, "a", [2]]), shown(None), shown(2.5)


# that of 3.13 has a weak cache
@(whole if sys.version_info[:2] != (3, 13) else TABLE.broken("a weak reference"))
def single_dispatch_method(x, y):
    return x + 1, Shows().of("s"), Shows().of(1)


@functools.total_ordering
class Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, Version) and self.n == other.n

    def __lt__(self, other):
        return self.n < other.n


@whole
def total_ordering(x, y):
    a, b = Version(1), Version(2)
    ranks = [v.n for v in sorted([b, a, Version(0)])]
    return x + 1, a < b, a <= b, a > b, a >= b, a == b, a != b, a >= Version(1), ranks, max(a, b).n


@whole
def cmp_to_key(x, y):
    by = functools.cmp_to_key(lambda a, b: (a % 3 > b % 3) - (a % 3 < b % 3))
    return x + 1, sorted(range(9), key=by), max([5, 4, 3], key=by), by(1) < by(2), by(3) == by(6)


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= (sys.version_info >= (3, 13))
