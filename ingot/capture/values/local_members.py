"""The classes that the program makes, and what stands for values of the capture in their
namespaces: see `local_classes.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import Value

if TYPE_CHECKING:
    from ingot.capture.session import Session


class LocalClasses:
    """The classes of a capture, and the descriptors of functions."""

    def __init__(self) -> None:
        self.classes = set[type]()
        self.descriptors: dict[int, Any] = {}


class LocalMembers(dict[int, tuple[Any, Value]]):
    """By the id of what stands for a value: that, which is kept, and the value."""


def local_member(session: Session, object_: Any) -> Value | None:
    """The value that an object stands for; None for all others."""
    member = session.state(LocalMembers).get(id(object_))
    if member is None:
        return None
    return member[1]


def refuse_local_class(session: Session, cls: Any, what: str) -> None:
    """Refuses what looks at the stand-ins in a class that the program makes."""
    if isinstance(cls, type) and cls in session.state(LocalClasses).classes:
        raise session.unsupported("class-definition", f"{what} of a class that is defined")


class ClassNames(Value):
    """The namespace of a class whose body runs, as its annotations see it."""

    __slots__ = ("names",)

    def __init__(self, names: dict[str, Value]) -> None:
        super().__init__()
        self.names = names

    def python_type(self) -> type:
        return dict
