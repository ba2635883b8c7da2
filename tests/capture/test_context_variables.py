"""Context variables that are set and reset around tensor work, across graph breaks and what others
can see."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler

Variable = contextvars.ContextVar[Any]


def reset_behind_a_break(x: Tensor, variable: Variable) -> Any:
    token = variable.set({"scale": 2})
    try:
        y = x.sin()
        if y.sum() > 100:
            y = y + 1
        y = y * variable.get()["scale"]
    finally:
        variable.reset(token)
    return y.cos(), variable.get(5)


def seen_in_between(x: Tensor, variable: Variable) -> Any:
    token = variable.set(3)
    print("seen")
    variable.reset(token)
    return x + 1, variable.get("nothing")


def nested(x: Tensor, variable: Variable) -> Any:
    outer = variable.set(1)
    inner = variable.set(2)
    y = x.sin()
    if y.sum() > 0:
        y = y * 2
    a = variable.get()
    variable.reset(inner)
    b = variable.get()
    variable.reset(outer)
    return y * a, b, variable.get(9)


def used_twice(x: Tensor, variable: Variable) -> Any:
    token = variable.set(1)
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    variable.reset(token)
    try:
        variable.reset(token)
    except RuntimeError as error:
        return y, type(error)


def returned(x: Tensor, variable: Variable) -> Any:
    first = variable.set(1)
    second = variable.set(2)
    return x + 1, first.var is variable, second.old_value, (first, second)


def left_set(x: Tensor, variable: Variable) -> Any:
    variable.set(variable.get(0) + 1)
    return x * 2


@pytest.mark.parametrize("before", [None, 8])
@pytest.mark.parametrize(
    "fn", [reset_behind_a_break, seen_in_between, nested, used_twice, left_set]
)
def test_a_variable_holds_what_it_does_in_eager(fn: Callable[..., Any], before: int | None) -> None:
    def outcome(f: Callable[..., Any]) -> str:
        variable: Variable = contextvars.ContextVar("variable")
        if before is not None:
            variable.set(before)
        results = []
        for _ in range(3):
            results += [f(torch.arange(1.0, 4.0), variable), variable.get("nothing")]
        return repr(results)

    compiled = ingot.compile(fn)
    found = contextvars.copy_context().run(outcome, compiled)
    assert found == contextvars.copy_context().run(outcome, fn)
    assert all(c.skipped is None for c in Compiler.of(compiled).compilations)


def test_tokens_among_the_results() -> None:
    def outcome() -> Any:
        variable: Variable = contextvars.ContextVar("variable")
        y, is_its, between, (first, second) = compiled(torch.ones(2), variable)
        variable.reset(second)
        held = variable.get()
        variable.reset(first)
        return y.tolist(), is_its, between, held, variable.get("nothing")

    compiled = ingot.compile(returned, fullgraph=True)
    assert contextvars.copy_context().run(outcome) == ([2.0, 2.0], True, 1, 1, "nothing")
