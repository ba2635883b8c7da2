"""Context variables: what they hold before the call is guarded, what is set is set for real after the graph has run."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import NULL, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


_UNSET = object()


def _is_set(variable: Any) -> bool:
    """Whether a variable has a value in this context; its default does not count."""
    return variable.get(_UNSET) is not _UNSET


def _content(variable: Any) -> Any:
    return variable.get()


class ContextVariable(Value):
    """A contextvars.ContextVar. `content` is what it holds now, None while nobody has asked."""

    __slots__ = ("content", "object")
    is_shared = True

    def __init__(self, object_: Any, source: Source) -> None:
        super().__init__(source)
        self.object = object_
        self.content: Value | None = None

    def python_type(self) -> type:
        return contextvars.ContextVar

    def identity(self) -> Any:
        return self.object

    def key(self, session: Session) -> Any:
        return session.identity_key(self)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "name":
            return ConstantValue(self.object.name)
        return super().get_attribute(session, name)

    def read(self, session: Session) -> Value:
        """What it holds in this context, NULL if nothing."""
        if self.content is None:
            assert self.source is not None
            is_set = _is_set(self.object)
            session.guard(DerivedSource(self.source, _is_set), Kind.EQUALS, is_set)
            held = DerivedSource(self.source, _content)
            self.content = session.wrap(self.object.get(), held) if is_set else NULL
        return self.content

    def method_get(self, session: Session, default: Value | None = None) -> Value:
        content = self.read(session)
        if content is not NULL:
            return session.realize(content)
        if default is not None:
            return default
        try:
            return session.wrap_constant(contextvars.Context().run(self.object.get))  # its own default never changes
        except LookupError:
            raise session.raised(LookupError, self) from None

    def method_set(self, session: Session, value: Value) -> Value:
        token = TokenValue(self, self.read(session))
        self._write(session, value)
        return token

    def method_reset(self, session: Session, token: Value) -> Value:
        if not isinstance(token, TokenValue) or token.variable is not self or token.used:
            raise session.unsupported(f"{self.describe()} is reset by another token")
        token.used = True
        self._write(session, token.before)
        return NONE

    def _write(self, session: Session, value: Value) -> None:
        session.effects.change(session, self, self.object, self)
        self.content = value

    def operations(self) -> Iterable[Operation]:
        """What sets the variable, unless it holds again what it held before."""
        content = self.content
        if content is None or content is NULL:
            return []
        if content.source is DerivedSource(self.source, _content):  # type: ignore[arg-type]
            return []
        return [Operation(contextvars.ContextVar.set, (self, content))]


class TokenValue(Value):
    """What ContextVar.set() gives."""

    __slots__ = ("before", "used", "variable")

    def __init__(self, variable: ContextVariable, before: Value) -> None:
        super().__init__()
        self.variable, self.before, self.used = variable, before, False

    def python_type(self) -> type:
        return contextvars.Token

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value" and self.before is not NULL:
            return session.realize(self.before)
        return super().get_attribute(session, name)


@wraps(contextvars.ContextVar)
def wrap_context_variable(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.IDENTITY, object_)
    return ContextVariable(object_, source)
