"""Classes that the compiled function makes: statements, named tuples, dataclasses, `type`."""

# ruff: noqa
from __future__ import annotations

import collections
import dataclasses
import functools
import typing
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_call, assert_same, outcome


class Base:
    scale = 3

    def __init__(self, t: Any) -> None:
        self.t = t

    def scaled(self) -> Any:
        return self.t * self.scale

    def __add__(self, other: Any) -> Any:
        return self.t + other


# -- one graph -------------------------------------------------------------------------------------


def a_method(x: Tensor) -> Any:
    class A:
        def double(self, t: Tensor, k: int = 2) -> Tensor:
            return t * k

    return A().double(x), A().double(x, k=5)


def attributes(x: Tensor) -> Any:
    class A:
        """Text."""

        size = 4
        both = size * 2
        tensor = x + 1
        items = [1, x]
        table = {k: k * size_ for size_, k in ((2, 3), (4, 5))}

        if both > 3:
            big = True
        for i in range(3):
            last = i

    A().items.append(3)
    return (
        A.tensor * A.both + A().size,
        A.items,
        A.table,
        A.big,
        A.last,
        A.__doc__,
        A.__name__,
        A.__qualname__,
        A.__module__,
        A.__mro__[1],
        hasattr(A, "nothing"),
    )


def closures(x: Tensor) -> Any:
    k = x * 2

    class A:
        inner = k + 1

        def __init__(self, factor: float) -> None:
            self.factor = factor

        def run(self) -> Tensor:
            return k * self.factor + self.inner

    k = k + 10
    return A(2.0).run(), A(factor=3.0).run()


def inherited(x: Tensor) -> Any:
    class A(Base):
        def scaled(self) -> Any:
            return super().scaled() + 1

    class B(A):
        scale = 7

        def scaled(self) -> Any:
            return super().scaled() * 2

    b = B(x)
    return (
        b.scaled(),
        b + 1,
        A(x).scaled(),
        isinstance(b, A),
        isinstance(b, Base),
        issubclass(B, A),
        type(b) is B,
        type(A(x)) is B,
        [c.__name__ for c in B.__mro__],
    )


def several_bases(x: Tensor) -> Any:
    class Mixin:
        def extra(self) -> Any:
            return self.t + 100

    class A(Mixin, Base):
        pass

    return A(x).extra(), A(x).scaled()


def descriptors(x: Tensor) -> Any:
    class A:
        count = 2

        def __init__(self) -> None:
            self._value = x

        @property
        def value(self) -> Tensor:
            return self._value * self.count

        @value.setter
        def value(self, new: Tensor) -> None:
            self._value = new + 1

        @staticmethod
        def twice(t: Tensor) -> Tensor:
            return t * 2

        @classmethod
        def counted(cls, t: Tensor) -> Tensor:
            return t * cls.count

        named = property(lambda self: self._value - 1)

    a = A()
    first = a.value
    a.value = x * 5
    return first, a.value, A.twice(x), a.twice(x), A.counted(x), a.counted(x), a.named


def operators(x: Tensor) -> Any:
    class V:
        __slots__ = ("t",)

        def __init__(self, t: Any) -> None:
            self.t = t

        def __add__(self, other: Any) -> Any:
            return V(self.t + getattr(other, "t", other))

        __radd__ = __add__

        def __eq__(self, other: Any) -> bool:
            return isinstance(other, V)

        def __len__(self) -> int:
            return 3

        def __call__(self, k: int) -> Any:
            return self.t * k

        def __getitem__(self, i: int) -> Any:
            if i >= len(self):
                raise IndexError(i)
            return self.t[i]

        def __enter__(self) -> Any:
            return self.t

        def __exit__(self, *_: Any) -> bool:
            return True

        def __repr__(self) -> str:
            return f"V({tuple(self.t.shape)})"

    v = V(x)
    with v as inner:
        inner = inner * 9
        raise ValueError
    return (
        (2 + v + v).t,
        v == V(1),
        v != 3,
        len(v),
        v(4),
        list(v),
        inner,
        repr(v),
        V.__hash__ is None,
    )


def errors(x: Tensor) -> Any:
    class Own(ValueError):
        code = 4

    class Other(Exception):
        def __init__(self, what: Any) -> None:
            super().__init__(what)
            self.what = what

    try:
        raise Own("bad")
    except Own as error:
        seen = str(error), error.code, isinstance(error, ValueError)
    try:
        raise Other(x * 2)
    except Exception as error:
        return error.what, seen, type(error).__name__


def generators(x: Tensor) -> Any:
    class A:
        def __iter__(self) -> Any:
            for k in range(3):
                yield x * k

    return list(A()), sum(A())


