"""Which elements sorted() and list.sort compare, and in which order: the user's `<` may tell."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import ingot

LOG: list[tuple[int, int]] = []


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: Plain) -> Any:
        LOG.append((self.number, other.number))
        return self.number < other.number


class Number(int):
    def __lt__(self, other: int) -> Any:
        LOG.append((int(self), int(other)))
        return int.__lt__(self, other)


class Inconsistent(Plain):
    """Whose order is none: what comes first depends on what is compared."""

    def __lt__(self, other: Plain) -> Any:
        LOG.append((self.number, other.number))
        return (self.number * 7 + other.number * 3) % 5 < 2


class OfTensors(Plain):
    """Whose comparison breaks the graph."""

    def __lt__(self, other: Plain) -> Any:
        LOG.append((self.number, other.number))
        return torch.tensor(self.number) < torch.tensor(other.number)


def sort_both(x: torch.Tensor, numbers: list[int], cls: Any, reverse: bool) -> Any:
    items = [cls(n) for n in numbers]
    in_order = sorted(items, reverse=reverse)
    items.sort(key=lambda item: item, reverse=reverse)
    return x + 1, [[items.index(i) for i in order] for order in (in_order, items)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cls", [Plain, Number, Inconsistent, OfTensors])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 9, 30, 70])
def test_the_same_comparisons_in_the_same_order(cls: Any, count: int, reverse: bool) -> None:
    source = random.Random(count)
    numbers = [source.randrange(40) for _ in range(count)]
    compiled = ingot.compile(sort_both)
    found = []
    for function in (sort_both, compiled, compiled):
        LOG.clear()
        found.append((function(torch.ones(2), numbers, cls, reverse)[1], list(LOG)))
    assert found[1] == found[0] and found[2] == found[0]
