"""Shape guards, and the four relations of sizes that they are made of. A relation is decided by
numbers, or proved by algebra, and has a negation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ingot.loops.expr import Expr, Symbol, known_equal, known_less, known_less_equal

Relation = str
"""One of ==, !=, < and <=."""

Fact = tuple[Expr, Relation, Expr]

LARGEST = (1 << 63) - 1
"""Torch's integers are no larger: it writes "to the end" so."""

DECIDE: dict[Relation, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
PROVE: dict[Relation, Callable[[Expr, Expr], bool]] = {
    "==": known_equal,
    "!=": lambda a, b: known_less(a, b) or known_less(b, a),
    "<": known_less,
    "<=": lambda a, b: known_less_equal(a, b) or (b.constant or 0) >= LARGEST,
}
"""Whether a relation holds for all values of the symbols."""


class ShapeGuard(NamedTuple):
    """A relation of sizes that an entry relies on; `where` is the user's line that asked."""

    left: Expr
    relation: Relation
    right: Expr
    where: str

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        """Whether it does for these values of the symbols."""
        return DECIDE[self.relation](self.left.evaluate(values), self.right.evaluate(values))


def negated(left: Expr, relation: Relation, right: Expr) -> Fact:
    """The relation that holds where the given one does not."""
    if relation == "<":
        return right, "<=", left
    if relation == "<=":
        return right, "<", left
    return left, "!=" if relation == "==" else "==", right
