"""Effects where objects are the same on several paths, or are put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.capture.test_effects import Box, Slots, X, counter
from tests.capture.worlds import same_world

# -- which objects are the same --------------------------------------------------------------------


def test_one_object_on_two_paths_and_then_two() -> None:
    def fn(x, a, b):
        a.append(x)
        return len(b), b[-1] if b else None

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    same_world(fn, lambda: (X, *[[1]] * 2), compiled=compiled)
    same_world(fn, lambda: (X, [1], [1]), compiled=compiled)
    same_world(fn, lambda: (X, *[[1]] * 2), compiled=compiled)


def test_two_objects_and_then_one() -> None:
    def fn(x, a, b):
        a.n = 5
        return x * b.n

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    same_world(fn, lambda: (X, Box(n=1), Box(n=1)), compiled=compiled)
    same_world(fn, lambda: (X, *[Box(n=1)] * 2), compiled=compiled)


def test_what_is_read_first_may_be_what_is_written() -> None:
    def fn(x, a, b):
        before = a["n"]
        b["n"] = 7
        return x * before, a["n"]

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    same_world(fn, lambda: (X, {"n": 1}, {"n": 1}), compiled=compiled)
    same_world(fn, lambda: (X, *[{"n": 1}] * 2), compiled=compiled)


def test_cells_that_are_the_same_and_then_not() -> None:
    def fn(x, step, read):
        step(x)
        return read()[0]

    def apart() -> Any:
        return X, counter()[0], counter()[1]

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    same_world(fn, lambda: (X, *counter()), compiled=compiled, calls=1)
    same_world(fn, apart, compiled=compiled, calls=1)
    same_world(fn, lambda: (X, *counter()), compiled=compiled, calls=1)


def test_the_same_list_behind_two_attributes() -> None:
    def fn(x, box):
        box.a.append(1)
        return x * len(box.b)

    def shared() -> Any:
        items = [0]
        return X, Box(a=items, b=items)

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    same_world(fn, shared, compiled=compiled)
    same_world(fn, lambda: (X, Box(a=[0], b=[0])), compiled=compiled)


def _of_an_instance(box: Any, x: torch.Tensor) -> torch.Tensor:
    if box.mode is None and not box.busy:
        box.mode, box.busy = "at work", True
    y = x.sin()
    box.mode, box.busy = None, False
    return y


def _of_slots(box: Any, x: torch.Tensor) -> torch.Tensor:
    if box.a is None:
        box.a = 1
    y = x.sin()
    box.a = None
    return y


def _of_a_dict(box: Any, x: torch.Tensor) -> torch.Tensor:
    if box["a"] is None:
        box["a"] = 1
    y = x.sin()
    box["a"] = None
    return y


@pytest.mark.parametrize(
    "fn, box",
    [
        (_of_an_instance, Box(mode=None, busy=False)),
        (_of_slots, Slots(None)),
        (_of_a_dict, {"a": None, "b": 2}),
    ],
    ids=["instance", "slots", "dict"],
)
def test_what_was_read_and_is_put_back_is_not_written(fn: Any, box: Any) -> None:
    """What holds the same constant as before the call, as a guard says, is left alone."""
    compiled = ingot.compile(fn)
    for _ in range(2):
        assert torch.equal(compiled(box, X), X.sin())
    (compilation,) = Compiler.of(compiled).compilations
    assert compilation.captured.residual.effects == []


@pytest.mark.parametrize("before", [True, 0, "a", None], ids=repr)
def test_what_is_put_back_is_written_where_others_saw_it(
    before: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    box = Box(a=before)

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen = box.a
        box.a = 5
        print(seen)
        box.a = before
        return x + 1

    compiled = ingot.compile(fn)
    for value in (before, 7, before):
        box.a = value
        assert torch.equal(compiled(X), X + 1)
        assert box.a is before and capsys.readouterr().out == f"{value}\n"
