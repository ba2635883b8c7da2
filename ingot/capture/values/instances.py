"""isinstance() and issubclass().

The type of a value decides, then the `__class__` that it claims, then the class that is asked
for."""

from __future__ import annotations

import abc
import builtins
import functools
import types
import typing
from collections.abc import Callable
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import VERSION
from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource, DerivedSource
from ingot.capture.values.base import Arguments, Keywords, Raised, Value, find_missing
from ingot.capture.values.classes import ClassValue
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.sequences import TupleValue
from ingot.origins import is_trusted, trusts_function

if TYPE_CHECKING:
    from ingot.capture.session import Session

_ABC_CHECK: Any = abc.ABCMeta.__instancecheck__
_PROTOCOL_CHECK: Any = vars(type(typing.Protocol))["__instancecheck__"]


# -- isinstance ------------------------------------------------------------------------------------


@means(builtins.isinstance)
def isinstance_(session: Session, value: Value, classes: Value) -> Value:
    return ConstantValue(is_instance(session, value, classes))


def is_instance(session: Session, value: Value, classes: Value) -> bool:
    classes = session.realize(classes)
    classes = getattr(classes, "content", classes)
    of_value = functools.partial(is_instance, session, value)
    answer = _special_answer(session, "__instancecheck__", of_value, value, classes)
    if answer is not None:
        return answer
    known, cls = classes.constant(), value.python_type()
    if known is cls:
        return True
    if (members := _members_of_union(session, known, isinstance)) is not None:
        return any(map(of_value, map(session.wrap_constant, members)))
    if typing.get_origin(known) is typing.Union:  # typing asks type() of the value
        return _is_subclass(session, session.wrap_constant(cls), classes)
    if not isinstance(known, type):
        session.python(isinstance, None, known)
        return session.python(issubclass, cls, known)
    return _is_instance_of(session, value, known)


def _special_answer(
    session: Session, method: str, test: Callable[[Value], bool], subject: Value, classes: Value
) -> bool | None:
    """What a tuple of classes or an object with the method answers; None for a class."""
    if isinstance(classes, TupleValue):
        return any(map(test, classes.items))
    if isinstance(classes, ObjectValue) and not find_missing(classes.cls, method):
        answer = classes.special(session, method, subject)
        return answer is not None and session.truth(answer)
    return None


def _is_instance_of(session: Session, value: Value, cls: type) -> bool:
    """isinstance() for one class that is not type() of the value."""
    meta = type(cls)
    hook = None
    if meta is not type:
        hook = session.class_lookup(meta, "__instancecheck__")
    is_users = isinstance(hook, FunctionType) and not trusts_function(hook)
    answer = None
    if not is_users:
        answer = value.instance_of(session, cls)
    if answer is not None:
        return answer
    if hook is _ABC_CHECK:
        return _is_registered(session, value, cls)
    if hook is _PROTOCOL_CHECK:
        return _has_protocol(session, value, cls)
    if isinstance(hook, FunctionType) and (is_users or session.says_its_class(value)):
        class_value = session.wrap_constant(cls)
        return session.truth(session.call_member(hook, class_value, value))
    if meta is type or not isinstance(hook, FunctionType):
        return _is_plainly(session, value, cls)
    return session.python(issubclass, value.python_type(), cls)


def _is_plainly(session: Session, value: Value, cls: type) -> bool:
    """type.__instancecheck__."""
    if cls in value.python_type().__mro__:
        return True
    said = session.said_class(value)
    return said is not None and cls in said.__mro__


def _is_registered(session: Session, value: Value, cls: type) -> bool:
    """ABCMeta.__instancecheck__: it asks for `__class__` first, and raises what that raises."""
    of_type = session.wrap_constant(value.python_type())
    class_value = session.wrap_constant(cls)
    if not session.says_its_class(value):
        return _is_subclass(session, of_type, class_value)
    said = session.realize(value.get_attribute(session, "__class__"))
    if _is_subclass(session, said, class_value):
        return True
    return not session.same(said, of_type) and _is_subclass(session, of_type, class_value)


def _has_protocol(session: Session, value: Value, cls: Any) -> bool:
    """What isinstance() is for the classes that derive from typing.Protocol."""
    if not getattr(cls, "_is_protocol", False):
        return _is_registered(session, value, cls)
    if not getattr(cls, "_is_runtime_protocol", False):
        session.python(isinstance, None, cls)
    names = _names_of_protocol(cls)
    if VERSION >= (3, 12):
        has = functools.partial(_has_statically, session, value, cls)
        return _is_nominally(session, value, cls) or all(map(has, names))
    of_methods = all(callable(getattr(cls, name, None)) for name in names)
    if of_methods and _is_subclass(
        session, value.get_attribute(session, "__class__"), session.wrap_constant(cls)
    ):
        return True
    has = functools.partial(_has, session, value, cls)
    return all(map(has, names)) or _is_nominally(session, value, cls)


def _names_of_protocol(cls: Any) -> Any:
    names = getattr(cls, "__protocol_attrs__", None)
    if names is None:
        return vars(typing)["_get_protocol_attrs"](cls)
    return names


def _has(session: Session, value: Value, cls: type, name: str) -> bool:
    """Whether a value has what a protocol asks for; a method may not be None."""
    try:
        member = value.get_attribute(session, name)
        if callable(getattr(cls, name, None)):
            member = value.get_attribute(session, name)
    except Raised as raised:
        if raised.is_a(AttributeError):
            return False
        raise
    return not callable(getattr(cls, name, None)) or session.realize(member).identity() is not None


