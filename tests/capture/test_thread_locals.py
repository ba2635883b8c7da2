"""threading.local: what is read and written is this thread's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_same, outcome

X = torch.arange(3.0)


class Settings(threading.local):
    scale = 2.0
    depth: int

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth
        self.stack: list[Any] = []

    @property
    def doubled(self) -> int:
        return self.depth * 2

    def push(self, item: Any) -> int:
        self.stack.append(item)
        return len(self.stack)


class Slotted(threading.local):
    __slots__ = ("a",)


T = threading.local()
S = Settings()
SLOTTED = Slotted()


def fresh() -> None:
    T.__dict__.clear()
    T.a, T.items = 3, [1, 2]
    S.__dict__.clear()
    S.__init__(2)
    SLOTTED.a = 4


def state() -> Any:
    return dict(T.__dict__), dict(S.__dict__)


def read(x: Tensor) -> Any:
    return x * T.a + len(T.items), T.items


def missing(x: Tensor) -> Any:
    return x + getattr(T, "b", 5), hasattr(T, "c"), hasattr(T, "a")


def missing_raises(x: Tensor) -> Any:
    return x * T.missing


def written(x: Tensor) -> Any:
    T.b = x * 2
    T.a += 1
    T.count = getattr(T, "count", 0) + 1
    return T.b + T.a, T.count


def deleted(x: Tensor) -> Any:
    del T.a
    y = x + hasattr(T, "a")
    T.a = 9
    del T.items
    return y


def deleted_twice(x: Tensor) -> Any:
    del T.a
    del T.a
    return x


def of_a_subclass(x: Tensor) -> Any:
    S.depth += 1
    S.scale = S.scale * 2
    return x * S.scale + S.doubled, S.push(x + 1), S.stack[-1] is S.stack[0]


def property_set(x: Tensor) -> Any:
    S.doubled = 3
    return x


def through_the_dict(x: Tensor) -> Any:
    T.__dict__["z"] = 1
    vars(T)["y"] = x + 1
    return x + T.z, sorted(T.__dict__), T.__dict__ is vars(T)


def entered(x: Tensor) -> Any:
    before, T.a = T.a, 7
    try:
        return x * T.a
    finally:
        T.a = before


def same_object(x: Tensor) -> Any:
    other = T
    other.a = 11
    return x + T.a, other is T, isinstance(T, threading.local), type(S) is Settings


def beside_a_print(x: Tensor) -> Any:
    T.a = 1
    print(T.a)
    T.a = 2
    return x + T.a


WHOLE = (
    read,
    missing,
    missing_raises,
    written,
    deleted,
    deleted_twice,
    of_a_subclass,
    property_set,
    through_the_dict,
    entered,
    same_object,
    beside_a_print,
)


def called(function: Callable[..., Any]) -> Any:
    """What a call does to what `fresh` sets up in this thread."""
    fresh()
    first = outcome(function, X.clone())
    return first, state(), outcome(function, X.clone()), state()


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for _ in range(2):
        assert_same(called(compiled), called(function))


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_each_thread_has_its_own(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    called(compiled)
    T.a = 100
    with ThreadPoolExecutor(1) as pool:
        assert_same(pool.submit(called, compiled).result(), pool.submit(called, function).result())
    assert T.a == 100


def test_guards_ask_for_this_threads_attributes() -> None:
    def function(x: Tensor) -> Any:
        return x * getattr(T, "factor", 1) + S.depth

    compiled = ingot.compile(function, dynamic=False)

    def in_a_thread(factor: int | None) -> Any:
        if factor is not None:
            T.factor = factor
        return compiled(X), function(X)

    T.factor = 2
    assert_same(*in_a_thread(None))
    for factor in (None, 3, 2, None):
        with ThreadPoolExecutor(1) as pool:
            assert_same(*pool.submit(in_a_thread, factor).result())
    del T.factor
    assert_same(*in_a_thread(None))
    assert len(Compiler.of(compiled).compilations) <= 5


def test_of_slots_breaks_the_graph() -> None:
    def function(x: Tensor) -> Any:
        SLOTTED.a += 1
        return x + SLOTTED.a

    compiled = ingot.compile(function)
    results = []
    for f in (compiled, function):
        fresh()
        results.append((f(X), f(X), SLOTTED.a))
    assert_same(*results)
