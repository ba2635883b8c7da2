"""Which kind of value stands for an outside object: a table keyed by its type, searched along the
method resolution order."""

from __future__ import annotations

import enum
import functools
import operator
import re
import typing
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    UnionType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

from ingot.capture.facts import is_plain_constant
from ingot.capture.guards import Kind
from ingot.capture.meanings import is_known_in_c
from ingot.capture.sources import AttrSource, DerivedSource, InstanceDictSource, Source, set_members
from ingot.capture.values.base import Value, is_c_class
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.classes import ClassValue, ModuleObject, SuperValue
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.foreign import ForeignValue
from ingot.capture.values.functions import BoundMethod, FunctionValue
from ingot.capture.values.held import AliasValue, EnumValue, MemberValue
from ingot.capture.values.local_members import local_member
from ingot.capture.values.mappings import DictObject
from ingot.capture.values.objects import ObjectValue, plain_base
from ingot.capture.values.outside_containers import OutsideDict, OutsideSet
from ingot.capture.values.partials import PartialValue
from ingot.capture.values.sequences import (
    OutsideList,
    RangeValue,
    SliceValue,
    TupleValue,
    is_named_tuple,
)
from ingot.capture.values.sets import SetValue
from ingot.capture.values.subclasses import BuiltinObject, NamespaceObject
from ingot.capture.values.wording import described
from ingot.native import Dispatcher
from ingot.origins import is_trusted

if TYPE_CHECKING:
    from ingot.capture.session import Session

Wrapper = Callable[["Session", Any, Source], Value]
WRAPPERS: dict[type, Wrapper] = {}


def wraps(*types: type, guards: Kind | None = None) -> Callable[[Wrapper], Wrapper]:
    """Registers what wraps instances of these types and of those subclasses that have no row of
    their own. What `guards` says is guarded first: the type of an object, or all of it."""

    def register(wrapper: Wrapper) -> Wrapper:
        if guards is not None:
            wrapper = _guarded(guards, wrapper)
        WRAPPERS.update(dict.fromkeys(types, wrapper))
        return wrapper

    return register


def _guarded(kind: Kind, wrapper: Wrapper) -> Wrapper:
    def wrap(session: Session, object_: Any, source: Source) -> Value:
        session.guard(source, kind, type(object_) if kind is Kind.TYPE else object_)
        return wrapper(session, object_, source)

    return wrap


def wrapper_of(make: Callable[[Any, Source], Value]) -> Wrapper:
    """The wrapper of objects whose value `make` makes of the object and its source."""
    return lambda session, object_, source: make(object_, source)


def wrap_object(session: Session, object_: Any, source: Source) -> Value:
    """The value of an outside object. Its type is guarded, or all of it where it is a constant."""
    member = local_member(session, object_)
    if member is not None:
        return member
    for cls in type(object_).__mro__:
        if cls in WRAPPERS:
            return WRAPPERS[cls](session, object_, source)
    raise session.unsupported("foreign-object", f"an object of type {type(object_).__name__}")


@wraps(int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented))
def wrap_literal(session: Session, object_: Any, source: Source) -> Value:
    # isinstance asks for `__class__`, which may be the user's code
    if issubclass(type(object_), enum.Enum):
        return wrap_as_constant(session, object_, source)
    if type(object_) not in WRAPPERS:
        base = plain_base(type(object_))
        if base not in _PLAIN:
            raise session.unsupported(
                "builtin-subclass",
                f"{described(type(object_).__name__, source)}: a subclass of {base.__name__}",
            )
        session.guard(source, Kind.TYPE, type(object_))
        content = session.guard_derived(_PLAIN[base], object_, source)
        return BuiltinObject(type(object_), ConstantValue(content), source, object_)
    session.guard(source, Kind.EQUALS, object_)
    return ConstantValue(object_, source)


def plain_text(value: Any) -> str:
    """The str that an instance of a subclass of str holds."""
    return "".join((value,))


def plain_bytes(value: Any) -> bytes:
    """The bytes that an instance of a subclass of bytes holds."""
    return b"".join((value,))


_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: plain_text,
    bytes: plain_bytes,
}
"""What an instance of a subclass of these holds, as an instance of the class itself."""


@wraps(enum.Enum, CodeType, re.Pattern, re.Match, guards=Kind.IDENTITY)
def wrap_as_constant(session: Session, object_: Any, source: Source) -> Value:
    if issubclass(type(object_), enum.Enum):
        return EnumValue(object_, source)
    return ConstantValue(object_, source)


wraps(
    UnionType,
    GenericAlias,
    typing._Final,
    typing.TypeVar,
    typing.ParamSpec,
    typing.NewType,
    guards=Kind.IDENTITY,
)(  # type: ignore[attr-defined]
    wrapper_of(AliasValue)
)


