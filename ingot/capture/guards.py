"""The facts that a compiled entry relies on, each with its text, its Python check and its form for
the native guard walk.

`GuardSet.add*` folds duplicates. `check_python` is the oracle that the native `GuardTree` must
agree with, and what tells the user which fact differed; it runs only on a miss. No check runs the
user's code: types are compared exactly, values only when both are plain constants.

A new kind of fact is a `Kind` and a row of `_RULES` here. A row of `check_kinds` in
native/guards_facts.c makes it faster; without one the row here says `is_native=False`, and the
native walk calls its function. The last column there says what proves that the fact still holds of
an unchanged object: NO_PROOF is right for every check, and costs its walk each time. A new way to a
value is a source with its `step`, and a row of `accesses` there, ANEW for how it is reached. Then a
case in tests/capture/guard_cases.py, which both the oracle and the native walk run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ingot.capture.facts import (
    TENSOR_TYPES,
    TensorFacts,
    is_plain_constant,
    overlapping,
    read_global_state,
    same_constant,
)
from ingot.capture.sources import (
    FactSource,
    Source,
    StateSource,
    dict_keys,
    find_in_class,
    shown,
)
from ingot.loops.expr import Symbol

LEVEL_OF_DUALS = StateSource(
    vars(forward_ad), "_current_level", "level of forward-mode differentiation"
)
"""-1 outside of forward-mode differentiation, whose tangents no fact of a tensor shows."""


class Kind(Enum):
    """What kind of fact a guard states. The value is its name in native/guards.c."""

    __hash__ = object.__hash__  # Enum's own is Python, and kinds are hashed at every guard

    TYPE = "type"  # data: the exact type
    IDENTITY = "identity"  # data: the object
    EQUALS = "equals"  # data: a plain constant: same type, same value, floats by bits
    LENGTH = "length"  # data: the length of a built-in container
    DICT_KEYS = "dict_keys"  # data: the keys in order
    ABSENT_KEY = "absent_key"  # data: a key that a dict does not have
    DICT_EMPTY = "dict_empty"
    MEMBER = "member"  # data: (a plain constant, whether a set has it)
    IS_NONE = "is_none"  # data: whether it is None
    TRUTH = "truth"  # data: bool() of a built-in value
    # source: a class; data: (name, what the MRO gives, or MISSING)
    CLASS_ATTRIBUTE = "class_attribute"
    TENSOR = "tensor"  # data: TensorFacts
    TENSOR_OFFSET = "tensor_offset"  # data: the storage offset in elements
    TENSOR_MEMORY = "tensor_memory"  # data: the bytes of its storage
    TENSOR_ALIGNED = "tensor_aligned"  # data: what the data pointer is a multiple of, in bytes
    SAME = "same"  # data: another source, whose value is the same object
    DISTINCT = "distinct"  # data: another source, whose value is another object
    # data: (another source, how many bytes after this tensor's data that one's begins)
    SAME_STORAGE = "same_storage"
    # data: (written sources, others): a written one shares memory with no other
    TENSOR_DISJOINT = "tensor_disjoint"
    SHAPE = "shape"  # data: (Expr, relation, Expr)
    GLOBAL_STATE = "global_state"  # data: GlobalState


class _Missing:
    """Stands for an attribute that no class of the method resolution order has."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()

# -- one rule per kind -----------------------------------------------------------------------------

_SIZED: tuple[Any, ...] = (tuple, list, dict, set, frozenset, str, bytes, range)
_TRUTH_TYPES = frozenset({bool, int, float, complex, type(None), *_SIZED})


def _length(value: Any) -> int:
    """The length by the built-in type's own count; raises TypeError for other types."""
    for kind in _SIZED:
        if isinstance(value, kind):
            return kind.__len__(value)
    raise TypeError(f"{type(value).__qualname__} is no built-in container")


def _truth(value: Any) -> bool:
    if type(value) not in _TRUTH_TYPES:
        raise TypeError(f"bool() of {type(value).__qualname__} may run the user's code")
    return bool(value)


def class_attribute(cls: type, name: str) -> Any:
    """The raw attribute along the method resolution order, or MISSING."""
    try:
        return find_in_class(cls, name)
    except AttributeError:
        return MISSING


def _same_keys(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(map(same_constant, a, b))


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__qualname__} is no dict")
    return value


class _Rule(NamedTuple):
    """How a fact about one value is read again, and what it is called. Where no native check has
    its name, the native walk calls `read` and compares plain constants."""

    facet: str  # formatted with the source's name and the data
    read: Callable[[Any, Any], Any]
    expected: Callable[[Any], Any] = lambda data: data
    same: Callable[[Any, Any], bool] = operator.eq
    is_native: bool = True


