"""Objects that are held as they are, and never change: members of enums, what typing makes of
classes, static and class methods."""

from __future__ import annotations

import typing
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import (
    Arguments,
    Keywords,
    NativeMethod,
    Operator,
    UnaryOperator,
    Value,
    implemented,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.objects import BINARY_METHODS, UNARY_METHODS, ObjectValue, bind_member
from ingot.origins import trusts_function

if TYPE_CHECKING:
    from ingot.capture.session import Session


class EnumValue(ConstantValue):
    """A member of an Enum: the methods and properties that the user wrote are Python."""

    __slots__ = ()
    has_special_methods = True

    def special(self, session: Session, name: str, *args: Value) -> Value | None:
        """Calls a special method that the user wrote; None if there is none."""
        raw = session.class_lookup(type(self.object), name)
        if not isinstance(raw, FunctionType) or trusts_function(raw):
            return None
        return session.realize(session.call_member(raw, self, *args))

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("name", "value", "_value_", "_name_"):
            return session.wrap_constant(getattr(self.object, name))
        if name in vars(self.object):
            return session.wrap_constant(vars(self.object)[name])
        raw = session.class_lookup(type(self.object), name)
        if isinstance(
            raw, (FunctionType, property, classmethod, staticmethod)
        ) and not self._is_known(session, raw):
            return session.class_attribute(type(self.object), name, self)
        return super().get_attribute(session, name)

    @staticmethod
    def _is_known(session: Session, raw: Any) -> bool:
        """Whether a member of the class is Python's own."""
        inner = getattr(raw, "__func__", getattr(raw, "fget", raw))
        return trusts_function(inner)

    def has_format(self) -> bool:
        """Whether the user wrote a `__format__`."""
        return type(self.object).__format__.__module__ != "enum"

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        return self.special(session, UNARY_METHODS[function]) or super().unary(session, function)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function in BINARY_METHODS:
            answer = self.special(session, BINARY_METHODS[function][reflected], other)
            if answer is not None:
                return implemented(answer)
        if isinstance(other, ConstantValue):
            return super().binary(session, function, other, reflected)
        return None

    def truth(self, session: Session) -> bool:
        answer = self.special(session, "__bool__") or self.special(session, "__len__")
        if answer is None:
            return super().truth(session)
        return session.truth(answer)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raw = session.class_lookup(type(self.object), "__call__")
        if not isinstance(raw, FunctionType):
            return super().call(session, args, kwargs)
        return session.call(session.wrap_class_member(raw), [self, *args], kwargs)


class AliasValue(ConstantValue):
    """list[int], typing.Optional[int], a TypeVar, ..."""

    __slots__ = ()

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        origin = typing.get_origin(self.object)
        if not isinstance(origin, type):
            raise session.unsupported("call", f"a call of {self.describe()}")
        instance = session.construct(origin, args, kwargs)
        if isinstance(instance, ObjectValue) and instance.cls.__dictoffset__:
            instance.set_attribute(session, "__orig_class__", self)
        return instance


class MemberValue(ConstantValue):
    """A staticmethod or classmethod object."""

    __slots__ = ()

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("__func__", "__wrapped__"):
            return session.realize(session.wrap_class_member(self.object.__func__))
        if name == "__get__":
            return NativeMethod(self, name, MemberValue.get)
        return session.realize(session.wrap_class_member(self.object.__func__)).get_attribute(
            session, name
        )

    def get(self, session: Session, instance: Value, owner: Value = NONE) -> Value:
        """`__get__`."""
        if owner.identity() is None:
            cls = instance.python_type()
        else:
            cls = session.known(owner)
        bound_to = None if instance.identity() is None else instance
        return session.realize(bind_member(session, self.object, bound_to, cls, ""))

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if isinstance(self.object, staticmethod):
            return session.call(session.wrap_class_member(self.object.__func__), args, kwargs)
        return super().call(session, args, kwargs)
