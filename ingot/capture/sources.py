"""Where a value came from: how to load it again at the next call, and what to call it when talking
to the user.

A source is a path from a root (an argument slot, a global, a constant object) through attributes,
items, cells and types. Sources are immutable and interned: two equal paths are the same object, so
they compare and hash by identity. Loading never runs the user's code: an attribute is read from the
instance `__dict__` or through a C descriptor, an item from the storage of the built-in
container."""

from __future__ import annotations

import builtins
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from types import FunctionType
from typing import Any, ClassVar, Literal, dataclass_transform
from weakref import KeyedRef

import torch

from ingot.native import _native

# Dictionary keys that are told apart by value; all others by identity, so that no __eq__ of the
# user's runs here.
_VALUE_KEYS = frozenset({str, int, bool, float, bytes, type(None)})

_interned: dict[tuple[Any, ...], KeyedRef[tuple[Any, ...], Source]] = {}

Step = tuple["Source | None", str, Any]
"""(parent, access, key): how the native guard walk gets at a value; `access` is a name in
native/guards.c's table of accesses."""


_forget = _native.forgetting(_interned)


class _Interning(type):
    """Makes the call of a source class return the one object with those fields."""

    defaults: tuple[Any, ...]  # of the fields that need not be given, which are the last
    # of the fields, past what keeps them as they are
    setters: tuple[Callable[[Any, Any], None], ...]

    def __call__(cls, *args: Any) -> Any:
        lacking = len(cls.__match_args__) - len(args)  # type: ignore[attr-defined]
        if 0 < lacking <= len(cls.defaults):
            args += cls.defaults[-lacking:]
        parts: list[Any] = [cls]
        for field in args:  # sources and plain keys are told by value, all else by identity
            kind = type(field)
            if kind is str or isinstance(field, Source):
                parts.append(field)
            elif kind in _VALUE_KEYS:
                parts.append((kind, field))
            else:
                parts.append(id(field))
        reference = _interned.get(token := tuple(parts))
        known = None
        if reference is not None:
            known = reference()
        if known is None:
            known = object.__new__(cls)  # type: ignore[arg-type]
            for set_field, field in zip(cls.setters, args, strict=True):
                set_field(known, field)
            _interned[token] = KeyedRef(known, _forget, token)
        return known


@dataclass_transform(frozen_default=True, eq_default=False)
def _source(cls: type) -> Any:
    kind: Any = dataclass(frozen=True, eq=False, repr=False, slots=True)(cls)
    kind.setters = tuple(getattr(kind, field.name).__set__ for field in fields(kind))
    kind.defaults = tuple(field.default for field in fields(kind) if field.default is not MISSING)
    return kind


