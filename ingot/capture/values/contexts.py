"""Context variables: what they hold before the call is guarded, what is set is set for real after
the graph has run."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.sources import AttrSource, Source
from ingot.capture.values.base import NULL, ObjectHolder, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.wrap import wrapper_of, wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


_UNSET = object()


def _is_set(variable: Any) -> bool:
    """Whether a variable has a value in this context; its default does not count."""
    return variable.get(_UNSET) is not _UNSET


def _content(variable: Any) -> Any:
    return variable.get()


class ContextVariable(ObjectHolder):
    """A contextvars.ContextVar.

    `content` is what it holds now, None while nobody has asked; `real_content` what it holds for
    real once the operations so far are done; `tokens` are those of calls of `set` since then;
    `resets` the tokens that are there for real, or will be, by which it has been reset since
    then."""

    __slots__ = ("content", "real_content", "resets", "tokens", "was_reset")
    is_shared = True

    def __init__(self, object_: Any, source: Source) -> None:
        super().__init__(object_, source)
        self.content: Value | None = None
        self.real_content: Value | None = None
        self.tokens: list[TokenValue] = []
        self.resets: list[TokenValue | OutsideToken] = []
        self.was_reset = False

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
            content: Value = NULL
            if session.guard_derived(_is_set, self.object, self.source):
                content = session.wrap_derived(_content, self.object, self.source)
            self.content = self.real_content = content
        return self.content

    def method_get(self, session: Session, default: Value | None = None) -> Value:
        content = self.read(session)
        if content is not NULL:
            return session.realize(content)
        if default is not None:
            return default
        try:
            # its own default never changes
            return session.wrap_constant(contextvars.Context().run(self.object.get))
        except LookupError:
            raise session.raised(LookupError, self) from None

    def method_set(self, session: Session, value: Value) -> Value:
        token = TokenValue(self, self.read(session))
        self.tokens.append(token)
        self._write(session, value)
        return token

    def method_reset(self, session: Session, token: Value) -> Value:
        self.read(session)
        if isinstance(token, TokenValue) and token in self.tokens:
            self.tokens.remove(token)
        elif (
            isinstance(token, (TokenValue, OutsideToken)) and token.resets(self) and not self.tokens
        ):
            self.resets.append(token)
            token.is_used = self.was_reset = True
        else:
            raise session.unsupported(
                "library-function", f"{self.describe()} is reset by another token"
            )
        self._write(session, token.content(session))
        return NONE

    def _write(self, session: Session, value: Value) -> None:
        session.effects.change(session, self, self.object, self)
        self.content = value

    def operations(self) -> Iterable[Operation]:
        """The operations that set the variable and make its tokens, in their order: each token
        remembers the content before it."""
        for token in self.resets:
            yield Operation(contextvars.ContextVar.reset, (self, token))
            self.real_content = token.before
        self.resets.clear()
        content = self.content
        if content is None or content is NULL or content is self.real_content and not self.tokens:
            return
        yield Operation(_set_at_last, (self, *self.tokens, content))
        for token in self.tokens:
            token.is_made = True
        self.tokens.clear()
        self.real_content = content


def _set_at_last(variable: Any, *tokens_and_content: Any) -> None:
    variable.set(tokens_and_content[-1])


class TokenValue(Value):
    """What ContextVar.set() gives. `before` is what the variable held; `is_made`: it will be there
    for real."""

    __slots__ = ("before", "is_made", "is_possible", "is_used", "variable")

    def __init__(self, variable: ContextVariable, before: Value) -> None:
        super().__init__()
        self.variable, self.before = variable, before
        self.is_made = self.is_used = False
        self.is_possible = before is not NULL or not variable.was_reset  # see `make_token`

    def python_type(self) -> type:
        return contextvars.Token

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value" and self.before is not NULL:
            return session.realize(self.before)
        return super().get_attribute(session, name)

    def resets(self, variable: ContextVariable) -> bool:
        """Whether the variable may be reset by it for real."""
        return variable is self.variable and self.is_made and not self.is_used

    def content(self, session: Session) -> Value:
        """What the variable holds then."""
        return self.before

    @property
    def can_be_made(self) -> bool:
        """Whether `make_token` gives it."""
        waits = self in self.variable.tokens and self.variable.content is not NULL
        return self.is_possible and (self.is_made or waits)


def make_token(variable: Any, *before: Any) -> Any:
    """A token that remembers what a variable held before, or that it held nothing: that must still
    be so."""
    for content in before:
        variable.set(content)
    return variable.set(None)


class OutsideToken(ObjectHolder):
    """A token of a call of `set` that came before the region, alive behind a graph break."""

    __slots__ = ("before", "is_used")

    def __init__(self, object_: Any, source: Source) -> None:
        super().__init__(object_, source)
        self.before: Value = NULL
        self.is_used = _is_used(object_)

    def resets(self, variable: ContextVariable) -> bool:
        """Whether the variable may be reset by it."""
        return variable.object is self.object.var and not self.is_used

    def content(self, session: Session) -> Value:
        """What the variable holds then."""
        assert self.source is not None
        for fact in (_is_used, _remembers):
            session.guard_derived(fact, self.object, self.source)
        session.guard(AttrSource(self.source, "var", "slot"), Kind.IDENTITY, self.object.var)
        if _remembers(self.object):
            self.before = session.wrap_slot(self.object, self.source, "old_value")
        return self.before


def _is_used(token: Any) -> bool:
    return repr(token).startswith("<Token used")


def _remembers(token: Any) -> bool:
    return token.old_value is not contextvars.Token.MISSING


wraps(contextvars.Token, guards=Kind.TYPE)(wrapper_of(OutsideToken))


wraps(contextvars.ContextVar, guards=Kind.IDENTITY)(wrapper_of(ContextVariable))