def _has_statically(session: Session, value: Value, cls: type, name: str) -> bool:
    """As `_has`, in the way of inspect.getattr_static, which runs no code of the user's."""
    if not isinstance(value, ObjectValue):
        return _has(session, value, cls, name)
    own = value.own_attribute(session, name)
    if own is not None:
        member = session.realize(own).identity()
    else:
        member = session.class_lookup(value.cls, name)
        if find_missing(value.cls, name):
            return False
    return member is not None or not callable(getattr(cls, name, None))


class _Claims:
    """Says that it is of a class."""

    def __init__(self, cls: Any) -> None:
        self.claimed = cls

    __class__: Any = property(lambda self: self.claimed)


def _is_nominally(session: Session, value: Value, cls: type) -> bool:
    """Whether a protocol is among the bases of the class, or the class was registered."""
    if session.says_its_class(value):
        said = session.realize(value.get_attribute(session, "__class__"))
        if session.python(_ABC_CHECK, cls, _Claims(said.constant())):
            return True
    is_nominal = session.python(_ABC_CHECK, cls, _Claims(value.python_type()))
    if not is_nominal:
        _guard_registration(session, value.python_type(), cls)
    return is_nominal


def _members_of_union(session: Session, union: Any, function: Any) -> Any:
    """The classes of `int | str`; None for what is no union.

    Before Python 3.12 a member that is no class is left out; a generic alias raises TypeError."""
    if not isinstance(union, UnionType):
        return None
    if VERSION >= (3, 12):
        return union.__args__
    if any(isinstance(member, types.GenericAlias) for member in union.__args__):
        session.python(function, int, union)
    results = []
    for member in union.__args__:
        if isinstance(member, type):
            results.append(member)
    return results


@means(type.__instancecheck__)
def type_instancecheck(session: Session, cls: Value, value: Value) -> Value:
    return ConstantValue(_is_plainly(session, value, cls.constant()))


@means(_ABC_CHECK, how=How.UNREALIZED)
def _abc_instancecheck(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    cls, value = map(session.realize, args)
    return ConstantValue(_is_registered(session, value, cls.constant()))


# -- issubclass ------------------------------------------------------------------------------------


@means(builtins.issubclass)
def issubclass_(session: Session, cls: Value, classes: Value) -> Value:
    return ConstantValue(_is_subclass(session, cls, classes))


def _is_subclass(session: Session, cls: Value, classes: Value) -> bool:
    cls, classes = session.realize(cls), session.realize(classes)
    classes = getattr(classes, "content", classes)
    of_class = functools.partial(_is_subclass, session, cls)
    answer = _special_answer(session, "__subclasscheck__", of_class, cls, classes)
    if answer is not None:
        return answer
    known = classes.constant()
    if typing.get_origin(known) is typing.Union:
        members = known.__args__
    else:
        members = None
    if isinstance(cls, ClassValue):
        members = members or _members_of_union(session, known, issubclass)
    if members is not None:
        return any(map(of_class, map(session.wrap_constant, members)))
    hook = None
    if isinstance(known, type):
        hook = _users_subclasscheck(session, known)
    if hook is not None:
        return session.truth(session.call_member(hook, classes, cls))
    is_subclass = session.python(issubclass, session.stand_in(cls), known)
    if not is_subclass and isinstance(cls, ClassValue) and isinstance(known, abc.ABCMeta):
        _guard_registration(session, cls.object, known)
    return is_subclass


def _users_subclasscheck(session: Session, cls: type) -> Any:
    """The `__subclasscheck__` of the metaclass that the user wrote; None if there is none."""
    if type(cls) in (type, abc.ABCMeta) or is_trusted(type(cls).__module__):
        return None
    hook = session.class_lookup(type(cls), "__subclasscheck__")
    if isinstance(hook, FunctionType) and not trusts_function(hook):
        return hook
    return None


class _Unregistered(dict[tuple[type, type], "_Pair"]):
    """By class and abstract class: the pairs that were asked for, where the first is no subclass of
    the second."""


class _Pair:
    """A class that is no subclass of an abstract one, so far."""

    __slots__ = ("abstract", "answer", "cls", "token")

    def __init__(self, cls: type, abstract: type) -> None:
        self.cls, self.abstract = cls, abstract
        self.token, self.answer = abc.get_cache_token(), False

    def __repr__(self) -> str:
        return f"{self.cls.__qualname__}, {self.abstract.__qualname__}"


def _is_subclass_now(pair: _Pair) -> bool:
    """Whether the class of a pair is a subclass by now, since classes were registered."""
    if pair.token != (token := abc.get_cache_token()):
        # Not issubclass(), which protocols with other members than methods refuse.
        pair.answer, pair.token = _ABC_CHECK(pair.abstract, _Claims(pair.cls)), token
    return pair.answer


def _guard_registration(session: Session, cls: type, abstract: type) -> None:
    """States that a class of the user's was not registered with an abstract one."""
    if is_trusted(cls.__module__) and is_trusted(abstract.__module__):
        return
    pair = session.state(_Unregistered).setdefault((cls, abstract), _Pair(cls, abstract))
    session.guard(DerivedSource(ConstSource(pair), _is_subclass_now), Kind.EQUALS, False)
