"""Classes that the compiled function makes, and that leave the graph: eager's meaning, and a new
class at each call."""

# ruff: noqa
from __future__ import annotations

import enum
import functools
import inspect
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import ingot
from tests.oracle import assert_same, outcome

LOG: list[Any] = []


class Registered:
    def __init_subclass__(cls, **kwargs: Any) -> None:
        LOG.append(cls.__name__)


class Named:
    def __set_name__(self, owner: Any, name: str) -> None:
        LOG.append(name)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return 5


def cached(x: Tensor) -> Any:
    class A:
        @functools.cached_property
        def value(self) -> Any:
            return x * 2

    a = A()
    return a.value + a.value, a.value is a.value


def the_class(x: Tensor) -> Any:
    class A:
        k = 2

    return A, x * A.k


def an_instance(x: Tensor) -> Any:
    class A:
        def run(self) -> Any:
            return self.t + 1

    a = A()
    a.t = x * 2
    return [a]


def a_named_tuple(x: Tensor) -> Any:
    return namedtuple("Pair", "a b")(x, 1)


def a_method_of_it(x: Tensor) -> Any:
    class A:
        def run(self) -> Any:
            return x

    return A().run


def a_function_that_knows_it(x: Tensor) -> Any:
    class A:
        k = 2

    def run() -> Any:
        return A.k

    return run


def a_property(x: Tensor) -> Any:
    p = property(lambda self: x)
    return [p]


def stored(x: Tensor) -> Any:
    class A:
        k = 2

    LOG.append(A())
    return x


def raised(x: Tensor) -> Any:
    class Own(ValueError):
        pass

    raise Own("bad", 2)


def alive_at_a_break(x: Tensor) -> Any:
    class A:
        def run(self) -> Any:
            return x * 2

    a = A()
    torch._dynamo.graph_break() if False else print(end="", file=None)
    y = x + int(x.sum().item() > 0)
    return a.run() + y


def around_a_branch(x: Tensor) -> Any:
    class A:
        k = 2

    if x.sum() > 0:
        return x * A.k
    return x - A.k


def changed(x: Tensor) -> Any:
    class A:
        k = 2

    A.k = 5
    del A.__doc__
    return x * A.k


def registered(x: Tensor) -> Any:
    class A(Registered):
        k = 2

    return x * A.k, list(LOG)


def with_set_name(x: Tensor) -> Any:
    class A:
        k = Named()

    return x * A().k, list(LOG)


def of_a_metaclass(x: Tensor) -> Any:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

    class A(metaclass=Meta):
        k = 2

    return x * A().k


def an_enum(x: Tensor) -> Any:
    class E(enum.Enum):
        A = 1
        B = 2

    return x * E.B.value


def a_function_of_autograd(x: Tensor) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Double.apply(x)


def lru_cached(x: Tensor) -> Any:
    class A:
        @functools.lru_cache(maxsize=None)
        def run(self, k: int) -> int:
            return k * 2

    return x * A().run(3)


def cached_tensor_default(x: Tensor) -> Any:
    @dataclass
    class P:
        a: Any = x

    return P().a * 2


def locals_of_a_body(x: Tensor) -> Any:
    class A:
        a = 1
        names = sorted(locals())

    return x, A.names


def defaults_of_fields(x: Tensor) -> Any:
    class P(NamedTuple):
        b: Any = []
        f: Any = lambda: 1

    @dataclass
    class Q:
        t: Any = x
        f: Any = lambda: 2

    Pair = namedtuple("Pair", "a", defaults=[[]])
    P().b.append(1)
    Pair().a.append(2)
    return P().b, P().f(), Q().f(), Q().t + 1, Pair().a


def the_dict_of_a_class(x: Tensor) -> Any:
    class A:
        k = x

        def g(self) -> Any:
            return x * 3

    return A.__dict__["g"](None), dict(vars(A))["g"](None), A.__dict__["k"]


def a_signature(x: Tensor) -> Any:
    class A:
        def __init__(self, a: int = 1, *, b: Any = 2) -> None:
            pass

    return x + 1, str(inspect.signature(A)), str(inspect.signature(A.__init__))


LEAVING = (
    defaults_of_fields,
    the_dict_of_a_class,
    a_signature,
    the_class,
    an_instance,
    a_named_tuple,
    a_method_of_it,
    a_function_that_knows_it,
    a_property,
    stored,
    raised,
    alive_at_a_break,
    around_a_branch,
    changed,
    registered,
    with_set_name,
    of_a_metaclass,
    an_enum,
    a_function_of_autograd,
    lru_cached,
    cached,
    cached_tensor_default,
    locals_of_a_body,
)


@pytest.mark.parametrize("function", LEAVING, ids=lambda f: f.__name__)
def test_eagers_meaning(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    for seed in range(3):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        results = []
        for f in (compiled, function):
            LOG.clear()
            found = outcome(f, x.clone())
            results.append((shown(found), shown(LOG)))
        assert_same(*results)


def shown(tree: Any) -> Any:
    """What of objects of classes that each call makes anew can be compared."""
    if isinstance(tree, Tensor) or tree is None or type(tree) in (int, str, float, bool):
        return tree
    if type(tree) in (list, tuple) or hasattr(tree, "_fields"):
        return type(tree).__name__, [shown(item) for item in tree]
    if isinstance(tree, type):
        return tree.__qualname__, sorted(vars(tree))
    if isinstance(tree, BaseException):
        return type(tree).__qualname__, tree.args
    if isinstance(tree, property):
        return shown(tree.fget(None))
    if callable(tree):
        return shown(tree())
    return type(tree).__qualname__, {k: shown(v) for k, v in vars(tree).items()}


@pytest.mark.parametrize("function", (the_class, an_instance, a_named_tuple))
def test_each_call_has_a_class_of_its_own(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    x = torch.ones(3)
    first, second = (compiled(x) for _ in range(2))
    classes = []
    for result in (first, second):
        if isinstance(result, list):
            result = type(result[0])
        elif hasattr(result, "_fields"):
            result = type(result)
        else:
            result = result[0]
        classes.append(result)
    assert classes[0] is not classes[1]
