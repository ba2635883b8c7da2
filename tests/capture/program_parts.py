# ruff: noqa: B009, B010, B023, E501, E721, F401, F403, F405, UP003, UP031, UP032
"""What the small programs of `programs_code` and `programs_data` are made with, and the table that
they stand in."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

import torch
import torch.nn.functional as F

PROGRAMS = {}


def program(fn):
    assert fn.__name__ not in PROGRAMS
    PROGRAMS[fn.__name__] = fn
    return fn


SCALE = 2.5
TABLE = {"a": 1.0, "b": [1, 2, 3], "c": {"d": 4}}
CONSTANT_TENSOR = torch.arange(4.0)


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self):
        return self.value * 10


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


Point = collections.namedtuple("Point", ["x", "y"])


class Typed(typing.NamedTuple):
    first: torch.Tensor
    second: int = 3

    def total(self):
        return self.first + self.second


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: float = 2.0
    extra: list = dataclasses.field(default_factory=list)

    def combine(self):
        return self.left * self.right + len(self.extra)


class Base:
    factor = 3.0

    def __init__(self, bias):
        self.bias = bias

    def apply(self, x):
        return x * self.factor + self.bias

    @property
    def double(self):
        return self.bias * 2

    @classmethod
    def make(cls, bias):
        return cls(bias)

    @staticmethod
    def helper(x, n=2):
        return x * n


class Derived(Base):
    factor = 4.0

    def __init__(self, bias, more):
        super().__init__(bias)
        self.more = more

    def apply(self, x):
        return super().apply(x) + self.more

    def __add__(self, other):
        return Derived(self.bias + other, self.more)

    def __radd__(self, other):
        return Derived(self.bias - other, self.more)

    def __call__(self, x):
        return self.apply(x)

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.bias * i

    def __iter__(self):
        return iter([1, 2, self.more])

    def __contains__(self, item):
        return item == self.more

    def __eq__(self, other):
        return isinstance(other, Derived) and self.bias == other.bias

    def __hash__(self):
        return 1

    def __getattr__(self, name):
        if name.startswith("made_"):
            return len(name)
        raise AttributeError(name)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a
        self.b = a + 1


class Counter:
    def __init__(self, stop):
        self.now, self.stop = 0, stop

    def __iter__(self):
        return self

    def __next__(self):
        if self.now >= self.stop:
            raise StopIteration
        self.now += 1
        return self.now


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append("exit" if kind is None else kind.__name__)
        return self.swallow


class Descriptor:
    def __get__(self, instance, owner):
        return instance.base * 2


class Described:
    doubled = Descriptor()

    def __init__(self, base):
        self.base = base


OBJECT = Derived(1.5, 2)
SLOTTED = Slotted(5)
POINT = Point(1, 2.0)


def decorate(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


def scale_by(k):
    def decorator(fn):
        return lambda *args: fn(*args) * k

    return decorator


@decorate
def decorated(x, *, k=2):
    return x * k


@scale_by(3)
def scaled(x):
    return x - 1


@torch.no_grad()
def without_grad(x):
    return x * 2


def keywords(a, b=2, *rest, c, d=4, **others):
    return a * b + sum(rest) + c * d + sum(others.values())


def positional_only(a, b, /, c=1):
    return a + b * c


def numbers(n):
    for i in range(n):
        yield i * 2


def numbers_and_more(n):
    yield 100
    got = yield from numbers(n)
    yield 200 if got is None else got


@contextlib.contextmanager
def scope(log):
    log.append("in")
    yield 5
    log.append("out")


def failing_assert(x):  # here, because pytest rewrites the asserts of test modules
    assert x.shape[0] == 99, "not 99"
    return x
