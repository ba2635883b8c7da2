"""What a captured function returns or leaves behind, of every kind of value: as eager makes it, and
alive."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, defaultdict, namedtuple
from functools import partial
from typing import Any

import pytest
import torch

import ingot
from tests.oracle import assert_same

X = torch.arange(6.0).reshape(2, 3)
Point = namedtuple("Point", "x y")
CASES: dict[str, Any] = {}


def case(use: Any = None) -> Any:
    """Registers a function; what it gives is compared after `use` made something of it that can be
    compared."""

    def register(fn: Any) -> Any:
        CASES[fn.__name__] = (fn, use or (lambda result: result))
        return fn

    return register


class Base:
    def greet(self):
        return "base"


class Child(Base):
    kind = "child"

    def __init__(self, x):
        self.x = x

    def greet(self):
        return "child"

    def plus(self, y):
        return self.x + y


class Mapping(OrderedDict):
    def keys(self):
        return ["overridden"]


class Failure(Exception):
    made: list = []

    def __init__(self, text, code):
        self.made.append(text)
        super().__init__(text)
        self.code = code


class Colour(enum.Enum):
    RED = 1


# -- functions -------------------------------------------------------------------------------------


@case(lambda fns: [fns[0](3), fns[1](), fns[0](4), fns[1]()])
def closures_that_share_a_cell(x):
    total = x.sum()

    def add(n):
        nonlocal total
        total = total + n
        return total

    def read():
        return total

    add(1)
    return add, read


@case(lambda fn: (fn(5), fn.__closure__[0].cell_contents is fn))
def recursive_closure(x):
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    return factorial


@case(
    lambda fn: [
        fn(2),
        fn.__defaults__,
        fn.__kwdefaults__,
        fn.__annotations__,
        fn.__qualname__,
        fn.note,
        fn.__doc__,
    ]
)
def function_with_everything(x):
    def inner(a, b=x, *, c: int = 4) -> Any:
        """What it does."""
        return a, b, c

    inner.note = "seen"
    return inner


@case(lambda fn: fn())
def cell_that_is_filled_later(x):
    def read():
        return later

    if x.shape[0] > 100:
        later = 1
    kept = [read]
    later = x + 1
    return kept[0]


@case(lambda fn: pytest.raises(NameError, fn).type)
def cell_that_is_empty(x):
    def read():
        return never

    if x.shape[0] > 100:
        never = 1
    return read


@case(lambda fn: fn(1))
def lambda_and_partial(x):
    return partial(lambda a, b, c: (a, b, c), x, c=[x])


@case(lambda methods: [method(2) for method in methods])
def bound_methods(x):
    child = Child(x)
    return child.plus, Child(x * 2).plus


@case(lambda found: (found[0](7), found[1], found[2]("k"), found[3]("{}".join("ab"))))
def native_methods(x):
    items, table = [x], {"k": 1}
    return items.append, items, table.get, "-".split


@case(lambda method: method(torch.ones(2, 3)))
def tensor_methods(x):
    return (x + 1).add


@case(lambda found: found.greet())
def super_object(x):
    class_ = Child(x)
    return super(Child, class_)


# -- iterators -------------------------------------------------------------------------------------


@case(list)
def list_iterator(x):
    iterator = iter([x, x + 1, 3])
    next(iterator)
    return iterator


@case(lambda found: (list(found[0]), found[1].append(5), list(found[0])))
def exhausted_list_iterator(x):
    items = [1]
    iterator = iter(items)
    list(iterator)
    items.append(2)
    return iterator, items


@case(lambda found: (found[1].append(5), list(found[0])))
def iterator_sees_its_list(x):
    items = [1, 2]
    iterator = iter(items)
    next(iterator)
    return iterator, items


@case(list)
def tuple_iterator(x):
    iterator = iter((1, x, 3))
    next(iterator)
    return iterator


@case(list)
def range_iterator(x):
    iterator = iter(range(2, 20, 3))
    next(iterator)
    return iterator


@case(list)
def dict_iterators(x):
    table = {"a": 1, "b": x, "c": 3}
    keys, values, items = iter(table), iter(table.values()), iter(table.items())
    next(keys)
    next(items)
    return [*keys, *values, *items]


@case(lambda found: [*map(list, found)])
def dict_iterators_that_have_begun(x):
    table = {"a": 1, "b": x, "c": 3}
    keys, values, items = iter(table), iter(table.values()), iter(table.items())
    next(keys)
    next(items)
    return keys, values, items


@case(lambda found: (list(found[0]), found[1].update(z=1), list(found[0]), *map(list, found[2:])))
def dict_views(x):
    table = {"a": 1, "b": x}
    return table.keys(), table, table.values(), table.items()


@case(list)
def set_iterator(x):
    iterator = iter({8, 1, 4})
    next(iterator)
    return iterator


@case(list)
def generator_that_has_begun(x):
    def numbers(n):
        for i in range(n):
            got = yield x + i
            assert got is None

    generator = numbers(4)
    next(generator)
    return generator


@case(lambda found: [*found])
def generator_expression(x):
    return (x * i for i in range(3))


@case(lambda found: list(found[0]))
def zipped(x):
    pairs = zip([1, 2, 3], "abc")
    next(pairs)
    return (pairs,)


@case(lambda found: list(found[0]))
def enumerated(x):
    return (enumerate([x, x], 1),)


# -- containers ------------------------------------------------------------------------------------


@case()
def containers(x):
    return [
        (),
        [],
        {},
        set(),
        {1, 2},
        frozenset({3}),
        (x,),
        [x, [x]],
        {"a": {"b": x}},
        slice(1, None),
        range(3),
    ]


@case()
def mappings(x):
    table = defaultdict(list)
    table["a"].append(x)
    ordered = OrderedDict(b=1, a=2)
    ordered.move_to_end("b")
    return table, table["c"], ordered


@case(lambda table: (table["new"], table.default_factory))
def default_factory(x):
    def make():
        return x + 1

    return defaultdict(make)


@case(lambda found: (type(found), list(OrderedDict.items(found)), vars(found)))
def mapping_subclass(x):
    made = Mapping(a=x)
    made["b"] = made.get("a")
    made.note = 1
    return made


@case()
def tuples(x):
    return Point(x, 2), torch.Size([2, 3]), x.max(1), x.shape


@case(
    lambda found: (
        found[0] is found[0][0],
        found[1]["me"] is found[1],
        found[2].me is found[2],
        len(found[3][0]),
    )
)
def cycles(x):
    items: list = []
    items.append(items)
    table: dict = {}
    table["me"] = table
    child = Child(x)
    child.me = child
    inner: list = []
    pair = (inner, x)
    inner.append(pair)
    return items, table, child, pair


@case(lambda found: (found["me"] is found, found.default_factory))
def cycle_in_a_default_dict(x):
    table: Any = defaultdict(int)
    table["me"] = table
    return table


@case(lambda found: found[0].depth)
def a_long_list_of_links(x):
    node: Any = None
    for i in range(400):
        above = Child(i)
        above.below, above.depth = node, i
        node = above
    return node, x


@case()
def deeply_nested(x):
    nested: Any = x
    for i in range(150):
        nested = (nested, i) if i % 2 else [nested]
    return nested


@case(lambda found: (found.__dict__ is vars(found), sorted(vars(found))))
def instance_with_its_dict(x):
    child = Child(x)
    child.__dict__["added"] = 1
    vars(child).update(more=2)
    return child


@case(lambda found: (found[0].extra, found[1]["extra"] is found[0].extra))
def instance_dict_alone(x):
    child = Child(x)
    table = vars(child)
    table["extra"] = x + 2
    return child, table


# -- other objects ---------------------------------------------------------------------------------


@case(lambda found: (type(found), found.args, found.code, str(found)))
def exception_with_attributes(x):
    return Failure("bad", 7)


@case(lambda found: (type(found), found.args, found.value))
def stop_iteration(x):
    return StopIteration(3)


@case(lambda found: [type(found), found.args, found.errno, found.strerror])
def os_error(x):
    return OSError(2, "gone")


@case()
def constants(x):
    return (
        Colour.RED,
        torch.float32,
        Child,
        Child.kind,
        len,
        torch.relu,
        types,
        Ellipsis,
        NotImplemented,
        1.5,
        2j,
    )


@case(lambda found: (found.tag, found.tags))
def tensor_with_attributes(x):
    y = x + 1
    y.tag, y.tags = "t", [x]
    return y


@case(lambda found: found())
def polyfill_is_not_seen(x):
    return sum([x, x]).sum


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    fn, use = CASES[name]
    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            made, expected = compiled(X), fn(X)
            assert type(made) is type(expected)
            assert_same(use(made), use(expected))
        assert made is not compiled(X) or name == "constants"


def test_nothing_of_the_users_runs_again() -> None:
    compiled = ingot.compile(exception_with_attributes, fullgraph=True, backend="eager")
    compiled(X)
    Failure.made.clear()
    compiled(X)
    assert Failure.made == ["bad"]