_RULES: dict[Kind, _Rule] = {
    Kind.TYPE: _Rule("type({0})", lambda value, _: type(value), same=operator.is_),
    Kind.IDENTITY: _Rule("{0}", lambda value, _: value, same=operator.is_),
    Kind.EQUALS: _Rule("{0}", lambda value, _: value, same=same_constant),
    Kind.LENGTH: _Rule("len({0})", lambda value, _: _length(value)),
    Kind.DICT_KEYS: _Rule("tuple({0})", lambda value, _: dict_keys(value), same=_same_keys),
    Kind.ABSENT_KEY: _Rule(
        "{1!r} in {0}", lambda value, key: dict.__contains__(_dict(value), key), lambda _: False
    ),
    Kind.DICT_EMPTY: _Rule("len({0})", lambda value, _: dict.__len__(_dict(value)), lambda _: 0),
    Kind.MEMBER: _Rule(
        "{1[0]!r} in {0}",
        lambda members, data: set.__contains__(members, data[0]),
        lambda data: data[1],
        is_native=False,
    ),
    Kind.IS_NONE: _Rule("{0} is None", lambda value, _: value is None),
    Kind.TRUTH: _Rule("bool({0})", lambda value, _: _truth(value)),
    Kind.CLASS_ATTRIBUTE: _Rule(
        "{0}.{1[0]}",
        lambda cls, data: class_attribute(cls, data[0]),
        lambda data: data[1],
        operator.is_,
    ),
    Kind.TENSOR_OFFSET: _Rule("{0}.storage_offset()", lambda tensor, _: tensor.storage_offset()),
    Kind.TENSOR_MEMORY: _Rule(
        "{0}.untyped_storage().nbytes()", lambda tensor, _: tensor.untyped_storage().nbytes()
    ),
    Kind.TENSOR_ALIGNED: _Rule(
        "{0}.data_ptr() % {1}", lambda tensor, size: tensor.data_ptr() % size, lambda _: 0
    ),
}

LOST = Exception
"""What loading a path or reading a fact raises when that cannot be done any more.

The path is gone or leads to something of another nature. It is any error, as to the native walk."""


def _short(value: object) -> str:
    """A value for one line of the report."""
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", None) or shown(value)
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, CodeType):
        return f"that of {value.co_filename}:{value.co_firstlineno}"
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__qualname__} {tuple(value.shape)}"
    text = object.__repr__(value)
    if is_plain_constant(value) or isinstance(value, (tuple, _Missing)):
        text = shown(value)
    if len(text) <= 80:
        return text
    return text[:77] + "..."


@dataclass(frozen=True, eq=False, slots=True)
class Guard:
    """One fact: `kind` and `data` say what holds of the value of `source` (None for what belongs to
    no one value)."""

    kind: Kind
    source: Source | None
    data: Any
    where: str = ""

    @property
    def text(self) -> str:
        """The fact as one line for the report."""
        if self.kind in _TEXTS:
            fact = _TEXTS[self.kind](self)
        else:
            fact = self._rule_text()
        if self.where:
            return f"{fact}  ({self.where})"
        return fact

    def __str__(self) -> str:
        return self.text

    def _rule_text(self) -> str:
        rule = _RULES[self.kind]
        relation = "=="
        if rule.same is operator.is_:
            relation = "is"
        expected = _short(rule.expected(self.data))
        return f"{rule.facet.format(self.name, self.data)} {relation} {expected}"

    @property
    def name(self) -> str:
        if self.source is not None:
            return self.source.name
        return ""

    @property
    def native_check(self) -> tuple[Source, str, Any]:
        """A source, and the native check of its value: a name of `check_kinds`, and data."""
        assert self.source is not None
        rule = _RULES.get(self.kind)
        if self.kind is Kind.TENSOR:
            return self.source, self.kind.value, self.source.walked(self.data)
        if rule is None or rule.is_native:
            return self.source, self.kind.value, self.data
        fact = FactSource(self.source, rule.read, self.data)
        return fact, Kind.EQUALS.value, rule.expected(self.data)

    def differences(self, slots: Sequence[Any], symbols: Mapping[Symbol, Quantity]) -> list[str]:
        """What differs now; empty when the fact holds."""
        try:
            if self.kind in _DIFFERENCES:
                return _DIFFERENCES[self.kind](self, slots, symbols)
            return self._rule_differences(slots)
        except LOST as lost:
            return [f"{self.name or 'a value'} cannot be read any more ({lost})"]

    def _rule_differences(self, slots: Sequence[Any]) -> list[str]:
        rule = _RULES[self.kind]
        value = self.source.load(slots)  # type: ignore[union-attr]
        expected, now = rule.expected(self.data), rule.read(value, self.data)
        if rule.same(now, expected):
            return []
        was, is_now = _short(expected), _short(now)
        if was == is_now:
            is_now += f" of type {type(now).__qualname__}"
            if rule.same is operator.is_:
                is_now = "another object"
        return [f"{rule.facet.format(self.name, self.data)} was {was}, is {is_now}"]


