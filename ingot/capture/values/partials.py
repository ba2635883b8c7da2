"""functools.partial."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.meanings import means
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Callee,
    Keywords,
    OutsideOrMade,
    Value,
    find_missing,
    type_name,
)
from ingot.capture.values.containers import DictValue
from ingot.capture.values.keys import require_plain_names
from ingot.capture.values.sequences import TupleValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_FIELDS = ("func", "args", "keywords")


def has_dict(partial: functools.partial[Any]) -> bool:
    """Whether one has a `__dict__` already, which is made when it is first asked for."""
    return sum(type(referent) is dict for referent in gc.get_referents(partial)) > 1


class PartialValue(OutsideOrMade):
    """A functools.partial. `bound` and `named` are its args and keywords, the latter a dict that
    may be changed."""

    __slots__ = ("attributes", "bound", "function", "named")
    is_shared = True

    def __init__(
        self,
        function: Value,
        bound: Value,
        named: Value,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(source, object)
        self.function, self.bound, self.named = function, bound, named
        self.attributes: dict[str, Value] = {}

    @property
    def args(self) -> list[Value]:
        assert isinstance(self.bound, TupleValue)
        return self.bound.items

    @property
    def kwargs(self) -> Keywords:
        assert isinstance(self.named, DictValue)
        return dict(self.named.entries)

    def python_type(self) -> type:
        return functools.partial

    # -- attributes --------------------------------------------------------------------------------

    def has_dict(self, session: Session) -> bool:
        """Whether it has a `__dict__`: another partial is made of it as it is then, and not of its
        parts."""
        if self.source is None:
            return bool(self.attributes) or session.has_attributes_dict(self)
        fields = None
        if answer := has_dict(self.object):
            fields = session.effects.fields(vars(self.object))
        if fields is None:
            session.guard(DerivedSource(self.source, has_dict), Kind.EQUALS, answer)
        return answer

    def _own_attribute(self, session: Session, name: str) -> Value | None:
        if self.source is None:
            return self.attributes.get(name)
        if self.has_dict(session):
            return session.effects.own(session, self, self.object, name)
        return None

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in _FIELDS:
            return {"func": self.function, "args": self.bound, "keywords": self.named}[name]
        if name == "__dict__":
            if self.source is None:
                return session.attributes_of(self)  # type: ignore[arg-type]
            return session.instance_dict_of(self)  # type: ignore[arg-type]
        if name != "__class__":
            own = self._own_attribute(session, name)
            if own is not None:
                return session.realize(own)
        return super().get_attribute(session, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        self._refuse_field(session, name)
        if self.source is None:
            self.attributes[name] = value
        else:
            session.effects.set_own(session, self, self.object, name, value)

    def delete_attribute(self, session: Session, name: str) -> None:
        self._refuse_field(session, name)
        if self._own_attribute(session, name) is None:
            kind = type_name(functools.partial)
            raise session.raised(AttributeError, f"'{kind}' object has no attribute '{name}'")
        if self.source is None:
            del self.attributes[name]
            session.attributes_of(self)  # type: ignore[arg-type]  # it stays, and is empty
        else:
            session.effects.set_own(session, self, self.object, name, NULL)

    def _refuse_field(self, session: Session, name: str) -> None:
        if name in _FIELDS:
            raise session.raised(AttributeError, "readonly attribute")
        if name in ("__class__", "__dict__"):
            raise session.unsupported(
                "side-effect",
                f"side effect: attribute {name!r} of {self.describe()} is set or deleted",
            )

    # -- calls -------------------------------------------------------------------------------------

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return session.realize(self.function).callee(
            session, [*self.args, *args], {**self.kwargs, **kwargs}
        )

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.call(self.function, [*self.args, *args], {**self.kwargs, **kwargs})


@means(functools.partial)
def partial(session: Session, function: Value, *args: Value, **kwargs: Value) -> Value:
    if find_missing(function.python_type(), "__call__"):
        raise session.raised(TypeError, "the first argument must be callable")
    require_plain_names(session, kwargs)
    if isinstance(function, PartialValue) and not function.has_dict(session):
        args, kwargs = (*function.args, *args), {**function.kwargs, **kwargs}
        function = function.function
    return PartialValue(function, session.tuple_of_values(args), session.dict_of_values(kwargs))


def partial_of(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> functools.partial[Any]:
    """One of these very parts, also where the function is a partial itself."""
    result: functools.partial[Any] = functools.partial(partial_of)
    result.__setstate__((function, args, keywords, None))  # type: ignore[attr-defined]
    return result
