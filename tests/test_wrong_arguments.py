"""Mistakes in calls of Ingot's own functions: each is named, with what may be given instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot


class Hostile:
    """Code of its own wherever it is looked at raises an error."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("__eq__")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("__repr__")

    def __bool__(self) -> bool:
        raise RuntimeError("__bool__")


def f(x: Any) -> Any:
    return x + 1


H, PAIR, X = Hostile(), torch.ones(2), torch.ones(3, 4)
# What is called, what it is given instead of something right, and what the message says.
TABLE: list[tuple[Callable[[Any], Any], list[Any], str]] = [
    (lambda v: ingot.compile(f, options={"freeze": v}),
     ["yes", None, [], {}, "True", 1.5, PAIR, H, float("nan"), 2],
     "compile: option freeze may not be"),
    (lambda v: ingot.compile(f, options={"numerics": v}),
     ["fats", 1, None, [], ("fast",), PAIR, H, b"fast"], "compile: option numerics may not be"),
    (lambda v: ingot.compile(f, options={v: True}),
     ["freez", 1, None, (), "max_autotune", "", "x" * 500, b"freeze"], "compile: unknown option"),
    (lambda v: ingot.compile(f, options=v),
     ["freeze", True, [("freeze", True)], H, 1], "compile: options must be"),
    (lambda v: ingot.compile(f, mode=v),
     ["max-autotun", 1, [], {}, PAIR, H, "", b"default", True], "compile: unknown mode"),
    (lambda v: ingot.compile(f, backend=v), ["inductr", "", "nope"], "compile: unknown backend"),
    (lambda v: ingot.compile(f, backend=v), [1, [], H], "compile: backend must be"),
    (lambda v: ingot.compile(f, fullgraph=v),
     [1, 0, None, "yes", H, []], "compile: fullgraph must be"),
    (lambda v: ingot.compile(f, dynamic=v), [1, 0, "auto", H], "compile: dynamic must be"),
    (lambda v: ingot.compile(f, disable=v), [1, None, "no", H], "compile: disable must be"),
    (ingot.compile, [1, "f", [f], PAIR, H, ...], "compile: expected a function"),
    (ingot.compile, [int, torch.nn.Linear, Hostile], "compile: .* is a class"),
    (ingot.compile, [staticmethod(f), classmethod(f)], "compile: compile the function inside"),
    (ingot.disable, [1, "f", [f], H, property(f)], "disable: expected a function"),
    (lambda v: ingot.disable(f, reason=v), [1, None, H], "disable: reason must be"),
    (ingot.explain, [1, None, "f", H, [f]], "explain: expected a function"),
    (ingot.explain, [int, torch.nn.Linear], "explain: .* is a class"),
    (ingot.allow_in_graph,
     [1, None, "f", int, H, [1], (f, 2), property(f)], "allow_in_graph: expected"),
    (lambda v: ingot.mark_dynamic(v, 0), [1, None, [X], "x", H], "mark_dynamic: expected a tensor"),
    (lambda v: ingot.mark_dynamic(X, v),
     [None, "0", "01", 1.0, [None], H, PAIR, b"\x00", ["0"]], "mark_dynamic: expected dimensions"),
    (lambda v: ingot.mark_dynamic(X, v), [5, -3, [0, 9]], "mark_dynamic: .* has no dimension"),
    (lambda v: ingot.mark_dynamic(X, 0, min=v),
     ["1", 1.5, [], H, PAIR], "mark_dynamic: min must be"),
    (lambda v: ingot.mark_dynamic(X, 0, max=v), ["9", 9.5, [], H], "mark_dynamic: max must be"),
    (lambda v: ingot.mark_dynamic(X, 0, min=v),
     [4, 10**30], "mark_dynamic: the size along dimension 0"),
    (lambda v: ingot.mark_dynamic(X, 0, max=v),
     [2, -1], "mark_dynamic: the size along dimension 0"),
    (lambda v: ingot.mark_static(X, v), ["0", 1.0, H], "mark_static: expected dimensions"),
    (lambda v: ingot.mark_static(v), [1, None, H], "mark_static: expected a tensor"),
    (ingot.set_stance, ["eagr", 1, None, "", [], H, PAIR, b"eager"], "set_stance: unknown stance"),
    (ingot.register_backend, [1, "", [], H], "register_backend: expected a callable"),
    (lambda v: ingot.register_backend(lambda g, e: g, name=v),
     [1, [1], "ingot"], "register_backend: the name"),
]  # fmt: skip
CASES = [(call, value, says) for call, values, says in TABLE for value in values]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_mistakes_are_named(number: int) -> None:
    call, value, says = CASES[number]
    with pytest.raises((TypeError, ValueError, IndexError), match=f"ingot.{says}"):
        call(value)


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: ingot.compile(f, options={"freez": True}), "freeze"),
        (lambda: ingot.compile(f, options={"numerics": "fats"}), "fast"),
        (lambda: ingot.compile(f, mode="reduce_overhead"), "reduce-overhead"),
        (lambda: ingot.set_stance("eagre"), "eager"),
        (lambda: ingot.compile(f, backend="inductr"), "inductor"),
    ],
)
def test_what_may_have_been_meant(call: Callable[[], Any], near: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        call()


@pytest.mark.parametrize("value", [0, 1, False, True])
def test_numbers_that_are_as_good_as_a_bool(value: Any) -> None:
    assert ingot.compile(f, options={"freeze": value})(X).equal(X + 1)
