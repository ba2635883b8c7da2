"""PYTEST_DONT_REWRITE. The standard library around tensors: collections, copy, contextvars, typing,
inspect, re, types, and subclasses of built-in classes."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import abc
import collections
import contextvars
import copy
import datetime
import inspect
import logging
import math
import numbers
import random
import re
import string
import textwrap
import threading
import types
import typing
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


def errors_of(acts, kinds=Exception):
    found = []
    for act in acts:
        try:
            found.append(act())
        except kinds as error:
            found.append((type(error), str(error)))
    return found


# -- collections -----------------------------------------------------------------------------------


@whole
def counters(x, y):
    c = Counter("abracadabra")
    c.update("ab")
    c["z"] += 1
    d = Counter(a=1, b=5)
    return (
        x + c["a"],
        c,
        c.most_common(2),
        c["missing"],
        c + d,
        c - d,
        c & d,
        c | d,
        list(d.elements()),
        c.total(),
        sorted(c),
        Counter([1, 1]) == Counter({1: 2}),
        dict(d),
        isinstance(d, dict),
        +d,
    )


@whole
def deques(x, y):
    d = deque([1, 2, 3], maxlen=4)
    d.append(4)
    d.append(5)
    d.appendleft(0)
    a, b = d.pop(), d.popleft()
    e = deque("abc")
    e.rotate(1)
    e.extend("de")
    e.extendleft("z")
    e.remove("a")
    first = e[0]
    e[1] = x
    return (
        d,
        a,
        b,
        len(d),
        list(e)[2:],
        first,
        d.maxlen,
        3 in d,
        e.count("b"),
        deque([1, 2]) == deque([1, 2]),
        list(reversed(d)),
        d.index(3),
        bool(deque()),
        e.copy() is e,
        [*d],
        list(d + deque([9])),
    )


@whole
def deque_errors(x, y):
    return x + 1, errors_of(
        (
            lambda: deque().pop(),
            lambda: deque().popleft(),
            lambda: deque([1])[5],
            lambda: deque([1]).remove(2),
            lambda: deque([1]).index(2),
            lambda: deque(3),
        ),
        (IndexError, ValueError, TypeError),
    )


@whole
def default_dicts(x, y):
    d = defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    d["b"]
    e = defaultdict(int, {"k": 1})
    for letter in "hello":
        e[letter] += 1
    f = defaultdict(lambda: x)
    g = f["new"]
    n = defaultdict(lambda: defaultdict(int))
    n["a"]["b"] += 2
    return (
        d,
        e,
        g is x,
        len(f),
        d.get("zz"),
        "zz" in d,
        errors_of((lambda: defaultdict()["a"], lambda: defaultdict(3))),
        n["a"]["b"],
        d.default_factory,
        e.copy(),
        isinstance(e, dict),
        dict(e)["h"],
    )


@whole
def ordered_dicts(x, y):
    d = OrderedDict(a=1, b=2, c=x)
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    popped = d.popitem(last=False)
    d["z"] = 5
    e = OrderedDict([("x", 1), ("y", 2)])
    return (
        d,
        popped[0],
        list(d),
        e == OrderedDict([("y", 2), ("x", 1)]),
        e == {"y": 2, "x": 1},
        list(reversed(e)),
        e.popitem(),
        e | {"q": 1},
        type(e.copy()),
        list(e.items()),
        e.pop("x"),
        e.setdefault("w", 3),
        errors_of(
            (lambda: OrderedDict().popitem(), lambda: e.move_to_end("none"), lambda: e["none"])
        ),
    )


@whole
def chain_maps(x, y):
    c = ChainMap({"a": 1}, {"a": 2, "b": x})
    c["new"] = 3
    child = c.new_child({"b": 0})
    return (
        c["a"],
        c["b"] + 1,
        c.maps[0],
        child["b"],
        len(c),
        "b" in c,
        c.get("zz", 5),
        sorted(c),
        child.parents["a"],
        dict(c)["a"],
        errors_of((lambda: c["zz"],)),
    )


class MyDict(UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


@whole
def user_dicts_and_lists(x, y):
    d = MyDict(A=1)
    d["B"] = x
    u = UserList([1, 2])
    u.append(3)
    return (
        d["b"] + 1,
        list(d),
        "a" in d,
        len(d),
        u.data,
        u[0],
        list(u + [4]),
        d.get("zz"),
        d.data["a"],
    )


# -- subclasses of built-in classes ----------------------------------------------------------------


class Stack(list):
    def __init__(self, *items):
        super().__init__(items)
        self.pushed = 0

    def push(self, item):
        self.pushed += 1
        self.append(item)

    def __getitem__(self, key):
        return ("own", super().__getitem__(key))

    @property
    def top(self):
        return self[-1]


class PlainList(list):
    pass


@whole
def list_subclasses(x, y):
    s = Stack(1, 2)
    s.push(x)
    s += [4]
    p = PlainList([3, 1])
    p.sort()
    p.tag = "t"
    return (
        s,
        s.pushed,
        s.top,
        len(s),
        list(s),
        [*p],
        p,
        p + [5],
        type(p + [5]),
        type(p[:]),
        p == [1, 3],
        isinstance(s, list),
        1 in p,
        sum(p),
        s.top[1],
        PlainList("ab"),
        bool(PlainList()),
        p.index(3),
        repr(p),
        [x for x in p],
        p.copy(),
        sorted(p, reverse=True),
        tuple(p),
    )


class Version(tuple):
    def __new__(cls, text):
        return super().__new__(cls, map(int, text.split(".")))

    @property
    def major(self):
        return self[0]

    def __str__(self):
        return ".".join(map(str, self))


class Labelled(tuple):
    pass


@whole
def tuple_subclasses(x, y):
    v = Version("1.2.3")
    t = Labelled([x, 1])
    t.label = "l"
    return (
        v,
        v.major,
        str(v),
        v > (1, 2),
        v[1:],
        type(v[1:]),
        len(v),
        t,
        t.label,
        hash(v) == hash((1, 2, 3)),
        {v: 1}[(1, 2, 3)],
        v == (1, 2, 3),
        a_plus(*v),
        isinstance(v, tuple),
        repr(Labelled([1])),
        v + (4,),
        list(v),
        x * v.major,
    )


def a_plus(a, b, c):
    return a + b + c


class Name(str):
    def shout(self):
        return self.upper() + "!"

    def __eq__(self, other):
        return str.__eq__(self.lower(), other.lower())

    __hash__ = str.__hash__


class Meters(float):
    unit = "m"

    def __add__(self, other):
        return Meters(float(self) + other)


class Id(int):
    def __new__(cls, value, note=""):
        self = super().__new__(cls, value)
        self.note = note
        return self

    def __repr__(self):
        return f"Id({int(self)})"


@whole
def number_and_text_subclasses(x, y):
    n, m, i = Name("bob"), Meters(2.5), Id(7, note="n")
    return (
        x * m,
        x * i,
        n.shout(),
        n == "BOB",
        n + "x",
        len(n),
        m + 1,
        type(m + 1),
        m * 2,
        type(m * 2),
        i + 1,
        i.note,
        i,
        repr(i),
        f"{i} {m} {n}",
        {"bob": 1}[n],
        isinstance(i, int),
        [10, 20][Id(1)],
        i == 7,
        type(i),
        Id(3) < Id(4),
        range(Id(2)),
        n[0],
        n.split("o"),
        m.unit,
        int(m),
        str(n),
        type(str(n)),
        Id(0) or "zero",
        hash(i) == hash(7),
        x[Id(0)],
        list(n),
    )


class Tags(set):
    def add_all(self, *items):
        for item in items:
            self.add(item)
        return self


class Frozen(frozenset):
    pass


@whole
def set_subclasses(x, y):
    t = Tags("ab").add_all("c", "d")
    t.owner = "me"
    return (
        x + len(t),
        t,
        "a" in t,
        sorted(t),
        t | {"z"},
        type(t | {"z"}),
        isinstance(t, set),
        t.owner,
        t == {"a", "b", "c", "d"},
        Frozen([1]),
        Frozen([1]) == {1},
        len(Frozen([1, 1])),
    )


class Attrs(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value

    def __missing__(self, key):
        if key.startswith("auto"):
            return "made"
        raise KeyError(key)


@whole
def dict_subclasses(x, y):
    d = Attrs(a=1)
    d.b = x
    d["c"] = 3
    return (
        d.b + 1,
        d,
        d["auto1"],
        hasattr(d, "zz"),
        list(d.items()),
        len(d),
        "c" in d,
        d.get("zz", 1),
        {**d},
        dict(d),
        d == {"a": 1},
        isinstance(d, dict),
        d.pop("a"),
        d.setdefault("q", 2),
        type(d.copy()),
        [k for k in d],
        d | {"m": 1},
        bool(Attrs()),
        list(d.values())[1:],
        d.keys() & {"b"},
        repr(Attrs(k=1)),
    )


class Output(OrderedDict):
    """As the results of a model library are: items are attributes, and integers index the
    values."""

    def __post_init__(self):
        pass

    def __getitem__(self, key):
        if isinstance(key, str):
            return dict(self.items())[key]
        return self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __delitem__(self, *args, **kwargs):
        raise Exception(f"cannot delete from {self.__class__.__name__}")

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@whole
def ordered_dict_subclasses(x, y):
    o = Output(logits=x)
    o["hidden"] = y
    o.logits = x + 1
    first, second = o.to_tuple()
    caught = errors_of((lambda: o.pop("zz"), lambda: o.__delitem__("logits")))
    return (
        o,
        o.logits,
        o[0] is first,
        o["hidden"],
        list(o),
        len(o),
        o[:1],
        caught,
        isinstance(o, dict),
        "logits" in o,
        {k: v.shape for k, v in o.items()},
        second,
    )


class MyCounter(Counter):
    def top(self):
        return self.most_common(1)[0][0]


class MyDeque(deque):
    def last(self):
        return self[-1]


@whole
def subclasses_of_collections(x, y):
    return x + 1, MyCounter("aab").top(), MyDeque([1, 2]).last()


# -- copy ------------------------------------------------------------------------------------------


class Node:
    def __init__(self, value, children=()):
        self.value, self.children = value, list(children)


class CopiesItself:
    def __init__(self, n):
        self.n = n

    def __copy__(self):
        return CopiesItself(self.n + 1)

    def __deepcopy__(self, memo):
        return CopiesItself(self.n + 100)


@whole
def copies(x, y):
    items = [1, [2, 3], {"k": (4, [5])}]
    shallow, deep = copy.copy(items), copy.deepcopy(items)
    items[1].append(9)
    n = Node(1, [Node(2)])
    n.self_ = n
    m, d = copy.copy(n), copy.deepcopy(n)
    return (
        x + 1,
        shallow,
        deep,
        shallow[1] is items[1],
        m.children is n.children,
        d.children[0].value,
        d.self_ is d,
        d.children is n.children,
        copy.copy(CopiesItself(1)).n,
        copy.deepcopy([CopiesItself(1)])[0].n,
        copy.copy((1, 2)),
        copy.deepcopy({"a": {1, 2}}),
        copy.copy(5),
        copy.deepcopy("s"),
        copy.deepcopy(len) is len,
        copy.copy({1: 2}),
        copy.copy({1}),
    )


@whole
def shallow_copies_of_tensors(x, y):
    a = copy.copy([x, y])
    b = copy.copy({"k": x})
    return a[0] is x, b["k"] is x, a[0] + 1


@whole
def deep_copy_keeps_sharing(x, y):
    inner = [1]
    outer = copy.deepcopy({"a": inner, "b": inner, "t": (inner,)})
    cycle = []
    cycle.append(cycle)
    c = copy.deepcopy(cycle)
    return x + 1, outer["a"] is outer["b"], outer["t"][0] is outer["a"], c[0] is c, c is not cycle


# -- contextvars, typing, types --------------------------------------------------------------------

VARIABLE = contextvars.ContextVar("VARIABLE", default=3)
UNSET = contextvars.ContextVar("UNSET")


@whole
def context_variables(x, y):
    before = VARIABLE.get()
    token = VARIABLE.set(5)
    inside = VARIABLE.get()
    VARIABLE.reset(token)
    return x * before, inside, VARIABLE.get(), UNSET.get("fallback"), VARIABLE.name


class Movie(typing.TypedDict, total=False):
    name: str
    year: int


class Employee(typing.NamedTuple):
    name: str
    id: int = 3


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, item: T):
        self.item = item

    def get(self) -> T:
        return self.item


class Comparable(typing.Protocol):
    def compare(self) -> int: ...


@typing.runtime_checkable
class HasSize(typing.Protocol):
    def size(self): ...


@whole
def typing_helpers(x, y):
    m = Movie(name="n", year=1)
    return (
        typing.cast(int, x) is x, m, type(m), Employee("e"), typing.get_origin(list[int]),
        typing.get_args(dict[str, int]), typing.Optional[int], int | None, Box(x).get(),
        Box[int](3).get(), typing.TYPE_CHECKING, typing.Union[int, str],
        typing.get_origin(typing.Optional[int]) is typing.Union, typing.Any, list[int]([1, 2]),
        Employee.__annotations__["name"], typing.Literal["a"], isinstance(x, HasSize),
        typing.overload is not None, typing.NamedTuple is not None,
    )  # fmt: skip


@whole
def simple_namespaces(x, y):
    s = types.SimpleNamespace(a=1, b=x)
    s.c = 3
    del s.a
    return (
        s.b + s.c,
        sorted(vars(s)),
        hasattr(s, "a"),
        s == types.SimpleNamespace(b=1),
        repr(types.SimpleNamespace(k=1)),
        s,
    )


@whole
def types_module(x, y):
    f = types.MethodType(lambda self, k: self * k, x)
    p = types.MappingProxyType({"a": 1})
    return (
        f(2),
        p["a"],
        "a" in p,
        len(p),
        list(p),
        isinstance(f, types.MethodType),
        isinstance(len, types.BuiltinFunctionType),
        isinstance(math, types.ModuleType),
        isinstance(errors_of, types.FunctionType),
        isinstance(None, types.NoneType),
        errors_of((lambda: p.__setitem__("a", 2),), (TypeError, AttributeError))[0][0],
    )


@whole
def numbers_and_abcs(x, y):
    return (
        x + 1,
        isinstance(3, numbers.Number),
        isinstance(3.5, numbers.Integral),
        isinstance(True, numbers.Integral),
        isinstance([], collections.abc.MutableSequence),
        isinstance("a", collections.abc.Sequence),
        isinstance({}.keys(), collections.abc.KeysView),
        issubclass(dict, collections.abc.Mapping),
        isinstance(x, collections.abc.Sized),
        isinstance(lambda: 0, collections.abc.Callable),
        isinstance((i for i in ()), collections.abc.Generator),
    )


class OwnMapping(collections.abc.Mapping):
    def __init__(self, table):
        self.table = table

    def __getitem__(self, key):
        return self.table[key]

    def __iter__(self):
        return iter(self.table)

    def __len__(self):
        return len(self.table)


class OwnSequence(collections.abc.MutableSequence):
    def __init__(self, items):
        self.items = list(items)

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, value):
        self.items[i] = value

    def __delitem__(self, i):
        del self.items[i]

    def __len__(self):
        return len(self.items)

    def insert(self, i, value):
        self.items.insert(i, value)


@whole
def own_abstract_collections(x, y):
    m, s = OwnMapping({"a": x, "b": 1}), OwnSequence([1, 2, 3])
    s.append(4)
    s.extend([5])
    s.remove(2)
    popped = s.pop()
    s += [6]
    s.reverse()
    return (
        m["a"] + 1,
        "b" in m,
        m.get("z", 5),
        list(m),
        len(m.keys()),
        list(m.values())[1],
        m == {"a": x} if False else None,
        {**m}["b"],
        s.items,
        popped,
        3 in s,
        s.index(3),
        list(reversed(s)),
        s.count(4),
    )


# -- inspect, re, text, warnings -------------------------------------------------------------------

PATTERN = re.compile(r"layers\.(\d+)\.(?P<name>\w+)")


@whole
def regular_expressions(x, y):
    m = PATTERN.match("layers.12.weight")
    return (
        x * int(m.group(1)),
        m["name"],
        m.groups(),
        m.groupdict(),
        PATTERN.search("none"),
        re.sub(r"\d+", "#", "a1b22"),
        re.findall(r"\w+", "a bc"),
        re.split(r",\s*", "a, b,c"),
        bool(re.match("a", "ab")),
        re.fullmatch("a+", "aaa").span(),
        re.escape("a.b"),
        [m.start() for m in re.finditer("a", "banana")],
        PATTERN.pattern,
        re.compile("x", re.I).flags & re.I,
    )


@whole
def inspect_questions(x, y):
    return (
        x + 1,
        inspect.isclass(Node),
        inspect.isclass(3),
        inspect.ismodule(math),
        inspect.ismethod(Node(1).__init__),
        inspect.isfunction(errors_of),
        inspect.isbuiltin(len),
        inspect.iscoroutinefunction(errors_of),
        inspect.isabstract(OwnMapping),
        inspect.getdoc(Output)[:5],
        inspect.getmro(Stack)[1],
        inspect.isgenerator(i for i in ""),
        inspect.isdatadescriptor(Stack.top),
    )


@whole
def text_helpers(x, y):
    return (
        x + 1,
        textwrap.dedent("  a\n  b"),
        string.capwords("a b"),
        textwrap.shorten("hello world", 8),
    )


@whole
def warnings_are_given(x, y):
    warnings.warn("careful", UserWarning, stacklevel=1)
    warnings.warn(f"again {x.dim()}", DeprecationWarning, stacklevel=1)
    return x + 1


@whole
def prints_are_kept(x, y):
    print("one", 2, [3], sep="-")
    print("shape", x.shape, end="!\n")
    return x + 1


@whole
def logging_is_kept(x, y):
    logging.getLogger("tests.language").debug("shape %s", x.shape)
    return x + 1


@broken("")
def random_numbers(x, y):
    random.seed(0)
    return x * random.random(), random.choice([1, 2, 3])


@broken("")
def dates(x, y):
    return x + (datetime.datetime.now().year > 2000)


@broken("a _thread.lock")
def locks(x, y):
    with LOCK:
        return x + 1


LOCK = threading.Lock()


@broken("")
def weak_references(x, y):
    n = Node(1)
    r = weakref.ref(n)
    return x * r().value + n.value


class WithMeta(metaclass=abc.ABCMeta):
    @staticmethod
    def make(n):
        return n


@whole
def modules_are_values(x, y):
    m = [math, torch, operator_module()]
    return (
        m[0].pi * x,
        getattr(m[1], "sin")(y),
        hasattr(math, "nothing"),
        math.__name__,
        m[2].add(1, 2),
        [n for n in ("pi", "zz") if hasattr(math, n)],
        getattr(torch.nn.functional, "re" + "lu")(x),
    )


def operator_module():
    import operator

    return operator


@whole
def imports_inside(x, y):
    import math as m
    import os.path
    from collections import OrderedDict as OD
    from math import pi, tau

    import torch.nn.functional as F

    return F.relu(x) * pi, OD(a=1), m.floor(tau), os.path.join("a", "b")


@broken("which does not have it")
def imports_of_what_is_missing(x, y):
    try:
        from math import nothing
    except ImportError as error:
        message = type(error)
    try:
        import surely_missing_module
    except ImportError as error:
        missing = type(error), error.name
    return x + 1, message, missing


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 6
