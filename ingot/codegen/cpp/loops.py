"""Lines and loops of a kernel's text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingot.codegen.cpp.body import BodyWriter
from ingot.loops.expr import Symbol


class LoopWriter(BodyWriter):
    """Writes lines, each as deep as the blocks that are open."""

    def __init__(self, check_bounds: bool) -> None:
        super().__init__(check_bounds)
        self.lines: list[str] = []
        self.depth = 1

    def line(self, *texts: str) -> None:
        for text in texts:
            indent = "" if text.startswith("#") else "  " * self.depth
            self.lines.append(f"{indent}{text}".rstrip())

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    @contextmanager
    def loop(self, symbol: Symbol, start: str, stop: str) -> Iterator[None]:
        """A loop of a symbol, which is bound in it."""
        name = self.name_of(symbol)
        with self.block(f"for (int64_t {name} = {start}; {name} < {stop}; ++{name})"):
            yield

    @contextmanager
    def blocks(self, symbol: Symbol, start: str, stop: str, size: int) -> Iterator[tuple[str, str]]:
        """A loop over blocks of a symbol's range, giving the first and the end of each."""
        name = self.name_of(symbol)
        first, end = self.names.fresh(f"{name}_first"), self.names.fresh(f"{name}_end")
        with self.block(f"for (int64_t {first} = {start}; {first} < {stop}; {first} += {size})"):
            self.line(f"const int64_t {end} = ingot::smaller({first} + {size}, {stop});")
            yield first, end

    def name_of(self, symbol: Symbol) -> str:
        """The variable of a loop."""
        code = self.index.codes.get(symbol)
        if code is None:
            self.index.bind(symbol, self.names.fresh(symbol.name))
            code = self.index.codes[symbol]
        return code.text
