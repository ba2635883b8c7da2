"""Functions with a cache by functools.lru_cache that are given sizes which vary: eager is the
oracle, for results, effects and how often they happen."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.tracked import Tracked

X = torch.arange(48.0).reshape(12, 4)


@functools.lru_cache
def doubled(n: int) -> int:
    return 2 * n


@functools.lru_cache(maxsize=1)
def parts(shape: tuple[int, ...], width: int = 2) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // width, width)


@functools.lru_cache(typed=True)
def listed(n: int) -> list[int]:
    return [n, 2 * n]


class Recipe:
    def __init__(self, width: int) -> None:
        self.width, self.order = width, [1, 0, 2]

    @functools.lru_cache  # noqa: B019
    def steps_of(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        split = [shape[0], shape[1] // self.width, self.width]
        return split, self.order, {"summed": [2], 3: shape[0] * 2}, None

    @functools.lru_cache(4)  # noqa: B019
    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[0], shape[1] // self.width, self.width


RECIPE = Recipe(2)

PURE: dict[str, Callable[[Tensor], Any]] = {
    "a size": lambda x: x * doubled(x.shape[0]),
    "twice": lambda x: (x * doubled(x.shape[0]), doubled(len(x))),
    "a shape": lambda x: x.reshape(parts(x.shape)),
    "a shape and a number": lambda x: x.reshape(parts(tuple(x.shape), width=4)),
    "a method": lambda x: x.reshape(RECIPE.shape_of(x.shape)),
    "a list that is read": lambda x: x * sum(listed(len(x))) + len(listed(len(x))[:1] + [3]),
    "lists and dicts": lambda x: rearranged(x),
}


def rearranged(x: Tensor) -> Tensor:
    """As einops has its recipes."""
    split, order, others, nothing = RECIPE.steps_of(tuple(x.shape))
    assert nothing is None and split is RECIPE.steps_of(tuple(x.shape))[0]
    return x.reshape(split).permute(order).sum(others["summed"]) * others[3]


@pytest.mark.parametrize("name", PURE)
def test_sizes_vary_as_without_a_cache(name: str) -> None:
    tracked = Tracked(PURE[name], fullgraph=True)
    compiled = [tracked(X[:n]) for n in (3, 5, 7, 9, 11)]
    assert compiled == [1, 1, 0, 0, 0] and tracked.skips == []


@functools.lru_cache
def printed(n: int) -> int:
    print("miss", n)
    return n + 1


COUNTED: list[int] = []


@functools.lru_cache
def counted(n: int) -> int:
    COUNTED.append(n)
    return n + 1


@functools.lru_cache
def steps(n: int) -> Tensor:
    return torch.arange(n)


def appended(x: Tensor) -> Tensor:
    numbers = listed(len(x))
    numbers.append(len(numbers))
    return x * sum(numbers)


def appended_behind_a_break(x: Tensor) -> Tensor:
    numbers = listed(len(x))
    torch._C._get_tracing_state()
    numbers.append(len(numbers))
    return x * sum(numbers)


def kept_by_a_closure(x: Tensor) -> Any:
    numbers = listed(len(x))
    return lambda: numbers.append(2) or x * sum(numbers)


def in_a_changed_list(x: Tensor) -> Tensor:
    split, _, others, _ = RECIPE.steps_of(tuple(x.shape))
    others["summed"].append(len(split))
    return x * len(others["summed"])


def written(x: Tensor) -> Tensor:
    cached = steps(len(x))
    cached += 1
    return x.sum(1) + cached


OTHERS: dict[str, tuple[Any, Callable[[Tensor], Any]]] = {
    "prints": (printed, lambda x: x * printed(len(x))),
    "counts": (counted, lambda x: x * counted(len(x))),
    "makes a list that is changed": (listed, appended),
    "makes a list that is changed behind a break": (listed, appended_behind_a_break),
    "makes a list that is kept": (listed, lambda x: kept_by_a_closure(x)()),
    "makes a dict with a list that is changed": (Recipe.steps_of, in_a_changed_list),
    "makes a tensor that is written": (steps, written),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_more_than_arithmetic_is_eagers(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cached, function = OTHERS[name]
    outcomes = []
    for run in (function, ingot.compile(function)):
        cached.cache_clear()
        COUNTED.clear()
        results = [run(X[:n]).tolist() for n in (3, 5, 3, 7, 9, 5, 9, 11, 3)]
        outcomes.append((results, list(COUNTED), capsys.readouterr().out))
    assert outcomes[0] == outcomes[1]


@functools.lru_cache
def noted(x: Tensor) -> Tensor:
    COUNTED.append(1)
    return x * 2


def test_a_function_of_tensors_that_writes_runs_as_often_as_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        return noted(x) + 1

    counts = []
    for run in (function, ingot.compile(function)):
        noted.cache_clear()
        COUNTED.clear()
        for x in (X, X, X[:3], X):
            assert torch.equal(run(x), x * 2 + 1)
        counts.append(len(COUNTED))
    assert counts[0] == counts[1] == 2


def test_a_list_that_is_given_away_is_the_same_object_in_each_call() -> None:
    held: list[Any] = []
    listed.cache_clear()

    def given(x: Tensor) -> Any:
        return x + 1, listed(len(x))

    def stored(x: Tensor) -> Any:
        held.append(listed(len(x)))
        return x + 1, held[-1]

    for function in (given, stored):
        compiled = ingot.compile(function)
        for n in (3, 5, 7, 9, 7, 11):
            found, again = compiled(X[:n]), compiled(X[:n])
            assert found[1] is again[1] and found[1] == [n, 2 * n]
            assert found[1] is listed(n)
