"""PYTEST_DONT_REWRITE. Classes: construction, attributes, descriptors, inheritance, metaclasses,
operators, dataclasses, named tuples, enums, subclasses of built-in classes."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import typing
from collections import OrderedDict

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

# -- construction ----------------------------------------------------------------------------------


class Point:
    count = 0
    kinds = ["plain"]

    def __init__(self, x, y=0, **named):
        self.x, self.y = x, y
        for name, value in named.items():
            setattr(self, name, value)

    def moved(self, by):
        return type(self)(self.x + by, self.y + by)

    @classmethod
    def origin(cls):
        return cls(0, 0)

    @staticmethod
    def distance(a, b):
        return abs(a.x - b.x) + abs(a.y - b.y)

    @property
    def sum(self):
        return self.x + self.y

    @sum.setter
    def sum(self, value):
        self.x = value - self.y

    @sum.deleter
    def sum(self):
        self.x = self.y = 0

    def __repr__(self):
        return f"Point({self.x}, {self.y})"


class Point3(Point):
    count = 3

    def __init__(self, x, y=0, z=0):
        super().__init__(x, y)
        self.z = z

    @classmethod
    def origin(cls):
        made = super().origin()
        made.z = -1
        return made

    @property
    def sum(self):
        return super().sum + self.z

    def __repr__(self):
        return super().__repr__() + "!"


@whole
def makes_objects(x, y):
    p = Point(x, y, tag="t")
    q = p.moved(1)
    return (
        q.sum,
        p.tag,
        type(q),
        q.count,
        Point.distance(Point(1, 2), Point(4, 6)),
        Point.origin(),
        p,
    )


@whole
def properties(x, y):
    p = Point(1, 2)
    p.sum = 10
    a = p.x
    del p.sum
    return x + a, p.x, Point.sum.fget(Point(5, 6)), isinstance(Point.sum, property)


@whole
def property_without_setter(x, y):
    p = Point3(1, 2, 3)
    seen = []
    for act in (lambda: setattr(p, "sum", 1), lambda: delattr(p, "sum")):
        try:
            act()
        except AttributeError as error:
            seen.append(str(error))
    return x * p.sum, seen


@whole
def inheritance(x, y):
    p = Point3(1, 2, 3)
    return (
        x * p.sum,
        p.count,
        Point3.origin().z,
        isinstance(p, Point),
        issubclass(Point3, Point),
        repr(p),
        f"{p}",
        str(p),
        Point3.__mro__,
        Point3.__bases__,
    )


@whole
def class_attributes(x, y):
    p = Point(1)
    p.count += 5
    seen = (
        p.count,
        Point.count,
        Point.kinds is p.kinds,
        "count" in vars(p),
        Point.__name__,
        Point.__dict__["count"],
    )
    del p.count
    try:
        del p.count
    except AttributeError as error:
        return x + p.count, seen, str(error)


@whole
def missing_attributes(x, y):
    seen = []
    p = Point(1)
    for act in (
        lambda: p.nothing, lambda: Point.nothing, lambda: p.x.nothing, lambda: setattr(3, "a", 1),
        lambda: delattr(p, "nothing"), lambda: p(), lambda: p[0], lambda: len(p), lambda: iter(p),
        lambda: p + 1, lambda: 1 + p, lambda: p < p, lambda: -p, lambda: p @ p, lambda: 3 in p,
        lambda: next(p), lambda: p[0:1],
        lambda: int(p), lambda: float(p), lambda: [1][p], lambda: range(p),
    ):  # fmt: skip
        try:
            act()
        except Exception as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


class Fresh:
    made = 0

    def __new__(cls, value, *args):
        self = super().__new__(cls)
        self.from_new = value
        return self

    def __init__(self, value, *args):
        self.from_init = args


class Cached:
    def __new__(cls, kind):
        if kind == "int":
            return 5
        if kind == "sub":
            return object.__new__(CachedSub)
        return object.__new__(cls)

    def __init__(self, kind):
        self.kind = kind


class CachedSub(Cached):
    def __init__(self, kind):
        self.kind = "sub of " + kind


@whole
def new_and_init(x, y):
    f = Fresh(x, 1, 2)
    made = object.__new__(Point)
    made.x = 3
    bare = Point.__new__(Point)
    return (
        f.from_new + 1,
        f.from_init,
        Cached("int"),
        Cached("sub").kind,
        Cached("other").kind,
        made.x,
        vars(bare),
    )


@whole
def wrong_construction(x, y):
    class_ = type("".join("x"))
    seen = []
    for act in (
        lambda: Point(),
        lambda: Point(1, 2, 3),
        lambda: Empty(1),
        lambda: Empty(a=1),
        lambda: object(1),
        lambda: Returns(),
    ):
        try:
            act()
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen, class_


class Empty:
    pass


class Returns:
    def __init__(self):
        return 5


class Slotted:
    __slots__ = ("a", "b", "__dict__")

    def __init__(self, a):
        self.a = a


class Tight:
    __slots__ = "only"


@whole
def slots(x, y):
    s, t = Slotted(x), Tight()
    s.c = 5
    seen = []
    t.only = 1
    for act in (lambda: s.b, lambda: setattr(t, "other", 1), lambda: t.__dict__, lambda: t.other):
        try:
            act()
        except AttributeError as error:
            seen.append(str(error))
    del t.only
    return s.a + 1, s.c, vars(s), seen, hasattr(t, "only"), s, t


# -- attribute hooks and descriptors ---------------------------------------------------------------


class Dynamic:
    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(f"no {name}")
        self.log.append(name)
        return len(name)


class Guarded:
    def __init__(self):
        object.__setattr__(self, "values", {})

    def __setattr__(self, name, value):
        if name == "frozen":
            raise TypeError("frozen")
        self.values[name] = value

    def __delattr__(self, name):
        del self.values[name]

    def __getattribute__(self, name):
        if name == "answer":
            return 42
        return super().__getattribute__(name)

    def __getattr__(self, name):
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


@whole
def attribute_hooks(x, y):
    d, g = Dynamic(), Guarded()
    g.a, g.b = 1, x
    del g.a
    seen = []
    try:
        g.frozen = 1
    except TypeError as error:
        seen.append(str(error))
    return (
        g.b + d.width,
        hasattr(g, "a"),
        g.answer,
        getattr(d, "_x", "default"),
        d.log,
        seen,
        getattr(g, "zz", 3),
        g.values,
    )


class Typed:
    """A data descriptor."""

    def __init__(self, kind):
        self.kind = kind

    def __set_name__(self, owner, name):
        self.name, self.owner = name, owner

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__.get(self.name, self.kind())

    def __set__(self, instance, value):
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.name} is no {self.kind.__name__}")
        instance.__dict__[self.name] = value

    def __delete__(self, instance):
        instance.__dict__.pop(self.name, None)


class Lazy:
    """A non-data descriptor: the instance comes first."""

    def __init__(self, make):
        self.make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return owner.__name__
        value = instance.__dict__[self.name] = self.make(instance)
        return value


class Described:
    width = Typed(int)
    label = Typed(str)

    def __init__(self, width):
        self.width = width

    @Lazy
    def area(self):
        return self.width**2


@whole
def descriptors(x, y):
    d = Described(3)
    seen = [d.width, d.label, d.area, d.area, sorted(vars(d)), Described.area, Described.width.name]
    d.area = 7
    d.label = "l"
    try:
        d.width = "w"
    except TypeError as error:
        seen.append(str(error))
    del d.width
    return x + d.area, seen, d.width, d.label, type(Described.width)


@whole
def descriptor_protocol_by_hand(x, y):
    p = Point3(1, 2, 3)
    bound = Point.moved.__get__(p)
    f = (lambda self, k: self.z * k).__get__(p, Point3)
    return (
        x * f(2),
        bound(1),
        Point.__dict__["origin"].__get__(None, Point3)().z,
        Point.__dict__["distance"].__func__(p, p),
    )


@whole
def getattr_and_friends(x, y):
    p = Point(1, 2)
    setattr(p, "z", x)
    delattr(p, "y")
    names = ["x", "y", "z", "sum", "moved"]
    return (
        p.z + 1,
        [hasattr(p, n) for n in names],
        getattr(p, "y", None),
        getattr(p, "x"),
        p.__class__ is Point,
        getattr(Point, "count"),
        vars(p),
    )


@whole
def instance_dict_is_live(x, y):
    p = Point(1, 2)
    space = p.__dict__
    space["extra"] = x
    p.later = 5
    p.__dict__.update(more=3)
    p.__dict__["x"] += 10
    return (
        p.extra + p.more,
        p.x,
        sorted(space),
        "later" in p.__dict__,
        space is p.__dict__,
        list(p.__dict__.items())[0],
    )


@whole
def class_of_an_object_changes(x, y):
    p = Point(1, 2)
    p.__class__ = Other
    return x * p.hello(), type(p)


class Other:
    def hello(self):
        return self.x


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


@broken("a class is defined")
def classes_inside(x, y):
    class Local(Point, metaclass=type):
        scale = 2

        def scaled(self):
            return super().sum * self.scale

        def __len__(self):
            return x.shape[0]

    return Local(x, y).scaled() * len(Local(1)), Local.__name__, Local.__qualname__


@broken("a class is defined")
def type_with_three_arguments(x, y):
    Made = type("Made", (Point,), {"k": 3, "times": lambda self, z: z * self.k})
    return Made(1).times(x), Made.__name__, Made.__mro__[1]


@broken("a class is defined")
def named_tuple_inside(x, y):
    Pair = collections.namedtuple("Pair", "a b")
    return Pair(x, 1).a + y


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 3