wraps(staticmethod, classmethod, guards=Kind.IDENTITY)(wrapper_of(MemberValue))


@wraps(tuple)
def wrap_tuple(session: Session, object_: Any, source: Source) -> Value:
    cls = type(object_)
    session.guard(source, Kind.TYPE, cls)
    session.guard(source, Kind.LENGTH, tuple.__len__(object_))
    items = session.wrap_items(tuple.__iter__(object_), source)
    if cls is tuple or is_named_tuple(cls) or is_c_class(cls) or is_trusted(cls.__module__):
        return TupleValue(items, cls, source, object_)
    return BuiltinObject(cls, TupleValue(items, tuple, source, object_), source, object_)


@wraps(list)
def wrap_list(session: Session, object_: Any, source: Source) -> Value:
    content = OutsideList(session, source, object_)
    return _container(session, object_, source, list, content)


def _container(session: Session, object_: Any, source: Source, base: type, content: Value) -> Value:
    """A list or set, or an instance of a subclass that the user wrote."""
    session.guard(source, Kind.TYPE, type(object_))
    return _of_class(session, object_, source, base, content)


def _of_class(session: Session, object_: Any, source: Source, base: type, content: Value) -> Value:
    """The content of an instance of `base`, or with the attributes of a subclass that the user
    wrote."""
    cls = type(object_)
    if cls is base:
        return content
    if plain_base(cls) is not base:
        raise session.unsupported(
            "builtin-subclass", f"{described(cls.__name__, source)}: a subclass of {base.__name__}"
        )
    return BuiltinObject(cls, content, source, object_)


@wraps(dict)
def wrap_dict(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) not in (dict, OrderedDict, defaultdict):
        if issubclass(type(object_), defaultdict) or is_c_class(type(object_)):
            _refuse_subclass(session, object_, source, (dict,))
        session.guard(source, Kind.TYPE, type(object_))
        return DictObject(type(object_), session, source, object_)
    if not isinstance(source, InstanceDictSource):  # whose type is known
        session.guard(source, Kind.TYPE, type(object_))
    value = OutsideDict(session, source, object_, type(object_))
    if type(object_) is defaultdict:
        value.factory = session.wrap_slot(object_, source, "default_factory")
    return value


@wraps(set, frozenset)
def wrap_set(session: Session, object_: Any, source: Source) -> Value:
    if issubclass(type(object_), set):
        return _container(session, object_, source, set, OutsideSet(session, source, object_))
    members = set_members(object_)
    plain = frozenset(object_)
    if is_plain_constant(members):
        session.guard(source, Kind.TYPE, type(object_))
        session.guard(DerivedSource(source, set_members), Kind.EQUALS, members)
    else:
        session.guard(source, Kind.IDENTITY, object_)
    elements = map(session.realize, map(session.wrap_constant, members))
    content = SetValue([(member.key(session), member) for member in elements], frozenset)
    content.source, content.object = source, object_
    if len(plain & content.hashed) == len(plain):
        content.hashed = plain
    if tuple(plain) != members:
        raise session.unsupported(
            "container-order", f"the order of {described(type(object_).__name__, source)}"
        )
    return _of_class(session, object_, source, frozenset, content)


@wraps(range, guards=Kind.TYPE)
def wrap_range(session: Session, object_: Any, source: Source) -> Value:
    for name in ("start", "stop", "step"):
        session.guard(AttrSource(source, name, "slot"), Kind.EQUALS, getattr(object_, name))
    return RangeValue(object_, source)


def wrap_slots(session: Session, object_: Any, source: Source, *names: str) -> list[Value]:
    """What C descriptors of an object's type read."""
    return list(map(functools.partial(session.wrap_slot, object_, source), names))


@wraps(slice, guards=Kind.TYPE)
def wrap_slice(session: Session, object_: Any, source: Source) -> Value:
    start, stop, step = wrap_slots(session, object_, source, "start", "stop", "step")
    return SliceValue(*map(session.realize, (start, stop, step)))


@wraps(FunctionType, guards=Kind.TYPE)
def wrap_function(session: Session, object_: Any, source: Source) -> Value:
    return FunctionValue.outside(session, object_, source)


@wraps(Dispatcher, guards=Kind.IDENTITY)
def wrap_compiled(session: Session, object_: Any, source: Source) -> Value:
    """A compiled function inside another one: the function it was compiled from."""
    return session.builtin(object_.fn)


@wraps(MethodType, guards=Kind.TYPE)
def wrap_method(session: Session, object_: Any, source: Source) -> Value:
    function, owner = wrap_slots(session, object_, source, "__func__", "__self__")
    return BoundMethod(function, owner, source)


