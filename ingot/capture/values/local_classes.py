"""Classes that the program makes: `class` statements, named tuples, dataclasses.

Eager makes a new class at each call, capture a real one that stands for all of them. Its methods
are stand-ins for functions that capture has made, by which `local_member` finds these. Nobody can
tell the classes of two calls apart as long as neither the class nor an instance leaves the graph:
where one does, the region runs in eager.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Mapping
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from ingot.capture.facts import is_plain_constant
from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, LazyValue, Raised, Value, map_values
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.construction import class_is_made
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import CellValue, FunctionValue
from ingot.capture.values.local_members import LocalClasses, LocalMembers
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.sequences import SequenceValue
from ingot.capture.values.sets import SetValue
from ingot.capture.values.tensor import TensorValue
from ingot.origins import is_trusted

if TYPE_CHECKING:
    from ingot.capture.session import Session

_NamedTuple: Any = typing.NamedTuple

_KINDS_OF_ATTRIBUTES = (TensorValue, NumberValue, SequenceValue, DictValue, SetValue, ObjectValue)
"""Values that may be attributes of a class, beside constants and functions."""


class _StandIn:
    """Stands for the object of a value, in the namespace of a class."""


def refuse_local(session: Session, value: Value) -> None:
    """Leaves the region to eager where a class that it makes, or an instance of one, leaves the
    graph."""
    known = session.state(LocalClasses)
    if not known.classes and not known.descriptors:
        return
    if isinstance(value, LazyValue):
        cls, object_ = type(value.object), value.object
    else:
        cls, object_ = value.python_type(), value.identity()
    is_local = cls in known.classes or id(object_) in known.descriptors
    if is_local or isinstance(object_, type) and object_ in known.classes:
        raise class_is_made(session)


def _local_class(session: Session, cls: Any) -> Value:
    session.state(LocalClasses).classes.add(cls)
    return session.builtin(cls)


# -- class statements ------------------------------------------------------------------------------


@means(builtins.__build_class__, how=How.UNREALIZED)
def build_class(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """What a `class` statement calls: it runs the body, and makes the class."""
    body, name, *bases = map(session.realize, args)
    assert isinstance(body, FunctionValue)
    real_bases = []
    for base in bases:
        real_bases.append(_base(session, base))
    if kwargs and (len(kwargs) > 1 or session.known(kwargs.get("metaclass", NONE)) is not type):
        raise class_is_made(session)
    frame = session.frame_of(body, [], {})
    names: dict[str, Value] = {}
    frame.names = names
    cell = frame.run()
    _end_body(session, names)
    namespace = {}
    for key, value in names.items():
        namespace[key] = _raw(session, key, value)
    cls = _local_class(session, _new_class(session, session.known(name), real_bases, namespace))
    if isinstance(cell, CellValue):
        cell.content = cls
    return cls


def _end_body(session: Session, names: dict[str, Value]) -> None:
    """Takes what is meant for `type` out of a namespace. Python 3.14 makes annotations when they
    are asked for; nobody can tell, as the class does not leave the graph."""
    for cell in ("__classcell__", "__classdictcell__"):
        names.pop(cell, None)
    annotate = names.pop("__annotate_func__", None)
    if annotate is None:
        return
    try:
        names["__annotations__"] = session.call(annotate, [ConstantValue(1)], {})
    except Raised:
        raise class_is_made(session) from None


def _base(session: Session, base: Value) -> Any:
    """A base class, where deriving from it runs no code of the user's."""
    if isinstance(base, FunctionValue) and base.object is _NamedTuple:
        return base.object
    cls = session.known(base)
    hook = session.class_lookup(cls, "__init_subclass__")
    if type(cls) is not type or isinstance(hook, classmethod):
        raise class_is_made(session)
    return cls


def _new_class(session: Session, name: str, bases: list[Any], namespace: dict[str, Any]) -> type:
    if _NamedTuple in bases:
        _refuse_defaults(session, namespace)
        make = functools.partial(types.new_class, exec_body=lambda names: names.update(namespace))
        cls: type = session.python(make, name, tuple(bases))
    else:
        cls = session.python(type, name, tuple(bases), namespace)
    return cls


def _refuse_defaults(session: Session, namespace: Mapping[str, Any]) -> None:
    """Refuses fields whose defaults are values of the capture: what makes them fields takes the
    stand-ins for the defaults."""
    members = session.state(LocalMembers)
    for name in namespace.get("__annotations__", ()):
        if id(namespace.get(name)) in members:
            raise class_is_made(session)


def _raw(session: Session, key: str, value: Value) -> Any:
    """What stands for a value in the namespace of a class."""
    value = session.realize(value)
    if isinstance(value, FunctionValue):
        return _function(session, value)
    if key == "__annotations__" or value.is_constant():
        object_ = session.known(value)
        modules = map(operator.attrgetter("__module__"), _hooks(session, type(object_)))
        if all(map(is_trusted, modules)):
            return object_
    elif isinstance(value, ObjectValue) and isinstance(value.object, dataclasses.Field):
        return value.object
    elif isinstance(value, _KINDS_OF_ATTRIBUTES) and not _hooks(session, value.python_type()):
        return _kept(session, _StandIn(), value)
    raise class_is_made(session)


