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
        self.width = width

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
}


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


def written(x: Tensor) -> Tensor:
    cached = steps(len(x))
    cached += 1
    return x.sum(1) + cached


OTHERS: dict[str, tuple[Any, Callable[[Tensor], Any]]] = {
    "prints": (printed, lambda x: x * printed(len(x))),
    "counts": (counted, lambda x: x * counted(len(x))),
    "makes a list that is changed": (listed, appended),
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
