"""Turns values that are computed from each other into C++ statements, as a person would write them.

What is used once stands where it is used, unless the line grew too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

from ingot.codegen.cpp.types import Code, atom

WIDTH = 72  # columns of an expression
PART = 48  # of one that stands within another
SHORT = 10  # of one that never needs a name


class Item(NamedTuple):
    """A value: its C++ type, the function that writes it from its arguments' code, and a name for
    it. Where `named`, it has a statement of its own.

    Where it is `trivial` it never has. Other statements than a definition are made by `lines`, of
    the code of the value and of its arguments, which give the value's code as well.
    """

    type: str
    build: Callable[..., Code]
    args: tuple[Any, ...]
    name: str = "t"
    named: bool = False
    lines: Callable[..., tuple[list[str], Code]] | None = None
    trivial: bool = False


class Statements:
    """Writes the statements of some items after others.

    `codes` has the expression of each value that was written, by its key, and `fresh` makes a name
    that is not taken.
    """

    def __init__(self, codes: MutableMapping[Any, Code], fresh: Callable[[str], str]) -> None:
        self.codes, self.fresh = codes, fresh
        self.inlined: dict[Any, Item] = {}
        self.lines: list[str] = []

    def write(self, items: Iterable[tuple[Any, Item]], roots: Sequence[Any]) -> list[str]:
        """The statements of `items`, which are in order. The `roots` are used by what follows."""
        items = list(items)
        uses: Counter[Any] = Counter(roots)
        ends = set(roots)
        for _, item in items:
            uses.update(item.args)
        self.lines = []
        for key, item in items:
            if not uses[key] and not item.named:
                continue
            code = self._built(item)
            once = uses[key] == 1 and not item.named
            plain = code.text.isidentifier() and item.lines is None
            fits = len(code.text) <= (WIDTH if key in ends else PART)
            if plain or item.trivial or (once and fits):
                self.codes[key] = code
                if not item.trivial:
                    self.inlined[key] = item
                continue
            self._name(key, item, code)
        return self.lines

    def _built(self, item: Item) -> Code:
        """The item's expression; parts get names until it fits a line."""
        while True:
            code = item.build(*map(self.codes.__getitem__, item.args))
            if len(code.text) <= WIDTH:
                return code
            parts = []
            for key in item.args:
                if key in self.inlined and len(self.codes[key].text) > SHORT:
                    parts.append(key)
            if not parts:
                return code
            longest = max(parts, key=lambda key: len(self.codes[key].text))
            self._name(longest, self.inlined[longest], self.codes[longest])

    def _name(self, key: Any, item: Item, code: Code) -> None:
        self.inlined.pop(key, None)
        if item.lines is not None:
            args = map(self.codes.__getitem__, item.args)
            lines, self.codes[key] = item.lines(code, *args)
            self.lines += lines
            return
        name = self.fresh(item.name)
        self.lines.append(f"const {item.type} {name} = {code.text};")
        self.codes[key] = atom(name)
