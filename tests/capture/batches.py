"""Many short pieces of Python, captured in batches and compared with CPython.

A piece is a few lines that end with `found = ...`. A batch is a function that runs its pieces one
after another, keeps what each finds or raises, and adds one to a tensor. It is captured with
`fullgraph=True`, so that no piece is left to CPython unseen; pieces that do break the graph are
taken out, counted, and run again without it.
"""

from __future__ import annotations

import collections
import itertools
import linecache
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

import ingot
from ingot.capture.sources import dict_items
from ingot.compiler import Compiler
from ingot.explain.report import Break, breaks_of

_PIECE = """
    try:
{body}
    except Exception as error:
        found = error
    outcomes.append((found{kept}))
"""
_HEAD = "def batch(x, given):\n    outcomes = []\n"
_files = itertools.count()


Make = Callable[[], Any] | None


class Difference(NamedTuple):
    """A piece of which the compiled function does not do what CPython does."""

    piece: str
    expected: str
    found: str


class Tally:
    """What became of some pieces."""

    def __init__(self) -> None:
        self.count = 0
        self.broken: dict[str, str] = {}  # by piece: the reason
        self.differences: list[Difference] = []

    def add(self, other: Tally) -> None:
        self.count += other.count
        self.broken.update(other.broken)
        self.differences += other.differences

    def __str__(self) -> str:
        shown = "\n".join(
            f"{d.piece}\n    expected {d.expected}\n    found    {d.found}"
            for d in self.differences
        )
        return (
            f"{len(self.differences)} of {self.count} differ, {len(self.broken)} break the graph\n"
            f"{shown}"
        )


class Batch:
    """A function made of pieces; `kept` are the names whose values are looked at after each."""

    def __init__(
        self, pieces: list[str], namespace: dict[str, Any], kept: tuple[str, ...], make: Make = None
    ) -> None:
        self.pieces, self.make = pieces, make
        self.lines: list[int] = []  # where each piece begins
        text = _HEAD
        ends = "".join(f", {name}" for name in kept)
        for i, piece in enumerate(pieces):
            self.lines.append(text.count("\n") + 1)
            if make is not None:
                piece = f"made = given[{i}]\n{piece}"
            text += _PIECE.format(body=textwrap.indent(piece, " " * 8), kept=ends)
        text += "    return outcomes, x + 1\n"
        self.file = f"<batch {next(_files)}>"
        linecache.cache[self.file] = (len(text), None, text.splitlines(True), self.file)
        module: dict[str, Any] = {"__name__": __name__, **namespace}
        exec(compile(text, self.file, "exec"), module)
        self.function: types.FunctionType = module["batch"]

    def given(self) -> list[Any]:
        """What the pieces get from outside."""
        return [] if self.make is None else [self.make() for _ in self.pieces]

    def piece_at(self, item: Break) -> str:
        """The piece in which the graph was broken."""
        line = item.line if item.file == self.file else 0
        return self.pieces[sum(begin <= line for begin in self.lines) - 1]


def run(
    pieces: Iterable[str],
    namespace: dict[str, Any],
    kept: tuple[str, ...],
    make: Make = None,
    size: int = 80,
) -> Tally:
    """Compares all pieces, `size` in a function. `make` makes what each gets from outside, as
    `made`."""
    tally = Tally()
    for group in _groups(pieces, size):
        tally.add(_run_group(group, namespace, kept, make))
    return tally


def _groups(pieces: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(pieces)
    while group := list(itertools.islice(left, size)):
        yield group


def _run_group(
    pieces: list[str], namespace: dict[str, Any], kept: tuple[str, ...], make: Make
) -> Tally:
    tally, batch = Tally(), Batch(pieces, namespace, kept, make)
    tally.count = len(pieces)
    x = torch.ones(8, 4)
    compiled = ingot.compile(batch.function, backend="eager")
    with torch.no_grad():
        found, expected = [side(x, batch.given())[0] for side in (compiled, batch.function)]
    assert len(found) == len(expected)
    breaks = breaks_of(Compiler.of(compiled).compilations)
    if any(item.eager for item in breaks) and len(pieces) > 1:  # what follows was not looked at
        middle = len(pieces) // 2
        halves = [
            _run_group(half, namespace, kept, make) for half in (pieces[:middle], pieces[middle:])
        ]
        halves[0].add(halves[1])
        return halves[0]
    for piece, ours, theirs in zip(pieces, found, expected):
        if look(ours) != look(theirs):
            tally.differences.append(Difference(piece, show(theirs), show(ours)))
    for item in breaks:
        tally.broken[batch.piece_at(item)] = item.reason
    return tally


# -- what is compared ------------------------------------------------------------------------------

_SEQUENCES = (list, tuple, collections.deque)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


def look(value: Any) -> Any:
    """A value as nested tuples of types and texts, which are equal where two values are alike in
    all that a program can see."""
    cls = type(value)
    if isinstance(value, BaseException):
        return cls, _without_addresses(tuple(map(look, value.args))), _without_addresses(value)
    if isinstance(value, torch.Tensor):
        return cls, value.dtype, tuple(value.shape), repr(value.tolist())
    if isinstance(value, _SEQUENCES):
        base = next(b for b in _SEQUENCES if isinstance(value, b))
        return cls, tuple(map(look, base.__iter__(value))), _attributes(value)
    if isinstance(value, dict):
        return cls, tuple([(look(key), look(item)) for key, item in dict_items(value)])
    if isinstance(value, (set, frozenset)):
        base = set if isinstance(value, set) else frozenset
        return cls, sorted(map(repr, map(look, base.__iter__(value)))), _attributes(value)
    if isinstance(value, _VIEWS):
        return cls, tuple(map(look, value))
    for base in (int, float, complex, str, bytes):
        if isinstance(value, base):
            return cls, _without_addresses(base.__repr__(value))
    if hasattr(cls, "__next__"):
        return cls, _elements(value)
    if type(value).__repr__ is object.__repr__:
        return cls, _attributes(value)
    if isinstance(value, types.BuiltinMethodType | types.MethodType | type(().__add__)):
        return cls, getattr(value, "__name__", ""), look(value.__self__)
    return cls, _without_addresses(repr(value))


def _elements(iterator: Any) -> Any:
    """What an iterator gives, and the error that it may end with."""
    found = []
    try:
        for element in itertools.islice(iterator, 100):
            found.append(look(element))
    except Exception as error:
        found.append(look(error))
    return tuple(found)


def _without_addresses(value: Any) -> str:
    return re.sub(r" at 0x\w+", "", str(value))


def _attributes(value: Any) -> Any:
    return tuple([(k, look(v)) for k, v in getattr(value, "__dict__", {}).items()])


def show(value: Any) -> str:
    """A value for a message."""
    try:
        return f"{value!r} ({type(value).__name__})"
    except Exception:
        return f"{look(value)}"
