"""PYTEST_DONT_REWRITE. A graph break in the middle of every construct, with every kind of value
alive across it."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import operator
import sys
import types

import torch

from tests.capture.language import Table

TABLE = Table()
broken = TABLE.broken("call_tracing")


def pause(value=None):
    """A call that is not captured."""
    return (
        sys.call_tracing(len, ((),)) + 1
        if value is None
        else sys.call_tracing(type(value), (value,))
    )


# -- what is alive across it -----------------------------------------------------------------------


@broken
def iterators(x, y):
    z, e, m, f = (
        zip("abc", [1, 2, 3]),
        enumerate("ab", 5),
        map(lambda v: v * 2, [1, 2, 3]),
        filter(None, [0, 1, 2]),
    )
    r, u, s = reversed([1, 2, 3]), iter("abc"), iter({"a": 1, "b": 2}.items())
    taken = next(z), next(e), next(m), next(f), next(r), next(u), next(s)
    pause()
    return (
        x + 1,
        taken,
        list(z),
        list(e),
        list(m),
        list(f),
        list(r),
        list(u),
        list(s),
        type(z),
        type(m),
    )


@broken
def itertools_iterators(x, y):
    it = itertools
    made = [
        it.chain("ab", "cd"), it.chain.from_iterable(["ab", "c"]), it.islice("abcdefg", 1, 6, 2),
        it.accumulate([1, 2, 3]), it.repeat("r", 3), it.cycle("abc"), it.count(3, 2),
        it.pairwise("abcd"), it.takewhile(lambda v: v < 4, range(9)),
        it.dropwhile(lambda v: v < 2, range(5)), it.compress("abcd", [1, 0, 1, 1]),
        it.starmap(pow, [(2, 3), (3, 2)]), it.zip_longest("abc", "x", fillvalue="-"),
        it.product("ab", [1, 2]), it.combinations("abcd", 2), it.permutations("abc"),
        it.filterfalse(None, [0, 1, 0]), it.combinations_with_replacement("ab", 2),
        iter([1, 2, 3].pop, 1), reversed({"a": 1, "b": 2}),
    ]  # fmt: skip
    first = [next(m) for m in made]
    pause()
    return x + 1, first, [list(it.islice(m, 4)) for m in made], [type(m).__name__ for m in made]


@broken
def ended_iterators(x, y):
    items = [1]
    a, b, c = iter(items), zip("a"), itertools.islice("abc", 1)
    used = list(a), list(b), list(c)
    items.append(2)
    pause()
    return x + 1, used, list(a), list(b), list(c)


@broken
def generators(x, y):
    log = []

    def numbers(n):
        try:
            for i in range(n):
                got = yield x * i
                log.append(got)
        finally:
            log.append("end")

    g = numbers(3)
    first = next(g), g.send("a")
    unstarted = (i * 2 for i in range(3))
    pause()
    return first, list(g), log, list(unstarted)


@broken
def generator_delegation(x, y):
    def inner():
        got = yield 1
        yield got
        return "r"

    def outer():
        result = yield from inner()
        yield result

    g = outer()
    next(g)
    pause()
    return x + 1, g.send("s"), next(g)


class Problem(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


@broken
def exceptions(x, y):
    try:
        try:
            raise KeyError("k")
        except KeyError as inner:
            raise Problem(3) from inner
    except Problem as error:
        caught = error
    unraised = ValueError("u")
    unraised.note = "n"
    pause()
    return (
        x + caught.code,
        caught,
        caught.__cause__.args,
        caught.__context__ is caught.__cause__,
        unraised,
        caught.__traceback__ is not None,
        unraised.__traceback__,
    )


class Stack(list):
    def __init__(self, *items):
        super().__init__(items)
        self.label = items


class Id(int):
    def __new__(cls, value, note):
        made = super().__new__(cls, value)
        made.note = note
        return made


class Name(str):
    pass


class Version(tuple):
    pass


class Tags(set):
    pass


class Attrs(dict):
    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class MyDeque(collections.deque):
    pass


class MyCounter(collections.Counter):
    pass


@broken
def subclasses_of_builtins(x, y):
    made = (
        Stack(1, x),
        Id(5, "note"),
        Name("n"),
        Version((1, 2)),
        Tags("a"),
        Attrs(k=y),
        MyDeque([1], 3),
        MyCounter("aab"),
    )
    made[2].tag = "t"
    pause()
    made[0].append(2)
    return x * made[1], made, made[1].note, made[5].k, made[0].label, made[2].tag


@broken
def callables(x, y):
    def closure(z):
        return z + offset

    offset = x
    partial = functools.partial(max, key=lambda v: -v)
    partial.note = "n"
    made = (
        closure,
        partial,
        operator.itemgetter(1),
        operator.attrgetter("shape"),
        operator.methodcaller("sum"),
        [1, 2].index,
        "a".upper,
        x.add,
    )
    pause()
    f, p, get, attr, method, index, upper, add = made
    return f(y), p([1, 2]), p.note, get("ab"), attr(x), method(x), index(2), upper(), add(1)


@broken
def closures_share_cells(x, y):
    n = 1

    def increase():
        nonlocal n
        n += 1
        return n

    def read():
        return n

    increase()
    pause()
    increase()
    n += 10
    return x * n, read(), increase()


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    a: object
    b: int = 2


Pair = collections.namedtuple("Pair", "a b")


@broken
def objects(x, y):
    f, s, p, n = Frozen(1, x), Slotted(y), Pair(x, [1]), types.SimpleNamespace(a=1, b=x)
    proxy, cell = types.MappingProxyType({"k": x}), types.SimpleNamespace
    bare = object()
    namespace = n.__dict__
    pause()
    namespace["c"] = 5
    return (
        f,
        s,
        p,
        n,
        n.c,
        proxy["k"] is x,
        bare is bare,
        hash(Frozen(1)) == hash(Frozen(1)),
        cell,
        p.b is p[1],
    )


@broken
def keys(x, y):
    def f():
        return 1

    d = {
        Frozen(1): "frozen",
        x.shape: "size",
        (1, Pair(1, 2)): "pair",
        f: "f",
        x: "tensor",
        1.5: "float",
        f.__call__.__name__: "name",
        frozenset([1]): "fs",
        id(x): "id",
    }
    s = {Frozen(2), "a", 3}
    pause()
    return (
        x + 1,
        d[Frozen(1)],
        d[(3, 4)],
        d[(1, (1, 2))],
        d[f],
        d[x],
        d[1.5],
        Frozen(2) in s,
        len(s),
        [type(k).__name__ for k in d][:3],
        d[id(x)],
        id(y) in d,
    )


@broken
def aliases(x, y):
    a = [x]
    b = {"a": a, "t": (a, x)}
    c = b["t"]
    a.append(b)
    pause()
    a.append(y)
    return b["a"] is a, c[0] is a, a[1] is b, len(c[0]), c[1] is x, a


@broken
def live_views_and_iterators(x, y):
    d = {"a": 1}
    items, keys = d.items(), d.keys()
    lst = [1, 2, 3]
    walk = iter(lst)
    next(walk)
    pause()
    d["b"] = 2
    lst.append(4)
    return x + 1, list(items), list(keys), list(walk)


# -- where it happens ------------------------------------------------------------------------------


class Operand:
    def __init__(self, value):
        self.value = value
        pause()

    def __add__(self, other):
        pause()
        return Operand(self.value + other)

    def __radd__(self, other):
        pause()
        return "radd"

    def __getitem__(self, key):
        pause()
        return self.value * key

    def __len__(self):
        return pause() + 1

    def __bool__(self):
        return pause() > 0

    def __eq__(self, other):
        pause()
        return True

    def __hash__(self):
        return pause()

    def __contains__(self, item):
        return pause() == item

    def __iter__(self):
        pause()
        yield 1
        pause()
        yield 2

    def __call__(self, z):
        pause()
        return z + self.value

    def __enter__(self):
        pause()
        return self

    def __exit__(self, kind, value, traceback):
        pause()
        return kind is KeyError

    def __getattr__(self, name):
        pause()
        return name

    def __str__(self):
        pause()
        return "operand"

    @property
    def doubled(self):
        pause()
        return self.value * 2


@broken
def in_special_methods(x, y):
    o = Operand(x)
    p = o + 1
    return (
        p.value,
        1 + o,
        o[2],
        len(o),
        bool(o),
        o == 3,
        {o: 1}[o],
        1 in o,
        list(o),
        o(y),
        o.missing,
        str(o),
        f"{o}",
        o.doubled,
        not o,
        o and 5,
    )


@broken
def in_context_managers(x, y):
    with Operand(x) as o:
        z = y + 1
        raise KeyError
    with Operand(y), contextlib.suppress(ValueError):
        z = z * 2
        pause()
        raise ValueError
    return z, o.value


@contextlib.contextmanager
def scope(log):
    log.append("in")
    pause()
    try:
        yield pause()
    except KeyError:
        pause()
        log.append("caught")
    finally:
        pause()
        log.append("out")


@broken
def in_generator_managers(x, y):
    log = []
    with scope(log) as one:
        x = x + one
        pause()
    with scope(log):
        raise KeyError
    return x, log


@broken
def in_loops(x, y):
    found = []
    for i, (a, b) in enumerate(zip([x, y], "ab")):
        pause()
        if i:
            found.append(a * i)
            continue
        found.append(b)
    else:
        pause()
        found.append("else")
    while len(found) < 5:
        found.append(pause())
    return found


@broken
def in_comprehensions(x, y):
    a = [pause() + i for i in range(2)]
    b = {k: pause() for k in "ab"}
    c = {pause() for _ in range(2)}
    d = list(pause() * i for i in range(2))
    e = [[pause() + i * j for j in range(2)] for i in range(2)]
    return x * a[1], a, b, c, d, e, [z * pause() for z in (x, y)]


@broken
def in_callbacks(x, y):
    def key(v):
        pause()
        return -v

    return (
        x + 1,
        sorted([1, 3, 2], key=key),
        max([1, 2], key=key),
        list(map(key, [1, 2])),
        list(filter(lambda v: pause() < v, [1, 2])),
        functools.reduce(lambda a, b: a + b * pause(), [1, 2, 3]),
        sum(pause() for _ in range(3)),
        any(pause() > 5 for _ in range(2)),
        next(iter(pause, 9)),
    )


@broken
def in_handlers(x, y):
    log = []
    try:
        try:
            x = x + 1
            raise KeyError("k")
        except KeyError as error:
            pause()
            log.append(error.args)
            raise ValueError("v") from error
        finally:
            pause()
            log.append("finally")
    except ValueError as error:
        log.append((error.args, error.__cause__.args, error.__context__.args))
        pause()
        try:
            raise
        except ValueError as again:
            log.append(again is error)
    else:
        log.append("never")
    return x, log


@broken
def in_finally_with_return(x, y):
    def work():
        for i in range(3):
            try:
                if i == 1:
                    return x + i
            finally:
                pause()
                y.sin()
        return None

    return work(), y


@broken
def in_recursion(x, y):
    def down(n):
        if n == 0:
            pause()
            return x
        return down(n - 1) + n

    return down(3)


@broken
def in_arguments(x, y):
    def f(a, *rest, k, **more):
        return a, rest, k, more

    return (
        f(x + 1, pause(), *[pause(), y], k=pause(), **{"z": pause()}),
        [x, pause(), {"k": pause()}],
        f"{pause()}{x.dim()}",
        x[pause() :],
        (pause() and y),
    )


@broken
def in_match(x, y):
    match [x, {"k": pause()}]:
        case [torch.Tensor() as t, {"k": 1}] if pause():
            return t + 1
        case _:
            return y


@broken
def in_decorated(x, y):
    def decorate(fn):
        pause()

        @functools.wraps(fn)
        def wrapper(*args):
            pause()
            return fn(*args)

        return wrapper

    @decorate
    def work(z):
        return z * pause()

    return work(x), work.__name__


@broken
def in_augmented_assignment(x, y):
    a, d = [1, 2], {"k": 1}
    a[pause()] += pause()
    d["k"] *= 2 + pause()
    z = x
    z = z + pause()
    z += pause()
    return a, d, z


@broken
def in_assert_and_chained_comparison(x, y):
    assert pause() == 1, "never"
    n = 0 < pause() < 2 < pause()
    try:
        assert pause() == 2, f"n is {pause()}"
    except AssertionError as error:
        return x + 1, n, error.args


@broken
def in_a_class_hierarchy(x, y):
    return Child(x).run(y)


class Parent:
    def __init__(self, value):
        pause()
        self.value = value

    def run(self, z):
        return self.value + z


class Child(Parent):
    def __init__(self, value):
        super().__init__(value * 2)
        pause()
        self.more = value

    def run(self, z):
        pause()
        return super().run(z) * self.more


test_program = TABLE.test()
