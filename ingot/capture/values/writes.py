"""Attributes written on objects that existed before the call. Only what is put back before the call ends is allowed:
then nothing is left to do for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind, same_constant
from ingot.capture.sources import AttrSource
from ingot.capture.values.base import NULL, Value
from ingot.capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.objects import ObjectValue

_ABSENT = object()


class Writes:
    """What was written, by attribute name and object. NULL stands for a deleted attribute.

    Which object is written through one path and read through another depends on which are the same: from the first
    write of a name on, the objects of that class are guarded by identity where the name is read.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[int, tuple[ObjectValue, Value, str]]] = {}

    def write(self, session: Session, owner: ObjectValue, name: str, value: Value) -> None:
        from ingot.capture.values.objects import instance_dict

        if instance_dict(owner.object) is None:
            raise session.unsupported(f"side effect: attribute {name!r} of {owner.describe()} is set")
        session.guard(owner.source, Kind.IDENTITY, owner.object)
        self._values.setdefault(name, {})[id(owner.object)] = (owner, value, session.where)

    def read(self, session: Session, owner: ObjectValue, name: str) -> Value | None:
        """What the attribute was set to; None where it was not written."""
        written = self._values.get(name)
        if written is None:
            return None
        if any(other.cls is owner.cls for other, *_ in written.values()):
            session.guard(owner.source, Kind.IDENTITY, owner.object)
        found = written.get(id(owner.object))
        return found[1] if found is not None else None

    def touch(self, owner: ObjectValue) -> bool:
        """Whether any attribute of an object of this class was written."""
        return any(other.cls is owner.cls for written in self._values.values() for other, *_ in written.values())

    def check(self, session: Session) -> None:
        """Raises Unsupported for what is not as it was before the call."""
        for name, written in self._values.items():
            for owner, value, where in written.values():
                if not _restored(session, owner, name, value):
                    reason = session.unsupported(f"side effect: attribute {name!r} of {owner.describe()} is set")
                    reason.where = where
                    raise reason


def _restored(session: Session, owner: ObjectValue, name: str, value: Value) -> bool:
    """Whether an attribute has its first value again, at every call for which the guards hold."""
    from ingot.capture.values.objects import instance_dict

    assert owner.source is not None
    source = AttrSource(owner.source, name)
    if value.source == source:
        return True
    original: Any = (instance_dict(owner.object) or {}).get(name, _ABSENT)
    if original is _ABSENT:
        session.guard_absent(owner.source, name)
        return value is NULL
    before = session.realize(session.wrap(original, source))
    value = session.realize(value)
    if not isinstance(before, ConstantValue) or not isinstance(value, ConstantValue):
        return False
    return same_constant(before.constant(), value.constant())
