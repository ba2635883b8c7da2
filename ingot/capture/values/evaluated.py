"""What Python computes of a number that varies, before the graph runs.

In go an expression or a pure function, and its constants; out comes a callable that a source and a
guard hold. It is one object for each of them, in all captures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from ingot.capture.guards import Quantity
from ingot.capture.values.base import Constants
from ingot.loops.expr import Expr, Symbol


class Evaluated:
    """The value of an expression of one size or integer."""

    __slots__ = ("__weakref__", "dim", "expr", "symbol", "what")
    _known: WeakValueDictionary[Any, Evaluated] = WeakValueDictionary()

    def __init__(self, expr: Expr, symbol: Symbol, what: str, dim: int) -> None:
        self.expr, self.symbol, self.what, self.dim = expr, symbol, what, dim

    @classmethod
    def of(cls, expr: Expr, symbol: Symbol, quantity: Quantity) -> Evaluated:
        """One object for one expression, so that sources of it are the same in all captures."""
        key = str(expr), symbol.name, quantity.what, quantity.dim
        known = cls._known.get(key)
        if known is None:
            known = cls._known[key] = cls(expr, symbol, quantity.what, quantity.dim)
        return known

    @property
    def __name__(self) -> str:
        return str(self.expr)

    def __call__(self, owner: Any) -> int:
        number = owner
        if self.what == "size":
            number = owner.shape[self.dim]
        elif self.what == "stride":
            number = owner.stride()[self.dim]
        return self.expr.evaluate({self.symbol: number})


def _exactly(constant: Any) -> tuple[type, str]:
    """What tells constants apart that are equal: -0.0 and 0, 1 and True."""
    return type(constant), repr(constant)


class Applied:
    """A pure function of Python's, and all of its arguments but a number."""

    __slots__ = ("__weakref__", "after", "before", "function")
    _known: WeakValueDictionary[Any, Applied] = WeakValueDictionary()

    def __init__(self, function: Callable[..., Any], before: Constants, after: Constants) -> None:
        self.function, self.before, self.after = function, before, after

    @classmethod
    def of(cls, function: Callable[..., Any], before: Constants, after: Constants) -> Applied:
        """One object for one function, so that sources of it are the same in all captures."""
        key = (function, *map(_exactly, before), None, *map(_exactly, after))
        known = cls._known.get(key)
        if known is None:
            known = cls._known[key] = cls(function, before, after)
        return known

    @property
    def __name__(self) -> str:
        args = [*map(repr, self.before), "...", *map(repr, self.after)]
        if len(args) == 1:
            return self.function.__name__
        return f"{self.function.__name__}({', '.join(args)})"

    def __call__(self, number: float) -> Any:
        if type(number) is not float and type(number) is not int:
            raise TypeError(f"{type(number).__name__} is no number")
        return self.function(*self.before, number, *self.after)