def _hooks(session: Session, cls: type) -> list[FunctionType]:
    """What runs where a class gets an instance of `cls`, or where that is read from the class."""
    hooks = []
    for name in ("__set_name__", "__get__"):
        hook = session.class_lookup(cls, name)
        if isinstance(hook, FunctionType):
            hooks.append(hook)
    return hooks


def _kept(session: Session, stand_in: Any, value: Value) -> Any:
    session.state(LocalMembers)[id(stand_in)] = stand_in, value
    return stand_in


def _function(session: Session, value: FunctionValue) -> FunctionType:
    cells = tuple([CellType()] * len(value.code.co_freevars))
    function = FunctionType(value.code, value.namespace, value.code.co_name, None, cells)
    function.__qualname__ = value.qualname
    result: FunctionType = _kept(session, function, value)
    return result


def _descriptor(cls: Any, session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """A property, static method or class method of functions."""
    if kwargs:
        raise session.unsupported("construction", "a descriptor is made")
    functions = []
    for value in map(session.realize, args):
        functions.append(_raw_function(session, value))
    return _local_descriptor(session, session.python(cls, *functions))


def _raw_function(session: Session, value: Value) -> Any:
    if value.identity() is None:
        return None
    if not isinstance(value, FunctionValue):
        raise session.unsupported("construction", f"a descriptor of {value.describe()} is made")
    return _function(session, value)


def _local_descriptor(session: Session, descriptor: Any) -> Value:
    session.state(LocalClasses).descriptors[id(descriptor)] = descriptor
    return session.builtin(descriptor)


def _accessor(name: str, session: Session, descriptor: Value, function: Value) -> Value:
    """`property.setter` and the like: another property, with one more function."""
    accessor = getattr(session.known(descriptor), name)
    return _local_descriptor(session, accessor(_raw_function(session, function)))


for _cls in (property, staticmethod, classmethod):
    means(_cls, how=How.UNREALIZED)(functools.partial(_descriptor, _cls))
for _name in ("getter", "setter", "deleter"):
    means(getattr(property, _name))(functools.partial(_accessor, _name))


@means(type)
def type_(session: Session, value: Value, *rest: Value) -> Value:
    if not rest:
        return session.wrap_constant(value.python_type())
    bases, names = [*rest, value][:2]
    if len(rest) != 2 or not isinstance(names, DictValue):
        raise class_is_made(session)
    real_bases = []
    for base in session.unpacked(bases):
        real_bases.append(_base(session, session.realize(base)))
    namespace = {}
    for key, item in session.entries_of(names).items():
        namespace[key] = _raw(session, key, item)
    namespace.setdefault("__module__", _module(session))
    return _local_class(session, _new_class(session, session.known(value), real_bases, namespace))


# -- named tuples and dataclasses ------------------------------------------------------------------


def _module(session: Session) -> Any:
    return session.frames[-1].function.namespace.get("__name__")


@means(collections.namedtuple)
def named_tuple(session: Session, *args: Value, **kwargs: Value) -> Value:
    known = map_values(session.known, kwargs)
    known.setdefault("module", _module(session))
    if not is_plain_constant(tuple(known.get("defaults") or ())):
        raise class_is_made(session)
    make = collections.namedtuple
    return _local_class(session, session.python(make, *map(session.known, args), **known))


@means(_NamedTuple)
def typed_named_tuple(session: Session, *args: Value, **kwargs: Value) -> Value:
    known = map(session.known, args)
    cls = session.python(_NamedTuple, *known, **map_values(session.known, kwargs))
    cls.__module__ = _module(session)
    return _local_class(session, cls)


@means(dataclasses.field)
def field(session: Session, **kwargs: Value) -> Value:
    return session.builtin(session.python(dataclasses.field, **map_values(session.known, kwargs)))


@means(dataclasses.dataclass)
def dataclass(session: Session, *args: Value, **kwargs: Value) -> Value:
    if not args:
        decorator = [session.builtin(dataclasses.dataclass)]
        return session.construct(functools.partial, decorator, kwargs)
    known = map_values(session.known, kwargs)
    cls = session.known(args[0])
    is_local = cls in session.state(LocalClasses).classes
    if not is_local or known.keys() & {"slots", "weakref_slot"}:
        raise class_is_made(session)
    _refuse_defaults(session, vars(cls))
    return session.changed_class(session.python(dataclasses.dataclass, cls, **known))


@means(types.new_class, enum.EnumType)
def _class_factory(session: Session, *args: Value, **kwargs: Value) -> Value:
    raise class_is_made(session)
