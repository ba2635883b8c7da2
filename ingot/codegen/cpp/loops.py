"""Lines and loops of a kernel's text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ingot.codegen.cpp.body import BodyWriter
from ingot.loops.expr import ZERO, Expr, Symbol

Block = AbstractContextManager[None]


class LoopWriter(BodyWriter):
    """Writes lines, each as deep as the blocks that are open; `scratch` are the bytes of scratch
    memory that they use."""

    def __init__(self, check_bounds: bool) -> None:
        super().__init__(check_bounds)
        self.lines: list[str] = []
        self.depth = 1
        self.scratch: Expr = ZERO

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

    def count(self, name: str, stop: str, start: str = "0", step: str = "") -> Block:
        """A loop of a variable from `start` to before `stop`."""
        more = f"{name} += {step}" if step else f"++{name}"
        return self.block(f"for (int64_t {name} = {start}; {name} < {stop}; {more})")

    def take_scratch(self, type: str, name: str, size: Expr) -> None:
        """An array of so many bytes of scratch memory, which begins on a line of the cache."""
        place = "scratch"
        if self.scratch is not ZERO:
            place = f"static_cast<char *>(scratch) + {self.index(self.scratch).text}"
        self.line(f"{type} *__restrict {name} = ({type} *)({place});")
        self.scratch = self.scratch + (size + 63) // 64 * 64

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
