"""The comparison of two runs finds what differs, and nothing else."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from tests.matching import Matcher, Mismatch

V = torch.ones(3)


class Point:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


def numbers() -> Any:
    yield V
    yield 2


def closure(x: Any) -> Any:
    return lambda: x


SHARED = [1]
UNLIKE = {
    "values": ([1, 2], [1, 3]),
    "types of numbers": (1, True),
    "a float and an int": (1.0, 1),
    "signs of zeros": (0.0, -0.0),
    "lengths": ([1], [1, 1]),
    "kinds of container": ((1,), [1]),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "one list twice, and two lists": ([SHARED, SHARED], [[1], [1]]),
    "two lists, and one list twice": ([[1], [1]], [SHARED, SHARED]),
    "elements": (V, V + 1e-7),
    "dtypes": (V, V.double()),
    "shapes": (V, V[None]),
    "strides": (torch.ones(2, 2), torch.ones(2, 2).t()),
    "a view and a copy": ([V, V[1:]], [V, V[1:].clone()]),
    "views at other places": ([V, V[:1]], [V, V[1:2]]),
    "slots": (Point(1), Point(2)),
    "what iterators have left": (iter([1, 2]), iter([1])),
    "generators": (numbers(), (n for n in (V, 3))),
    "what closures hold": (closure(1), closure(2)),
    "how long deques may grow": (collections.deque([1], 2), collections.deque([1])),
    "messages": (ValueError("a"), ValueError("b")),
    "attributes of tensors": (V, torch.ones(3).requires_grad_()),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_differences_are_found(name: str) -> None:
    with pytest.raises(Mismatch):
        Matcher().match(*UNLIKE[name], "it")


def test_equal_graphs_match() -> None:
    def graph() -> Any:
        x, items = torch.arange(6.0).view(2, 3), [Point(1)]
        items.append(items)
        table = collections.defaultdict(list, a=x, b=x[0], c=items, nan=float("nan"))
        return (
            table,
            closure(items),
            numbers(),
            ValueError("a", 1),
            {1, 2},
            torch.nn.Linear(1, 1).train().weight.shape,
        )

    Matcher().match(graph(), graph(), "it")


def test_decimal_numbers_in_texts_match_within_the_tolerance() -> None:
    Matcher(1e-3).match("sum 1.00 of 3", "sum 1.01 of 3", "it")
    with pytest.raises(Mismatch):
        Matcher(1e-3).match("sum 1.00 of 3", "sum 1.00 of 4", "it")
