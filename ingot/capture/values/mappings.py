"""Instances of user classes derived from dict or OrderedDict, and the `__dict__` of objects."""

from __future__ import annotations

import operator
from collections import OrderedDict
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import dict_base
from ingot.capture.sources import AttrSource, InstanceDictSource, Source
from ingot.capture.values.base import NativeMethod, Operator, Rule, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.keys import argument_key, dict_key, plain_key
from ingot.capture.values.objects import ObjectValue, instance_dict
from ingot.capture.values.outside_containers import OutsideDict

if TYPE_CHECKING:
    from ingot.capture.session import Session


class InstanceDict(OutsideDict):
    """The `__dict__` of an object from outside: its items are the object's attributes."""

    __slots__ = ("owner",)

    def __init__(self, session: Session, owner: ObjectValue) -> None:
        assert owner.source is not None
        namespace = instance_dict(owner.object)
        assert namespace is not None
        super().__init__(session, InstanceDictSource(owner.source), namespace, dict)
        self.owner = owner

    def item_source(self, key: Any) -> Source:
        assert self.owner.source is not None
        if type(key) is str:
            return AttrSource(self.owner.source, key)
        return super().item_source(key)

    def write(self, session: Session, key: Any, value: Value) -> None:
        fields = session.effects.attributes_of(self.owner, self.object)
        session.effects.change(session, self.owner, self.owner.object, fields)
        fields.write(plain_key(key), value)


class AttributesDict(DictValue):
    """The `__dict__` of an object made during capture."""

    __slots__ = ("owner",)

    def __init__(self, owner: ObjectValue) -> None:
        super().__init__((), dict)
        self.owner, self._entries = owner, owner.attributes

    def identity(self) -> Any:
        return self.owner.attributes

    def write(self, session: Session, key: Any, value: Value) -> None:
        super().write(session, plain_key(key), value)


class OwnItems(DictValue):
    """The items of an instance made during capture."""

    __slots__ = ("owner",)

    def __init__(self, owner: DictObject) -> None:
        super().__init__((), dict_base(owner.cls))
        self.owner = owner