class Source(metaclass=_Interning):
    """A way to load a value again. `load(slots)` raises what Python does where the path is gone."""

    __slots__ = ("__weakref__",)
    text: ClassVar[str]  # the form of the name

    @property
    def name(self) -> str:
        """The path as the user would write it."""
        return self.text.format(self)

    @property
    def is_written(self) -> bool:
        """Whether the user knows it by this name.

        Operands that wait at a graph break have no such names, nor has what Ingot derives or Python
        looks up behind the scenes."""
        name = self.name
        return not ("(" in name or "__" in name or " " in name.partition("[")[0])

    @property
    def step(self) -> Step:
        """The last step of the path, for the native guard walk."""
        raise NotImplementedError

    def load(self, slots: Sequence[Any]) -> Any:
        """The value, given the argument slots of the call: parameters in the order of
        `co_varnames`, *args a tuple, **kwargs a dict."""
        raise NotImplementedError

    @staticmethod
    def walked(facts: Any) -> Any:
        """The facts of a tensor as the native walk finds it, by those of what `load` gives."""
        return facts

    @property
    def collected(self) -> Source:
        """What the native walk collects where this is the source of a graph's input."""
        return self

    def owners(self) -> Iterator[Source]:
        """The sources that the path to this one passes through, innermost first."""
        source = getattr(self, "base", None)
        while source is not None:
            yield source
            source = getattr(source, "base", None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


@_source
class ArgSource(Source):
    """An argument of the compiled function: slot `index`, called `arg_name` there."""

    index: int
    arg_name: str

    text = "{0.arg_name}"

    @property
    def step(self) -> Step:
        return None, "slot", self.index

    def load(self, slots: Sequence[Any]) -> Any:
        return slots[self.index]


@_source
class CalledSource(ArgSource):
    """The compiled function itself, where it is passed in a slot."""


@_source
class ConstSource(Source):
    """An object that is reachable without a path (a class, a module, the compiled function): it is
    held, and never changes."""

    value: Any

    @property
    def name(self) -> str:
        if type(self.value) is dict and "__name__" in self.value:
            return f"the globals of {self.value['__name__']}"
        return (
            getattr(self.value, "__qualname__", None)
            or getattr(self.value, "__name__", None)
            or shown(self.value)
        )

    @property
    def step(self) -> Step:
        return None, "constant", self.value

    def load(self, slots: Sequence[Any]) -> Any:
        return self.value


@_source
class GlobalSource(Source):
    """The global `key` of the module whose dictionary is `namespace`."""

    namespace: dict[str, Any]
    key: str

    text = "{0.key}"

    @property
    def step(self) -> Step:
        return ConstSource(self.namespace), "item", self.key

    def load(self, slots: Sequence[Any]) -> Any:
        return self.namespace[self.key]


@_source
class StateSource(GlobalSource):
    """A global of torch's own that is part of the state around a call, and is called `words`."""

    words: str

    text = "{0.words}"


@_source
class BuiltinSource(Source):
    """The built-in `key`, where the module's globals have no such name (guard that with
    ABSENT_KEY)."""

    key: str

    text = "{0.key}"

    @property
    def step(self) -> Step:
        return ConstSource(vars(builtins)), "item", self.key

    def load(self, slots: Sequence[Any]) -> Any:
        return vars(builtins)[self.key]


@_source
class InstanceDictSource(Source):
    """The `__dict__` of an instance, module or function (of a class: see ClassAttrSource)."""

    base: Source

    text = "{0.base.name}.__dict__"

    @property
    def step(self) -> Step:
        return self.base, "instance_dict", None

    def load(self, slots: Sequence[Any]) -> Any:
        return object.__getattribute__(self.base.load(slots), "__dict__")


@_source
class AttrSource(Source):
    """An attribute of an instance.

    It is read `through` its `__dict__` ("dict"), or a C descriptor of its type ("slot": `__slots__`
    members, `__self__` of a method, `func` of a partial, `grad` of a tensor)."""

    base: Source
    key: str
    through: Literal["dict", "slot"] = "dict"

    text = "{0.base.name}.{0.key}"

    @property
    def step(self) -> Step:
        if self.through == "dict":
            return InstanceDictSource(self.base), "item", self.key
        return self.base, "attribute", self.key

    def load(self, slots: Sequence[Any]) -> Any:
        owner = self.base.load(slots)
        if self.through == "dict":
            return object.__getattribute__(owner, "__dict__")[self.key]
        return object.__getattribute__(owner, self.key)


def shown(value: Any) -> str:
    """An object in a report: tensors without what is in them, which takes long to write."""
    if type(value) is tuple and any(isinstance(item, torch.Tensor) for item in value):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return repr(value)


_NOTHING = object()
_MODULE_TABLES = frozenset({"_parameters", "_buffers", "_modules"})


@_source
class ItemSource(Source):
    """An item of a list or tuple (by index) or of a dict (by key), read from the built-in storage
    also for subclasses."""

    base: Source
    key: Any

    @property
    def name(self) -> str:
        table = self.base
        if isinstance(table, AttrSource) and table.key in _MODULE_TABLES and type(self.key) is str:
            owner = table.base.name  # self._modules["h"]._modules["0"] is written self.h[0]
            if self.key.isdecimal():
                return f"{owner}[{self.key}]"
            return f"{owner}.{self.key}"
        return f"{table.name}[{shown(self.key)}]"

    @property
    def step(self) -> Step:
        return self.base, "item", self.key

    def load(self, slots: Sequence[Any]) -> Any:
        container = self.base.load(slots)
        if isinstance(container, dict):
            # dict.__getitem__ would call the user's __missing__
            item = dict.get(container, self.key, _NOTHING)
            if item is _NOTHING:
                raise KeyError(self.key)
            return item
        if isinstance(container, list):
            return list.__getitem__(container, self.key)
        if isinstance(container, tuple):
            return tuple.__getitem__(container, self.key)
        raise TypeError(f"{self.base.name} is no built-in container")


def is_argument(source: Source) -> bool:
    """Whether a value is an argument, or in a container that is one."""
    return all(isinstance(owner, (ArgSource, ItemSource)) for owner in (source, *source.owners()))


@_source
class FunctionFieldSource(Source):
    """A field of a Python function: `__code__`, `__defaults__`, `__kwdefaults__`, `__closure__` or
    `__globals__`."""

    base: Source
    field: Literal["__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__"]

    text = "{0.base.name}.{0.field}"

    @property
    def step(self) -> Step:
        return self.base, "attribute", self.field

    def load(self, slots: Sequence[Any]) -> Any:
        function = self.base.load(slots)
        if not isinstance(function, FunctionType):
            raise TypeError(f"{self.base.name} is no function")
        return getattr(function, self.field)


@_source
class CellSource(Source):
    """What the closure cell `index` of a function holds; `variable` is its name there."""

    base: Source
    index: int
    variable: str = ""

    @property
    def name(self) -> str:
        return self.variable or f"{self.base.name}.__closure__[{self.index}].cell_contents"

    @property
    def step(self) -> Step:
        return self.base, "cell", self.index

    def load(self, slots: Sequence[Any]) -> Any:
        return self.base.load(slots).__closure__[self.index].cell_contents


@_source
class TypeSource(Source):
    """The type of a value."""

    base: Source

    text = "type({0.base.name})"

    @property
    def step(self) -> Step:
        return self.base, "type", None

    def load(self, slots: Sequence[Any]) -> Any:
        return type(self.base.load(slots))


def find_in_class(cls: type, key: str) -> Any:
    """The raw attribute `key` (no descriptor is bound) of the first class of the method resolution
    order that has it.

    Raises AttributeError where none does.
    """
    for owner in cls.__mro__:
        if key in owner.__dict__:
            return owner.__dict__[key]
    raise AttributeError(key)


@_source
class ClassAttrSource(Source):
    """The raw attribute `key` of a class, found along its method resolution order; `base` is the
    class, not an instance."""

    base: Source
    key: str

    text = "{0.base.name}.{0.key}"

    @property
    def step(self) -> Step:
        return self.base, "class_attribute", self.key

    def load(self, slots: Sequence[Any]) -> Any:
        cls = self.base.load(slots)
        if not isinstance(cls, type):
            raise TypeError(f"{self.base.name} is no class")
        return find_in_class(cls, self.key)


def dict_keys(value: Any) -> tuple[Any, ...]:
    """The keys of a dict or OrderedDict in its own order, also of a subclass that overrides `keys`.
    Raises TypeError for others."""
    return tuple((OrderedDict if isinstance(value, OrderedDict) else dict).__iter__(value))


def dict_items(value: Any) -> list[tuple[Any, Any]]:
    """The keys of `dict_keys` with what the dict has for them; no `__hash__` of a key is asked."""
    items = {}
    for key, item in dict.items(value):
        items[id(key)] = item
    return [(key, items[id(key)]) for key in dict_keys(value)]


def set_members(value: Any) -> tuple[Any, ...]:
    """The members of a set or frozenset in its own order, also of a subclass that overrides
    `__iter__`. Raises TypeError for others."""
    return tuple((frozenset if isinstance(value, frozenset) else set).__iter__(value))


@_source
class DictKeysSource(Source):
    """The keys of a dict, in order, as a tuple."""

    base: Source

    text = "tuple({0.base.name})"

    @property
    def step(self) -> Step:
        return self.base, "dict_keys", None

    def load(self, slots: Sequence[Any]) -> Any:
        return dict_keys(self.base.load(slots))


@_source
class DerivedSource(Source):
    """What a pure function of Ingot's own gives for a value, where no attribute or item leads to
    it."""

    base: Source
    function: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return f"{self.function.__name__.strip('_')}({self.base.name})"

    @property
    def step(self) -> Step:
        return self.base, "apply", self.function

    def load(self, slots: Sequence[Any]) -> Any:
        return self.function(self.base.load(slots))


@_source
class PartSource(Source):
    """The local tensor of a DTensor, with its history. The native walk finds it without: the
    DTensors of a call have their histories together, see `histories.py`."""

    base: DerivedSource

    text = "{0.base.name}[0]"

    @staticmethod
    def walked(facts: Any) -> Any:
        return facts._replace(requires_grad=False, is_leaf=True)

    @property
    def collected(self) -> Source:
        return self.base.base

    @property
    def step(self) -> Step:
        return self.base.base, "apply", _native.local_of

    def load(self, slots: Sequence[Any]) -> Any:
        return self.base.load(slots)[0]


@_source
class FactSource(Source):
    """What the rule of a guard reads of a value: `read(value, data)`."""

    base: Source
    read: Callable[[Any, Any], Any]
    data: Any

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def step(self) -> Step:
        return self.base, "read", (self.read, self.data)

    def load(self, slots: Sequence[Any]) -> Any:
        return self.read(self.base.load(slots), self.data)
