"""Immutable Python objects that capture knows in full: numbers, strings, None, dtypes, devices,
enum members, code, ..."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import (
    Arguments,
    Keywords,
    KnownObject,
    NotConstant,
    Operator,
    UnaryOperator,
    Value,
    in_order,
    type_name,
)
from ingot.capture.values.operator_methods import BINARY_METHODS, INPLACE_METHODS
from ingot.capture.values.signatures import method_of

if TYPE_CHECKING:
    from ingot.capture.session import Session


LITERALS = frozenset(
    {int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented)}
)


_NUMBERS = frozenset({int, float, complex, bool})


_WITHOUT_REFLECTED = frozenset({tuple, list, dict, set, frozenset, slice})
"""What no constant's reflected operator takes: the operand on the left has been asked before."""


class ConstantValue(KnownObject):
    """One immutable object."""

    __slots__ = ()

    def describe(self) -> str:
        return repr(self.object)

    def truth(self, session: Session) -> bool:
        return bool(self.object)

    def length(self, session: Session) -> int:
        return session.python(len, self.object)

    def get_attribute(self, session: Session, name: str) -> Value:
        value = session.python(getattr, self.object, name)
        if getattr(value, "__self__", self) is self.object:
            return ConstantMethod(self, name)
        return session.wrap_constant(value)

    def get_item(self, session: Session, key: Value) -> Value:
        if type(self.object) in (str, bytes):
            return session.wrap_result(lambda o, k: o[k], self.object, session.index(key))
        return session.wrap_constant(session.really(lambda o, k: o[k], [self, key], {}))

    def contains(self, session: Session, item: Value) -> bool:
        return session.really(lambda o, i: i in o, [self, item], {})

    def iterate(self, session: Session) -> Value:
        iterator = session.python(iter, self.object)
        return session.constant_iterator(iterator)

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        return session.wrap_result(function, self.object)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if type(self.object) in (str, bytes):
            if function is operator.mod and not reflected:
                return session.wrap_result(function, self.object, session.text_operand(other))
            if function is operator.mul and hasattr(other.python_type(), "__index__"):
                return session.wrap_constant(self.object * session.integer(other))
        if other.decides_operators:
            return None
        if reflected and other.python_type() in _WITHOUT_REFLECTED:
            return None  # an in-place operator's error names it, which is not known here
        content = getattr(other, "content", None)
        if type(self.object) in _NUMBERS and isinstance(content, ConstantValue):
            return self._with_number(session, function, content.object, reflected)
        try:
            pair = (self.object, other.constant())
        except NotConstant:
            return None
        return session.wrap_result(function, *in_order(*pair, reflected))

    def _with_number(
        self, session: Session, function: Operator, number: Any, reflected: bool
    ) -> Value | None:
        """The operator with what an instance of a subclass holds, by this number's own method: the
        other's were asked before, or are not asked."""
        _, plain = INPLACE_METHODS.get(function, ("", function))
        method = method_of(type(self.object), BINARY_METHODS[plain][reflected])
        if method is None:
            return None
        result = session.python(method, self.object, number)
        if result is NotImplemented:
            return None
        return session.wrap_constant(result)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raise session.raised(TypeError, f"'{type_name(self.python_type())}' object is not callable")


def as_value(answer: Any) -> Value:
    """A value as it is, and a plain object as a constant."""
    if isinstance(answer, Value):
        return answer
    return ConstantValue(answer)


NONE = ConstantValue(None)


class ConstantMethod(Value):
    """A method of a constant: "{}".format, x.dtype.is_floating_point, (3).bit_length, ..."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: ConstantValue, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return type(getattr(self.owner.object, self.name))

    def describe(self) -> str:
        return f"method {self.name!r} of {self.owner.describe()}"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__qualname__", "__doc__"):
            return session.wrap_constant(getattr(getattr(self.owner.object, self.name), name))
        return super().get_attribute(session, name)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if type(self.owner.object) is str and self.name == "format" and not kwargs:
            late = _late_text(session, str.format, self.owner, *args)
            if late is not None:
                return late
        if type(self.owner.object) is str and self.name in ("join", "format", "format_map"):
            return ConstantValue(self._text(session, self.owner.object, args, kwargs))
        method = method_of(type(self.owner.object), self.name)
        if method is None:
            method = getattr(self.owner.object, self.name)
        else:
            method = functools.partial(method, self.owner.object)  # as an error of it tells
        result = session.really(method, args, kwargs)
        if hasattr(type(result), "__next__"):
            return session.constant_iterator(result)
        return session.wrap_constant(result)

    def _text(self, session: Session, text: str, args: Arguments, kwargs: Keywords) -> str:
        """The methods of str that are given other objects than text."""
        args, kwargs = list(map(session.realize, args)), session.realize_all(kwargs)
        if self.name == "join" and len(args) == 1:
            items = session.items_of(args[0], "can only join an iterable")
            return session.python(text.join, list(map(functools.partial(_joined, session), items)))
        elif self.name == "format_map" and len(args) == 1 and not kwargs:
            return _format(session, text, None, args[0])
        elif self.name == "format" and {*map(type, (*args, *kwargs.values()))} - {ConstantValue}:
            return _format(session, text, args, session.dict_of_values(kwargs))
        return session.python_of(getattr(text, self.name), args, kwargs)


def _joined(session: Session, item: Value) -> Any:
    """What str.join is given for an item: the text that it holds, or what is refused as it is."""
    item = session.realize(item)
    if issubclass(item.python_type(), str):
        return session.known(item)
    return session.refused(item)


def _late_text(session: Session, function: Callable[..., str], *args: Value) -> Value | None:
    from ingot.capture.values.late_text import late_text  # which is made of constants itself

    return late_text(session, function, *args)


def _format(session: Session, template: str, args: Arguments | None, named: Value) -> str:
    from ingot.capture.values.text import format_template  # which is made of constants itself

    return format_template(session, template, args, named)
