"""Tables of small programs, each run in eager and compiled: results, identity, mutation, exceptions
and printed output are compared, and then an unchanged call has to compile nothing.

A program is a function of two (3, 4) float tensors, and of what `make` gives where it has a `make`.
`whole` says that it is captured in one graph (`fullgraph=True` accepts it), `broken` that it is
not, for the stated reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError
from tests.oracle import assert_same, outcome


class Program(NamedTuple):
    """A row of a table. `fresh`: the program changes what `make` gives, so each call gets new
    objects."""

    function: Callable[..., Any]
    reason: str | None  # why it is not captured whole; None if it is
    make: Callable[[], tuple[Any, ...]] | None
    fresh: bool


class Table(dict[str, Program]):
    """The programs of one theme, in order."""

    def whole(self, function: Any = None, *, make: Any = None, fresh: bool = False) -> Any:
        """Registers a program that is captured in one graph."""
        return self._add(function, None, make, fresh)

    def broken(self, reason: str, *, make: Any = None, fresh: bool = False) -> Any:
        """Registers a program that is not captured whole; `reason` is part of what `fullgraph` says
        about it."""
        return self._add(None, reason, make, fresh)

    def _add(self, function: Any, reason: str | None, make: Any, fresh: bool) -> Any:
        def register(fn: Any) -> Any:
            assert fn.__name__ not in self, fn.__name__
            self[fn.__name__] = Program(fn, reason, make, fresh)
            return fn

        return register if function is None else register(function)

    def test(self) -> Callable[[str], None]:
        """The test function of a module: every program of the table."""

        @pytest.mark.parametrize("name", list(self))
        def test_program(name: str) -> None:
            check(self[name])

        return test_program

    @property
    def coverage(self) -> tuple[int, int]:
        """How many programs are captured whole, and how many there are."""
        return sum(program.reason is None for program in self.values()), len(self)


def arguments_of(program: Program) -> tuple[Any, ...]:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    return (x, y, *(program.make() if program.make is not None else ()))


def compilations() -> list[Any]:
    """All compilations so far of what is still alive, continuations included."""
    return [compilation for compiler in Compiler.alive for compilation in compiler.compilations]


def since(before: list[Any]) -> int:
    """How many compilations there were since then."""
    known = set(map(id, before))
    return sum(id(compilation) not in known for compilation in compilations())


def errors_of(acts: Iterable[Callable[[], Any]], kinds: Any = Exception) -> list[Any]:
    """What each act gives or raises."""
    found: list[Any] = []
    for act in acts:
        try:
            found.append(act())
        except kinds as error:
            found.append((type(error), str(error)))
    return found


_TURNS = 2 if sys.version_info < (3, 13) else 3
"""CPython 3.13 keeps the `__init__` of a class from the frame hook where it specialized a call of
the class: what that calls is compiled a call later."""


@torch.no_grad()
def check(program: Program) -> None:
    """Both ways of running a program agree, each time, and the last call compiles nothing."""
    compiled = ingot.compile(program.function, backend="eager")
    eager_arguments, arguments = arguments_of(program), arguments_of(program)
    for turn in range(_TURNS):
        if program.fresh:
            eager_arguments, arguments = arguments_of(program), arguments_of(program)
        state = torch.get_rng_state()
        expected = outcome(program.function, *eager_arguments)
        torch.set_rng_state(state)
        before = compilations()
        found = outcome(compiled, *arguments)
        assert repr(found.raised) == repr(expected.raised)
        assert_same(found, expected)
        assert turn < _TURNS - 1 or not since(before), "an unchanged call compiles again"
    strict = ingot.compile(program.function, backend="eager", fullgraph=True)
    if program.reason is None:
        expected = outcome(program.function, *arguments_of(program))
        assert_same(outcome(strict, *arguments_of(program)), expected)
    else:
        with pytest.raises(GraphBreakError) as refused:
            outcome(strict, *arguments_of(program))
        assert program.reason in str(refused.value)