class Quantity(NamedTuple):
    """An integer read at run time."""

    source: Source
    what: str  # "size" | "stride" of a tensor | "value": a Python int
    dim: int = 0

    def load(self, slots: Sequence[Any]) -> int:
        value = self.source.load(slots)
        if self.what == "value":
            if type(value) is not int:
                raise TypeError(f"{self.source.name} is no int")
            return value
        if type(value) not in TENSOR_TYPES:
            raise TypeError(f"{self.source.name} is no plain tensor")
        return (value.shape if self.what == "size" else value.stride())[self.dim]

    @property
    def name(self) -> str:
        forms = {"size": "{}.shape[{}]", "stride": "{}.stride({})", "value": "{}"}
        return forms[self.what].format(self.source.name, self.dim)


Observed = frozenset[Source | Quantity]
"""Floats, ints and sizes of tensors that a later call changed."""


class SpeculativeSizes(NamedTuple):
    """Sizes of the arguments' tensors that are made symbols though no call changed them.

    These are the other sizes of a tensor that has an observed one (`places`), and all sizes of
    tensors that no earlier entry has met, such as a cache that is None at first: all but those of
    the `known`."""

    places: frozenset[Quantity] = frozenset()
    known: frozenset[Source] = frozenset()

    def includes(self, size: Quantity) -> bool:
        return size in self.places or size.source not in self.known


RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _tensor_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    value = guard.source.load(slots)  # type: ignore[union-attr]
    if type(value) is not guard.data.type:
        return [f"type({guard.name}) was {_short(guard.data.type)}, is {_short(type(value))}"]
    results = []
    for text in guard.data.differences(TensorFacts.of(value)):
        results.append(f"{guard.name}.{text}")
    return results


def _same_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    is_same = guard.source.load(slots) is guard.data.load(slots)  # type: ignore[union-attr]
    expected = guard.kind is Kind.SAME
    if is_same == expected:
        return []
    return [f"{guard.name} is {guard.data.name} was {expected}, is {is_same}"]


def _storage_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    other, distance = guard.data
    first, second = guard.source.load(slots), other.load(slots)  # type: ignore[union-attr]
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return [f"{guard.name} and {other.name} shared a storage, and do not"]
    now = second.data_ptr() - first.data_ptr()
    if now == distance:
        return []
    return [f"{other.name} was {distance} bytes after {guard.name}, is {now}"]


def _disjoint_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    written, others = guard.data
    sources = (*written, *others)
    results = []
    for i, j in overlapping([source.load(slots) for source in sources]):
        if i < len(written):
            results.append(f"{sources[i].name} and {sources[j].name} shared no memory, and do")
    return results


def _shape_differences(
    guard: Guard, slots: Sequence[Any], symbols: Mapping[Symbol, Quantity]
) -> list[str]:
    left, relation, right = guard.data
    used = left.symbols | right.symbols
    values = {}
    for symbol in used:
        values[symbol] = symbols[symbol].load(slots)
    try:
        if RELATIONS[relation](left.evaluate(values), right.evaluate(values)):
            return []
    except ZeroDivisionError:  # of a size that another relation says is not 0
        pass
    now = ", ".join(
        f"{symbols[symbol].name} is {values[symbol]}" for symbol in sorted(used, key=str)
    )
    return [f"{left} {relation} {right} no longer holds: {now}"]


def _state_differences(
    guard: Guard, _slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    return guard.data.differences(read_global_state())


_DIFFERENCES: dict[Kind, Callable[[Guard, Sequence[Any], Mapping[Symbol, Quantity]], list[str]]] = {
    Kind.TENSOR: _tensor_differences,
    Kind.SAME: _same_differences,
    Kind.DISTINCT: _same_differences,
    Kind.SAME_STORAGE: _storage_differences,
    Kind.TENSOR_DISJOINT: _disjoint_differences,
    Kind.SHAPE: _shape_differences,
    Kind.GLOBAL_STATE: _state_differences,
}


def _names(sources: Iterable[Source]) -> str:
    return ", ".join(source.name for source in sources)


_TEXTS: dict[Kind, Callable[[Guard], str]] = {
    Kind.ABSENT_KEY: lambda guard: f"{shown(guard.data)} not in {guard.name}",
    Kind.TENSOR: lambda guard: f"{guard.name}: {guard.data}",
    Kind.SAME: lambda guard: f"{guard.name} is {guard.data.name}",
    Kind.DISTINCT: lambda guard: f"{guard.name} is not {guard.data.name}",
    Kind.SAME_STORAGE: lambda guard: (
        f"{guard.data[0].name} begins {guard.data[1]} bytes after {guard.name}"
    ),
    Kind.TENSOR_DISJOINT: lambda guard: (
        f"{_names(guard.data[0])} share no memory with {_names(guard.data[1])}"
    ),
    Kind.SHAPE: lambda guard: f"{guard.data[0]} {guard.data[1]} {guard.data[2]}",
    Kind.GLOBAL_STATE: lambda guard: ", ".join(
        f"{label}={value}" for label, value in guard.data._asdict().items()
    ),
}
