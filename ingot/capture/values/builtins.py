"""Built-in functions and classes: the pure ones are called when all is known, the others have a rule here or a
polyfill in Python."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import typing
from collections.abc import Callable
from types import FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from ingot.capture import polyfills
from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import NULL, Arguments, Keywords, NotConstant, Raised, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue, ListValue, RangeValue, SetValue, SliceValue, TupleValue
from ingot.capture.values.functions import BoundMethod, CellValue, FunctionValue, PartialValue
from ingot.capture.values.objects import (
    BINARY_METHODS,
    INPLACE_METHODS,
    ExceptionValue,
    ObjectValue,
    SuperValue,
    find_missing,
    is_data_descriptor,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source

Rule = Callable[..., Value]
RULES: dict[Any, Rule] = {}
"""By built-in function or class: rule(session, *args, **kwargs) on realized values."""

UNREALIZED: dict[Any, Callable[[Session, Arguments, Keywords], Value]] = {}
"""By built-in function: rule(session, args, kwargs) on values that may be used or not."""

PURE: set[Any] = {
    *(getattr(builtins, name) for name in "abs ascii bin chr divmod format hash hex oct ord round".split()),
    *(getattr(operator, name) for name in "concat countOf indexOf length_hint".split()),
    *(f for name, f in vars(math).items() if callable(f) and not name.startswith("_")),
    complex,
    bytes,
}
"""Called for real when all their arguments are known; none changes what it is given."""

POLYFILLS: dict[Any, Any] = {
    math.prod: polyfills.prod,
    functools.reduce: polyfills.reduce,
    itertools.chain.from_iterable: polyfills.chain_from_iterable,
    dict.fromkeys: polyfills.fromkeys,
    **{getattr(builtins, n): getattr(polyfills, n + "_") for n in polyfills.OF_BUILTINS},
    **{getattr(itertools, n): getattr(polyfills, n) for n in polyfills.OF_ITERTOOLS},
}
"""Inlined in place of the built-in."""

_OPERATORS = set(BINARY_METHODS) | set(INPLACE_METHODS)
_UNARY = {operator.neg, operator.pos, operator.invert, builtins.abs}


def knows(function: Any) -> bool:
    """Whether a C function has a rule, a polyfill, or is pure. The lists hold functions only: an unhashable object
    is in none."""
    if isinstance(function, functools._lru_cache_wrapper):
        return True
    try:
        return function in RULES or function in POLYFILLS or function in PURE or function in _OPERATORS
    except TypeError:
        return False


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Registers the meaning of built-in functions or classes."""

    def register(handler: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, handler))
        return handler

    return register


