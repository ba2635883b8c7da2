"""id() of an object: a number that is not known during capture, but can be compared and looked up."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import IdentityKey

if TYPE_CHECKING:
    from ingot.capture.session import Session


_COMPARED = 32
"""How many outside objects are compared with each other; further ones are guarded by identity."""


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
        owner = self.owner
        if owner.source is not None and all(owner is not other for other in session.numbered):
            if len(session.numbered) >= _COMPARED:
                session.guard(owner.source, Kind.IDENTITY, owner.identity())
            else:  # whichever object it is, it is another one, or the same one, as those met before
                for other in session.numbered:
                    session.same(owner, other)
                session.numbered.append(owner)
        return NumberKey(owner.identity(), self)

    def binary(self, session: Session, function: Any, other: Value, reflected: bool) -> Value | None:
        if function not in (operator.eq, operator.ne):
            raise session.unsupported(f"arithmetic on {self.describe()}")
        if not isinstance(other, IdentityNumber):
            raise session.unsupported(f"{self.describe()} is compared with {other.describe()}")
        return ConstantValue(session.same(self.owner, other.owner) == (function is operator.eq))


class NumberKey(IdentityKey):
    """Such a number as a key of a captured dict."""

    __slots__ = ()

    def __hash__(self) -> int:
        return object.__hash__(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberKey) and other.object is self.object
