"""PYTEST_DONT_REWRITE. Classes: construction, attributes, descriptors, inheritance, metaclasses, operators, dataclasses,
named tuples, enums, subclasses of built-in classes."""

# ruff: noqa: B009, B010, B015, B018, B023, B903, B905, C408, C416, E501, E711, E721, E731, F811, F841, PLW, RUF, SIM, UP
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

# -- construction ------------------------------------------------------------------------------------------------------


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
    return q.sum, p.tag, type(q), q.count, Point.distance(Point(1, 2), Point(4, 6)), Point.origin(), p


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
    return x * p.sum, p.count, Point3.origin().z, isinstance(p, Point), issubclass(Point3, Point), repr(p), f"{p}", str(p), Point3.__mro__, Point3.__bases__


@whole
def class_attributes(x, y):
    p = Point(1)
    p.count += 5
    seen = p.count, Point.count, Point.kinds is p.kinds, "count" in vars(p), Point.__name__, Point.__dict__["count"]
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
        lambda: delattr(p, "nothing"), lambda: p(), lambda: p[0], lambda: len(p), lambda: iter(p), lambda: p + 1,
        lambda: 1 + p, lambda: p < p, lambda: -p, lambda: p @ p, lambda: 3 in p, lambda: next(p), lambda: p[0:1],
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
    return f.from_new + 1, f.from_init, Cached("int"), Cached("sub").kind, Cached("other").kind, made.x, vars(bare)


@whole
def wrong_construction(x, y):
    class_ = type("".join("x"))
    seen = []
    for act in (lambda: Point(), lambda: Point(1, 2, 3), lambda: Empty(1), lambda: Empty(a=1), lambda: object(1), lambda: Returns()):
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


# -- attribute hooks and descriptors -----------------------------------------------------------------------------------


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
    return g.b + d.width, hasattr(g, "a"), g.answer, getattr(d, "_x", "default"), d.log, seen, getattr(g, "zz", 3), g.values


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
    return x * f(2), bound(1), Point.__dict__["origin"].__get__(None, Point3)().z, Point.__dict__["distance"].__func__(p, p)


@whole
def getattr_and_friends(x, y):
    p = Point(1, 2)
    setattr(p, "z", x)
    delattr(p, "y")
    names = ["x", "y", "z", "sum", "moved"]
    return p.z + 1, [hasattr(p, n) for n in names], getattr(p, "y", None), getattr(p, "x"), p.__class__ is Point, getattr(Point, "count"), vars(p)


@whole
def instance_dict_is_live(x, y):
    p = Point(1, 2)
    space = p.__dict__
    space["extra"] = x
    p.later = 5
    p.__dict__.update(more=3)
    p.__dict__["x"] += 10
    return p.extra + p.more, p.x, sorted(space), "later" in p.__dict__, space is p.__dict__, list(p.__dict__.items())[0]


@whole
def class_of_an_object_changes(x, y):
    p = Point(1, 2)
    p.__class__ = Other
    return x * p.hello(), type(p)


class Other:
    def hello(self):
        return self.x


# -- super and several bases -------------------------------------------------------------------------------------------


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
    return x + len(d.log), d.log, d.who(), D.make(), [c.__name__ for c in D.__mro__], super(B, d).who(), isinstance(d, (C, int))


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
    return x * box.doubled(), box.describe(), box.unit, isinstance(box, Sized), message, Sized.__abstractmethods__


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
        isinstance(Duck(), Registered), issubclass(Point, Registered), isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping), isinstance(x, collections.abc.Iterable), isinstance(iter([]), collections.abc.Iterator),
        isinstance(Point, collections.abc.Hashable), isinstance(len, collections.abc.Callable), isinstance(3, (str, (int, float))),
        isinstance(3, int | str), isinstance(True, int), isinstance(None, type(None)), isinstance("a", typing.Sequence),
    ]  # fmt: skip
    return x + 1, checks


# -- metaclasses -------------------------------------------------------------------------------------------------------


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
    return x * m.n, m.by_meta, Metal.tag, len(Metal), Metal["k"], list(Metal), 1 in Metal, isinstance(m, Metal), isinstance(3, Metal), issubclass(int, Metal), Metal.helper(1), Metal.virtual, Metal + "!", type(Metal), hasattr(Metal, "gone"), Metal == Metal


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
    return x + 1, First.name, Plugin.registry, First[3], typing.List[int], list[int], dict[str, int].__args__


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


# -- operators ---------------------------------------------------------------------------------------------------------