def decorated(x: Tensor) -> Any:
    def plus(cls: Any) -> Any:
        make = cls.make

        def new(self: Any) -> Any:
            return make(self) + 1

        class Wrapped(cls):
            make = new

        return Wrapped

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

        return run

    @plus
    class A:
        @logged
        def make(self) -> Any:
            return x

    return A().make()


def nested(x: Tensor) -> Any:
    class A:
        class B:
            k = 2

            def run(self) -> Any:
                return x * self.k

        b = B()

        def __mangled(self) -> Any:
            return self.b.run() + 1

        def run(self) -> Any:
            return self.__mangled()

    return A().run(), A.B.__qualname__


def in_a_loop(x: Tensor) -> Any:
    found = []
    for k in range(3):

        class A:
            factor = k

            def run(self) -> Any:
                return x * self.factor

        found.append(A)
    return [cls().run() for cls in found], found[0] is found[1]


def in_a_helper(x: Tensor) -> Any:
    def make(k: Any) -> Any:
        class A:
            def run(self) -> Any:
                return x * k

        return A

    return make(2)().run() + make(x)().run()


def by_type(x: Tensor) -> Any:
    A = type("A", (Base,), {"scale": 4, "twice": lambda self: self.scaled() * 2})
    B = type("B", (), {})
    b = B()
    b.t = x
    return A(x).twice(), A.__name__, A.__module__, type(b) is B, b.t


def metaclass_type(x: Tensor) -> Any:
    class A(metaclass=type):
        k = 2

    return x * A.k


def module_inside(x: Tensor) -> Any:
    class Block(torch.nn.Module):
        def forward(self, t: Tensor) -> Tensor:
            return t.sin() + 1

    return Block()(x)


def named_tuples(x: Tensor) -> Any:
    Pair = namedtuple("Pair", "a b")
    Triple = collections.namedtuple("Triple", ["a", "b", "c"], defaults=[7], rename=False)
    p = Pair(x, b=x + 1)
    a, b = p
    t = Triple(1, x)
    return (
        p.a * p.b + a + b,
        t.c,
        t._replace(c=x).c,
        list(t._asdict().items())[0],
        p._fields,
        len(p),
        p[0],
        isinstance(p, tuple),
        isinstance(p, Pair),
        Pair.__name__,
        Pair.__module__,
        Triple._field_defaults,
        p + (1,),
    )


def typed_named_tuples(x: Tensor) -> Any:
    class Pair(NamedTuple):
        a: Tensor
        b: int = 2

        def total(self) -> Tensor:
            return self.a * self.b

        @property
        def first(self) -> Tensor:
            return self.a

    Made = typing.NamedTuple("Made", [("a", int), ("b", int)])
    return Pair(x).total(), Pair(x, b=5).first, Made(1, 2).b, Pair.__module__, Made.__module__


def dataclasses_(x: Tensor) -> Any:
    @dataclass
    class P:
        a: Any
        b: int = 2
        items: list[Any] = field(default_factory=list)

        def __post_init__(self) -> None:
            self.items.append(self.b)

        def total(self) -> Any:
            return self.a * self.b

    @dataclasses.dataclass(frozen=True, order=True)
    class Q:
        n: int

        @property
        def doubled(self) -> int:
            return self.n * 2

    @dataclass
    class R(P):
        c: int = 9

    p, r = P(x), R(x, c=3)
    try:
        Q(1).n = 2
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return (
        p.total() + r.total(),
        p.items,
        r.c,
        Q(1) < Q(2),
        Q(1) == Q(1),
        Q(2).doubled,
        text,
        repr(Q(3)),
        [f.name for f in dataclasses.fields(R)],
        dataclasses.replace(Q(1), n=4).n,
        dataclasses.is_dataclass(P),
    )


def deleted_name(x: Tensor) -> Any:
    class A:
        k = 3
        half = k / 2
        del k

    return x * A.half, hasattr(A, "k")


def missing_name(x: Tensor) -> Any:
    try:

        class A:
            k = nowhere

    except NameError as error:
        return str(error), x + 1


def wrong_bases(x: Tensor) -> Any:
    try:

        class A(bool):
            pass

    except TypeError as error:
        return str(error), x + 1


WHOLE = (
    a_method,
    attributes,
    closures,
    inherited,
    several_bases,
    descriptors,
    operators,
    errors,
    generators,
    decorated,
    nested,
    in_a_loop,
    in_a_helper,
    by_type,
    metaclass_type,
    module_inside,
    named_tuples,
    typed_named_tuples,
    dataclasses_,
    deleted_name,
    missing_name,
    wrong_bases,
)


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(function: Callable[..., Any], gradients: bool) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for seed in range(3):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            assert_same(outcome(compiled, x), outcome(function, x))
        assert_call(
            lambda t: leaves(compiled(t)),
            lambda t: leaves(function(t)),
            x.requires_grad_(gradients),
        )
    assert len(Compiler.of(compiled).compilations) <= 2


def leaves(tree: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]
