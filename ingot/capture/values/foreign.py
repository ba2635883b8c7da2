"""Objects of types written in C that capture has no rule for: files, locks, dates, ... They may be
passed along, kept and compared by identity; anything else that is asked of them ends the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.capture.values.base import ObjectHolder, Operator, Value
from ingot.capture.values.wording import described, fact_of, operator_text, public_name

if TYPE_CHECKING:
    from ingot.capture.session import Session


class OpaqueValue(Value):
    """A value that cannot be asked for what it holds."""

    __slots__ = ()

    def length(self, session: Session) -> int:
        raise session.unsupported("foreign-object", f"the length of {self.describe()}", of=self)

    def get_item(self, session: Session, key: Value) -> Value:
        raise session.unsupported("foreign-object", f"an item of {self.describe()}", of=self)

    def contains(self, session: Session, item: Value) -> bool:
        raise session.unsupported(
            "foreign-object", f"a membership test on {self.describe()}", of=self
        )

    def iterate(self, session: Session) -> Value:
        raise session.unsupported("foreign-object", f"iteration over {self.describe()}", of=self)


class ForeignValue(OpaqueValue, ObjectHolder):
    """One of them, from outside."""

    __slots__ = ()

    def describe(self) -> str:
        if isinstance(fact_of(self.object, "__qualname__"), str):
            return f"{public_name(self.object)}()"
        return described(public_name(type(self.object)), self.source)

    def truth(self, session: Session) -> bool:
        if hasattr(self.object, "__bool__") or hasattr(self.object, "__len__"):
            raise session.unsupported("foreign-object", f"the truth of {self.describe()}", of=self)
        return True

    def next(self, session: Session) -> Value | None:
        raise session.unsupported(
            "foreign-object", f"the next element of {self.describe()}", of=self
        )

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        raise session.unsupported(
            "foreign-object", f"{operator_text(function)} of {self.describe()}", of=self
        )