class Vec:
    def __init__(self, *items):
        self.items = list(items)

    def _map(self, other, f):
        if isinstance(other, Vec):
            return Vec(*map(f, self.items, other.items))
        if isinstance(other, (int, float)):
            return Vec(*[f(i, other) for i in self.items])
        return NotImplemented

    def __add__(self, other):
        return self._map(other, lambda a, b: a + b)

    def __radd__(self, other):
        return self._map(other, lambda a, b: b + a)

    def __sub__(self, other):
        return self._map(other, lambda a, b: a - b)

    def __rsub__(self, other):
        return self._map(other, lambda a, b: b - a)

    def __imul__(self, k):
        self.items = [i * k for i in self.items]
        return self

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.items, other.items))

    def __rmatmul__(self, other):
        return "rmatmul"

    def __neg__(self):
        return Vec(*[-i for i in self.items])

    def __pos__(self):
        return self

    def __invert__(self):
        return Vec(*reversed(self.items))

    def __abs__(self):
        return sum(map(abs, self.items))

    def __bool__(self):
        return any(self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, key):
        return Vec(*self.items[key]) if isinstance(key, slice) else self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __delitem__(self, key):
        del self.items[key]

    def __contains__(self, item):
        return item in self.items

    def __eq__(self, other):
        return self.items == other.items if isinstance(other, Vec) else NotImplemented

    def __lt__(self, other):
        return self.items < other.items

    def __hash__(self):
        return hash(tuple(self.items))

    def __index__(self):
        return len(self.items)

    def __int__(self):
        return 11

    def __float__(self):
        return 1.5

    def __complex__(self):
        return 1j

    def __round__(self, n=None):
        return "rounded", n

    def __trunc__(self):
        return "truncated"

    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __divmod__(self, other):
        return "divmod", other

    def __pow__(self, other, modulus=None):
        return "pow", other, modulus

    def __rpow__(self, other):
        return "rpow", other

    def __lshift__(self, other):
        return "lshift"

    def __rrshift__(self, other):
        return "rrshift"

    def __and__(self, other):
        return "and"

    def __ror__(self, other):
        return "ror"

    def __ixor__(self, other):
        return "ixor"

    def __call__(self, *args, **kwargs):
        return args, kwargs

    def __reversed__(self):
        return iter(["reversed"])

    def __format__(self, spec):
        return f"<{spec}>"

    def __str__(self):
        return "vec"

    def __repr__(self):
        return f"Vec{tuple(self.items)}"

    def __bytes__(self):
        return b"vec"

    def __length_hint__(self):
        return 99

    def __dir__(self):
        return ["z", "a"]

    def __sizeof__(self):
        return 5


@whole
def arithmetic_operators(x, y):
    v, w = Vec(1, 2), Vec(3, 4)
    u = Vec(5, 6)
    u *= 2
    t = Vec(1)
    t += Vec(2)
    s = Vec(1)
    s ^= 3
    return x * (v @ w), (v + w).items, (v + 1).items, (1 + v).items, (10 - v).items, (v - w).items, u.items, t.items, s, (-v).items, +v is v, (~v).items, abs(Vec(-1, -2)), [1] @ v, v**2, 2**v, pow(v, 3), pow(v, 2, 5), v << 1, 1 >> v, v & 1, 1 | v, divmod(v, 3), sum([v, w], 0).items


@whole
def container_operators(x, y):
    v = Vec(1, 2, 3)
    v[0] = 9
    del v[1]
    return x + len(v), v[0], v[-1], v[0:1].items, 3 in v, 4 in v, 4 not in v, list(v), list(reversed(v)), bool(Vec(0)), bool(v), [1, 2, 3][Vec(1)], list(range(Vec(1, 2))), "ab" * Vec(1, 2), (not v)


@whole
def comparison_operators(x, y):
    v, w = Vec(1, 2), Vec(1, 2)
    return x + 1, v == w, v != w, v is w, v == 3, v != 3, v < Vec(2), Vec(0) > v, {v: "a"}[w], v in [w], [w].index(v), [v, w].count(v), {v, w} == {v}, sorted([Vec(2), Vec(1)])[0].items, max(Vec(1), Vec(2)).items, (v,) == (w,), {"k": v} == {"k": w}


@whole
def conversions(x, y):
    v = Vec(1, 2)
    return x + 1, int(v), float(v), complex(v), round(v), round(v, 2), str(v), repr(v), f"{v}", f"{v!r}", f"{v:>5}", "%s %r" % (v, v), "{} {!r} {:x}".format(v, v, v), bytes(v), hash(v) == hash((1, 2)), v(1, k=2), format(v, "q"), f"{[v]}", str({"k": v}), print


@whole
def more_conversions(x, y):
    import math
    import operator

    v = Vec(1, 2)
    return x + 1, math.floor(v), math.ceil(v), math.trunc(v), operator.index(v), hex(v), bin(v), chr(Vec()), dir(v), operator.length_hint(v), bool(v), callable(v)


