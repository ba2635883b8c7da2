"""Exceptions that existed before the call: those that a broken instruction raised, or that are being handled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import AttrSource, Source
from ingot.capture.values.base import Value
from ingot.capture.values.objects import ExceptionValue, ObjectValue
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PARTS = frozenset({"args", "__cause__", "__context__", "__suppress_context__", "__traceback__"})


class OutsideException(ExceptionValue):
    """Its parts are read, and guarded, when they are asked for."""

    __slots__ = ("_session",)

    def __init__(self, session: Session, object_: BaseException, source: Source) -> None:
        ObjectValue.__init__(self, type(object_), source, object_)
        self._session = session

    @property
    def args(self) -> list[Value]:  # type: ignore[override]
        return self._session.unpacked(self._part(self._session, "args"))

    @property
    def cause(self) -> Value:  # type: ignore[override]
        return self._part(self._session, "__cause__")

    def _part(self, session: Session, name: str) -> Value:
        assert self.source is not None
        return session.wrap(getattr(self.object, name), AttrSource(self.source, name, "slot"))

    def own_attribute(self, session: Session, name: str) -> Value | None:
        return self._part(session, name) if name in _PARTS else ObjectValue.own_attribute(self, session, name)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in _PARTS:
            return session.realize(self._part(session, name))
        return ObjectValue.get_attribute(self, session, name)


@wraps(BaseException)
def wrap_exception(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, type(object_))
    return OutsideException(session, object_, source)
