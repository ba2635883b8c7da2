"""PYTEST_DONT_REWRITE. What the class of an object is, asked in every way of objects that answer
for themselves."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import abc
import collections.abc
import functools
import inspect
import numbers
import typing
import unittest.mock
import weakref

import pytest
import torch

import ingot

LOG = []
"""What was asked of the objects, in order."""


class Plain:
    pass


class Origin:
    origin = 2


class Other(Origin):
    answer = 1


class Lies:
    """Says that it is of another class."""

    said = int

    @property
    def __class__(self):
        LOG.append("asked")
        return self.said


class LiesOfOther(Lies):
    said = Other


class LiesOfStr(Lies):
    said = str


class SaysNoClass(Lies):
    said = 3


class SaysItsOwn:
    @property
    def __class__(self):
        LOG.append("asked")
        return SaysItsOwn


class Raises:
    error = ValueError

    @property
    def __class__(self):
        LOG.append("asked")
        raise self.error("no class")


class RaisesAttributeError(Raises):
    error = AttributeError


class RaisesAndIsAskedAgain(RaisesAttributeError):
    def __getattr__(self, name):
        LOG.append(name)
        if name == "__class__":
            return Other
        raise AttributeError(name)


class AsksRaises:
    def __getattribute__(self, name):
        LOG.append(name)
        raise ValueError(name)


class AsksLoses:
    def __getattribute__(self, name):
        LOG.append(name)
        raise AttributeError(name)


class AsksAnswers:
    def __getattribute__(self, name):
        LOG.append(name)
        return int if name == "__class__" else object.__getattribute__(self, name)


class AsksObject:
    def __getattribute__(self, name):
        LOG.append(name)
        return super().__getattribute__(name)


class AsksGetattr:
    def __getattr__(self, name):
        LOG.append(name)
        raise AttributeError(name)


class ClassAttribute:
    __class__ = int


class Descriptor:
    def __get__(self, instance, owner=None):
        LOG.append("get")
        return Other


class WithDescriptor:
    __class__ = Descriptor()


class DataDescriptor(Descriptor):
    def __set__(self, instance, value):
        LOG.append("set")


class WithDataDescriptor:
    __class__ = DataDescriptor()


class ClassMethod:
    @classmethod
    def __class__(cls):
        return cls


class Proxy:
    def __init__(self, wrapped):
        object.__setattr__(self, "wrapped", wrapped)

    @property
    def __class__(self):
        return type(object.__getattribute__(self, "wrapped"))

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "wrapped"), name)


class ListLies(list):
    __class__ = property(lambda self: Other)


class DictLies(dict):
    __class__ = property(lambda self: Other)


class IntLies(int):
    __class__ = property(lambda self: Other)


class StrRaises(str):
    @property
    def __class__(self):
        LOG.append("asked")
        raise ValueError("no class")


class TupleLies(tuple):
    __class__ = property(lambda self: int)


class ErrorLies(ValueError):
    __class__ = property(lambda self: KeyError)


class ErrorRaises(KeyError):
    @property
    def __class__(self):
        raise ZeroDivisionError("no class")


class ModuleLies(torch.nn.Module):
    __class__ = property(lambda self: Other)


class ModuleRaises(torch.nn.Module):
    @property
    def __class__(self):
        LOG.append("asked")
        raise ValueError("no class")


class HoldsTensor:
    def __init__(self):
        self.tensor = torch.ones(2)

    @property
    def __class__(self):
        return torch.Tensor


class SlotsLies:
    __slots__ = ("a",)
    __class__ = property(lambda self: Other)


def in_dict():
    made = Plain()
    made.__dict__["__class__"] = int
    return made


def in_dict_of_class_attribute():
    made = ClassAttribute()
    made.__dict__["__class__"] = str
    return made


def assigned():
    made = Plain()
    made.__class__ = Other
    return made


def set_by_its_class():
    made = WithDataDescriptor()
    made.__class__ = int
    return made


def said_by_instance():
    made = Lies()
    made.said = Other
    return made


class Protocol(typing.Protocol):
    answer: int


@typing.runtime_checkable
class Runtime(typing.Protocol):
    answer: int


@typing.runtime_checkable
class HasMethod(typing.Protocol):
    def count(self, value): ...


class Abstract(abc.ABC):
    pass


Abstract.register(Other)
Abstract.register(str)


class Hooked(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return other is Other or NotImplemented


class Meta(type):
    def __instancecheck__(cls, instance):
        LOG.append("instancecheck")
        return type(instance) is Plain

    def __subclasscheck__(cls, other):
        LOG.append("subclasscheck")
        return other is Other


class Checked(metaclass=Meta):
    pass


class Deferring(type):
    def __instancecheck__(cls, instance):
        LOG.append("instancecheck")
        return super().__instancecheck__(instance)


class Deferred(metaclass=Deferring):
    pass


class DeferringABC(abc.ABCMeta):
    def __instancecheck__(cls, instance):
        LOG.append("instancecheck")
        return super().__instancecheck__(instance)


class DeferredABC(metaclass=DeferringABC):
    pass


DeferredABC.register(Other)


class AskedTwice(abc.ABC):
    """Nothing is one."""


@functools.singledispatch
def dispatched(value):
    return "object"


@dispatched.register(int)
def _(value):
    return "int"


@dispatched.register(Other)
def _(value):
    return "other"


@dispatched.register(Lies)
def _(value):
    return "lies"


def matched(o):
    match o:
        case str():
            return "str"
        case int(n):
            return "int"
        case Other(answer=a):
            return "other", a
        case list() | dict():
            return "container"
        case Plain():
            return "plain"
        case [] | [_]:
            return "sequence"
    return "none"


def matched_by_shape(o):
    match o:
        case {}:
            return "mapping"
        case [*_]:
            return "sequence"
        case 3:
            return "three"
    return "none"


def caught(o):
    try:
        raise o
    except KeyError:
        return "key"
    except ValueError:
        return "value"


def super_of(o):
    return super(Plain, o).__init__ is not None


def super_of_other(o):
    return super(Other, o).origin


def super_of_int(o):
    return super(int, o).__class__


OBJECTS = {
    "plain": Plain,
    "other": Other,
    "lies": Lies,
    "lies of other": LiesOfOther,
    "lies of str": LiesOfStr,
    "says no class": SaysNoClass,
    "says its own": SaysItsOwn,
    "raises": Raises,
    "raises AttributeError": RaisesAttributeError,
    "raises, is asked again": RaisesAndIsAskedAgain,
    "__getattribute__ raises": AsksRaises,
    "__getattribute__ loses": AsksLoses,
    "__getattribute__ answers": AsksAnswers,
    "__getattribute__ of object": AsksObject,
    "__getattr__": AsksGetattr,
    "class attribute": ClassAttribute,
    "descriptor": WithDescriptor,
    "data descriptor": WithDataDescriptor,
    "class method": ClassMethod,
    "in __dict__": in_dict,
    "in __dict__ of a liar": in_dict_of_class_attribute,
    "assigned": assigned,
    "set by its class": set_by_its_class,
    "said by instance": said_by_instance,
    "proxy of int": lambda: Proxy(3),
    "proxy of object": lambda: Proxy(Other()),
    "list": lambda: ListLies([1]),
    "dict": lambda: DictLies(a=1),
    "int": lambda: IntLies(3),
    "str": lambda: StrRaises("a"),
    "tuple": lambda: TupleLies((1,)),
    "error lies": lambda: ErrorLies("e"),
    "error raises": lambda: ErrorRaises("e"),
    "module lies": ModuleLies,
    "module raises": ModuleRaises,
    "tensor held": HoldsTensor,
    "slots": SlotsLies,
    "number": lambda: 3,
    "tensor": lambda: torch.ones(2),
}
_REFERENT = Other()
GIVEN = {
    "mock": unittest.mock.Mock,
    "mock of int": lambda: unittest.mock.Mock(spec=int),
    "mock of other": lambda: unittest.mock.NonCallableMock(spec=Other),
    "weak proxy": lambda: weakref.proxy(_REFERENT),
    "weak proxy of liar": lambda: weakref.proxy(_LIAR),
    "dead weak proxy": lambda: weakref.proxy(Other()),
}
_LIAR = LiesOfStr()

QUESTIONS = {
    "int": lambda o: isinstance(o, int),
    "Other": lambda o: isinstance(o, Other),
    "Lies": lambda o: isinstance(o, Lies),
    "object": lambda o: isinstance(o, object),
    "its type": lambda o: isinstance(o, type(o)),
    "tensor": lambda o: isinstance(o, torch.Tensor),
    "parameter": lambda o: isinstance(o, torch.nn.Parameter),
    "module": lambda o: isinstance(o, torch.nn.Module),
    "exception": lambda o: isinstance(o, (KeyError, TypeError)),
    "tuple": lambda o: isinstance(o, (str, (list, int), Other)),
    "empty tuple": lambda o: isinstance(o, ()),
    "union": lambda o: isinstance(o, int | str),
    "union with None": lambda o: isinstance(o, None | Other),
    "typing union": lambda o: isinstance(o, typing.Union[int, Other]),
    "generic alias": lambda o: isinstance(o, list[int]),
    "no class": lambda o: isinstance(o, 3),
    "tuple with no class": lambda o: isinstance(o, (int, 3)),
    "hashable": lambda o: isinstance(o, collections.abc.Hashable),
    "number": lambda o: isinstance(o, numbers.Integral),
    "registered": lambda o: isinstance(o, Abstract),
    "never": lambda o: isinstance(o, AskedTwice),
    "hook": lambda o: isinstance(o, Hooked),
    "protocol": lambda o: isinstance(o, Protocol),
    "runtime protocol": lambda o: isinstance(o, Runtime),
    "protocol of methods": lambda o: isinstance(o, HasMethod),
    "instancecheck": lambda o: isinstance(o, Checked),
    "deferring": lambda o: isinstance(o, Deferred),
    "deferring ABC": lambda o: isinstance(o, DeferredABC),
    "tuple of checks": lambda o: isinstance(o, (Deferred, Checked, Other)),
    "type.__instancecheck__": lambda o: type.__instancecheck__(Other, o),
    "int.__instancecheck__": lambda o: int.__instancecheck__(o),
    "ABCMeta.__instancecheck__": lambda o: abc.ABCMeta.__instancecheck__(Abstract, o),
    "comprehension": lambda o: [isinstance(p, int) for p in (o, 1, o)],
    "filter": lambda o: len(list(filter(lambda p: isinstance(p, Other), [o, o]))),
    "map": lambda o: list(map(isinstance, [o, o], [int, Other])),
    "partial": lambda o: functools.partial(isinstance, o)(Other),
    "issubclass of __class__": lambda o: issubclass(o.__class__, Other),
    "issubclass of object": lambda o: issubclass(o, Other),
    "type": lambda o: type(o),
    "type().__class__": lambda o: type(o).__class__,
    "__class__": lambda o: o.__class__,
    "getattr": lambda o: getattr(o, "__class__"),
    "getattr with default": lambda o: getattr(o, "__class__", "default"),
    "hasattr": lambda o: hasattr(o, "__class__"),
    "object.__getattribute__": lambda o: object.__getattribute__(o, "__class__"),
    "type is __class__": lambda o: (type(o) is o.__class__, o.__class__ == int),
    "match": matched,
    "match by shape": matched_by_shape,
    "raise": caught,
    "super": super_of,
    "super of other": super_of_other,
    "super of int": super_of_int,
    "singledispatch": lambda o: dispatched(o),
    "isfunction": lambda o: inspect.isfunction(o),
    "is_tensor": lambda o: torch.is_tensor(o),
    "vars": lambda o: sorted(vars(o)),
}


def _simple(found):
    if isinstance(found, torch.Tensor):
        return found.tolist()
    if type(found) is tuple:
        return tuple(map(_simple, found))
    return found


def asked(function, *args):
    """The result or the error, and what was asked meanwhile."""
    del LOG[:]
    try:
        found = function(*args)
    except Exception as error:
        found = type(error), str(error)
    return _simple(found), list(LOG)


@pytest.mark.parametrize("kind", [*OBJECTS, *GIVEN])
def test_given(kind):
    make = {**OBJECTS, **GIVEN}[kind]
    for name, ask in QUESTIONS.items():
        compiled, given = ingot.compile(lambda x, o: (ask(o), x + 1)[0], backend="eager"), make()
        expected = asked(ask, given)
        for _ in range(2):
            assert asked(compiled, torch.ones(1), given) == expected, name


@pytest.mark.parametrize("kind", OBJECTS)
def test_made(kind):
    make = OBJECTS[kind]
    for name, ask in QUESTIONS.items():
        compiled = ingot.compile(lambda x: (ask(make()), x + 1)[0], backend="eager")
        expected = asked(lambda: ask(make()))
        for _ in range(2):
            assert asked(compiled, torch.ones(1)) == expected, name


class Watched:
    """Takes note of everything that is looked up on it."""

    def __getattribute__(self, name):
        LOG.append(name)
        raise ValueError(name)


class WatchedInt(int):
    __getattribute__ = Watched.__getattribute__


class WatchedList(list):
    __getattribute__ = Watched.__getattribute__


class WatchedSet(frozenset):
    __getattribute__ = Watched.__getattribute__


class Holder:
    pass


def placed(o):
    holder = Holder()
    holder.o = o
    return {
        "argument": (lambda x, o: (x + 1, o), (o,)),
        "in a list": (lambda x, items: (x + 1, items[0]), ([o],)),
        "in a tuple": (lambda x, items: (x + 1, items), ((o, 1),)),
        "in a dict": (lambda x, entries: (x + 1, entries["o"]), ({"o": o},)),
        "an attribute": (lambda x, holder: (x + 1, holder.o), (holder,)),
        "a closure": (lambda x: (x + 1, o), ()),
        "a default": (lambda x, o=o: (x + 1, o), ()),
        "keywords": (lambda x, **named: (x + 1, named["o"]), ()),
        "stored": (lambda x, items, o: (items.append(o), x + 1)[1], ([], o)),
        "set": (lambda x, holder, o: (setattr(holder, "p", o), x + 1)[1], (holder, o)),
        "compared": (lambda x, o: (x + 1, o is x, o is o, type(o)), (o,)),
        "kept over a break": (lambda x, o: (x + 1, print(end=""), str(x), x + 2, o), (o,)),
        "in a generator": (lambda x, items: (x + 1, [p for p in items]), ([o, o],)),
        "unpacked": (lambda x, items: (lambda a, *rest: (x + 1, rest[-1]))(*items), ((1, 2, o),)),
    }


@pytest.mark.parametrize("cls", [Watched, WatchedInt, WatchedList, WatchedSet])
@pytest.mark.parametrize("place", placed(None))
def test_nobody_asks_what_is_passed_along(cls, place):
    given = cls()
    function, args = placed(given)[place]
    named = {"o": given} if place == "keywords" else {}
    compiled = ingot.compile(function, backend="eager")
    for _ in range(2):
        del LOG[:]
        compiled(torch.ones(1), *args, **named)
        assert not LOG


def _stale(make_abstract, ask):
    """A class is registered between two calls."""
    abstract, made = make_abstract(), type("Made", (), {"count": lambda self: 1})()
    compiled = ingot.compile(lambda x, o: (ask(o, abstract), x + 1)[0], backend="eager")
    assert compiled(torch.ones(1), made) is ask(made, abstract) is False
    abstract.register(type(made))
    assert compiled(torch.ones(1), made) is ask(made, abstract) is True


_ASKS = [
    isinstance,
    lambda o, a: issubclass(type(o), a),
    lambda o, a: isinstance(o, (int, a)),
    lambda o, a: isinstance(o, a | None),
]


@pytest.mark.parametrize("base", [abc.ABC, Abstract, collections.abc.Sized, typing.Protocol])
@pytest.mark.parametrize("ask", _ASKS)
def test_classes_that_are_registered_later(base, ask):
    def make():
        made = type(abc.ABC)("Asked", (base,), {}) if base is not typing.Protocol else None
        if made is None:

            class made(typing.Protocol):
                def missing(self): ...

            made = typing.runtime_checkable(made)
        return made

    _stale(make, ask)


class MetaLies(type):
    __class__ = property(lambda cls: int)


class OfMetaLies(metaclass=MetaLies):
    pass


class TensorLies(torch.Tensor):
    __class__ = property(lambda self: Other)


_OF_CLASSES = [
    "int",
    "Other",
    "its type",
    "tuple",
    "registered",
    "__class__",
    "type",
    "match",
    "comprehension",
]


@pytest.mark.parametrize(
    "make", [lambda: OfMetaLies, lambda: torch.ones(1).as_subclass(TensorLies)]
)
@pytest.mark.parametrize("question", _OF_CLASSES)
def test_classes_and_tensors(make, question):
    ask, given = QUESTIONS[question], make()
    compiled = ingot.compile(lambda x, o: (ask(o), x + 1)[0], backend="eager")
    assert asked(compiled, torch.ones(1), given) == asked(ask, given)
