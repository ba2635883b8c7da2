"""PYTEST_DONT_REWRITE. Objects that existed before the call: of every kind, passed along, compared,
used, changed."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import itertools
import operator
import re
import threading
import types
import weakref

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


class Thing:
    kind = "thing"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def scaled(self, k):
        return self.value * k

    def __repr__(self):
        return "a thing"


class Stack(list):
    def __init__(self, *items):
        super().__init__(items)
        self.label = "l"

    def top(self):
        return self[-1]


class Name(str):
    def shout(self):
        return self.upper() + "!"


class Count(int):
    note = "n"

    def doubled(self):
        return self * 2


class Ratio(float):
    pass


class Tags(set):
    pass


class Version(tuple):
    @property
    def major(self):
        return self[0]


class Slots:
    __slots__ = ("a", "b")


class Level(enum.IntEnum):
    LOW = 1


Pair = collections.namedtuple("Pair", "a b")


CONFIG = type("Config", (), {"size": 3, "table": {"k": 2}})


def opaque():
    return (
        object(), threading.Lock(), torch.Generator(), re.compile("a"), weakref.ref(Thing),
        iter([1]), (i for i in ()), zip("a"), memoryview(b"a"), contextvars.ContextVar("v"),
        types.SimpleNamespace(a=1), len, [].append, "".join, print, functools.partial(len),
        functools.lru_cache(len), operator.itemgetter(0), contextlib.nullcontext(),
        contextlib.ExitStack(), property(len), staticmethod(len), Level.LOW, Pair(1, 2), range(3),
        slice(1), bytearray(b"a"), ValueError("v"), types.CellType(1), collections.deque([1]),
        collections.Counter("a"), collections.ChainMap(), collections.OrderedDict(),
        collections.defaultdict(int), frozenset([1]), {1}, Stack(1), Name("n"), Count(1), Tags([1]),
        Version((1,)), CONFIG, list[int], int | str, NotImplemented, ..., 1j, itertools.count(),
        enumerate([]), map(len, []), reversed([1]), {}.keys(), {}.items(),
        types.MappingProxyType({}), super(Stack, Stack()),
    )  # fmt: skip


HELD = opaque()


VIEWED = {"a": 1, "b": 2}
KEYS, VALUES, ITEMS = VIEWED.keys(), VIEWED.values(), VIEWED.items()


@whole
def views_of_dicts(x, y):
    return x + 1, "a" in KEYS, sum(VALUES), list(ITEMS), len(KEYS), KEYS & {"a"}, ("b", 2) in ITEMS


class Numbered:
    pass


NUMBERED = Numbered()
NUMBER = id(NUMBERED)


@whole
def numbers_of_objects(x, y):
    n = id(NUMBERED)
    return x + 1, n == NUMBER, n != 5, NUMBER == n, n + 1 - NUMBER, id(Numbered) == n, n in (1, n)


@whole(make=opaque)
def everything_can_be_passed_along(x, y, *things):
    first, *rest = things
    kept = {"first": first, "rest": rest}
    return (
        x + len(things),
        kept["rest"][0] is things[1],
        first is things[0],
        kept["rest"][-1] is things[-1],
        first is not things[1],
    )


@whole
def everything_can_be_a_global(x, y):
    kept = HELD[1:], {"first": HELD[0]}
    return x + 1, [h is None for h in HELD], kept[1]["first"] is HELD[0], kept[0][-1] is HELD[-1]


def not_generators():
    return tuple(thing for thing in opaque() if not isinstance(thing, types.GeneratorType))


@whole(make=not_generators)
def types_of_everything(x, y, *things):
    return (
        x + 1,
        [type(t) for t in things],
        [isinstance(t, collections.abc.Iterable) for t in things],
        [callable(t) for t in things],
    )


@whole(make=lambda: (Stack(torch.ones(4), 2.0),))
def list_subclass(x, y, s):
    return (
        x * s[1] + s[0],
        s.top(),
        len(s),
        s.label,
        [type(i) for i in s],
        s[1:].index(2.0),
        isinstance(s, list),
        s[:1],
        bool(s),
        s,
    )


@whole(make=lambda: (Stack(1),), fresh=True)
def list_subclass_is_changed(x, y, s):
    s.append(x + 1)
    s.label = "changed"
    s[0] = 5
    s += [6]
    return s, len(s), s.top()


@whole(make=lambda: (Name("bob"), Count(3), Ratio(0.5), Level.LOW))
def text_and_number_subclasses(x, y, n, c, r, level):
    return (
        x * c,
        x * r,
        x + level,
        n.shout(),
        n + "!",
        c.doubled(),
        c.note,
        r + 1,
        f"{n} {c} {r}",
        {"bob": 1}[n],
        range(c),
        n == "bob",
        c == 3,
        [10, 20, 30, 40][c],
        n,
        c,
        r,
        type(c + 1),
        hash(n) == hash("bob"),
    )


@whole(make=lambda: (Tags("ab"), Version((2, 1)), {3, 1, 2}, frozenset("xy")))
def sets_and_tuples(x, y, tags, v, s, f):
    return (
        x * v.major,
        sorted(tags),
        "a" in tags,
        len(tags),
        v[1:],
        v > (1,),
        v,
        list(s),
        3 in s,
        s | {9},
        f & {"x"},
        tags == {"a", "b"},
        [i for i in s],
        f,
    )


@whole(make=lambda: ({1, 2}, Tags("a")), fresh=True)
def sets_are_changed(x, y, s, t):
    s.add(3)
    s.discard(1)
    t.add("b")
    s |= {7}
    return x + len(s), s, t


@whole(
    make=lambda: (
        collections.deque([torch.ones(4), 2.0], maxlen=5),
        collections.Counter("aab"),
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, k=[1]),
    )
)
def collections_from_outside(x, y, d, c, o, dd):
    return (
        x * d[1] + d[0],
        len(d),
        d.maxlen,
        c["a"],
        c["zz"],
        c.most_common(1),
        list(o),
        o["a"],
        dd["k"],
        "zz" in dd,
        [i for i in d][1],
    )


@whole(
    make=lambda: (
        collections.deque([1]),
        collections.Counter("aab"),
        collections.OrderedDict(b=1),
        collections.defaultdict(list),
    ),
    fresh=True,
)
def collections_are_changed(x, y, d, c, o, dd):
    d.append(x + 1)
    d.appendleft(0)
    c.update("ab")
    c["new"] += 1
    o["z"] = y
    o.move_to_end("b")
    dd["k"].append(x)
    return d, c, o, dd, len(d)


@whole(make=lambda: (collections.ChainMap({"a": 1}, {"b": torch.ones(4)}),))
def chain_map_from_outside(x, y, c):
    return x + c["b"] * c["a"], "a" in c, len(c), sorted(c)


@whole(
    make=lambda: (iter([1, 2, 3]), iter((4, 5)), iter(range(3)), iter({"a": 1, "b": 2})), fresh=True
)
def iterators_are_used(x, y, a, b, c, d):
    return x * next(a), list(a), next(b), list(c), next(d), list(d), next(a, "end")


@whole(make=lambda: ((i * 2 for i in range(4)),), fresh=True)
def generator_is_used(x, y, g):
    return x * next(g), next(g), list(g)


@broken(
    "",
    make=lambda: (map(str, [1, 2]), itertools.count(5), zip("ab"), enumerate(iter("ab"))),
    fresh=True,
)
def c_iterators_are_used(x, y, m, c, z, e):
    return x + next(c), next(m), next(c), list(z), list(e)


@whole(
    make=lambda: (
        zip((1, 2), [3, 4, 5]),
        enumerate([7, 8, 9], 5),
        reversed([1, 2, 3]),
        enumerate(zip(range(3), {"a": 1})),
        reversed((1, 2)),
    ),
    fresh=True,
)
def nested_iterators_are_used(x, y, z, e, r, n, t):
    return (
        x * next(e)[1],
        next(e),
        next(z),
        list(z),
        next(r),
        next(r),
        list(n),
        list(t),
        next(n, "end"),
    )


@whole(make=lambda: (zip([1], [2, 3]), zip([1, 2], [3]), enumerate([])), fresh=True)
def uneven_iterators_are_used(x, y, a, b, c):
    return x + 1, list(a), list(b), list(c)


@whole(make=lambda: (types.SimpleNamespace(a=2, b=torch.ones(4)),))
def namespace(x, y, n):
    return x * n.a + n.b, hasattr(n, "zz"), sorted(vars(n)), n == n


@whole(make=lambda: (types.SimpleNamespace(a=2),), fresh=True)
def namespace_is_changed(x, y, n):
    n.a += 1
    n.c = x
    return x * n.a, n


@whole(make=lambda: (ValueError("v", 2), KeyError("k")))
def exceptions_are_read(x, y, e, k):
    return (
        x + len(e.args),
        str(e),
        repr(e),
        e.args,
        isinstance(e, ValueError),
        str(k),
        e.__cause__,
        e.__context__,
    )


@whole(make=lambda: (ValueError("v"),), fresh=True)
def exception_is_raised(x, y, e):
    try:
        raise e
    except ValueError as caught:
        return x + 1, caught is e, caught.args


@whole(make=lambda: (Slots(),), fresh=True)
def slots(x, y, s):
    before = hasattr(s, "a"), hasattr(s, "b")
    s.a = x
    return before, s.a + 1, hasattr(s, "a")


@whole(
    make=lambda: (
        functools.partial(torch.mul, torch.full((4,), 2.0)),
        operator.itemgetter(1),
        operator.attrgetter("kind"),
        operator.methodcaller("scaled", 3),
    )
)
def callables_from_outside(x, y, p, get, attr, call):
    return p(x), get([1, 2]), attr(Thing()), call(Thing(value=y)), p.func is torch.mul, len(p.args)


@whole(make=lambda: (Thing(value=2).scaled, [1, 2].index, "a,b".split, {"k": 1}.get, Thing.scaled))
def bound_methods_from_outside(x, y, m, index, split, get, unbound):
    return (
        x * m(3),
        index(2),
        split(","),
        get("k"),
        get("z", 0),
        m.__self__.value,
        m.__name__,
        unbound(Thing(value=5), 2),
    )


@whole(make=lambda: ([],), fresh=True)
def bound_append_from_outside(x, y, items):
    add = items.append
    add(x)
    return items, add(y), len(items)


def closures():
    n = 3
    t = torch.ones(4)

    def inner(z, k=2):
        return z * n * k + t

    return (inner,)


@whole(make=closures)
def closure_from_outside(x, y, f):
    return f(x), f.__name__, f.__defaults__, f.__closure__[0].cell_contents, f.__code__.co_name


@whole(
    make=lambda: (
        {"a": [1, {"b": (2, 3)}], "t": torch.ones(4)},
        [Thing(value=1, inner=Thing(value=2))],
        ((1, 2), [3]),
    )
)
def nested_containers(x, y, d, things, t):
    return (
        x * d["a"][1]["b"][1] + d["t"],
        things[0].inner.value,
        t[1][0],
        d["a"] is d["a"],
        [k for k in d],
        things[0] is things[0],
    )


@whole(make=lambda: (CONFIG,))
def class_as_a_namespace(x, y, cls):
    return x * cls.size + cls.table["k"], cls.__name__, cls().size, hasattr(cls, "zz")


@whole(make=lambda: (re.compile(r"(\d+)"), "a12b"))
def pattern_from_outside(x, y, p, text):
    return x * int(p.search(text).group(1)), p.sub("#", text), bool(p.match(text))


@whole(
    make=lambda: (
        b"ab",
        3 + 4j,
        range(5),
        slice(0, 2),
        torch.float32,
        torch.device("cpu"),
        torch.Size([3, 4]),
    )
)
def immutables(x, y, b, c, r, s, dtype, device, size):
    return (
        x[s].to(dtype).to(device),
        b[0],
        c.real,
        list(r),
        len(r),
        size[0],
        size == x.shape,
        b + b"c",
    )


@broken("", make=lambda: (bytearray(b"abc"),))
def bytearray_from_outside(x, y, b):
    return x + b[0], bytes(b)


@broken("", make=lambda: (torch.Generator().manual_seed(3),), fresh=True)
def torch_generator(x, y, g):
    return x + torch.rand(4, generator=g)


@broken("", make=lambda: (threading.Lock(),))
def lock_from_outside(x, y, lock):
    with lock:
        z = x + 1
    return z, lock.locked()


@broken("", make=lambda: (Thing(value=2),))
def weak_dictionary(x, y, t):
    d = weakref.WeakKeyDictionary()
    d[t] = 5
    return x * d[t]


@contextlib.contextmanager
def entering(log):
    log.append("in")
    yield 2
    log.append("out")


@whole(make=lambda: ([],), fresh=True)
def context_manager_logs_outside(x, y, log):
    with entering(log) as two:
        z = x * two
    return z, log


@whole(make=lambda: (contextlib.nullcontext(3), contextlib.suppress(KeyError)))
def context_managers_from_outside(x, y, null, suppress):
    with null as n, suppress:
        raise KeyError
    return x * n


@whole(
    make=lambda: (
        collections.UserDict(a=1),
        collections.UserList([1, 2]),
        collections.UserString("s"),
    )
)
def user_collections(x, y, d, items, s):
    return x * d["a"], len(items), items[0], str(s), "a" in d, s.upper(), d.get("z", 5)


@dataclasses.dataclass
class Options:
    size: int = 3
    names: list = dataclasses.field(default_factory=list)


@whole(make=lambda: (Options(names=["a"]),), fresh=True)
def dataclass_from_outside(x, y, o):
    o.size += 1
    o.names.append("b")
    changed = dataclasses.replace(o, size=9)
    return x * o.size, changed.size, dataclasses.asdict(o), o == changed, changed.names is o.names


@whole(make=lambda: (types.CellType(5),), fresh=True)
def cells(x, y, c):
    c.cell_contents += 1
    return x * c.cell_contents


@broken("", make=lambda: (types.CellType(),))
def an_empty_cell(x, y, c):
    try:
        c.cell_contents
    except ValueError as error:
        return x + 1, str(error)


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 6
