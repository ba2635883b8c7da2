"""PYTEST_DONT_REWRITE. Classes: construction, attributes, descriptors."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

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


class Doubled:
    """A descriptor that takes what is written, and gives nothing: the instance is read."""

    def __set__(self, instance, value):
        vars(instance)["size"] = value * 2


class Doubles:
    size = Doubled()


@whole
def descriptors_that_only_take(x, y):
    d = Doubles()
    before = d.size is vars(Doubles)["size"]
    d.size = 4
    return before, d.size, x + d.size, Doubles.size is vars(Doubles)["size"], vars(d)


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


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 0
