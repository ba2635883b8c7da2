"""Containers whose methods and operators are given the container itself."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot import GraphBreakError


class Listed(list[int]):
    pass


class Counting(list[int]):
    """Its iterator gives something else than it holds."""

    def __iter__(self) -> Any:
        return iter([1, 2, 3])


class Mapped(dict[int, int]):
    pass


class Chosen(set[int]):
    pass


class Queue(collections.deque[int]):
    pass


CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2],
    "subclass of list": lambda: Listed([1, 2]),
    "subclass with an iterator": lambda: Counting([5, 6]),
    "deque": lambda: collections.deque([1, 2]),
    "bounded deque": lambda: collections.deque([1, 2], 3),
    "subclass of deque": lambda: Queue([1, 2]),
    "set": lambda: {1, 2},
    "subclass of set": lambda: Chosen({1, 2}),
    "dict": lambda: {1: 2},
    "subclass of dict": lambda: Mapped({1: 2}),
    "OrderedDict": lambda: collections.OrderedDict(a=1),
    "Counter": lambda: collections.Counter("aab"),
}

ACTIONS: dict[str, Callable[[Any], Any]] = {
    "extend": lambda c: c.extend(c),
    "extendleft": lambda c: c.extendleft(c),
    "+=": lambda c: operator.iadd(c, c),
    "+": lambda c: c + c,
    "|=": lambda c: operator.ior(c, c),
    "-=": lambda c: operator.isub(c, c),
    "&=": lambda c: operator.iand(c, c),
    "^=": lambda c: operator.ixor(c, c),
    "a slice": lambda c: operator.setitem(c, slice(1, 1), c),
    "all of it": lambda c: operator.setitem(c, slice(None), c),
    "every second": lambda c: operator.setitem(c, slice(None, None, 2), c),
    "update": lambda c: c.update(c),
    "subtract": lambda c: c.subtract(c),
    "difference_update": lambda c: c.difference_update(c),
    "intersection_update": lambda c: c.intersection_update(c),
    "symmetric_difference_update": lambda c: c.symmetric_difference_update(c),
    "extend by its reverse": lambda c: c.extend(reversed(c)),
}


def outcome(call: Callable[..., Any], container: Any) -> str:
    try:
        result, _ = call(container, torch.ones(2))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    try:
        return repr((result, container, result is container))
    except RecursionError:  # a Counter holds itself under a slice, which can be a key since 3.12
        return f"{type(result)}, {len(container)}"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_container_is_given_itself(action: str) -> None:
    act = ACTIONS[action]

    def program(container: Any, x: torch.Tensor) -> Any:
        return act(container), x * 2

    for name, make in CONTAINERS.items():
        expected = outcome(program, make())
        ingot.reset()
        assert outcome(ingot.compile(program), make()) == expected, name


@pytest.mark.parametrize("name", ["list", "subclass of list", "subclass with an iterator"])
@pytest.mark.parametrize("action", ["extend", "+=", "a slice", "all of it"])
def test_capture_comes_to_an_end(action: str, name: str) -> None:
    """An iterator of a list that grows by what it gives never ends."""

    def program(container: Any, x: torch.Tensor) -> Any:
        return ACTIONS[action](container), x * 2

    compiled = ingot.compile(program, fullgraph=True)
    try:
        compiled(CONTAINERS[name](), torch.ones(2))
    except GraphBreakError as error:
        assert "2,000,000 instructions" not in str(error)