class Left:
    def __add__(self, other):
        return NotImplemented

    def __eq__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return NotImplemented


class Right:
    def __radd__(self, other):
        return "radd"

    def __eq__(self, other):
        return "eq"

    def __gt__(self, other):
        return "gt"


class LeftSub(Left):
    def __radd__(self, other):
        return "sub radd"


@whole
def not_implemented(x, y):
    seen = []
    for act in (lambda: Left() + Left(), lambda: Left() + 1, lambda: Left() < Left(), lambda: Left() - 1, lambda: 1 + Left()):
        try:
            act()
        except TypeError as error:
            seen.append(str(error))
    a = Left()
    return x + 1, seen, Left() + Right(), Left() == Right(), Left() < Right(), a == a, a != a, a == Left(), Left() + LeftSub(), 3 == Right()


class OldIteration:
    def __getitem__(self, i):
        if i > 3:
            raise IndexError
        return i * 10


@whole
def iteration_by_getitem(x, y):
    o = OldIteration()
    return x + 1, list(o), [*o], 20 in o, 25 in o, tuple(zip(o, "ab")), max(o)


class Unhashable:
    __hash__ = None

    def __eq__(self, other):
        return True


class NoIteration:
    __iter__ = None

    def __getitem__(self, i):
        return i


@whole
def special_methods_set_to_none(x, y):
    seen = []
    for act in (lambda: {Unhashable(): 1}, lambda: hash(Unhashable()), lambda: list(NoIteration()), lambda: 1 in NoIteration()):
        try:
            act()
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen


class BadResults:
    def __bool__(self):
        return 3

    def __len__(self):
        return -1

    def __index__(self):
        return "i"

    def __str__(self):
        return 5

    def __iter__(self):
        return 5

    def __hash__(self):
        return "h"


@whole
def special_methods_give_nonsense(x, y):
    seen = []
    b = BadResults()
    for act in (lambda: bool(b), lambda: len(b), lambda: [1][b], lambda: str(b), lambda: iter(b), lambda: hash(b), lambda: f"{b}"):
        try:
            act()
        except (TypeError, ValueError) as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


class TensorLike:
    def __init__(self, value):
        self.value = value

    def __mul__(self, other):
        return TensorLike(self.value * other)

    def __rmul__(self, other):
        return "rmul", other

    def __getattr__(self, name):
        return getattr(self.value, name)


@whole
def objects_beside_tensors(x, y):
    t = TensorLike(x)
    return (t * y).value, t.shape, t.sum(), t.dim()


# -- dataclasses -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    size: int
    name: str = "n"
    layers: list = dataclasses.field(default_factory=list)
    hidden: dict = dataclasses.field(default_factory=lambda: {"k": 1}, repr=False, compare=False)
    scale: dataclasses.InitVar[float] = 2.0
    derived: float = dataclasses.field(init=False)
    kind: typing.ClassVar[str] = "config"

    def __post_init__(self, scale):
        self.derived = self.size * scale


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: tuple = ()


@dataclasses.dataclass(slots=True, kw_only=True)
class SlotData:
    left: object
    right: object = None


@dataclasses.dataclass(eq=False)
class Nested(Config):
    inner: Frozen = Frozen(1)


@whole
def dataclasses_are_made(x, y):
    c = Config(3, layers=[x])
    d = Config(3, "n", [x])
    n = Nested(2, scale=3.0)
    s = SlotData(left=x)
    return c.derived, c.layers[0] + 1, c.hidden, c.kind, c.hidden is d.hidden, n.inner.a, n.derived, s.left, s.right, c, s, n


@whole
def dataclass_methods(x, y):
    c, d = Config(3), Config(3)
    f, g = Frozen(1, (2,)), Frozen(1, (3,))
    return x + 1, c == d, c != d, c == 3, repr(c), str(f), f < g, f >= g, hash(f) == hash(Frozen(1, (2,))), {f: 1}[Frozen(1, (2,))], sorted([g, f])[0] is f, f


@whole
def dataclass_functions(x, y):
    c = Config(3, layers=[Frozen(1, (x,))])
    changed = dataclasses.replace(c, size=5, scale=1.0)
    f = dataclasses.replace(Frozen(1), b=(2,))
    names = [field.name for field in dataclasses.fields(c)]
    return changed.derived, changed.size, f, names, dataclasses.is_dataclass(c), dataclasses.is_dataclass(Config), dataclasses.is_dataclass(3), dataclasses.fields(Frozen)[0].type


