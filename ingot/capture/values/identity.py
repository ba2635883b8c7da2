"""id() of an object: a number that is not known during capture, but can be compared and looked
up."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import IdentityKey
from ingot.capture.values.operator_methods import EQUALITIES
from ingot.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from ingot.capture.session import Session


_COMPARED = 32
"""How many outside objects are compared with each other; if there are more, all are guarded by
identity."""


class Numbered(dict[int, Value]):
    """The outside objects whose id() is used, by the id() of their values."""


def tell_apart(session: Session, owner: Value) -> None:
    """Guards whether an object whose id() is used is one of those whose id() was used before."""
    numbered = session.state(Numbered)
    if owner.source is None or id(owner) in numbered:
        return
    if len(numbered) < _COMPARED:
        for other in numbered.values():
            session.same(owner, other)
    numbered[id(owner)] = owner
    if len(numbered) <= _COMPARED:
        return
    for each in list(numbered.values()) if len(numbered) == _COMPARED + 1 else [owner]:
        real = each.identity()
        if isinstance(each, TensorValue):
            real = session.graph.inputs.value_of(each)
        session.guard(each.source, Kind.IDENTITY, real)


class IdentityNumber(Value):
    """id(owner)."""

    __slots__ = ("owner",)

    def __init__(self, owner: Value) -> None:
        super().__init__()
        self.owner = owner

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return f"the id() of {self.owner.describe()}"

    def key(self, session: Session) -> Any:
        tell_apart(session, self.owner)
        return NumberKey(self.owner.identity(), self)

    def binary(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        if function in EQUALITIES and isinstance(other, IdentityNumber):
            return ConstantValue(session.same(self.owner, other.owner) == (function is operator.eq))
        if isinstance(other, IdentityNumber):
            other = other._number(session)
        return self._number(session).binary(session, function, other, reflected)

    def _number(self, session: Session) -> Value:
        """The number of an object that existed before the call; tensors are others in each call."""
        owner = self.owner
        if owner.source is None or isinstance(owner, TensorValue):
            raise session.unsupported("identity", f"arithmetic on {self.describe()}")
        real = owner.identity()
        session.guard(owner.source, Kind.IDENTITY, real)
        return ConstantValue(id(real))


class NumberKey(IdentityKey):
    """The id() of an object as a key of a captured dict."""

    __slots__ = ()
    is_number = True

    def __hash__(self) -> int:
        return object.__hash__(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberKey) and other.object is self.object

    def outside(self, session: Session) -> Any:
        """The key to look for in an outside container: the id() of an outside object, which is
        guarded.

        The id() of an object made during capture is in no outside container."""
        owner = self.value.owner  # type: ignore[attr-defined]
        if owner.source is not None and not isinstance(owner, TensorValue):
            session.guard(owner.source, Kind.IDENTITY, self.object)
            return id(self.object)
        if owner.source is None and not owner.is_constant():
            return self
        raise session.unsupported(
            "outside-identity",
            f"{self.value.describe()} is looked for in what existed before the call",
        )
