"""Comparisons with a size which the data decide: truth values that the graph checks."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.values.base import Operator, UnaryOperator, Value, in_order
from ingot.capture.values.wording import operator_text
from ingot.graph.symbols import to_expr
from ingot.graph.unbacked import require_relation

if TYPE_CHECKING:
    from ingot.capture.session import Session


RELATIONS = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">="
}  # fmt: skip
_SWAPPED = {operator.gt: operator.lt, operator.ge: operator.le}


_NEGATED: dict[Any, tuple[Operator, bool]] = {
    operator.eq: (operator.ne, False), operator.ne: (operator.eq, False),
    operator.lt: (operator.le, True),
    operator.le: (operator.lt, True),
}  # fmt: skip
"""What holds where a relation does not, and whether it does of the sides in the other order."""


class RelationValue(Value):
    """A comparison with a size which the data decide: a truth value that is not known."""

    __slots__ = ("function", "pair")
    can_require_truth = True

    def __init__(self, function: Operator, pair: tuple[Any, Any]) -> None:
        super().__init__()
        self.function = _SWAPPED.get(function, function)
        self.pair = in_order(*pair, function in _SWAPPED)

    def python_type(self) -> type:
        return bool

    @property
    def sides(self) -> tuple[Any, Any]:
        """The SymInts or numbers that are compared."""
        left, right = [s if isinstance(s, int) else s.fake for s in self.pair]
        return left, right

    @property
    def answer(self) -> bool | None:
        """What follows from what is known of the sizes."""
        left, right = map(to_expr, self.sides)
        context = next(s for s in self.sides if isinstance(s, torch.SymInt)).node.context
        answer: bool | None = context.proved(left, RELATIONS[self.function], right)
        return answer

    def describe(self) -> str:
        return "a size which the data decide"

    def truth(self, session: Session) -> bool:
        answer = self.answer
        if answer is None:
            raise session.unsupported("symbolic-size-value", f"a branch on {self.describe()}")
        return answer

    def require_truth(self, session: Session, expected: bool) -> bool:
        """Have the graph check that it holds, or that it does not. False where that is not so."""
        if self.answer is not None:
            return self.answer is expected
        negated, swaps = _NEGATED[self.function]
        if expected or not swaps:
            pair = self.pair
        else:
            pair = self.pair[::-1]
        session.graph.require(
            session, require_relation, RELATIONS[self.function if expected else negated], *pair
        )
        return True

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        raise session.unsupported(
            "symbolic-size-value", f"{operator_text(function)} of {self.describe()}"
        )