@whole
def dataclass_as_dict(x, y):
    c = Config(3, layers=[Frozen(1, (2, [3])), {"k": Frozen(4)}])
    return x + 1, dataclasses.asdict(c), dataclasses.astuple(Frozen(1, (2, 3))), dataclasses.asdict(SlotData(left=1))


@whole
def frozen_dataclass_refuses(x, y):
    f = Frozen(1)
    seen = []
    for act in (lambda: setattr(f, "a", 2), lambda: delattr(f, "a"), lambda: Config(), lambda: Config(1, nothing=2)):
        try:
            act()
        except (dataclasses.FrozenInstanceError, TypeError) as error:
            seen.append((type(error), str(error)))
    return x + f.a, seen


@broken("a class is defined")
def dataclass_inside(x, y):
    @dataclasses.dataclass
    class Local:
        a: torch.Tensor
        b: int = 2

    return Local(x).a * Local(y).b


@whole
def match_args_of_dataclass(x, y):
    match Frozen(3, (4,)):
        case Frozen(a, (b,)):
            return x * a + b


# -- named tuples and enums --------------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", ["a", "b"], defaults=[5])


class Typed3(typing.NamedTuple):
    first: torch.Tensor
    second: int = 2

    def total(self):
        return self.first.sum() + self.second

    @property
    def twice(self):
        return self.second * 2


@whole
def named_tuples(x, y):
    p = Pair(x)
    q = p._replace(b=1)
    a, b = q
    t = Typed3(y, second=4)
    return p, q._asdict(), a, b, Pair._fields, Pair._make([1, 2]), p[0] is x, t.total(), t.twice, t, Pair(1, 2) == (1, 2), isinstance(p, tuple), len(p), q + (3,), p._field_defaults, q[::-1], hash(Pair(1, 2)) == hash((1, 2))


@whole
def named_tuple_text(x, y):
    return x + 1, repr(Pair(1, "b")), str(Typed3(1)), f"{Pair(1)}", Pair.__name__, Typed3.__annotations__ is not None


@whole
def named_tuple_errors(x, y):
    seen = []
    p = Pair(1, 2)
    for act in (lambda: Pair(), lambda: Pair(1, 2, 3), lambda: Pair(c=1), lambda: p._replace(c=1), lambda: setattr(p, "a", 2), lambda: p.c):
        try:
            act()
        except (TypeError, ValueError, AttributeError) as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


class Color(enum.Enum):
    RED = 1
    GREEN = "green"
    ALSO_RED = 1

    @property
    def loud(self):
        return self.name + "!"

    @classmethod
    def parse(cls, text):
        return cls[text.upper()]

    def mix(self, other):
        return (self.name, other.name)

    def __str__(self):
        return f"color {self.value}"


class Perm(enum.Flag):
    R = 4
    W = 2
    X = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Name(str, enum.Enum):
    A = "a"
    B = "b"


class Auto(enum.Enum):
    ONE = enum.auto()
    TWO = enum.auto()


@whole
def enums(x, y):
    return (
        x + 1, Color.RED, Color(1), Color["GREEN"], Color.RED.value, Color.RED.name, Color.RED.loud, Color.parse("red"),
        Color.ALSO_RED is Color.RED, list(Color), len(Color), Color.RED in Color, Color.RED.mix(Color.GREEN), str(Color.RED),
        repr(Color.RED), f"{Color.GREEN}", Color.RED == 1, Color.RED != Color.GREEN, {Color.RED: 1}[Color.RED],
        isinstance(Color.RED, Color), type(Color.RED), Color.__members__["RED"], [c.name for c in Color], Auto.TWO.value,
        hash(Color.RED) == hash(Color.RED), Color.RED is Color.RED, Color.RED is Color.GREEN,
    )  # fmt: skip


@whole
def flags_and_int_enums(x, y):
    rw = Perm.R | Perm.W
    return (
        x * Level.HIGH, rw, rw.value, Perm.R in rw, Perm.X in rw, ~rw, rw & Perm.W, rw ^ Perm.R, bool(rw & Perm.X), Perm(6) is rw,
        Level.LOW + 1, Level.LOW < Level.HIGH, max(Level), Level(5), int(Level.HIGH), [1, 2][Level.LOW], f"{Level.HIGH}",
        Name.A == "a", Name("b"), Name.A.upper(), "x" + Name.B, {"a": 1}[Name.A], Name.A in ("a", "b"), sorted(Level),
    )  # fmt: skip


@whole
def enum_errors(x, y):
    seen = []
    for act in (lambda: Color(99), lambda: Color["NO"], lambda: Color.NO, lambda: Color.RED < Color.GREEN, lambda: Color.RED.nothing):
        try:
            act()
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 4
