"""`threading.local` objects. Their attributes are in a dict of the thread that runs: guards and
side effects ask for the dict of the thread that makes the call."""

from __future__ import annotations

import threading
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import Source
from ingot.capture.values.base import NULL, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue, is_data_descriptor
from ingot.capture.values.outside_containers import OutsideDict
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


class ThreadLocal(ObjectValue):
    """An outside threading.local. `namespace` is the `__dict__` that it has in this thread."""

    __slots__ = ("namespace",)

    def __init__(self, session: Session, object_: Any, source: Source) -> None:
        super().__init__(type(object_), source, object_)
        namespace = session.realize(session.wrap_derived(vars, object_, source))
        assert isinstance(namespace, OutsideDict)
        self.namespace = namespace

    def plain_attribute(self, session: Session, name: str) -> Value | None:
        if name == "__dict__":
            return self.namespace
        return super().plain_attribute(session, name)

    def own_attribute(self, session: Session, name: str) -> Value | None:
        return self.namespace.find(session, name)

    def all_attributes(self, session: Session) -> Value:
        return self.namespace

    def _member(self, session: Session, name: str) -> Value:
        raise session.unsupported("foreign-object", f"{self.describe()} with __slots__")

    def put(self, session: Session, name: str, value: Value) -> None:
        if isinstance(session.class_lookup(self.cls, name), MemberDescriptorType):
            self._member(session, name)
        self.namespace.set_item(session, ConstantValue(name), value)

    def drop(self, session: Session, name: str) -> None:
        raw = session.class_lookup(self.cls, name)
        if is_data_descriptor(raw):
            return super().drop(session, name)
        if self.own_attribute(session, name) is None:
            raise self.attribute_error(session, name)
        self.namespace.write(session, name, NULL)
        return None


@wraps(threading.local, guards=Kind.TYPE)
def wrap_thread_local(session: Session, object_: Any, source: Source) -> Value:
    return ThreadLocal(session, object_, source)