class DictObject(ObjectValue):
    """An instance of a subclass of dict or OrderedDict that is written in Python: attributes, and
    items below them."""

    __slots__ = ("item_dict",)

    def __init__(
        self,
        cls: type,
        session: Session | None = None,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(cls, source, object)
        if source is None or session is None:
            self.item_dict: DictValue = OwnItems(self)
        else:
            self.item_dict = OutsideDict(session, source, object, dict_base(cls))

    def find(self, session: Session, key: Value) -> Value | None:
        """The item of a key, None where there is none."""
        return self.item_dict.find(session, dict_key(session, key))

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        """A method of dict or OrderedDict works on the items."""
        if isinstance(raw, (MethodDescriptorType, WrapperDescriptorType)) and raw.__objclass__ in (
            dict,
            OrderedDict,
        ):
            if name in _METHODS:
                return NativeMethod(self, name, _METHODS[name])
            if name == "copy" and dict_base(self.cls) is dict:
                return NativeMethod(self, name, _copy)
            if name in _OF_ITEMS and not (
                raw.__objclass__ is OrderedDict and name in _BY_OWN_METHODS
            ):
                return self.item_dict.get_attribute(session, name)
            raise session.unsupported("attribute", f"method {name!r} of {self.describe()}")
        return super().bind(session, raw, name)

    def is_read_as_dict(self, session: Session) -> bool:
        """Whether C code reads the items of such a mapping directly. For a dict it does unless the
        class overrides `__iter__`, for an OrderedDict unless it overrides any of the methods."""
        if dict_base(self.cls) is dict:
            return not self.overrides(session, "__iter__")
        return not self.overrides(session, "keys", "__iter__", "__getitem__")


def _getitem(owner: DictObject, session: Session, key: Value) -> Value:
    item = owner.find(session, key)
    if item is not None:
        return item
    if owner.overrides(session, "__missing__"):
        return owner.special(session, "__missing__", key) or NONE
    raise session.raised(KeyError, key)


def _setitem(owner: DictObject, session: Session, key: Value, value: Value) -> Value:
    owner.item_dict.set_item(session, key, value)
    return NONE


def _delitem(owner: DictObject, session: Session, key: Value) -> Value:
    owner.item_dict.delete_item(session, key)
    return NONE


def _update(
    owner: DictObject, session: Session, other: Value | None = None, /, **named: Value
) -> Value:
    """OrderedDict.update sets the items of a subclass by its own `__setitem__`, dict.update does
    not."""
    ordered = dict_base(owner.cls) is OrderedDict
    if ordered:
        read = session.ordered_entries_read
    else:
        read = session.entries_read
    if ordered:
        store = owner.set_item
    else:
        store = owner.item_dict.set_item
    if other is not None:
        for key, value in read(other):
            store(session, session.wrap_key(key), value)
    for name, value in named.items():
        store(session, session.wrap_key(argument_key(name)), value)
    return NONE


def _text(owner: DictObject, session: Session) -> Value:
    entries = owner.item_dict.entries
    keys = map(session.textual, map(session.wrap_key, entries))
    items = dict(zip(keys, map(session.textual, entries.values())))
    if dict_base(owner.cls) is dict:
        return ConstantValue(repr(items))
    return ConstantValue(repr(OrderedDict(items)).replace("OrderedDict", owner.cls.__name__, 1))


def _items_of(session: Session, value: Value) -> DictValue | None:
    value = session.realize(value)
    if isinstance(value, DictValue):
        return value
    if isinstance(value, DictObject):
        return value.item_dict
    return None


def _compares(function: Operator) -> Rule:
    def compare(owner: DictObject, session: Session, other: Value) -> Value:
        items = _items_of(session, other)
        if items is None:
            return ConstantValue(NotImplemented)
        return session.binary(function, owner.item_dict, items)

    return compare


def _union(owner: DictObject, session: Session, other: Value) -> Value:
    """dict.__or__, which gives a plain dict."""
    items = _items_of(session, other)
    if items is None or dict_base(owner.cls) is OrderedDict:
        raise session.unsupported("operator", f"operator.or_ of {owner.describe()}")
    entries = _copied(owner, session)
    entries.update(session.mapping_read(other))
    return DictValue(entries.items(), dict)


def _copied(owner: DictObject, session: Session) -> dict[Any, Value]:
    """PyDict_Copy, which reads a dict by its own methods where its class says how to iterate."""
    if owner.item_dict.entries:
        return dict(session.mapping_read(owner))
    return {}


def _copy(owner: DictObject, session: Session) -> Value:
    return DictValue(_copied(owner, session).items(), dict)


def _update_in_place(owner: DictObject, session: Session, other: Value) -> Value:
    _update(owner, session, other)
    return owner


_METHODS: dict[str, Rule] = {
    "__getitem__": _getitem,
    "get": lambda owner, session, key, default=NONE: owner.find(session, key) or default,
    "__contains__": lambda owner, session, key: ConstantValue(
        owner.item_dict.contains(session, key)
    ),
    "__len__": lambda owner, session: ConstantValue(owner.item_dict.length(session)),
    "__iter__": lambda owner, session: owner.item_dict.iterate(session),
    "__setitem__": _setitem,
    "__delitem__": _delitem,
    "__init__": _update,
    "update": _update,
    "__reversed__": lambda owner, session: session.call_builtin(reversed, owner.item_dict),
    "__repr__": _text,
    "__eq__": _compares(operator.eq),
    "__ne__": _compares(operator.ne),
    "__or__": _union,
    "__ior__": _update_in_place,
}
_OF_ITEMS = frozenset("keys values items pop popitem clear move_to_end setdefault copy".split())
_BY_OWN_METHODS = frozenset({"setdefault", "copy"})
"""Methods of OrderedDict that call those which a subclass defines."""
