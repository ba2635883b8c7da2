"""Instances of user classes derived from dict or OrderedDict, and the `__dict__` of objects from outside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import InstanceDictSource, ItemSource, Source
from ingot.capture.values.base import Arguments, Keywords, NativeMethod, Value
from ingot.capture.values.builtins import CONSTRUCTORS
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import BoundMethod
from ingot.capture.values.objects import ObjectValue, instance_dict

if TYPE_CHECKING:
    from ingot.capture.session import Session


class InstanceDictValue(Value):
    """The `__dict__` of an object from outside: what is asked by name is guarded by name."""

    __slots__ = ("owner",)

    def __init__(self, owner: ObjectValue) -> None:
        assert owner.source is not None
        super().__init__(InstanceDictSource(owner.source))
        self.owner = owner

    def python_type(self) -> type:
        return dict

    def identity(self) -> Any:
        return instance_dict(self.owner.object)

    def whole(self, session: Session) -> Value:
        """It as a dict, all its keys guarded."""
        if session.writes.touch(self.owner):
            raise session.unsupported(f"the __dict__ of {self.owner.describe()}, which was written")
        assert self.source is not None
        return session.realize(session.wrap(instance_dict(self.owner.object), self.source))

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "get":
            return NativeMethod(self, name, _dict_get)
        return self.whole(session).get_attribute(session, name)

    def contains(self, session: Session, item: Value) -> bool:
        return self._find(session, item) is not None

    def get_item(self, session: Session, key: Value) -> Value:
        found = self._find(session, key)
        if found is None:
            raise session.raised(KeyError, key)
        return found

    def _find(self, session: Session, key: Value) -> Value | None:
        name = key.constant()
        found = self.owner.own_attribute(session, name) if type(name) is str else None
        return None if found is None else session.realize(found)

    def truth(self, session: Session) -> bool:
        return session.truth(self.whole(session))

    def length(self, session: Session) -> int:
        return self.whole(session).length(session)

    def iterate(self, session: Session) -> Value:
        return self.whole(session).iterate(session)

    def binary(self, session: Session, function: Any, other: Value, reflected: bool) -> Value | None:
        return self.whole(session).binary(session, function, other, reflected)


def _dict_get(owner: InstanceDictValue, session: Session, key: Value, default: Value = NONE) -> Value:
    return owner._find(session, key) or default


class DictObject(ObjectValue):
    """An instance of a subclass of dict or OrderedDict that is written in Python: attributes, and items below them.

    An instance from outside may be read but not changed; what is asked by key is guarded by key.
    """

    __slots__ = ("made",)

    def __init__(self, cls: type, source: Source | None = None, object: Any = None) -> None:
        super().__init__(cls, source, object)
        self.made: DictValue | None = None if source is not None else DictValue([], plain_mapping(cls))

    def items(self, session: Session) -> DictValue:
        """Its items as a plain dict; of an instance from outside, all keys are guarded."""
        if self.made is None:
            assert self.source is not None
            session.guard(self.source, Kind.DICT_KEYS, tuple(dict.keys(self.object)))
            entries = []
            for key in dict.keys(self.object):
                held = session.wrap_constant(key).key(session)
                entries.append((held, session.wrap(dict.__getitem__(self.object, key), ItemSource(self.source, key))))
            self.made = DictValue(entries, plain_mapping(self.cls), self.source, self.object)
        return self.made

    def find(self, session: Session, key: Value) -> Value | None:
        """The item of a key, None where there is none."""
        name = key.key(session)
        if self.made is not None or type(name) is not str:
            return self.items(session).entries.get(name)
        assert self.source is not None
        if not dict.__contains__(self.object, name):
            session.guard(self.source, Kind.ABSENT_KEY, name)
            return None
        found = session.wrap(dict.__getitem__(self.object, name), ItemSource(self.source, name))
        return session.realize(found)

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        """A method of dict or OrderedDict works on the items."""
        if isinstance(raw, (MethodDescriptorType, WrapperDescriptorType)) and raw.__objclass__ in (dict, OrderedDict):
            if name in _BY_KEY:
                return NativeMethod(self, name, _BY_KEY[name])
            if name in _BY_ITEMS:
                return self.items(session).get_attribute(session, name)
            raise session.unsupported(f"method {name!r} of {self.describe()}")
        return super().bind(session, raw, name)

    def overrides(self, session: Session, *names: str) -> bool:
        """Whether the class defines one of these methods in Python."""
        return any(isinstance(session.class_lookup(self.cls, name), FunctionType) for name in names)

    def store(self, session: Session, key: Value, value: Value) -> None:
        """dict.__setitem__."""
        self.items(session).set_item(session, key, value)


def plain_mapping(cls: type) -> type:
    """The built-in class whose items an instance holds."""
    return OrderedDict if issubclass(cls, OrderedDict) else dict


def _getitem(owner: DictObject, session: Session, key: Value) -> Value:
    found = owner.find(session, key)
    if found is not None:
        return found
    if owner.overrides(session, "__missing__"):
        return owner.special(session, "__missing__", key) or NONE
    raise session.raised(KeyError, key)


def _get(owner: DictObject, session: Session, key: Value, default: Value = NONE) -> Value:
    return owner.find(session, key) or default


def _contains(owner: DictObject, session: Session, key: Value) -> Value:
    return ConstantValue(owner.find(session, key) is not None)


def _len(owner: DictObject, session: Session) -> Value:
    return ConstantValue(owner.items(session).length(session))


def _iter(owner: DictObject, session: Session) -> Value:
    return owner.items(session).iterate(session)


def _setitem(owner: DictObject, session: Session, key: Value, value: Value) -> Value:
    owner.store(session, key, value)
    return NONE


def _delitem(owner: DictObject, session: Session, key: Value) -> Value:
    owner.items(session).delete_item(session, key)
    return NONE


def _update(owner: DictObject, session: Session, other: Value | None = None, **named: Value) -> Value:
    """OrderedDict.update sets the items of a subclass by its own `__setitem__`, dict.update does not."""
    given = {**({} if other is None else session.entries_of(other)), **named}
    for key, value in given.items():
        if plain_mapping(owner.cls) is OrderedDict:
            owner.set_item(session, session.wrap_key(key), value)
        else:
            owner.store(session, session.wrap_key(key), value)
    return NONE


_BY_KEY: dict[str, Callable[..., Value]] = {
    "__getitem__": _getitem,
    "get": _get,
    "__contains__": _contains,
    "__len__": _len,
    "__iter__": _iter,
    "__setitem__": _setitem,
    "__delitem__": _delitem,
    "__init__": _update,
    "update": _update,
}
_BY_ITEMS = frozenset({"keys", "values", "items"})


def _construct_mapping(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """An instance of a subclass of dict or OrderedDict, its `__init__` inlined."""
    if type(cls).__call__ is not type.__call__:
        raise session.unsupported(f"an instance of {cls.__qualname__} is made: its metaclass defines __call__")
    if session.class_lookup(cls, "__new__") is not plain_mapping(cls).__new__:
        raise session.unsupported(f"an instance of {cls.__qualname__} is made: it defines __new__")
    made, init = DictObject(cls), session.class_lookup(cls, "__init__")
    assert init is not MISSING
    if isinstance(init, FunctionType):
        session.call(BoundMethod(session.wrap_class_member(init), made), args, kwargs)
    else:
        session.call(made.bind(session, init, "__init__"), args, kwargs)
    return made


CONSTRUCTORS[dict] = _construct_mapping
