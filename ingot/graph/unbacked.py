"""Unbacked symbols: sizes that only the data decide, as how many elements a mask selects.

A node of the graph binds such a symbol when it runs. A question that the algebra cannot answer goes
in; the usual answer comes out, with a deferred check, as there is no hint. A check that fails when
the program runs is an error there, and the call runs in eager. A question without a usual answer is
Unsupported.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ingot.errors import CompilerBug, EagerRaises, Unsupported, unsupported
from ingot.loops.expr import Expr, Symbol, as_expr, size_symbol

USUAL_SIZE = 4099
"""Stands for such a size where a number is needed: large, and no multiple of anything."""


class Check(NamedTuple):
    """A deferred check: a relation that has to hold when the program runs. `relation` is one of ==,
    !=, <, <=."""

    left: Expr
    relation: str
    right: Expr
    where: str

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


class Unbacked:
    """The unbacked symbols of one capture, and the checks on them, which every graph that binds
    their symbols makes.

    `enabled`: ops may make such symbols. `assumes`: what is usual is taken to be so, since an
    operation that will be part of the graph asks; it asks again in each trace.
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled, self.assumes = enabled, False
        self.checks: list[Check] = []
        self.fresh: list[Symbol] = []  # those that no node of the present trace binds yet
        self.roots: dict[Symbol, Symbol] = {}  # the first form of each; more is known of later ones
        self._order: dict[Symbol, int] = {}
        self.bound: list[Symbol] = []  # those that the present trace has bound, in order
        self._again: list[Symbol] = []  # those that it is to bind next
        # by id of a fake whose elements are counted: it, its version, and the count
        self._counted: dict[Any, tuple[Any, int, Symbol]] = {}
        self._counts: dict[Symbol, Symbol] = {}  # a later count of the same fake -> the first
        self._closed = 0  # how many symbols compiled code has, which makes no further checks

    def begin_trace(self, again: Sequence[Symbol] = ()) -> None:
        """From here on nodes bind the symbols that are made, and operations may ask what is usual.
        `again` are those that an earlier trace of the same operations made, which stand for the
        same here."""
        self.assumes = True
        self.fresh.clear()
        self.bound.clear()
        self._counted.clear()
        self._again = list(again)

    @contextmanager
    def inner_trace(self) -> Iterator[None]:
        """Inside, a graph may be traced that makes no such symbols, in the middle of a trace."""
        kept = list(self.fresh), list(self.bound), dict(self._counted), self._again, self.assumes
        try:
            yield
        finally:
            fresh, bound, counted, self._again, self.assumes = kept
            self.fresh[:], self.bound[:], self._counted = fresh, bound, counted

    def settle(self) -> None:
        """There is a program that binds the symbols made so far: nothing more is assumed of
        them."""
        self._closed = len(self._order)

    def new(self, lower: int, upper: int | None) -> Symbol:
        if self._again:
            symbol = self._again.pop(0)
            if symbol.bounds != (lower, upper):
                raise CompilerBug("trace", f"{symbol} is another size in a second trace")
        else:
            symbol = size_symbol(f"u{len(self._order)}", lower, upper)
            self._order[symbol] = len(self._order)
            self.roots[symbol] = symbol
        self.bound.append(symbol)
        self.fresh.append(symbol)
        return symbol

    def count(self, of: Any, symbol: Symbol) -> None:
        """Note that a symbol is how many elements of a fake are not zero."""
        known = self._counted.get(id(of))
        if known is None or known[1] != of._version:
            self._counted[id(of)] = of, of._version, symbol
        else:
            self._counts[symbol] = known[2]

    def are_likely_equal(self, left: Expr, right: Expr) -> bool:
        """Whether two expressions are the same if what was counted twice was not written in a way
        that none can see."""
        if not self._counts:
            return False
        firsts = {}
        for form, root in self.roots.items():
            firsts[form] = self._counts.get(root, root)
        return (left - right).substitute(firsts).constant == 0

    def concerns(self, *expressions: Expr) -> bool:
        """Whether an unbacked symbol occurs in an expression."""
        return bool(self.roots) and any(not e.symbols.isdisjoint(self.roots) for e in expressions)

    def among(self, symbols: Iterable[Symbol]) -> set[Symbol]:
        """Those of some symbols that are unbacked."""
        return self.roots.keys() & symbols

    def forms(self, root: Symbol) -> list[Symbol]:
        """The symbols that stand for one size."""
        results = []
        for symbol, first in self.roots.items():
            if first is root:
                results.append(symbol)
        return results

    def all_forms(self, symbol: Symbol) -> list[Symbol]:
        """The symbols that stand for the same as one."""
        if symbol in self.roots:
            return self.forms(self.roots[symbol])
        return [symbol]

    def refuse(self, where: str) -> Unsupported:
        return unsupported("data-decided-size", "a size is asked for, which the data decide", where)

    def require(self, check: Check) -> dict[Symbol, Expr]:
        """Note a check. Gives what it says that symbols are: a later one the value of earlier ones,
        or the same within narrower bounds."""
        if check[:3] not in [known[:3] for known in self.checks]:
            symbols = self.among(check.left.symbols | check.right.symbols)
            if max(map(self._age, symbols), default=-1) < self._closed:
                raise unsupported(
                    "late-size-guard", f"compiled code would depend on {check} as well", check.where
                )
            self.checks.append(check)
        if check.relation == "==":
            return self._equal(check.left, check.right) or self._equal(check.right, check.left)
        return self._narrowed(check)

    def _equal(self, symbol: Expr, value: Expr) -> dict[Symbol, Expr]:
        if not isinstance(symbol, Symbol) or symbol not in self.roots:
            return {}
        if max(map(self._age, value.symbols), default=-1) >= self._age(symbol):
            return {}
        return {symbol: value}

    def _age(self, symbol: Symbol) -> int:
        if symbol in self.roots:
            return self._order[self.roots[symbol]]
        return -1

    def _narrowed(self, check: Check) -> dict[Symbol, Expr]:
        """`check` solved for the one symbol that it is about."""
        difference = check.right - check.left - (check.relation == "<")
        symbols = self.among(difference.symbols)
        linear = None
        if len(symbols) == 1:
            linear = difference.linear(symbols)
        if linear is None:
            return {}
        (symbol,) = symbols
        constant, factor = linear[0].constant, linear[1][symbol].constant
        if factor is None or constant is None:
            return {}
        bounds = _narrowed_bounds(symbol, check.relation, factor, constant)
        if bounds == symbol.bounds:
            return {}
        lower, upper = bounds
        if upper is not None and lower > upper:
            raise unsupported("size-check", f"{check} cannot hold", check.where)
        form = size_symbol(symbol.name, lower, upper)
        self.roots[form] = self.roots[symbol]
        return {symbol: form}


