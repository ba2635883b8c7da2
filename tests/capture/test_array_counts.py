"""Counts and sets of the integers in NumPy's arrays, whose sizes the data decide: NumPy itself is
the oracle, for values, types and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import ingot

Function = Callable[..., Any]

X = np.array([[3, 1, 2], [1, 5, 3]])
W = np.linspace(-1, 1, 3)

COUNTS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "plain": (np.bincount, (X[0],)),
    "unsigned": (np.bincount, (X[0].astype(np.uint8),)),
    "conditions": (np.bincount, (X[0] > 1,)),
    "a view": (np.bincount, (X[:, 1],)),
    "nothing": (np.bincount, (X[0, :0],)),
    "nothing, at least": (partial(np.bincount, minlength=3), (X[0, :0],)),
    "weights": (np.bincount, (X[0], W)),
    "weights in float32": (np.bincount, (X[0], W.astype(np.float32))),
    "weights that are integers": (np.bincount, (X[0], X[1])),
    "weights of nothing": (np.bincount, (X[0, :0], W[:0])),
    "at least": (partial(np.bincount, minlength=9), (X[0],)),
    "at least, with weights": (partial(np.bincount, minlength=9), (X[0], W)),
    "negative": (np.bincount, (-X[0],)),
    "floats": (np.bincount, (W,)),
    "too deep": (np.bincount, (X,)),
    "not deep enough": (np.bincount, (X[0, 0],)),
    "weights of another length": (np.bincount, (X[0], W[:2])),
    "complex weights": (np.bincount, (X[0], W.astype(np.complex128))),
    "negative minlength": (partial(np.bincount, minlength=-1), (X[0],)),
}
SETS: dict[str, Function] = {
    "unique": np.unique,
    "places": partial(np.unique, return_index=True),
    "inverse": partial(np.unique, return_inverse=True),
    "counts": partial(np.unique, return_counts=True),
    "all": partial(np.unique, return_index=True, return_inverse=True, return_counts=True),
    "union": lambda a: np.union1d(a, a + 1),
    "intersection": lambda a: np.intersect1d(a, a + 1),
}
TYPES = [np.int64, np.int32, np.uint8, np.int16]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def assert_same(ours: Any, numpys: Any) -> None:
    assert type(ours) is type(numpys)
    if isinstance(numpys, tuple):
        assert len(ours) == len(numpys)
        for one, other in zip(ours, numpys):
            assert_same(one, other)
    elif isinstance(numpys, np.ndarray):
        assert ours.dtype == numpys.dtype
        np.testing.assert_array_equal(ours, numpys)
    else:
        assert ours == numpys


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    function, args = COUNTS[name]
    compiled = ingot.compile(lambda *args: function(*args), fullgraph=True)
    for _ in range(2):
        assert_same(outcome(lambda: compiled(*args)), outcome(lambda: function(*args)))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", SETS)
def test_sets(name: str, dtype: Any) -> None:
    function, array = SETS[name], X.astype(dtype)
    compiled = ingot.compile(lambda a: function(a), fullgraph=True)
    for values in (array, array[:1], array[:, ::2], array * 0):
        assert_same(compiled(values), function(values))


def test_one_compilation_serves_all_contents() -> None:
    compiled = ingot.compile(lambda a: (np.bincount(a) * 2, np.unique(a) + 1), fullgraph=True)
    for values in ([1, 1, 1], [0, 5, 2], [7, 7, 0]):
        a = np.array(values)
        assert_same(compiled(a), (np.bincount(a) * 2, np.unique(a) + 1))
    assert len(ingot.explain(compiled)(np.array([3, 2, 1])).compilations) == 1


@pytest.mark.parametrize(
    "function",
    [
        np.unique,
        partial(np.unique, sorted=False),
        partial(np.unique, axis=0),
        lambda a: np.setdiff1d(a, a + 1),
        lambda a: np.setxor1d(a, a + 1),
    ],
    ids=["floats", "unsorted", "rows", "whether anything is there", "that of two"],
)
def test_what_breaks_the_graph(function: Function) -> None:
    values = np.array([[1.0, -0.0], [np.nan, 0.0], [np.nan, 1.0]])
    compiled = ingot.compile(lambda a: function(a))
    for a in (values, values[:1], np.nan_to_num(values).astype(int)):
        expected = function(a)
        ours = compiled(a)
        np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(expected))


def test_beside_tensors() -> None:
    def count(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.bincount((x > 0).numpy(), minlength=2)) + x.sum()

    compiled = ingot.compile(count, fullgraph=True)
    for k in range(3):
        x = torch.randn(10, generator=torch.Generator().manual_seed(k))
        torch.testing.assert_close(compiled(x), count(x))
