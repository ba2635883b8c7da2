"""PYTEST_DONT_REWRITE. Functions: arguments, closures, introspection."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import asyncio
import functools
import inspect
import types

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

# -- arguments -------------------------------------------------------------------------------------


class Cell:
    def __init__(self, alive=False):
        self.alive = alive

    def set_state(self, state, note=""):
        self.alive = state
        self.note = note
        return self

    revive = functools.partialmethod(set_state, True, note="up")
    kill = functools.partialmethod(set_state, False)


def every_kind(a, b=2, /, c=3, *rest, d, e=5, **named):
    return a, b, c, rest, d, e, named


@whole
def all_kinds_of_arguments(x, y):
    args, named = (1, 2), {"d": 4, "z": x}
    return (
        every_kind(1, d=2),
        every_kind(*args, **named),
        every_kind(0, *args, 7, *[8, 9], d=1, **{"k": 1}, **named.__class__(e=0)),
        every_kind(*"ab", c=x, d=y),
        every_kind(*iter([1, 2, 3, 4]), d=[]),
        every_kind(*(5,), **{"d": 1}),
        every_kind(1, **{"a": 10, "b": 20, "d": 0}),
    )


@whole
def defaults_are_made_once(x, y):
    def collect(item, into=[], table={}):
        into.append(item)
        table[len(into)] = item
        return into, table

    return collect(1), collect(2), collect(3, []), collect.__defaults__, x + 1


@whole
def defaults_see_definition_time(x, y):
    n = 1

    def f(a=n, *, b=n + 1, c=x):
        return a, b, c

    n = 100
    return f(), f(5, b=6), f.__kwdefaults__["b"], f.__defaults__


@whole
def keywords_are_a_new_dict(x, y):
    def change(**named):
        named["added"] = 1
        return named

    given = {"a": x}
    return change(**given), given


@whole
def star_args_is_a_tuple(x, y):
    def f(*args, **kwargs):
        return type(args), type(kwargs), len(args), sorted(kwargs)

    return f(*[1, 2], *{3: 4}, a=1, **{"b": 2}), f(), x + 1


@whole
def arguments_are_passed_on(x, y):
    def inner(*args, **kwargs):
        return args[0] * kwargs.get("scale", 1) + sum(args[1:])

    def outer(first, *args, **kwargs):
        kwargs.setdefault("scale", 3)
        return inner(first, *args, **kwargs)

    return outer(x, 1, 2), outer(y, scale=2)


@whole
def evaluation_order(x, y):
    order = []

    def tell(value):
        order.append(value)
        return value

    def f(*args, **kwargs):
        return args, kwargs

    result = tell(f)(tell(1), *tell([2]), k=tell(3), **tell({"l": 4}))
    table = {tell("k"): tell("v"), tell("k2"): tell("v2")}
    tell([0, 0])[tell(1)] = tell(9)
    left = tell(1) + tell(2) * tell(3)
    return x + 1, order, result, table, left


# -- closures --------------------------------------------------------------------------------------


@whole
def counters(x, y):
    def make():
        n = 0

        def increase(by=1):
            nonlocal n
            n += by
            return n

        def read():
            return n

        return increase, read

    increase, read = make()
    increase()
    increase(5)
    other, _ = make()
    return x * read(), other(), read()


@whole
def nonlocal_through_levels(x, y):
    value = [1]

    def one():
        nonlocal value

        def two():
            nonlocal value
            value = value + [3]
            return x

        value = value + [2]
        return two()

    z = one()
    return z + 1, value


@whole
def nonlocal_deleted(x, y):
    n = 1

    def drop():
        nonlocal n
        del n

    drop()
    try:
        n
    except NameError as error:
        return x + 1, type(error), str(error)


@whole
def closures_share_cells(x, y):
    total = 0
    functions = []
    for i in range(3):

        def add(k=i):
            nonlocal total
            total += k
            return total

        functions.append(add)
    results = [f() for f in functions]
    return x + total, results, functions[0].__closure__[0].cell_contents


@whole
def returned_closures(x, y):
    def scaled_by(k):
        def scale(z):
            return z * k

        return scale

    double, triple = scaled_by(2), scaled_by(3)
    return double(x), triple(double(y)), double.__name__, double.__qualname__


@whole
def closure_is_a_result(x, y):
    bias = x.sum()

    def add(z, scale=2):
        "Doc."
        return z * scale + bias

    add.note = "attribute"
    return add, add(y)


@whole
def recursive_closure(x, y):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def flatten(tree):
        return [
            leaf for node in tree for leaf in (flatten(node) if isinstance(node, list) else [node])
        ]

    return x * fib(8), flatten([1, [2, [3, [4]], 5]])


@whole
def mutual_recursion(x, y):
    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    return x + even(10), odd(7)


@whole
def y_combinator(x, y):
    fix = lambda f: (lambda g: g(g))(lambda g: f(lambda *a: g(g)(*a)))
    factorial = fix(lambda self: lambda n: 1 if n == 0 else n * self(n - 1))
    return x * factorial(5)


@whole
def functions_have_attributes(x, y):
    def f(z):
        """Doc of f."""
        f.calls = getattr(f, "calls", 0) + 1
        return z * f.calls

    f.table = {"k": 1}
    first, second = f(x), f(x)
    return (
        first,
        second,
        f.calls,
        f.__doc__,
        vars(f),
        hasattr(f, "nothing"),
        f.__name__,
        f.__module__,
        f.__dict__ is None,
    )


@whole
def function_metadata(x, y):
    def f(a: int, b: "str" = "s", *, c=1) -> float:
        return a

    g = lambda: 0
    f.__name__ = "renamed"
    f.__doc__ = "new"
    code = f.__code__
    return (
        x + 1, f.__name__, f.__doc__, f.__annotations__, f.__defaults__, f.__kwdefaults__,
        code.co_varnames, code.co_argcount, g.__name__, g.__closure__, g.__defaults__, callable(g),
        type(g).__name__, f.__globals__ is globals(),
    )  # fmt: skip


@whole
def functions_are_keys(x, y):
    def f():
        return 1

    def g():
        return 2

    table = {f: "f", g: "g", len: "len", torch.sin: "sin", every_kind: "e"}
    return (
        x + 1,
        table[f],
        table[g],
        table[len],
        table[torch.sin],
        f in table,
        f == f,
        f == g,
        f != g,
        {f, f, g} == {g, f},
    )


# -- introspection ---------------------------------------------------------------------------------


@whole
def signatures(x, y):
    spec = inspect.getfullargspec(every_kind)
    parameters = inspect.signature(every_kind).parameters
    kinds = [str(p.kind) for p in parameters.values()]
    return (
        x + 1, spec.args, spec.varargs, spec.varkw, spec.defaults, spec.kwonlyargs,
        list(parameters), kinds, parameters["b"].default,
        parameters["a"].default is inspect.Parameter.empty, "named" in parameters,
        str(inspect.signature(every_kind)), list(inspect.signature(Cell.set_state).parameters),
        list(inspect.signature(Cell().set_state).parameters),
        list(inspect.signature(Cell).parameters),
    )  # fmt: skip


@whole
def bound_arguments(x, y):
    bound = inspect.signature(every_kind).bind(1, 2, d=x)
    bound.apply_defaults()
    return every_kind(*bound.args, **bound.kwargs), bound.arguments["c"]


SIGNATURE, SETTINGS = (
    inspect.signature(every_kind),
    types.MappingProxyType({"k": 2, "t": torch.ones(4)}),
)


@whole
def a_signature_from_outside(x, y):
    bound = SIGNATURE.bind(1, 2, d=x)
    bound.apply_defaults()
    errors = []
    try:
        SIGNATURE.bind()
    except TypeError as error:
        errors.append(str(error))
    return every_kind(*bound.args, **bound.kwargs), bound.arguments["c"], errors


@whole
def a_mapping_from_outside_that_cannot_be_written(x, y):
    known = (
        list(SETTINGS),
        len(SETTINGS),
        SETTINGS.get("none", 3),
        "k" in SETTINGS,
        {**SETTINGS}["k"],
        SETTINGS,
    )
    return (
        SETTINGS["t"] * x,
        {k: y for k, _ in SETTINGS.items()},
        known,
        SETTINGS | {"a": 1} == SETTINGS,
    )


@whole
def signature_of_inner(x, y):
    def inner(a, b=1, *, c):
        return a

    return (
        x + 1,
        list(inspect.signature(inner).parameters),
        inspect.isfunction(inner),
        inspect.ismethod(inner),
    )


@whole
def callables(x, y):
    things = (
        len,
        int,
        every_kind,
        lambda: 0,
        Cell,
        Cell().kill,
        Cell(),
        3,
        "s",
        None,
        functools.partial(len),
        torch.sin,
        x.add,
    )
    return x + 1, [callable(t) for t in things]


@whole
def locals_and_globals(x, y):
    a, b = 1, 2
    names = sorted(locals())
    found = locals()["a"], globals()["TABLE"] is TABLE, "b" in locals()
    return x + 1, names, found


@whole
def bound_methods_compare(x, y):
    a, b = Cell(), Cell()
    return (
        x + 1,
        a.kill == a.kill,
        a.set_state == a.set_state,
        a.set_state == b.set_state,
        a.set_state is a.set_state,
        {a.set_state: 1}[a.set_state],
    )


@whole
def methods_are_values(x, y):
    cell = Cell()
    method = cell.set_state
    method(5)
    unbound = Cell.set_state
    unbound(cell, 6, note="n")
    return (
        x * cell.alive,
        cell.note,
        method.__self__ is cell,
        method.__func__ is unbound,
        method.__name__,
    )


@whole
def bound_method_is_a_result(x, y):
    cell = Cell(x)
    return cell.set_state, cell


# -- not captured ----------------------------------------------------------------------------------


@broken("")
def evaluates_text(x, y):
    n = 3
    return x * eval("n + 1"), eval("2 * 3", {}, {})


@broken("")
def executes_text(x, y):
    space = {"n": 3}
    exec("n = n + 1", space)
    return x * space["n"]


async def a_coroutine(x):
    return x + 1


@broken("")
def runs_a_coroutine(x, y):
    return asyncio.run(a_coroutine(x))


@broken("")
def makes_a_coroutine(x, y):
    c = a_coroutine(x)
    try:
        c.send(None)
    except StopIteration as stop:
        return stop.value + y


async def numbers(n):
    for i in range(n):
        yield i


@broken("")
def async_generators(x, y):
    async def collect():
        return [i async for i in numbers(3)]

    return x + sum(asyncio.run(collect()))


@broken("")
def too_deep(x, y):
    def down(n):
        return down(n + 1)

    try:
        down(0)
    except RecursionError as error:
        return x + 1, type(error)


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 6