class BuiltinValue(Value):
    """A C function, or a class that RULES or POLYFILLS know."""

    __slots__ = ("object",)

    def __init__(self, function: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.object = function

    def python_type(self) -> type:
        return type(self.object)

    def describe(self) -> str:
        return f"{getattr(self.object, '__qualname__', self.object)}()"

    def constant(self) -> Any:
        return self.object

    def identity(self) -> Any:
        return self.object

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__doc__", "__module__"):
            return ConstantValue(getattr(self.object, name))
        return super().get_attribute(session, name)

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        if self.object in POLYFILLS and self.object not in RULES:
            return session.builtin(POLYFILLS[self.object]).callee(session, args, kwargs)
        return None

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return call_builtin(session, self.object, args, kwargs)


def call_builtin(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value:
    """Calls a C function on values: by rule, by polyfill, as an operator, as a method of a built-in type, or for
    real if it is pure."""
    if function in UNREALIZED:
        return UNREALIZED[function](session, args, kwargs)
    if function in RULES:
        try:
            return RULES[function](session, *map(session.realize, args), **session.realize_all(kwargs))
        except NotConstant as unknown:
            raise _unknown(session, function, unknown) from None
    if function in POLYFILLS:
        return session.call(session.builtin(POLYFILLS[function]), args, kwargs)
    if function in _OPERATORS and len(args) == 2:
        return session.binary(function, args[0], args[1])
    args = [session.realize(a) for a in args]
    if function in _UNARY and len(args) == 1 and not args[0].is_constant():
        return args[0].unary(session, function)
    owner = getattr(function, "__objclass__", None)
    if owner is not None and args and issubclass(args[0].python_type(), owner):
        return session.call(args[0].get_attribute(session, function.__name__), args[1:], kwargs)
    if isinstance(getattr(function, "__self__", None), type) and function.__self__ in (str, bytes, int, float):
        return call_pure(session, function, args, kwargs)
    if function not in PURE:
        raise session.unsupported(f"{getattr(function, '__qualname__', function)}() is called, a C function")
    return call_pure(session, function, args, kwargs)


def call_pure(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value:
    """Calls a pure function for real, as all its arguments are known."""
    known = [session.known(a) for a in args]
    return session.wrap_constant(session.python(function, *known, **{k: session.known(v) for k, v in kwargs.items()}))


def _unknown(session: Session, function: Any, unknown: NotConstant) -> Exception:
    name = getattr(function, "__qualname__", function)
    return session.unsupported(
        f"{name}() needs the value of {unknown.args[0].describe()}, which is not known during capture"
    )


# -- questions ---------------------------------------------------------------------------------------------------------


@rule(builtins.len)
def len_(session: Session, value: Value) -> Value:
    length = value.length(session)
    return length if isinstance(length, Value) else ConstantValue(length)


@rule(builtins.isinstance)
def isinstance_(session: Session, value: Value, classes: Value) -> Value:
    known = _flat_classes(session, classes)
    if hasattr(value, "instance_of"):
        return ConstantValue(value.instance_of(session, known))
    return ConstantValue(session.python(issubclass, value.python_type(), known))


@rule(builtins.issubclass)
def issubclass_(session: Session, cls: Value, classes: Value) -> Value:
    return ConstantValue(session.python(issubclass, cls.constant(), _flat_classes(session, classes)))


def _flat_classes(session: Session, classes: Value) -> Any:
    if isinstance(classes, TupleValue):
        return tuple(_flat_classes(session, session.realize(c)) for c in classes.items)
    return classes.constant()


@rule(builtins.callable)
def callable_(session: Session, value: Value) -> Value:
    return ConstantValue(not find_missing(value.python_type(), "__call__"))


@rule(builtins.hasattr)
def hasattr_(session: Session, value: Value, name: Value) -> Value:
    try:
        value.get_attribute(session, name.constant())
    except Raised as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return ConstantValue(False)
        raise
    return ConstantValue(True)


@rule(builtins.getattr)
def getattr_(session: Session, value: Value, name: Value, default: Value = NULL) -> Value:
    try:
        return value.get_attribute(session, name.constant())
    except Raised as raised:
        if default is not NULL and issubclass(raised.value.python_type(), AttributeError):
            return default
        raise


@rule(builtins.setattr)
def setattr_(session: Session, owner: Value, name: Value, value: Value) -> Value:
    owner.set_attribute(session, name.constant(), value)
    return NONE


@rule(object.__setattr__)
def object_setattr(session: Session, owner: Value, name: Value, value: Value) -> Value:
    if isinstance(owner, ObjectValue) and not is_data_descriptor(session.class_lookup(owner.cls, name.constant())):
        owner.put(session, name.constant(), value)
    elif isinstance(owner, ObjectValue) and owner.source is None:
        owner.attributes[name.constant()] = value
    else:
        owner.set_attribute(session, name.constant(), value)
    return NONE


@rule(object.__delattr__)
def object_delattr(session: Session, owner: Value, name: Value) -> Value:
    if isinstance(owner, ObjectValue):
        owner.drop(session, name.constant())
    else:
        owner.delete_attribute(session, name.constant())
    return NONE


@rule(object.__getattribute__)
def object_getattribute(session: Session, owner: Value, name: Value) -> Value:
    if not isinstance(owner, ObjectValue):
        return owner.get_attribute(session, name.constant())
    found = owner.plain_attribute(session, name.constant())
    if found is None:
        message = f"'{owner.cls.__name__}' object has no attribute '{name.constant()}'"
        raise session.raised(AttributeError, message)
    return found


@rule(operator.getitem)
def getitem(session: Session, owner: Value, key: Value) -> Value:
    return session.get_item(owner, key)


@rule(operator.contains)
def contains(session: Session, container: Value, item: Value) -> Value:
    return ConstantValue(session.contains(container, item))


@rule(operator.setitem)
def setitem(session: Session, owner: Value, key: Value, value: Value) -> Value:
    owner.set_item(session, key, value)
    return NONE


@rule(operator.delitem)
def delitem(session: Session, owner: Value, key: Value) -> Value:
    owner.delete_item(session, key)
    return NONE


@rule(operator.is_)
def is_(session: Session, a: Value, b: Value) -> Value:
    return ConstantValue(session.same(a, b))


@rule(operator.is_not)
def is_not(session: Session, a: Value, b: Value) -> Value:
    return ConstantValue(not session.same(a, b))


@rule(operator.not_)
def not_(session: Session, value: Value) -> Value:
    return ConstantValue(not session.truth(value))


@rule(builtins.pow)
def pow_(session: Session, base: Value, exponent: Value, *modulus: Value) -> Value:
    if not modulus:
        return session.binary(operator.pow, base, exponent)
    return session.wrap_constant(session.python(pow, *[session.known(v) for v in (base, exponent, *modulus)]))


@rule(builtins.iter)
def iter_(session: Session, value: Value, *sentinel: Value) -> Value:
    if sentinel:
        raise session.unsupported("iter() of two arguments")
    return value.iterate(session)


@rule(builtins.next)
def next_(session: Session, iterator: Value, default: Value = NULL) -> Value:
    found = iterator.next(session) or default
    if found is NULL:
        raise session.raised(StopIteration)
    return found


@rule(builtins.vars)
def vars_(session: Session, value: Value) -> Value:
    return value.get_attribute(session, "__dict__")


@rule(builtins.id)
def id_(session: Session, value: Value) -> Value:
    raise session.unsupported("id() of an object")


@rule(typing.cast)
def cast(session: Session, cls: Value, value: Value) -> Value:
    return value


@rule(object.__init__, object.__init_subclass__)
def object_init(session: Session, *args: Value, **kwargs: Value) -> Value:
    return NONE


# -- classes -----------------------------------------------------------------------------------------------------------


def construct(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """What calling a class gives: by rule, by polyfill, or by running its `__init__`."""
    if cls in RULES or cls in POLYFILLS or cls in PURE:
        return call_builtin(session, cls, args, kwargs)
    for base in cls.__mro__:
        if base in CONSTRUCTORS:
            return CONSTRUCTORS[base](session, cls, args, kwargs)
    raise session.unsupported(f"an instance of {cls.__qualname__} is made")


@rule(type)
def type_(session: Session, value: Value, *rest: Value) -> Value:
    if rest:
        raise session.unsupported("a class is made")
    return session.wrap_constant(value.python_type())


@rule(bool, operator.truth)
def bool_(session: Session, value: Value = NONE) -> Value:
    return ConstantValue(session.truth(value))


def _number(cls: type) -> Rule:
    def convert(session: Session, *args: Value) -> Value:
        if args and hasattr(args[0], "convert"):
            return args[0].convert(session, cls)
        return session.wrap_constant(session.python(cls, *[a.constant() for a in args]))

    return convert


RULES[int], RULES[float] = _number(int), _number(float)


@rule(str)
def str_(session: Session, value: Value | None = None) -> Value:
    return ConstantValue("" if value is None else session.text_of(value, str))


@rule(builtins.repr)
def repr_(session: Session, value: Value) -> Value:
    return ConstantValue(session.text_of(value, repr))


@rule(range)
def range_(session: Session, *bounds: Value) -> Value:
    return RangeValue(session.python(range, *[session.known(b) for b in bounds]))


@rule(slice)
def slice_(session: Session, *parts: Value) -> Value:
    start, stop, step = (NONE, *parts, NONE) if len(parts) == 1 else (*parts, NONE)[:3]
    return SliceValue(start, stop, step)


@rule(list)
def list_(session: Session, items: Value | None = None) -> Value:
    return ListValue([], list) if items is None else session.list_of(items)


@rule(tuple)
def tuple_(session: Session, items: Value | None = None) -> Value:
    return TupleValue([] if items is None else session.list_of(items).items, tuple)


@rule(set)
def set_(session: Session, items: Value | None = None) -> Value:
    return SetValue([], set) if items is None else session.set_of(items)


@rule(frozenset)
def frozenset_(session: Session, items: Value | None = None) -> Value:
    return SetValue([], frozenset) if items is None else session.set_of(items, frozenset)


def _dict_class(cls: type) -> Rule:
    def make(session: Session, items: Value | None = None, **named: Value) -> Value:
        entries = {} if items is None else dict(session.entries_of(items))
        return DictValue({**entries, **named}.items(), cls)

    return make


RULES[dict], RULES[collections.OrderedDict] = _dict_class(dict), _dict_class(collections.OrderedDict)


@rule(collections.defaultdict)
def defaultdict_(session: Session, factory: Value = NONE, items: Value | None = None, **named: Value) -> Value:
    made = _dict_class(collections.defaultdict)(session, items, **named)
    assert isinstance(made, DictValue)
    made.factory = factory
    return made


@rule(super)
def super_(session: Session, cls: Value | None = None, instance: Value | None = None) -> Value:
    if cls is None:
        frame = session.frames[-1]
        cell = frame.slots[frame.program.names.index("__class__")]
        first = frame.slots[0]
        assert isinstance(cell, CellValue)
        cls, instance = session.realize(cell.content), first.content if isinstance(first, CellValue) else first
    assert instance is not None
    return SuperValue(cls.constant(), session.realize(instance))


@rule(functools.partial)
def partial(session: Session, function: Value, *args: Value, **kwargs: Value) -> Value:
    return PartialValue(function, args, kwargs)


@rule(operator.itemgetter, operator.attrgetter, operator.methodcaller)
def getter(session: Session, *args: Value) -> Value:
    raise session.unsupported("operator.itemgetter and its kin")


@rule(dataclasses.fields)
def fields(session: Session, value: Value) -> Value:
    return session.wrap_constant(
        dataclasses.fields(value.python_type() if isinstance(value, ObjectValue) else value.constant())
    )


@rule(inspect.signature)
def signature(session: Session, function: Value) -> Value:
    """The signature of a function or method from outside."""
    bound = isinstance(function, BoundMethod)
    plain = session.realize(function.function) if isinstance(function, BoundMethod) else function
    if not isinstance(plain, FunctionValue) or plain.object is None:
        raise session.unsupported(f"inspect.signature() of {function.describe()}")
    session.guard(plain.source, Kind.IDENTITY, plain.object)
    found = session.python(inspect.signature, MethodType(plain.object, 0) if bound else plain.object)
    parameters = {name: session.wrap_constant(p) for name, p in found.parameters.items()}
    made = ObjectValue(inspect.Signature)
    made.attributes["_parameters"] = DictValue(
        parameters.items(), MappingProxyType, ConstSource(found.parameters), found.parameters
    )
    made.attributes["_return_annotation"] = session.wrap_constant(found.return_annotation)
    return made


@rule(MappingProxyType)
def mapping_proxy(session: Session, mapping: Value) -> Value:
    if not isinstance(mapping, DictValue) or mapping.source is None:
        raise session.unsupported(f"a view of {mapping.describe()} is made")
    return DictValue(mapping.entries.items(), MappingProxyType, mapping.source, mapping.object)


@rule(property, staticmethod, classmethod)
def descriptor(session: Session, *args: Value) -> Value:
    raise session.unsupported("a descriptor is made")


def _construct_object(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """An instance of a class written in Python: a new object, and its `__init__` inlined."""
    if isinstance(cls, enum.EnumMeta):
        return call_pure(session, cls, args, kwargs)
    if type(cls).__call__ is not type.__call__:
        raise session.unsupported(f"an instance of {cls.__qualname__} is made: its metaclass defines __call__")
    new, init = session.class_lookup(cls, "__new__"), session.class_lookup(cls, "__init__")
    if new is not object.__new__ and getattr(new, "__func__", None) is not object.__new__ and new is not MISSING:
        raise session.unsupported(f"an instance of {cls.__qualname__} is made: it defines __new__")
    made = ObjectValue(cls)
    if isinstance(init, FunctionType):
        session.call(BoundMethod(session.wrap_class_member(init), made), args, kwargs)
    elif args or kwargs:
        raise session.raised(TypeError, f"{cls.__name__}() takes no arguments")
    return made


def _construct_tuple(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    names = getattr(cls, "_fields", None)
    if names is None:
        if cls.__name__ != "Size":
            raise session.unsupported(f"an instance of {cls.__qualname__} is made: a subclass of tuple")
        return TupleValue(session.list_of(args[0]).items if args else [], cls)
    given = {**dict(zip(names, args)), **kwargs}
    for name, default in cls._field_defaults.items():  # type: ignore[attr-defined]
        given.setdefault(name, session.wrap_class_member(default))
    if set(given) != set(names) or len(args) > len(names):
        raise session.raised(TypeError, f"{cls.__name__}() got the wrong arguments")
    return TupleValue([given[name] for name in names], cls)


def _construct_exception(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    made = ExceptionValue(cls, args)
    init = session.class_lookup(cls, "__init__")
    if isinstance(init, FunctionType):
        session.call(BoundMethod(session.wrap_class_member(init), made), args, kwargs)
    return made


@rule(*(vars(cls)["__init__"] for cls in (BaseException, Exception)))
def exception_init(session: Session, exception: Value, *args: Value) -> Value:
    assert isinstance(exception, ExceptionValue)
    exception.args = list(args)
    return NONE


CONSTRUCTORS: dict[type, Callable[[Session, type, Arguments, Keywords], Value]] = {
    BaseException: _construct_exception,
    tuple: _construct_tuple,
    object: _construct_object,
}
"""By class and its bases, for classes that have no rule."""


def _unsupported_base(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported(f"an instance of {cls.__qualname__} is made: a subclass of a built-in class")


CONSTRUCTORS.update(dict.fromkeys((list, dict, set, str, int, float, bytes, type), _unsupported_base))
