"""What a compilation holds of a call is let go with it: nothing waits for the garbage collector, as
in eager."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot


class Log(list[Any]):
    """A list that can be referred to weakly."""

    def __enter__(self) -> Log:
        self.append("entered")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.append(kind.__name__ if kind else "left")


class Count:
    """An iterator of the user's."""

    def __init__(self, end: int) -> None:
        self.number, self.end = 0, end

    def __iter__(self) -> Count:
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number > self.end:
            raise StopIteration
        return self.number


def _waiting(x: Tensor, log: Log) -> Iterator[Tensor]:
    with log:
        yield x + 1
        yield x + 2
    yield x + 3


def generator_behind_a_break(x: Tensor, log: Log) -> Tensor:
    waiting = _waiting(x, log)
    x.nonzero().sum().tolist()
    return next(waiting) * 2


def generator_over_a_break(x: Tensor, log: Log) -> Tensor:
    waiting = _waiting(x, log)
    y = next(waiting)
    x.nonzero().sum().tolist()
    return y * 2


def generator_in_a_loop_that_is_left(x: Tensor, log: Log) -> Tensor:
    for y in _waiting(x, log):
        if y.sum().item() > 3:
            break
    return x * 2


def generator_whose_user_raises(x: Tensor, log: Log) -> Tensor:
    for y in _waiting(x, log):
        if y:  # ambiguous
            return y
    return x


def generator_thrown_into(x: Tensor, log: Log) -> Tensor:
    waiting = _waiting(x, log)
    next(waiting)
    with contextlib.suppress(KeyError):
        waiting.throw(KeyError("k"))
    return x * 2


def iterator_of_the_users(x: Tensor, log: Log) -> Tensor:
    for number in Count(3):
        log.append(number)
        x = x * number
    return x


def error_that_is_handled(x: Tensor, log: Log) -> Tensor:
    def fails(y: Tensor) -> Tensor:
        log.append(len(y))
        raise ValueError("no")

    try:
        return fails(x)
    except ValueError:
        return x * 2


def error_through_two_calls(x: Tensor, log: Log) -> Tensor:
    def fails(key: str) -> Any:
        with log:
            return {}[key]

    try:
        return x * fails("k")
    except KeyError:
        return x * 2


def argument_that_is_not_known(x: Tensor, log: Log) -> Tensor:
    log.append(round(x.sum().item(), 1))
    return x * 2


def refused_beside_what_is_not_known(x: Tensor, log: Log) -> Tensor:
    try:
        log.append(round(x.sum().item(), "one"))
    except TypeError:
        log.append("refused")
    return x * 2


def sizes_of_the_data(x: Tensor, log: Log) -> Tensor:
    log.append(len(x[x > 0]))
    return x[x > 0] * 2


def break_behind_a_break(x: Tensor, log: Log) -> Tensor:
    log.append(str(x.tolist()))
    y = x * 2
    log.append(repr(y.numpy()))
    return y + 1


def asks_whether_it_is_compiled(x: Tensor, log: Log) -> Tensor:
    if not torch.compiler.is_compiling():
        log.append("eager")
        return x * 2
    return x * {}["missing"]  # type: ignore[index]


PROGRAMS = [
    generator_behind_a_break,
    generator_over_a_break,
    generator_in_a_loop_that_is_left,
    generator_whose_user_raises,
    generator_thrown_into,
    iterator_of_the_users,
    error_that_is_handled,
    error_through_two_calls,
    argument_that_is_not_known,
    refused_beside_what_is_not_known,
    sizes_of_the_data,
    break_behind_a_break,
    asks_whether_it_is_compiled,
]


def _calls(function: Callable[..., Any]) -> list[Any]:
    """What the log of each call holds when the call has ended, whether the log is let go of with
    the call, and whether the tensor is."""
    seen: list[Any] = []
    for size in (3, 3, 5, 7):
        x, log = torch.arange(float(size)), Log()
        entries: list[Any] = []
        with contextlib.suppress(RuntimeError):
            function(x, log)
        entries += log
        alive = weakref.ref(x), weakref.ref(log)
        del x, log
        seen.append((entries, [one() is None for one in alive]))
    return seen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_of_a_call_waits_for_the_collector(program: Callable[..., Any]) -> None:
    gc.collect()
    gc.disable()
    try:
        expected, actual = _calls(program), _calls(ingot.compile(program))
    finally:
        gc.enable()
    assert actual == expected
    assert all(all(gone) for _, gone in expected)
