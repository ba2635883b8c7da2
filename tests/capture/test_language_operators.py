"""PYTEST_DONT_REWRITE. Operators by special methods, conversions, comparison."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- operators -------------------------------------------------------------------------------------


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
    return (
        x * (v @ w),
        (v + w).items,
        (v + 1).items,
        (1 + v).items,
        (10 - v).items,
        (v - w).items,
        u.items,
        t.items,
        s,
        (-v).items,
        +v is v,
        (~v).items,
        abs(Vec(-1, -2)),
        [1] @ v,
        v**2,
        2**v,
        pow(v, 3),
        pow(v, 2, 5),
        v << 1,
        1 >> v,
        v & 1,
        1 | v,
        divmod(v, 3),
        sum([v, w], 0).items,
    )


@whole
def container_operators(x, y):
    v = Vec(1, 2, 3)
    v[0] = 9
    del v[1]
    return (
        x + len(v),
        v[0],
        v[-1],
        v[0:1].items,
        3 in v,
        4 in v,
        4 not in v,
        list(v),
        list(reversed(v)),
        bool(Vec(0)),
        bool(v),
        [1, 2, 3][Vec(1)],
        list(range(Vec(1, 2))),
        "ab" * Vec(1, 2),
        (not v),
    )


@whole
def comparison_operators(x, y):
    v, w = Vec(1, 2), Vec(1, 2)
    return (
        x + 1,
        v == w,
        v != w,
        v is w,
        v == 3,
        v != 3,
        v < Vec(2),
        Vec(0) > v,
        {v: "a"}[w],
        v in [w],
        [w].index(v),
        [v, w].count(v),
        {v, w} == {v},
        sorted([Vec(2), Vec(1)])[0].items,
        max(Vec(1), Vec(2)).items,
        (v,) == (w,),
        {"k": v} == {"k": w},
    )


@whole
def conversions(x, y):
    v = Vec(1, 2)
    return (
        x + 1,
        int(v),
        float(v),
        complex(v),
        round(v),
        round(v, 2),
        str(v),
        repr(v),
        f"{v}",
        f"{v!r}",
        f"{v:>5}",
        "%s %r" % (v, v),
        "{} {!r} {:x}".format(v, v, v),
        bytes(v),
        hash(v) == hash((1, 2)),
        v(1, k=2),
        format(v, "q"),
        f"{[v]}",
        str({"k": v}),
        print,
    )


@whole
def more_conversions(x, y):
    import math
    import operator

    v = Vec(1, 2)
    return (
        x + 1,
        math.floor(v),
        math.ceil(v),
        math.trunc(v),
        operator.index(v),
        hex(v),
        bin(v),
        chr(Vec()),
        dir(v),
        operator.length_hint(v),
        bool(v),
        callable(v),
    )


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
    for act in (
        lambda: Left() + Left(),
        lambda: Left() + 1,
        lambda: Left() < Left(),
        lambda: Left() - 1,
        lambda: 1 + Left(),
    ):
        try:
            act()
        except TypeError as error:
            seen.append(str(error))
    a = Left()
    return (
        x + 1,
        seen,
        Left() + Right(),
        Left() == Right(),
        Left() < Right(),
        a == a,
        a != a,
        a == Left(),
        Left() + LeftSub(),
        3 == Right(),
    )


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
    for act in (
        lambda: {Unhashable(): 1},
        lambda: hash(Unhashable()),
        lambda: list(NoIteration()),
        lambda: 1 in NoIteration(),
    ):
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
    for act in (
        lambda: bool(b),
        lambda: len(b),
        lambda: [1][b],
        lambda: str(b),
        lambda: iter(b),
        lambda: hash(b),
        lambda: f"{b}",
    ):
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


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 0
