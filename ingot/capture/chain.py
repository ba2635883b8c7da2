"""The state at a graph break: a chain of frames, and which place of the flat state each has."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from ingot.capture.bytecode import program_of


class Point(NamedTuple):
    """Where one frame of a chain stands."""

    code: CodeType
    position: int  # of the instruction that it runs next
    variables: tuple[int, ...]  # those that the state has
    operands: tuple[bool, ...]  # which of them are values; the others are NULL markers

    @property
    def size(self) -> int:
        """How many places of the state it takes: its function, variables, operands."""
        return 1 + len(self.variables) + sum(self.operands)


class Chain(NamedTuple):
    """The frames of a state, outermost first. All but the innermost wait for what the next one
    returns.

    `handles`: the state begins with the exception that is being handled. `raises`: it ends with one
    that the innermost frame's instruction before `position` has raised. `watched`: weak references
    may have been made to what the frames' variables hold.
    """

    points: tuple[Point, ...]
    handles: bool
    raises: bool
    watched: bool = False

    @property
    def size(self) -> int:
        """The length of the state."""
        return self.handles + sum(point.size for point in self.points) + self.raises

    @property
    def is_call(self) -> bool:
        """Whether it is a function at its very beginning, its parameters bound."""
        return len(self.points) == 1 and self.points[0].position == 0 and not self.raises

    @property
    def where(self) -> str:
        """The user's "file:line" where it goes on."""
        innermost = self.points[-1]
        instructions = program_of(innermost.code).instructions
        instruction = instructions[min(innermost.position, len(instructions) - 1)]
        return f"{innermost.code.co_filename}:{instruction.line}"


Continuations = Callable[[Chain], Any]
"""Gives the compiled callable that goes on at a chain; it is called with the state."""
