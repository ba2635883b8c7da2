"""Functions of the standard library that are not run as they are written."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
from types import FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from ingot.capture import polyfills
from ingot.capture.guards import Kind
from ingot.capture.sources import AttrSource, ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.builtins import POLYFILLS, PURE, RULES, call_pure, rule
from ingot.capture.values.classes import ClassValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import BoundMethod, FunctionValue, PartialValue
from ingot.capture.values.objects import ObjectValue

if TYPE_CHECKING:
    from ingot.capture.session import Session


# -- functools ---------------------------------------------------------------------------------------------------------


@rule(functools.partial)
def partial(session: Session, function: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(function, PartialValue) and not function.attributes and function.source is None:
        return PartialValue(function.function, [*function.args, *args], {**function.kwargs, **kwargs})
    return PartialValue(function, args, kwargs)


# -- dataclasses -------------------------------------------------------------------------------------------------------


@rule(dataclasses.fields)
def fields(session: Session, class_or_instance: Value) -> Value:
    value = class_or_instance
    return session.wrap_constant(
        session.python(dataclasses.fields, value.python_type() if isinstance(value, ObjectValue) else value.constant())
    )


# -- inspect -----------------------------------------------------------------------------------------------------------


@rule(inspect.signature)
def signature(session: Session, obj: Value, **options: Value) -> Value:
    """The signature of a function or method from outside."""
    function = obj
    bound = isinstance(function, BoundMethod)
    plain = session.realize(function.function) if isinstance(function, BoundMethod) else function
    if not isinstance(plain, FunctionValue) or plain.object is None or options:
        raise session.unsupported(f"inspect.signature() of {function.describe()}")
    session.guard(plain.source, Kind.IDENTITY, plain.object)
    found = session.python(inspect.signature, MethodType(plain.object, 0) if bound else plain.object)
    parameters = {name: session.wrap_constant(p) for name, p in found.parameters.items()}
    made = ObjectValue(inspect.Signature)
    made.members["_parameters"] = DictValue(
        parameters.items(), MappingProxyType, ConstSource(found.parameters), found.parameters
    )
    made.members["_return_annotation"] = session.wrap_constant(found.return_annotation)
    return made


@rule(MappingProxyType)
def mapping_proxy(session: Session, mapping: Value) -> Value:
    if not isinstance(mapping, DictValue) or mapping.source is None:
        raise session.unsupported(f"a view of {mapping.describe()} is made")
    return DictValue(mapping.entries.items(), MappingProxyType, mapping.source, mapping.object)


@rule(property, staticmethod, classmethod)
def descriptor(session: Session, *args: Value) -> Value:
    raise session.unsupported("a descriptor is made")


_ = (FunctionType, Any, operator, re, polyfills, AttrSource, Arguments, Keywords, POLYFILLS, PURE, RULES, call_pure, ClassValue)
