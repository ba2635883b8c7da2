"""PYTEST_DONT_REWRITE. The standard library around tensors: copy, contextvars, typing, inspect, re,
types."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import abc
import collections
import contextvars
import copy
import datetime
import functools
import inspect
import logging
import math
import numbers
import operator
import random
import re
import string
import sys
import textwrap
import threading
import types
import typing
import warnings
import weakref

import torch

from tests.capture.language import Table, errors_of
from tests.capture.test_language_collections import Output, Stack

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- functools, operator ---------------------------------------------------------------------------


@whole
def attributes_of_partials(x, y):
    p = functools.partial(torch.add, x, other=y)
    names = ("__init__", "__reduce__", "__sizeof__", "__hash__", "__name__", "func", "missing")
    return list(map(lambda name: hasattr(p, name), names)), hasattr(set(), "__init__"), p()


@whole
def joins_in_place(x, y):
    a, b = [1], (1,)
    joined = operator.iconcat(a, [2]), operator.iconcat(b, (3,))
    return x + 1, joined, a, joined[0] is a, b, errors_of(lambda: operator.iconcat(1, 2))


@whole
def dicts_of_keys(x, y):
    d = collections.defaultdict.fromkeys(["a", "b"], x)
    o = collections.OrderedDict.fromkeys("ab", value=1)
    return d, d.default_factory, o, type(o), dict.fromkeys("ab")


def many_kinds(a, b=2, *c, d: int = 3, **e):
    return a


@whole
def signatures_leave(x, y):
    s = inspect.signature(many_kinds)
    inner = inspect.signature(lambda q, r=x: q).parameters
    return x + 1, s, s.parameters, inner["r"].default, inner, s.parameters.keys() & {"a", "q"}


@broken("getrefcount")
def parameters_are_walked_over_a_break(x, y):
    found = []
    for name, parameter in inspect.signature(many_kinds).parameters.items():
        sys.getrefcount(name)
        found.append((name, parameter.kind))
    return x + 1, found


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


@whole
def random_numbers(x, y):
    random.seed(0)
    return x * random.random(), random.choice([1, 2, 3])


@broken("")
def dates(x, y):
    return x + (datetime.datetime.now().year > 2000)


@broken("threading.lock")
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
    assert total - captured <= 5
