"""pickle.dumps of constants, which caches take for keys; keys of an OrderedDict from outside."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch

import ingot

X = torch.arange(3.0)
SAME = "same" * 3
VALUES: dict[str, Any] = {
    "nothing": {},
    "numbers": {"a": 1, "b": 2.5, "c": None, "d": True, "e": 2**70},
    "texts": {"a": "b", "c": b"d"},
    "nested": {"a": (1, (2, 3)), "b": [4, 5], "c": {"d": 6}},
    "a tuple": (1, "x", None),
    "a list": [1.5, "y"],
    "one text twice": [SAME, SAME],
    "equal texts": [SAME, "".join(list(SAME))],
    "one tuple twice": [(1, 2)] * 2,
    "a tensor": {"x": X},
    "a class": {"cls": OrderedDict},
    "a set": {"s": frozenset({1})},
}


@pytest.mark.parametrize("protocol", [None, 0, 2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("name", VALUES)
def test_dumps(name: str, protocol: int | None) -> None:
    """The bytes are those of eager, whether the graph breaks or not."""
    value = VALUES[name]

    def fn(x, value):
        return x + 1, pickle.dumps(value, protocol), pickle.dumps(value, protocol=protocol)

    compiled = ingot.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(X, value)[1:] == fn(X, value)[1:]


def test_keywords_are_a_key() -> None:
    def inner(x, **kwargs):
        return x + 1, pickle.dumps(kwargs)

    def fn(x):
        return inner(x), inner(x, diag=True), inner(x, name="b", scale=2)

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    for given, expected in zip(compiled(X), fn(X)):
        assert given[1] == expected[1]


@pytest.mark.parametrize("cls", [dict, OrderedDict])
@pytest.mark.parametrize("kind", ["keys", "values", "items"])
def test_views_from_outside(cls: Any, kind: str) -> None:
    mapping = cls(a=1, b=2)
    if cls is OrderedDict:
        mapping.move_to_end("a")
    view = getattr(mapping, kind)()

    def fn(x):
        return x + 1, list(view), len(view), type(view).__name__

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    for _ in range(2):
        assert compiled(X)[1:] == fn(X)[1:]
        mapping["c"] = len(mapping)
