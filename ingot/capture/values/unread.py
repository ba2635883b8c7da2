"""Counters: integers from outside that are counted up and stored again. As long as nobody asks for
their value, the counting is done for real after the graph has run, and the call is compiled for any
value."""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.values.base import (
    LazyValue,
    Leaf,
    Operator,
    UnaryOperator,
    Value,
    alive,
    in_order,
)
from ingot.capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_COUNTING = frozenset({operator.iadd, operator.isub})
"""In-place operators that cannot fail on integers."""


class UnreadNumber(Value):
    """What `function` gives for two integers, of which at least one was not asked for its value.
    Asked for a value of its own, it guards theirs."""

    __slots__ = ("_session", "function", "operands")
    is_symbolic = True

    def __init__(self, session: Session, function: Operator, operands: tuple[Value, Value]) -> None:
        super().__init__()
        self._session = weakref.ref(session)
        self.function, self.operands = function, operands

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return "a count"

    def constant(self) -> Any:
        return self.known().constant()

    def specialize(self, session: Session) -> int:
        """Its value in this call, which becomes a guard."""
        return session.known(self.known())

    def known(self) -> Value:
        """It as a constant, its value guarded, or as a symbolic integer."""
        session = alive(self._session)
        return session.binary(self.function, *map(session.realize, self.operands))

    def argument(self, leaf: Leaf) -> Any:
        return self.known().argument(leaf)

    def truth(self, session: Session) -> bool:
        return session.truth(self.known())

    def get_attribute(self, session: Session, name: str) -> Value:
        return self.known().get_attribute(session, name)

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        return self.known().unary(session, function)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        return session.binary(function, *in_order(self.known(), other, reflected))


def _is_unread(session: Session, value: Value) -> bool:
    if type(value) is LazyValue:
        return type(value.object) is int and not session.is_realized(value.source)  # type: ignore[arg-type]
    return isinstance(value, UnreadNumber)


def counted(session: Session, function: Operator, left: Value, right: Value) -> Value | None:
    """The result of an in-place operator on integers whose values nobody has asked for; None for
    all others."""
    if function not in _COUNTING or not (_is_unread(session, left) or _is_unread(session, right)):
        return None
    for value in (left, right):
        known = isinstance(value, ConstantValue) and type(value.object) is int
        if not known and not _is_unread(session, value):
            return None
    for value in (left, right):
        if type(value) is LazyValue:
            session.guard(value.source, Kind.TYPE, int)
    return UnreadNumber(session, function, (left, right))
