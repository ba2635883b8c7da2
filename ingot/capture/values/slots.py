"""The special methods of built-in types, called by name: `items.__getitem__(0)`, `map(int.__neg__,
numbers)`."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture.values import signatures
from ingot.capture.values.base import SLOTS, Rule, Value
from ingot.capture.values.constant import NONE, ConstantValue, as_value
from ingot.capture.values.objects import BINARY_METHODS, INPLACE_METHODS, UNARY_METHODS

if TYPE_CHECKING:
    from ingot.capture.session import Session

Slot = Rule


def _slot(name: str) -> Callable[[Slot], Slot]:
    def register(slot: Slot) -> Slot:
        SLOTS[name] = slot
        return slot

    return register


def _binary(name: str, function: Any, reflected: bool) -> Slot:
    def slot(value: Value, session: Session, other: Value) -> Value:
        result = value.binary(session, function, other, reflected)
        return result or _refusal(session, value, name, other)

    return slot


def _refusal(session: Session, value: Value, name: str, other: Value) -> Value:
    """How a method refuses an operand, asked of CPython: most give NotImplemented, some raise
    TypeError."""
    cls = value.python_type()
    method, model = signatures.method_of(cls, name), signatures.model_of(cls)
    if method is not None and type(model) is cls:
        if session.python(method, model, session.refused(other)) is not NotImplemented:
            raise session.unsupported(
                "operator", f"{name} of {value.describe()} and {other.describe()}"
            )
    return ConstantValue(NotImplemented)


def _unary(function: Any) -> Slot:
    return lambda value, session: value.unary(session, function)


for _function, (_name, _reflected) in BINARY_METHODS.items():
    SLOTS[_name] = _binary(_name, _function, False)
    if _reflected.startswith("__r"):
        SLOTS[_reflected] = _binary(_reflected, _function, True)
for _function, (_name, _) in INPLACE_METHODS.items():
    SLOTS[_name] = _binary(_name, _function, False)
for _function, _name in UNARY_METHODS.items():
    SLOTS[_name] = _unary(_function)
SLOTS["__abs__"] = _unary(builtins.abs)


SLOTS.update(
    __len__=lambda value, session: as_value(value.length(session)),
    __bool__=lambda value, session: ConstantValue(value.truth(session)),
    __getitem__=lambda value, session, key: value.get_item(session, key),
    __contains__=lambda value, session, item: ConstantValue(value.contains(session, item)),
    __iter__=lambda value, session: value.iterate(session),
    __call__=lambda value, session, *args, **kwargs: value.call(session, args, kwargs),
    __hash__=lambda value, session: session.call_builtin(hash, value),
    __str__=lambda value, session: ConstantValue(session.text_of(value, str)),
    __repr__=lambda value, session: ConstantValue(session.text_of(value, repr)),
    __reversed__=lambda value, session: session.call_builtin(reversed, value),
)


def _converted(function: Any) -> Slot:
    return lambda value, session, *args: session.call_builtin(function, value, *args)


for _name, _converter in {
    "__int__": int, "__float__": float, "__complex__": complex, "__index__": operator.index,
    "__round__": round, "__trunc__": math.trunc, "__floor__": math.floor, "__ceil__": math.ceil,
    "__divmod__": divmod, "__dir__": dir,
    "__bytes__": bytes, "__length_hint__": operator.length_hint,
}.items():  # fmt: skip
    SLOTS[_name] = _converted(_converter)


@_slot("__format__")
def _format(value: Value, session: Session, spec: Value) -> Value:
    method = signatures.method_of(value.python_type(), "__format__")
    if spec.python_type() is not str and method is not None:
        owner = None
        if method is not object.__format__:
            owner = value.constant()
        session.python(method, owner, session.refused(spec))
    return session.call_builtin(format, value, spec)


@_slot("__next__")
def _next(value: Value, session: Session) -> Value:
    return session.call_builtin(next, value)


@_slot("__setitem__")
def _setitem(value: Value, session: Session, key: Value, item: Value) -> Value:
    value.set_item(session, key, item)
    return NONE


@_slot("__delitem__")
def _delitem(value: Value, session: Session, key: Value) -> Value:
    value.delete_item(session, key)
    return NONE


@_slot("__getattribute__")
def _getattribute(value: Value, session: Session, name: Value) -> Value:
    return value.get_attribute(session, name.constant())


@_slot("__setattr__")
def _setattr(value: Value, session: Session, name: Value, item: Value) -> Value:
    value.set_attribute(session, name.constant(), item)
    return NONE


@_slot("__delattr__")
def _delattr(value: Value, session: Session, name: Value) -> Value:
    value.delete_attribute(session, name.constant())
    return NONE