@wraps(functools.partial)
def wrap_partial(session: Session, object_: Any, source: Source) -> Value:
    _refuse_subclass(session, object_, source, (functools.partial,))
    session.guard(source, Kind.TYPE, functools.partial)
    function, args, kwargs = wrap_slots(session, object_, source, "func", "args", "keywords")
    return PartialValue(function, session.realize(args), session.realize(kwargs), source, object_)


@wraps(
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
    MethodWrapperType,
    property,
)
def wrap_builtin(session: Session, object_: Any, source: Source) -> Value:
    method = _method_of(object_)
    if method is not None:
        return _wrap_bound_builtin(session, object_, method, source)
    session.guard(source, Kind.IDENTITY, object_)
    return BuiltinValue(object_, source)


def _method_of(function: Any) -> Any:
    """The method in C of which a bound one (`items.append`) is made anew each time it is asked for;
    None for others."""
    owner = getattr(function, "__self__", None)
    if not isinstance(function, (BuiltinFunctionType, MethodWrapperType)) or isinstance(
        owner, ModuleType
    ):
        return None
    if isinstance(owner, type):
        return _class_method_of(function, owner)
    for cls in type(owner).__mro__:
        raw = vars(cls).get(function.__name__)
        if (
            isinstance(raw, (MethodDescriptorType, WrapperDescriptorType))
            and raw.__get__(owner) == function
        ):
            return raw
    return None


def _class_method_of(function: Any, owner: type) -> Any:
    """The same of a class method, where capture knows its meaning."""
    for cls in owner.__mro__:
        raw = vars(cls).get(function.__name__)
        if isinstance(raw, ClassMethodDescriptorType) and raw.__get__(None, owner) == function:
            if is_known_in_c(raw):
                return raw
            return None
    return None


def _wrap_bound_builtin(session: Session, object_: Any, method: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, type(object_))
    session.guard(AttrSource(source, "__qualname__", "slot"), Kind.EQUALS, object_.__qualname__)
    owner = session.wrap_slot(object_, source, "__self__")
    return BoundMethod(session.builtin(method), owner, source)


wraps(type, guards=Kind.IDENTITY)(wrapper_of(ClassValue))


wraps(ModuleType, guards=Kind.IDENTITY)(wrapper_of(ModuleObject))


@wraps(SimpleNamespace, guards=Kind.TYPE)
def wrap_namespace(session: Session, object_: Any, source: Source) -> Value:
    return NamespaceObject(type(object_), source, object_)


def _args_of(getter: Any) -> tuple[Any, ...]:
    """What an operator.itemgetter, attrgetter or methodcaller was made of."""
    make, args = getter.__reduce__()[:2]
    return (*getattr(make, "args", ()), *args)


def _keywords_of(getter: Any) -> dict[str, Any]:
    """The keyword arguments that an operator.methodcaller was made with."""
    make = getter.__reduce__()[0]
    return getattr(make, "keywords", {})


@wraps(super)
def wrap_super(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, super)
    cls, instance = wrap_slots(session, object_, source, "__thisclass__", "__self__")
    value = SuperValue(session.known(cls), session.realize(instance))
    if session.says_its_class(value.instance):
        value.said = session.known(session.wrap_slot(object_, source, "__self_class__"))
    value.source = source
    return value


@wraps(operator.itemgetter, operator.attrgetter, operator.methodcaller, guards=Kind.TYPE)
def wrap_getter(session: Session, object_: Any, source: Source) -> Value:
    args = session.realize(session.wrap_derived(_args_of, object_, source))
    kwargs = session.realize(session.wrap_derived(_keywords_of, object_, source))
    value = session.construct(type(object_), session.unpacked(args), session.entries_of(kwargs))
    assert isinstance(value, ObjectValue)
    value.source, value.object = source, object_
    return value


@wraps(CellType, guards=Kind.TYPE)
def wrap_cell(session: Session, object_: Any, source: Source) -> Value:
    return session.outside_cell(object_, AttrSource(source, "cell_contents", "slot"))


@wraps(BaseException, guards=Kind.TYPE)
def wrap_exception(session: Session, object_: Any, source: Source) -> Value:
    return ExceptionValue.outside(session, object_, source)


@wraps(object)
def wrap_instance(session: Session, object_: Any, source: Source) -> Value:
    if is_c_class(type(object_)) and type(object_) is not object:
        session.guard(source, Kind.TYPE, type(object_))
        return ForeignValue(object_, source)
    session.guard(source, Kind.TYPE, type(object_))
    return ObjectValue(type(object_), source, object_)


def _refuse_subclass(
    session: Session, object_: Any, source: Source, known: tuple[type, ...]
) -> None:
    if type(object_) not in known:
        raise session.unsupported(
            "builtin-subclass",
            f"{described(type(object_).__name__, source)}: a subclass of {known[0].__name__}",
        )
