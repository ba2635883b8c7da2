"""Iterators that were begun before a graph break: what is taken from them, and how often a loop is
compiled."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.capture.worlds import same_world


def pause() -> int:
    """Something that ends a graph."""
    return int(time.time() > 0)


def grows_while_it_is_walked_over(x, items):
    seen = 0
    for t in items:
        seen += pause()
        if len(items) < 8:
            items.append(t + 1)
        x = x + t
    return x, seen


def is_taken_apart(x, items):
    iterator = iter(items)
    first = next(iterator)
    pause()
    second = next(iterator)
    third, *others = iterator
    return first, second, third, others, list(iterator)


def is_shared_by_two_loops(x, items):
    iterator, made = iter(items), []
    for a in iterator:
        pause()
        for b in iterator:
            made.append(a + b)
            pause()
            break
    return made, list(iterator)


def is_cleared_underneath(x, items):
    iterator = iter(items)
    next(iterator)
    pause()
    items.clear()
    return list(iterator)


def has_two_names(x, items):
    iterator = iter(items)
    other = iterator
    pause()
    return next(iterator), next(other), iterator is other


def has_ended(x, items):
    iterator = iter(items)
    list(iterator)
    pause()
    items.append(x)
    return list(iterator), next(iterator, "end")


def is_over_a_tuple(x, items):
    made = []
    for t in tuple(items):
        pause()
        made.append(t * 2)
    return made


def is_over_a_range(x, items):
    made = []
    for i in range(0, 20, 3):
        pause()
        made.append(x * i)
    return made


PROGRAMS = [
    f
    for f in list(globals().values())
    if getattr(f, "__module__", "") == __name__ and f is not pause
]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(fn: Any) -> None:
    def make() -> Any:
        return torch.zeros(2), [torch.full((2,), float(i)) for i in range(5)]

    compiled = ingot.compile(fn, backend="eager")
    for _ in range(2):
        compiler = same_world(fn, make, calls=1, compiled=compiled)
    assert all(c.skipped is None for c in compiler.compilations)


def compilations() -> int:
    return sum(len(compiler.compilations) for compiler in list(Compiler.alive))


def over_a_list(x, items):
    for t in items:
        pause()
        x = x + t
    return x


def over_a_range(x, items):
    for _ in range(len(items)):
        pause()
        x = x + 1
    return x


@pytest.mark.parametrize("fn", [over_a_list, over_a_range], ids=lambda fn: fn.__name__)
def test_a_loop_is_not_compiled_for_each_round(fn: Any) -> None:
    compiled, items = ingot.compile(fn, backend="eager"), [torch.ones(2) for _ in range(12)]
    with torch.no_grad():
        before = compilations()
        assert torch.equal(compiled(torch.zeros(2), items), torch.full((2,), 12.0))
        assert compilations() - before <= 4
        compiled(torch.zeros(2), items)
        between = compilations()
        compiled(torch.zeros(2), items)
        assert compilations() == between


def test_a_dict_that_grows_between() -> None:
    def fn(x, table, grows):
        iterator = iter(table)
        first = next(iterator)
        pause()
        if grows:
            table["new"] = 1
        pause()
        try:
            return first, list(iterator)
        except RuntimeError as error:
            return first, str(error)

    compiled = ingot.compile(fn, backend="eager")
    for grows in (False, True, False, True):
        assert compiled(torch.ones(2), {"a": 1, "b": 2}, grows) == fn(
            torch.ones(2), {"a": 1, "b": 2}, grows
        )


class Text(str):
    """A string whose iterator asks none of these."""

    def __getitem__(self, place: Any) -> Any:
        return "?"

    def __len__(self) -> int:
        return 1


class Bytes(bytes):
    def __getitem__(self, place: Any) -> Any:
        return 7


class List(list):  # type: ignore[type-arg]
    def __getitem__(self, place: Any) -> Any:
        return "?"

    def __len__(self) -> int:
        return 1


def takes(x: torch.Tensor, iterator: Any, count: int) -> Any:
    taken = [next(iterator, None) for _ in range(count)]
    return x + 1, taken, list(iterator), next(iterator, "end")


WALKED = [
    "abcd",
    "a\xe4\u4e2d\U0001f600",
    b"abcd",
    "",
    b"",
    Text("abcd"),
    Bytes(b"abcd"),
    List([1, 2, 3]),
]


@pytest.mark.parametrize(
    "wrapped", [iter, enumerate, lambda it: zip(it, it)], ids=["alone", "enumerate", "zip"]
)
@pytest.mark.parametrize(
    "walked", WALKED, ids=lambda walked: f"{type(walked).__name__}-{len(walked)}"
)
def test_an_iterator_over_text_that_is_given(walked: Any, wrapped: Any) -> None:
    """Wherever it stands, and whatever a subclass of what it goes over would say."""
    compiled, x = ingot.compile(takes), torch.zeros(2)
    for given in range(4):
        for count in range(4):
            ours, eager = (wrapped(type(walked).__iter__(walked)) for _ in range(2))
            for _ in range(given):
                next(ours, None)
                next(eager, None)
            assert compiled(x, ours, count)[1:] == takes(x, eager, count)[1:]
    compiler = Compiler.of(compiled)
    assert compiler is not None
    if type(walked) is not List:
        assert all(c.skipped is c.break_ is None for c in compiler.compilations)


def test_a_loop_over_text_is_compiled_once_for_each_letter() -> None:
    def program(x: torch.Tensor, text: str) -> Any:
        made = []
        for letter, number in zip(text, range(len(text))):
            pause()
            made.append((letter, x * number))
        return made

    before = compilations()
    compiled, x = ingot.compile(program, backend="eager"), torch.ones(2)
    found = compiled(x, "abcabcabc")
    assert [(letter, t.tolist()) for letter, t in found] == [
        (a, t.tolist()) for a, t in program(x, "abcabcabc")
    ]
    assert compilations() - before <= 12
