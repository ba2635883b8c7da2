"""Objects of types written in C that capture has no rule for: files, locks, dates, ... They may be
passed along, kept and compared by identity; anything else that is asked of them ends the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.capture.values.base import ObjectHolder, Operator, Value

if TYPE_CHECKING:
    from ingot.capture.session import Session


class OpaqueValue(Value):
    """A value that cannot be asked for what it holds."""

    __slots__ = ()

    def length(self, session: Session) -> int:
        raise session.unsupported("foreign-object", f"the length of {self.describe()}")

    def get_item(self, session: Session, key: Value) -> Value:
        raise session.unsupported("foreign-object", f"an item of {self.describe()}")

    def contains(self, session: Session, item: Value) -> bool:
        raise session.unsupported("foreign-object", f"a membership test on {self.describe()}")

    def iterate(self, session: Session) -> Value:
        raise session.unsupported("foreign-object", f"iteration over {self.describe()}")


class ForeignValue(OpaqueValue, ObjectHolder):
    """One of them, from outside."""

    __slots__ = ()

    def describe(self) -> str:
        cls = type(self.object)
        name = "an object"
        if self.source:
            name = self.source.name
        return f"{name}, a {cls.__module__}.{cls.__name__},"

    def truth(self, session: Session) -> bool:
        if hasattr(self.object, "__bool__") or hasattr(self.object, "__len__"):
            raise session.unsupported("foreign-object", f"the truth of {self.describe()}")
        return True

    def next(self, session: Session) -> Value | None:
        raise session.unsupported("foreign-object", f"the next element of {self.describe()}")

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        raise session.unsupported(
            "foreign-object", f"operator.{function.__name__} of {self.describe()}"
        )
