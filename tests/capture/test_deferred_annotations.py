"""Annotations that are real objects: until Python 3.13 made with the function or class, from 3.14 on
when they are asked for. There is no `from __future__ import annotations` in this file."""

# ruff: noqa
import dataclasses
import functools
import sys
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import ingot
from tests.oracle import assert_same, outcome

X = torch.linspace(-1, 1, 6)


def of_a_function(x, n):
    def inner(a: Tensor, *, k: int = n) -> Tensor:
        return a * k

    return inner(x), inner.__annotations__


def of_a_function_that_is_returned(x, n):
    def inner(a: Tensor, *, k: int = n) -> Tensor:
        return a * k

    return x + 1, inner


def that_are_set(x, n):
    def inner(a: int) -> Tensor:
        return a + x

    inner.__annotations__ = {"a": float}
    return inner(n), inner.__annotations__


def that_see_the_outer_function(x, n):
    kind = type(n)

    def inner(a: kind) -> "kind":
        return a + x

    return inner(n), inner.__annotations__


def of_a_wrapper(x, n):
    def decorated(f):
        @functools.wraps(f)
        def wrapper(*args: int, **kwargs: str):
            return f(*args, **kwargs) + 1

        return wrapper

    @decorated
    def doubled(a: Tensor) -> Tensor:
        return a * 2

    return doubled(x), doubled.__annotations__, doubled.__name__


def of_a_dataclass(x, n):
    @dataclasses.dataclass
    class Pair:
        first: Tensor
        second: int = 3

        def total(self) -> Tensor:
            return self.first * self.second

    return Pair(x).total(), Pair(x, n).total(), [f.name for f in dataclasses.fields(Pair)]


def of_a_named_tuple(x, n):
    class Pair(NamedTuple):
        first: Tensor
        second: int = 3

    pair = Pair(x, n)
    return pair.first * pair.second, Pair(x)[1], Pair._fields


def of_a_class(x, n):
    class Scaled:
        by: int = 4
        plain: "float"

        def __call__(self, t: Tensor) -> Tensor:
            return t * self.by

    return Scaled()(x), Scaled.by + n


PROGRAMS = [
    of_a_function,
    of_a_function_that_is_returned,
    that_are_set,
    that_see_the_outer_function,
    of_a_wrapper,
    of_a_dataclass,
    of_a_named_tuple,
    of_a_class,
]


def known(found: Any) -> Any:
    """A result with functions as what they say of themselves."""
    if not isinstance(found, tuple):
        return found
    return tuple(
        (one.__annotations__, one.__name__, one(X, k=2)) if callable(one) else one for one in found
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_annotations(program: Any) -> None:
    compiled = ingot.compile(program, fullgraph=True)
    for _ in range(2):
        assert_same(known(compiled(X, 2)), known(program(X, 2)))


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are made at once")
def test_annotations_that_cannot_be_made() -> None:
    def program(x):
        def inner(a: Nowhere) -> Tensor:  # type: ignore[name-defined]
            return a * 2

        try:
            inner.__annotations__
        except NameError as error:
            return inner(x), str(error)

    assert_same(outcome(ingot.compile(program, fullgraph=True), X), outcome(program, X))


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are made at once")
def test_a_returned_function_makes_them_late() -> None:
    def program(x):
        def inner(a: Later) -> Tensor:  # type: ignore[name-defined]
            return a

        return x + 1, inner

    _, inner = ingot.compile(program)(X)
    with pytest.raises(NameError):
        inner.__annotations__
    globals()["Later"] = int
    try:
        assert inner.__annotations__ == {"a": int, "return": Tensor}
    finally:
        del globals()["Later"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings are of Python 3.14")
def test_a_template_string_breaks_the_graph() -> None:
    scope: dict[str, Any] = {}
    exec("def program(x, n):\n return x + 1, t'{n}-{n!r:>{n}} of {x.shape}', x * 2", scope)
    program = scope["program"]
    compiled = ingot.compile(program)
    found, expected = compiled(X, 3), program(X, 3)
    assert_same((found[0], found[2]), (expected[0], expected[2]))
    assert found[1].strings == expected[1].strings
    assert repr(found[1]) == repr(expected[1])
    with pytest.raises(ingot.GraphBreakError, match="a template string"):
        ingot.compile(program, fullgraph=True)(X, 3)
