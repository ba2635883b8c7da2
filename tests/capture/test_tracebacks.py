"""Tracebacks of exceptions that the program catches: eager's frames and lines."""

# ruff: noqa: B018  (expressions that are there for what they raise)
from __future__ import annotations

import functools
import traceback
from types import TracebackType
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot


def raising() -> Any:
    raise KeyError(1)


def calling() -> Any:
    return raising()


def lines(tb: TracebackType | None) -> list[tuple[str, int]]:
    """The function and the line of each frame."""
    found = []
    while tb is not None:
        found.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
        tb = tb.tb_next
    return found


def of_this_frame() -> Any:
    try:
        raise KeyError(1)
    except KeyError as error:
        tb = error.__traceback__
        return lines(tb), tb is None, bool(tb), tb.tb_lineno, tb.tb_next  # type: ignore[union-attr]


def walked() -> Any:
    found = []
    try:
        calling()
    except KeyError as error:
        tb = error.__traceback__
        while tb:
            found.append(tb.tb_lineno)
            tb = tb.tb_next
    return found


def alive_later() -> Any:
    try:
        calling()
    except KeyError as error:
        tb = error.__traceback__
    return lines(tb)


def raised_again() -> Any:
    try:
        try:
            calling()
        except KeyError:
            raise
    except KeyError as error:
        return lines(error.__traceback__)


def raised_anew() -> Any:
    def other() -> None:
        raise first

    try:
        calling()
    except KeyError as error:
        first = error
    try:
        other()
    except KeyError as error:
        return lines(error.__traceback__)


def one_that_was_kept() -> Any:
    try:
        calling()
    except KeyError as error:
        first, tb = error, error.__traceback__
    try:
        raise first
    except KeyError as error:
        return lines(error.__traceback__), lines(tb)


def removed() -> Any:
    try:
        calling()
    except KeyError as error:
        first = error.with_traceback(None)
    try:
        raise first
    except KeyError as error:
        return lines(error.__traceback__)


def of_another() -> Any:
    try:
        calling()
    except KeyError as error:
        try:
            raise ValueError(2).with_traceback(error.__traceback__)
        except ValueError as other:
            context = other.__context__
            assert context is not None
            return lines(other.__traceback__), lines(context.__traceback__)


def cause() -> Any:
    try:
        try:
            calling()
        except KeyError as error:
            raise ValueError(3) from error
    except ValueError as error:
        assert error.__cause__ is not None
        return lines(error.__traceback__), lines(error.__cause__.__traceback__)


def of_an_operation() -> Any:
    def look_up() -> Any:
        return {}["q"]

    try:
        look_up()
    except KeyError as error:
        return lines(error.__traceback__)


def of_a_generator() -> Any:
    def some() -> Any:
        yield 1
        raise KeyError(2)

    def delegating() -> Any:
        yield from some()

    found = []
    for make in (some, delegating):
        try:
            list(make())
        except KeyError as error:
            found.append(lines(error.__traceback__))
    return found


def thrown_into_a_generator() -> Any:
    def some() -> Any:
        try:
            yield 1
        except KeyError as error:
            raise ValueError(1) from error

    found = []
    begun, waiting = some(), some()
    next(begun)
    for iterator in (begun, waiting):
        try:
            iterator.throw(KeyError(1))
        except (KeyError, ValueError) as error:
            found.append(lines(error.__traceback__))
            if error.__cause__ is not None:
                found.append(lines(error.__cause__.__traceback__))
    return found


def through_finally() -> Any:
    def cleaning() -> None:
        try:
            raising()
        finally:
            len("a")

    try:
        cleaning()
    except KeyError as error:
        return lines(error.__traceback__)


class Catching:
    found: Any = None

    def __enter__(self) -> Catching:
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.found = lines(tb)
        return True


def given_to_exit() -> Any:
    with Catching() as catching:
        calling()
    return catching.found


def as_text() -> Any:
    try:
        calling()
    except KeyError:
        return [line for line in traceback.format_exc().splitlines() if ", line " in line]


class Raising:
    def __len__(self) -> int:
        raise KeyError(3)

    def __add__(self, other: Any) -> Any:
        raise KeyError(4)

    @property
    def field(self) -> Any:
        raise KeyError(5)


def by_way_of_c() -> Any:
    """C functions have no frames, nor have Ingot's own versions of them."""
    instance, found = Raising(), []
    for act in (
        lambda: len(instance),
        lambda: instance + 1,
        lambda: instance.field,
        lambda: [*map(lambda _: raising(), [1])],
        lambda: max([1, 2], key=lambda _: raising()),
        lambda: sorted([2, 1], key=lambda _: raising()),
        lambda: functools.reduce(lambda a, b: raising(), [2, 1]),
    ):
        try:
            act()
        except KeyError as error:
            found.append(lines(error.__traceback__))
    return found


PROGRAMS = (
    of_this_frame, walked, alive_later, raised_again, raised_anew, one_that_was_kept, removed,
    of_another, cause, of_an_operation, of_a_generator, thrown_into_a_generator, through_finally,
    given_to_exit, as_text, by_way_of_c,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_tracebacks_are_eagers(program: Any) -> None:
    def called(x: Tensor) -> Any:
        return x * 2, program()

    x = torch.ones(2)
    compiled = ingot.compile(called)
    for _ in range(2):
        found = compiled(x)
        assert torch.equal(found[0], x * 2) and found[1] == called(x)[1]