def _narrowed_bounds(
    symbol: Symbol, relation: str, factor: int, constant: int
) -> tuple[int, int | None]:
    """The bounds of a symbol for which factor * symbol + constant is not 0, or not below 0."""
    lower, upper = symbol.bounds
    assert lower is not None
    if relation == "!=":
        lower += constant == -factor * lower
        if upper is not None and constant == -factor * upper:
            upper -= 1
    elif factor > 0:
        lower = max(lower, -(constant // factor))
    else:
        largest = constant // -factor
        if upper is None:
            upper = largest
        else:
            upper = min(upper, largest)
    return lower, upper


def usual(left: Expr, relation: str, right: Expr) -> bool | None:
    """The answer for sizes that are neither 0 nor 1, and indices that are not negative; None where
    there is none."""
    if relation in ("==", "!="):
        if left.constant in (0, 1) or right.constant in (0, 1):
            return relation == "!="
        return None
    for number, other, answer in ((left.constant, right, True), (right.constant, left, False)):
        if number is not None and number <= 1:
            low = other.bounds[0]
            if number <= 0 or (low is not None and low >= 0):
                return answer
    return None


def expected(question: Any) -> bool:
    """Whether a condition holds without which eager raises an error: of unbacked symbols it leaves
    a deferred check."""
    if isinstance(question, bool):
        return question
    return bool(question.node.expect_true("", 0))


def require_relation(relation: str, left: Any, right: Any) -> None:
    """In a graph: leave a deferred check of a relation that eager would check."""
    if not expected(_OPERATORS[relation](left, right)):
        raise EagerRaises(f"{left} {relation} {right} does not hold")


_OPERATORS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}


def substituted(
    pinned: Mapping[Symbol, Expr | int], values: Mapping[Symbol, Expr]
) -> dict[Symbol, Expr | int]:
    """The values that symbols are pinned to, with those of further symbols."""
    updated: dict[Symbol, Expr | int] = {}
    for symbol, value in pinned.items():
        updated[symbol] = as_expr(value).substitute(values)
    return {**updated, **values}
