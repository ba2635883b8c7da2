"""PYTEST_DONT_REWRITE. super(), several bases, metaclasses."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import abc
import collections
import typing

from tests.capture.language import Table
from tests.capture.test_language_classes import Point

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- super and several bases -----------------------------------------------------------------------


class A:
    def __init__(self, log):
        log.append("A")
        self.log = log

    def who(self):
        return ["A"]

    @classmethod
    def make(cls):
        return ["A", cls.__name__]


class B(A):
    def __init__(self, log):
        log.append("B")
        super().__init__(log)

    def who(self):
        return ["B", *super().who()]

    @classmethod
    def make(cls):
        return ["B", *super().make()]


class C(A):
    def __init__(self, log):
        log.append("C")
        super(C, self).__init__(log)

    def who(self):
        parent = super()
        return ["C", *[w for w in parent.who()]]


class D(B, C):
    def __init__(self, log):
        log.append("D")
        super().__init__(log)

    def who(self):
        def inner():
            return super(D, self).who()

        return ["D", *inner(), *(w.lower() for w in C.who(self))]


@whole
def diamond(x, y):
    d = D([])
    return (
        x + len(d.log),
        d.log,
        d.who(),
        D.make(),
        [c.__name__ for c in D.__mro__],
        super(B, d).who(),
        isinstance(d, (C, int)),
    )


@whole
def super_without_method(x, y):
    class_ = D([])
    try:
        super(A, class_).who()
    except AttributeError as error:
        message = str(error)
    try:
        super(D, 3)
    except TypeError as error:
        return x + 1, message, str(error)


class Mixin:
    def describe(self):
        return f"{type(self).__name__} of {self.size()}"


class Sized(abc.ABC):
    @abc.abstractmethod
    def size(self): ...

    @property
    @abc.abstractmethod
    def unit(self): ...

    def doubled(self):
        return self.size() * 2


class Box(Mixin, Sized):
    def __init__(self, n):
        self.n = n

    def size(self):
        return self.n

    unit = "cm"


@whole
def abstract_classes(x, y):
    box = Box(3)
    try:
        Sized()
    except TypeError as error:
        message = str(error)
    return (
        x * box.doubled(),
        box.describe(),
        box.unit,
        isinstance(box, Sized),
        message,
        Sized.__abstractmethods__,
    )


class Registered(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, "quack") or NotImplemented


class Duck:
    def quack(self):
        return 1


@whole
def virtual_subclasses(x, y):
    checks = [
        isinstance(Duck(), Registered), issubclass(Point, Registered),
        isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping),
        isinstance(x, collections.abc.Iterable), isinstance(iter([]), collections.abc.Iterator),
        isinstance(Point, collections.abc.Hashable), isinstance(len, collections.abc.Callable),
        isinstance(3, (str, (int, float))), isinstance(3, int | str), isinstance(True, int),
        isinstance(None, type(None)), isinstance("a", typing.Sequence),
    ]  # fmt: skip
    return x + 1, checks


# -- metaclasses -----------------------------------------------------------------------------------


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.by_meta = cls.tag
        return made

    @property
    def tag(cls):
        return cls.__name__.lower()

    def __len__(cls):
        return 7

    def __getitem__(cls, key):
        return cls, key

    def __iter__(cls):
        yield from "meta"

    def __contains__(cls, item):
        return item == 1

    def __instancecheck__(cls, instance):
        return getattr(instance, "by_meta", None) is not None

    def __subclasscheck__(cls, other):
        return other is int

    def helper(cls, n):
        return n + len(cls)

    def __getattr__(cls, name):
        if name == "virtual":
            return "from meta"
        raise AttributeError(name)

    def __add__(cls, other):
        return cls.__name__ + other

    def __eq__(cls, other):
        return cls is other

    def __hash__(cls):
        return 3


class Metal(metaclass=Meta):
    def __init__(self, n):
        self.n = n


@whole
def metaclasses(x, y):
    m = Metal(3)
    return (
        x * m.n,
        m.by_meta,
        Metal.tag,
        len(Metal),
        Metal["k"],
        list(Metal),
        1 in Metal,
        isinstance(m, Metal),
        isinstance(3, Metal),
        issubclass(int, Metal),
        Metal.helper(1),
        Metal.virtual,
        Metal + "!",
        type(Metal),
        hasattr(Metal, "gone"),
        Metal == Metal,
    )


class Singleton(type):
    instances = {}

    def __call__(cls, *args):
        return ("called", cls.__name__, args)


class Single(metaclass=Singleton):
    pass


@whole
def metaclass_call_replaces_construction(x, y):
    return x + 1, Single(1, 2)


class Plugin:
    registry = []
    prefix = "p"

    def __init_subclass__(cls, /, name=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.name = name
        Plugin.registry.append(cls)

    def __class_getitem__(cls, item):
        return f"{cls.__name__}[{item}]"


class First(Plugin, name="first"):
    pass


@whole
def class_hooks(x, y):
    return (
        x + 1,
        First.name,
        Plugin.registry,
        First[3],
        typing.List[int],
        list[int],
        dict[str, int].__args__,
    )


@whole
def classes_inside(x, y):
    class Local(Point, metaclass=type):
        scale = 2

        def scaled(self):
            return super().sum * self.scale

        def __len__(self):
            return x.shape[0]

    return Local(x, y).scaled() * len(Local(1)), Local.__name__, Local.__qualname__


@whole
def type_with_three_arguments(x, y):
    Made = type("Made", (Point,), {"k": 3, "times": lambda self, z: z * self.k})
    return Made(1).times(x), Made.__name__, Made.__mro__[1]


@whole
def named_tuple_inside(x, y):
    Pair = collections.namedtuple("Pair", "a b")
    return Pair(x, 1).a + y


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 3
