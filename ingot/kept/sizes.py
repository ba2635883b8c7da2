"""Sizes that vary, in what is kept: symbols by their numbers, expressions as postfix steps, and the
guards that compiling left.

A capture numbers its symbols in the order in which it makes them. The key of a program says which
there are, what their bounds are, and all that capture had found out about them; so a symbol of one
process is the symbol of the same number of another. What it is in a call is no part of the key:
compiling asked questions, which the sizes at hand decided, and its file has the guards that they
left. These must hold for the sizes of a call that finds the program, whose guards they become.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ingot.errors import CompilerBug
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.graph.symbols import to_expr
from ingot.kept.names import NotKept
from ingot.loops.expr import Expr, Symbol, as_expr
from ingot.loops.postfix import expression, postfix

_SIZE = "size"


class Sizes:
    """The symbols of one capture, as numbers and back. Made when nothing is compiled yet."""

    def __init__(self, shapes: ShapeContext) -> None:
        self.shapes = shapes
        self.symbols = tuple(shapes.hints)
        self._numbers = dict(zip(self.symbols, range(len(self.symbols))))

    def told(self, value: Any) -> Any:
        """An integer, a symbolic one or an expression, as what can be packed."""
        if type(value) is int:
            return value
        if not isinstance(value, (Expr, torch.SymInt)):
            raise NotKept(f"a {type(value).__name__} is among its sizes")
        expr = to_expr(value)
        if expr.constant is not None:
            return expr.constant
        try:
            return _SIZE, postfix(expr, self._numbers)
        except KeyError as unknown:
            raise NotKept(f"the size {unknown} is none of the inputs'") from unknown

    def number(self, symbol: Symbol) -> int:
        """The number of a symbol."""
        if symbol not in self._numbers:
            raise NotKept(f"the size {symbol} is none of the inputs'")
        return self._numbers[symbol]

    def understood(self, content: Any) -> int | Expr:
        """What was told."""
        if type(content) is int:
            return content
        word, steps = content
        if word != _SIZE:
            raise NotKept(f"{word!r} is no size")
        return expression(steps, self.symbols)

    def facts(self) -> tuple[Any, ...]:
        """What capture found out, for a key."""
        symbols, equal = [], []
        for symbol in self.symbols:
            symbols.append((symbol.lower, symbol.upper, symbol in self.shapes.speculative))
        for left, right in self.shapes.known_equal():
            equal.append((self.told(left), self.told(right)))
        above = tuple(map(self.number, self.shapes.known_above_one()))
        return tuple(symbols), tuple(equal), above, self.left(0, 0)

    def left(self, guards: int, limited: int) -> tuple[Any, ...]:
        """What questions have left, but for the first `guards` and `limited` expressions."""
        told = []
        for left, relation, right, where in self.shapes.guards[guards:]:
            told.append((self.told(left), relation, self.told(right), where))
        return tuple(told), tuple(map(self.told, self.shapes.limited[limited:]))

    def understood_guards(self, content: Any) -> list[ShapeGuard]:
        """The guards that were told."""
        guards = []
        for left, relation, right, where in content:
            sides = as_expr(self.understood(left)), as_expr(self.understood(right))
            guards.append(ShapeGuard(sides[0], relation, sides[1], where))
        return guards


class Question:
    """The sizes of a captured graph that is not compiled yet. Compiling leaves an answer behind,
    which is kept beside the program: the guards, and the sizes at hand, which decided them."""

    def __init__(self, shapes: ShapeContext) -> None:
        self.sizes = Sizes(shapes)
        self._shapes, self._moment = shapes, shapes.now()
        self._counts = len(shapes.guards), len(shapes.limited)

    @property
    def depends_on_data(self) -> bool:
        """Whether there are sizes that no input has."""
        return bool(self._shapes.unbacked.roots)

    def answer(self) -> tuple[Any, ...]:
        """What compiling has left behind."""
        return tuple(self._shapes.hints.values()), *self.sizes.left(*self._counts)

    def is_answered_by(self, answer: Any) -> bool:
        """Whether the guards of a kept program hold for the sizes at hand."""
        _, guards, _ = answer
        for guard in self.sizes.understood_guards(guards):
            if not guard.holds(self._shapes.hints):
                return False
        return True

    def take(self, answer: Any) -> None:
        """Guards the sizes at hand as they were when the kept program was compiled."""
        _, guards, limited = answer
        expressions = map(as_expr, map(self.sizes.understood, limited))
        self._shapes.adopt(self.sizes.understood_guards(guards), expressions)

    @contextmanager
    def asked_again(self, answer: Any) -> Iterator[None]:
        """Compiling, inside, asks what it asked when the program was kept. Raises CompilerBug where
        it leaves something else behind."""
        hints, *_ = answer
        with self._shapes.as_of(self._moment, hints):
            yield
            if self.answer() != answer:
                problem = "a graph that is compiled again leaves other guards on its sizes"
                raise CompilerBug("kept", problem)
