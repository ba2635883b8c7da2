"""Functions of the standard library that are not run as they are written."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import operator
import pickle
import re
import sys
from collections import OrderedDict
from types import FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from ingot.capture import residual
from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.results import RECIPES
from ingot.capture.sources import AttrSource, ConstSource, DerivedSource, Source
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    OutsideOrMade,
    Value,
    empty_cells,
    map_values,
)
from ingot.capture.values.builtins import call_pure
from ingot.capture.values.classes import ClassValue
from ingot.capture.values.constant import NONE
from ingot.capture.values.containers import DictValue, DictView
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import BoundMethod, FunctionValue
from ingot.capture.values.local_members import refuse_local_class
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.outside_containers import OutsideDict
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


# -- functools -------------------------------------------------------------------------------------


@means(functools.singledispatch(lambda value: value).dispatch.__code__, how=How.CODE)
def _dispatch(
    session: Session, function: FunctionValue, args: Arguments, kwargs: Keywords
) -> Value:
    """`dispatch(cls)` inside functools.singledispatch: the implementation for a class, as long as
    the registry has the same classes."""
    if function.object is None or len(args) != 1 or kwargs:
        raise session.unsupported(
            "library-function", "functools.singledispatch inside the compiled function"
        )
    place = function.code.co_freevars.index("registry")
    registry = session.realize(function.cells[place].content)
    implementation = session.python(function.object, session.known(args[0]))
    assert isinstance(registry, OutsideDict)
    key = next(key for key, candidate in registry.object.items() if candidate is implementation)
    return session.realize(registry.entries[session.wrap_constant(key).key(session)])


# -- types, sys ------------------------------------------------------------------------------------


@means(MethodType)
def method(session: Session, function: Value, instance: Value) -> Value:
    return BoundMethod(function, instance)


@means(sys.exc_info)
def exc_info(session: Session) -> Value:
    handled = session.handled
    if not isinstance(handled, ExceptionValue):
        return session.tuple_of_values([NONE, NONE, NONE])
    return session.tuple_of_values(
        [session.wrap_constant(handled.python_type()), handled, handled.traceback()]
    )


if hasattr(sys, "exception"):

    @means(sys.exception)
    def exception(session: Session) -> Value:
        return session.handled


# -- dataclasses -----------------------------------------------------------------------------------


@means(dataclasses.fields)
def fields(session: Session, class_or_instance: Value) -> Value:
    if isinstance(class_or_instance, ObjectValue):
        owner: Any = class_or_instance.python_type()
    else:
        owner = class_or_instance.constant()
    return session.wrap_result(dataclasses.fields, owner)


# -- re --------------------------------------------------------------------------------------------


@means(re.compile, re._compile)  # type: ignore[attr-defined]
def compile_pattern(session: Session, *args: Value, **kwargs: Value) -> Value:
    return call_pure(session, re.compile, args, kwargs)


# -- pickle ----------------------------------------------------------------------------------------


@means(pickle.dumps)
def dumps(session: Session, value: Value, *args: Value, **kwargs: Value) -> Value:
    """What constants become: a key of caches. Of equal texts it matters which are one object, which
    capture does not keep."""
    known, texts = session.known(value), []  # type: tuple[Any, list[str]]
    if not _is_written_alike(known, texts) or len(texts) != len(set(texts)):
        raise session.unsupported("c-function", f"dumps() of {value.describe()}")
    return session.wrap_result(
        pickle.dumps, known, *map(session.known, args), **map_values(session.known, kwargs)
    )


def _is_written_alike(known: Any, texts: list[str]) -> bool:
    """Whether equal copies become the same bytes if no two of `texts` are equal: those of objects
    that are written once, and referred to afterwards."""
    if type(known) in (str, bytes, dict, list, tuple):
        texts.append(repr(known))
    if type(known) is dict:
        known = [*known, *known.values()]
    if type(known) in (list, tuple):
        return all(map(functools.partial(_is_written_alike, texts=texts), known))
    return known is None or type(known) in (str, bytes, bool, int, float)


# -- inspect ---------------------------------------------------------------------------------------


@means(inspect.signature, inspect._signature_from_callable)  # type: ignore[attr-defined]
def signature(session: Session, obj: Value, **options: Value) -> Value:
    """The signature of a function, method or class."""
    refuse_local_class(session, obj.identity(), "the signature")
    known = map_values(session.known, options)
    plain = obj
    if isinstance(obj, BoundMethod):
        plain = session.realize(obj.function)
    if known.get("eval_str") or known.get("globals") or known.get("locals"):
        raise session.unsupported(
            "library-function", "inspect.signature() with evaluated annotations"
        )
    read_callable = inspect._signature_from_callable  # type: ignore[attr-defined]
    read = functools.partial(read_callable, **{"sigcls": inspect.Signature, **_read_as(known)})
    if isinstance(plain, FunctionValue) and (plain.object is None or _is_bare(session, plain)):
        return _signature_of_inner(session, plain, isinstance(obj, BoundMethod), read)
    if isinstance(plain, FunctionValue):
        for field in ("__defaults__", "__kwdefaults__"):
            source = AttrSource(plain.source, field, "slot")  # type: ignore[arg-type]
            session.guard(source, Kind.IDENTITY, getattr(plain.object, field))
        for name in ("__wrapped__", "__signature__"):
            session.effects.own(session, plain, plain.object, name)
        session.guard(plain.source, Kind.IDENTITY, plain.object)
        assert plain.object is not None
        if isinstance(obj, BoundMethod):
            target: Any = MethodType(plain.object, 0)
        else:
            target = plain.object
    elif isinstance(plain, ClassValue):
        target = plain.object
        for cls, name in (
            (type(target), "__call__"),
            (target, "__new__"),
            (target, "__init__"),
            (target, "__signature__"),
        ):
            session.class_lookup(cls, name)
    else:
        raise session.unsupported("library-function", f"inspect.signature() of {obj.describe()}")
    result = session.python(read, target)
    parameters = map_values(session.wrap_constant, result.parameters)
    return _signature_value(parameters, session.wrap_constant(result.return_annotation))


def _read_as(options: dict[str, Any]) -> dict[str, Any]:
    """The options of inspect.signature as those of the function behind it."""
    new_names = {"follow_wrapped": "follow_wrapper_chains"}
    result = {}
    for n, v in options.items():
        if n not in ("globals", "locals", "eval_str"):
            result[new_names.get(n, n)] = v
    return result


def _signature_value(parameters: dict[str, Value], returns: Value) -> Value:
    value, mapping = ObjectValue(inspect.Signature), DictValue(parameters.items(), OrderedDict)
    value.members.update(_parameters=ProxyValue(mapping), _return_annotation=returns)
    return value


def _is_bare(session: Session, function: FunctionValue) -> bool:
    """Whether an outside function's signature follows from its code and defaults, which a function
    made anew at each call shares with the one before."""
    source, object_ = function.source, function.object
    if (
        isinstance(source, ConstSource)
        or source is None
        or object_ is None
        or object_.__annotations__
    ):
        return False
    for name in ("__wrapped__", "__signature__"):
        if session.effects.own(session, function, object_, name) is not None:
            return False
    session.guard(AttrSource(source, "__annotations__", "slot"), Kind.DICT_KEYS, ())
    for name, kind, size in (
        ("__defaults__", Kind.LENGTH, len),
        ("__kwdefaults__", Kind.DICT_KEYS, tuple),
    ):
        defaults, place = getattr(object_, name), AttrSource(source, name, "slot")
        if defaults is None:
            session.guard(place, Kind.IS_NONE, True)
        else:
            session.guard(place, kind, size(defaults))
    return True


def _signature_of_inner(session: Session, function: FunctionValue, bound: bool, read: Any) -> Value:
    """Of a function made during capture: its defaults and annotations are values."""
    model = FunctionType(function.code, {}, closure=empty_cells(function.code))
    model.__defaults__ = tuple(function.defaults) or None
    model.__kwdefaults__ = dict(function.keyword_defaults) or None
    model.__annotations__ = dict(session.entries_of(function.annotation_dict(session)))
    if function.attributes.keys() & {"__wrapped__", "__signature__"}:
        raise session.unsupported(
            "library-function",
            f"inspect.signature() of {function.describe()}, which wraps another function",
        )
    result = session.python(read, MethodType(model, 0) if bound else model)
    parameters: dict[str, Value] = {}
    for name, parameter in result.parameters.items():
        value = parameters[name] = ObjectValue(inspect.Parameter)
        for member in inspect.Parameter.__slots__:
            value.members[member] = session.wrap_constant(getattr(parameter, member))
    return _signature_value(parameters, session.wrap_constant(result.return_annotation))


class ProxyValue(OutsideOrMade):
    """A types.MappingProxyType of a dict: what is asked of it is asked of the dict."""

    __slots__ = ("owner",)

    def __init__(self, owner: DictValue, source: Source | None = None, object_: Any = None) -> None:
        super().__init__(source, object_)
        self.owner = owner

    def python_type(self) -> type:
        return MappingProxyType

    def truth(self, session: Session) -> bool:
        return self.owner.truth(session)

    def length(self, session: Session) -> int:
        return self.owner.length(session)

    def get_item(self, session: Session, key: Value) -> Value:
        return self.owner.get_item(session, key)

    def contains(self, session: Session, item: Value) -> bool:
        return self.owner.contains(session, item)

    def iterate(self, session: Session) -> Value:
        return self.owner.iterate(session)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("get", "keys", "values", "items", "copy"):
            return self.owner.get_attribute(session, name)
        return super().get_attribute(session, name)

    def binary(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        if isinstance(other, ProxyValue):
            other = other.owner
        if function is operator.ior:
            function = operator.or_
        return self.owner.binary(session, function, other, reflected)

    def recipe(self, results: Any) -> Any:
        """How it is made again after the graph has run."""
        return residual.Call(MappingProxyType, (results.recipe(self.owner),))


RECIPES[ProxyValue] = lambda results, value: value.recipe(results)


def _mapping_of(proxy: Any) -> Any:
    """What a view of a mapping is one of."""
    if type(proxy) is not MappingProxyType:
        raise TypeError(f"{type(proxy).__name__} is no mappingproxy")
    (mapping,) = gc.get_referents(proxy)
    return mapping


@wraps(MappingProxyType)
def wrap_proxy(session: Session, object_: Any, source: Source) -> Value:
    mapping = _mapping_of(object_)
    if type(mapping) not in (dict, OrderedDict):
        raise session.unsupported(
            "library-function", f"{source.name}, a view of {type(mapping).__name__}, is looked at"
        )
    owner = session.realize(session.wrap(mapping, DerivedSource(source, _mapping_of)))
    assert isinstance(owner, DictValue)
    return ProxyValue(owner, source, object_)


def _mapping_of_view(view: Any) -> Any:
    """The dict that keys(), values() or items() is of."""
    return _mapping_of(view.mapping)


_VIEWS = {}
for _cls in (dict, OrderedDict):
    for _kind in ("keys", "values", "items"):
        _VIEWS[type(getattr(_cls(), _kind)())] = _cls, _kind
"""The class of mappings that a view is of, and what it shows."""


@wraps(*_VIEWS)
def wrap_view(session: Session, object_: Any, source: Source) -> Value:
    mapping = _mapping_of_view(object_)
    cls, kind = _VIEWS[type(object_)]
    if type(mapping) is not cls:
        raise session.unsupported(
            "library-function", f"{source.name}, a view of {type(mapping).__name__}, is looked at"
        )
    owner = session.realize(session.wrap(mapping, DerivedSource(source, _mapping_of_view)))
    assert isinstance(owner, DictValue)
    view = DictView(owner, kind)
    view.source = source
    return view


@means(MappingProxyType)
def mapping_proxy(session: Session, mapping: Value) -> Value:
    if not isinstance(mapping, DictValue):
        raise session.unsupported("construction", f"a view of {mapping.describe()} is made")
    return ProxyValue(mapping)
