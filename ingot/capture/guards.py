"""The facts that a compiled entry relies on, each with its text, its Python check and its form for
the native guard walk.

`GuardSet.add*` folds duplicates. `check_python` is the oracle that the native `GuardTree` must
agree with, and what tells the user which fact differed; it runs only on a miss. No check runs the
user's code: types are compared exactly, values only when both are plain constants.

A new kind of fact is a `Kind`, a row of `_RULES` here, and a row of `check_kinds` in
native/guards_facts.c, whose last column says what proves that the fact still holds of an unchanged
object: NO_PROOF is right for every check, and costs its walk each time. A new way to a value is a
source with its `step`, and a row of `accesses` there, ANEW for how it is reached. Then a case in
tests/capture/guard_cases.py, which both the oracle and the native walk run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from ingot.capture.sources import Source, StateSource, dict_keys, find_in_class, shown
from ingot.graph.shape_context import INTEGERS
from ingot.graph.shape_guards import ShapeGuard
from ingot.loops.expr import Expr, Symbol, as_expr, size_symbol
from ingot.loops.postfix import postfix

_LEVEL_OF_DUALS = StateSource(
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


def _class_attribute(cls: type, key: str) -> Any:
    try:
        return find_in_class(cls, key)
    except AttributeError:
        return MISSING


def _same_keys(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(map(same_constant, a, b))


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__qualname__} is no dict")
    return value


class _Rule(NamedTuple):
    """How a fact about one value is read again, and what it is called: `facet` is formatted with
    the source's name and the data."""

    facet: str
    read: Callable[[Any, Any], Any]
    expected: Callable[[Any], Any] = lambda data: data
    same: Callable[[Any, Any], bool] = operator.eq


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
    Kind.IS_NONE: _Rule("{0} is None", lambda value, _: value is None),
    Kind.TRUTH: _Rule("bool({0})", lambda value, _: _truth(value)),
    Kind.CLASS_ATTRIBUTE: _Rule(
        "{0}.{1[0]}",
        lambda cls, data: _class_attribute(cls, data[0]),
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

_LOST = Exception
"""What loading a path or reading a fact raises when the path is gone or leads to something of
another nature: any error, as to the native walk."""


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
    plain = is_plain_constant(value) or isinstance(value, (tuple, _Missing))
    text = shown(value) if plain else object.__repr__(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
        fact = _TEXTS[self.kind](self) if self.kind in _TEXTS else self._rule_text()
        return f"{fact}  ({self.where})" if self.where else fact

    def __str__(self) -> str:
        return self.text

    def _rule_text(self) -> str:
        rule = _RULES[self.kind]
        relation = "is" if rule.same is operator.is_ else "=="
        return f"{rule.facet.format(self.name, self.data)} {relation} {_short(rule.expected(self.data))}"

    @property
    def name(self) -> str:
        return self.source.name if self.source is not None else ""

    def differences(self, slots: Sequence[Any], symbols: Mapping[Symbol, Quantity]) -> list[str]:
        """What differs now; empty when the fact holds."""
        try:
            if self.kind in _DIFFERENCES:
                return _DIFFERENCES[self.kind](self, slots, symbols)
            return self._rule_differences(slots)
        except _LOST as lost:
            return [f"{self.name or 'a value'} cannot be read any more ({lost})"]

    def _rule_differences(self, slots: Sequence[Any]) -> list[str]:
        rule = _RULES[self.kind]
        value = self.source.load(slots)  # type: ignore[union-attr]
        expected, now = rule.expected(self.data), rule.read(value, self.data)
        if rule.same(now, expected):
            return []
        was, is_now = _short(expected), _short(now)
        if was == is_now:
            is_now = (
                "another object"
                if rule.same is operator.is_
                else f"{is_now} of type {type(now).__qualname__}"
            )
        return [f"{rule.facet.format(self.name, self.data)} was {was}, is {is_now}"]


class Quantity(NamedTuple):
    """An integer read at run time: a size or a stride of a tensor, or (what="value") a Python
    int."""

    source: Source
    what: str  # "size" | "stride" | "value"
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


Varying = frozenset[Source | Quantity]
"""Floats, ints and sizes of tensors that were seen to differ from call to call."""


class Plausible(NamedTuple):
    """Which sizes of the arguments' tensors may vary as well, though they were not seen to: those
    beside sizes that vary (`places`), and all those of tensors that no earlier entry has met (all
    but the `known`), as a cache that is None at first."""

    places: frozenset[Quantity] = frozenset()
    known: frozenset[Source] = frozenset()

    def includes(self, size: Quantity) -> bool:
        return size in self.places or size.source not in self.known


_RELATIONS: dict[str, Callable[[int, int], bool]] = {
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
    return [f"{guard.name}.{text}" for text in guard.data.differences(TensorFacts.of(value))]


def _same_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    is_same = guard.source.load(slots) is guard.data.load(slots)  # type: ignore[union-attr]
    wanted = guard.kind is Kind.SAME
    return (
        []
        if is_same == wanted
        else [f"{guard.name} is {guard.data.name} was {wanted}, is {is_same}"]
    )


def _storage_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    other, distance = guard.data
    mine, its = guard.source.load(slots), other.load(slots)  # type: ignore[union-attr]
    if mine.untyped_storage()._cdata != its.untyped_storage()._cdata:
        return [f"{guard.name} and {other.name} shared a storage, and do not"]
    now = its.data_ptr() - mine.data_ptr()
    return (
        []
        if now == distance
        else [f"{other.name} was {distance} bytes after {guard.name}, is {now}"]
    )


def _disjoint_differences(
    guard: Guard, slots: Sequence[Any], _: Mapping[Symbol, Quantity]
) -> list[str]:
    written, others = guard.data
    sources = (*written, *others)
    return [
        f"{sources[i].name} and {sources[j].name} shared no memory, and do"
        for i, j in overlapping([source.load(slots) for source in sources])
        if i < len(written)
    ]


def _shape_differences(
    guard: Guard, slots: Sequence[Any], symbols: Mapping[Symbol, Quantity]
) -> list[str]:
    left, relation, right = guard.data
    used = left.symbols | right.symbols
    values = {symbol: symbols[symbol].load(slots) for symbol in used}
    try:
        if _RELATIONS[relation](left.evaluate(values), right.evaluate(values)):
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


# -- the set ---------------------------------------------------------------------------------------


def _key(guard: Guard) -> tuple[Any, ...]:
    """Equal for guards that state the same fact; data is compared by identity unless it is built
    from plain constants and sources."""
    return guard.kind, guard.source, _data_key(guard.data)


def _data_key(data: Any) -> Any:
    kind = type(data)
    if kind in _COMPARED:
        return kind, data
    if kind is tuple:
        return tuple(map(_data_key, data))
    return data if isinstance(data, (Source, Expr, Kind, type, TensorFacts)) else id(data)


_COMPARED = frozenset({int, str, bool, bytes})


class GuardSet:
    """The facts that an entry relies on, in the order in which they were used; one that is stated
    twice is kept once."""

    def __init__(self) -> None:
        self.symbols: dict[Symbol, Quantity] = {}
        self._guards: dict[tuple[Any, ...], Guard] = {}
        # the keys of those that `set_relations` stated
        self._relations: set[tuple[Any, ...]] = set()
        self.limited: Sequence[Expr] = ()  # what is kept within INTEGERS, besides symbols
        self.conditions: Sequence[ShapeGuard] = ()  # the relations but those that do so

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def __len__(self) -> int:
        return len(self._guards)

    def add(self, source: Source | None, kind: Kind, data: Any = None, where: str = "") -> None:
        """States a fact; what `data` is stands beside each `Kind`. `where` is the user's
        "file:line" that relied on it."""
        key = kind, source, _data_key(data)
        if key in self._guards:
            return
        if kind is Kind.EQUALS and not is_plain_constant(data):
            raise TypeError(
                f"EQUALS cannot guard {type(data).__qualname__}: guard its parts or its identity"
            )
        self._guards[key] = Guard(kind, source, data, where)

    def add_tensor(
        self,
        source: Source,
        tensor: torch.Tensor,
        where: str = "",
        sizes: Sequence[int | Expr] | None = None,
        strides: Sequence[int | Expr] | None = None,
    ) -> None:
        """States the facts of a tensor. A size or stride that is not a constant in `sizes` or
        `strides` is symbolic: a symbol that is new is bound to it, of any other expression the
        run-time value must equal it."""
        facts = TensorFacts.of(tensor)
        if sizes is None and strides is None:
            self.add(source, Kind.TENSOR, facts, where)
            return
        given: dict[str, Sequence[Any]] = {
            "size": sizes or facts.sizes,
            "stride": strides or facts.strides,
        }
        dims = {what: [as_expr(e) for e in exprs] for what, exprs in given.items()}
        fixed = {what: tuple(e.constant for e in exprs) for what, exprs in dims.items()}
        self.add(
            source, Kind.TENSOR, facts._replace(sizes=fixed["size"], strides=fixed["stride"]), where
        )
        for what, exprs in dims.items():
            for dim, expr in enumerate(exprs):
                if expr.constant is None:
                    self._bind_or_equate(Quantity(source, what, dim), expr, where)

    def _bind_or_equate(self, quantity: Quantity, expr: Expr, where: str) -> None:
        if isinstance(expr, Symbol) and self.symbols.get(expr, quantity) == quantity:
            self.bind(expr, quantity, where)
        else:
            observed = size_symbol(quantity.name)
            self.bind(observed, quantity, where)
            self.add_shape(observed, "==", expr, where)

    def bind(self, symbol: Symbol, quantity: Quantity, where: str = "") -> None:
        """Says where a size symbol is read at run time; its bounds become facts. Bound twice, the
        first quantity counts."""
        if symbol in self.symbols:
            return
        self.symbols[symbol] = quantity
        if quantity.what == "value" or symbol.lower > 0:
            self.add_shape(symbol, ">=", as_expr(symbol.lower), where)
        if symbol.upper is not None:
            self.add_shape(symbol, "<=", as_expr(symbol.upper), where)

    def add_shape(self, left: Expr, relation: str, right: Expr, where: str = "") -> None:
        """States a relation between sizes: one of == != < <= > >=. Its symbols must be bound before
        the set is used."""
        self.add(None, Kind.SHAPE, (left, relation, right), where)

    def set_relations(self, relations: Iterable[tuple[Expr, str, Expr, str]]) -> None:
        """States relations between sizes, each with the user's line, in place of those that were
        stated so before."""
        for key in self._relations:
            self._guards.pop(key, None)
        known = set(self._guards)
        for relation in relations:
            self.add_shape(*relation)
        self._relations = self._guards.keys() - known

    def add_global_state(self, where: str = "") -> None:
        """States that the modes around the call are as they are now."""
        if not any(guard.kind is Kind.GLOBAL_STATE for guard in self):
            self.add(None, Kind.GLOBAL_STATE, read_global_state(), where)
            self.add(_LEVEL_OF_DUALS, Kind.EQUALS, forward_ad._current_level, where)

    def adopt(self, other: GuardSet) -> None:
        """States what another capture of the same call relied on, but for relations between its
        size symbols."""
        for guard in other:
            if guard.kind is not Kind.SHAPE:
                self._guards.setdefault(_key(guard), guard)

    # -- use ---------------------------------------------------------------------------------------

    def check_python(self, slots: Sequence[Any]) -> Guard | None:
        """The first guard that fails, in the order of use; None if all hold. The oracle of the
        native walk."""
        return next((guard for guard in self if guard.differences(slots, self.symbols)), None)

    def describe_difference(self, slots: Sequence[Any]) -> str | None:
        """The first fact that differs, for the report: "x.shape[0] was 4, is 8 (model.py:12)". None
        if all hold."""
        for guard in self:
            differences = guard.differences(slots, self.symbols)
            if differences:
                return f"{differences[0]} ({guard.where})" if guard.where else differences[0]
        return None

    def differing_facts(
        self, slots: Sequence[Any], known: dict[tuple[Any, ...], list[str]], limit: int | None
    ) -> list[str] | None:
        """One line for each fact that differs; None if there are `limit` of them or more. What
        facts that other sets have as well come to is looked up in `known`, and left there."""
        found: list[str] = []
        for key, guard in self._guards.items():
            shared = guard.kind is not Kind.SHAPE  # whose symbols are this set's own
            differences = known.get(key) if shared else None
            if differences is None:
                differences = guard.differences(slots, self.symbols)
                if shared:
                    known[key] = differences
            if differences:
                found.append(f"{differences[0]} ({guard.where})" if guard.where else differences[0])
                if limit is not None and len(found) >= limit:
                    return None
        return found

    def changed_floats(self, slots: Sequence[Any]) -> Iterator[Source]:
        """Where another float is now than the one that is relied on."""
        return self._changed(float, slots)

    def _changed(self, cls: type, slots: Sequence[Any]) -> Iterator[Source]:
        for guard in self:
            if (
                guard.kind is Kind.EQUALS
                and type(guard.data) is cls
                and guard.differences(slots, self.symbols)
            ):
                assert guard.source is not None
                try:
                    if type(guard.source.load(slots)) is cls:
                        yield guard.source
                except _LOST:
                    pass

    def changed_integers(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """Where another int is now than the one that is relied on."""
        yield from (Quantity(source, "value") for source in self._changed(int, slots))

    def takes_integers(self) -> bool:
        """Whether ints from outside are symbols."""
        return any(quantity.what == "value" for quantity in self.symbols.values())

    def is_exceeded(self, slots: Sequence[Any]) -> bool:
        """Whether nothing but integers that are too large, or what is computed of them, keeps a
        call out."""
        if not self.takes_integers():
            return False
        try:
            values = {symbol: quantity.load(slots) for symbol, quantity in self.symbols.items()}
            integers = [s for s, quantity in self.symbols.items() if quantity.what == "value"]
            if all(
                INTEGERS[0] <= e.evaluate(values) <= INTEGERS[1] for e in (*integers, *self.limited)
            ):
                return False
            for left, relation, right, _ in self.conditions:
                if not _RELATIONS[relation](left.evaluate(values), right.evaluate(values)):
                    return False
        except _LOST:
            return False
        return not any(
            g.kind is not Kind.SHAPE and g.differences(slots, self.symbols) for g in self
        )

    def changed_sizes(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """Where a tensor has another size now than the one that is relied on, and all else that
        makes it what it is stayed."""
        for guard in self:
            if guard.kind is not Kind.TENSOR:
                continue
            assert guard.source is not None
            try:
                now = TensorFacts.of(guard.source.load(slots))
            except _LOST:
                continue
            if guard.data.is_resized(now):
                for dim, (was, size) in enumerate(zip(guard.data.sizes, now.sizes, strict=True)):
                    if was is not None and was != size:
                        yield Quantity(guard.source, "size", dim)

    def sizes(self) -> dict[Source, tuple[int | None, ...]]:
        """The sizes of tensors that are relied on; None where there are symbols."""
        return {
            g.source: g.data.sizes for g in self if g.kind is Kind.TENSOR and g.source is not None
        }

    def settled_sizes(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """The sizes that are relied on and have stayed, where nothing but other sizes differs."""
        resized = {size.source for size in self.changed_sizes(slots)}
        if all(
            g.kind is Kind.SHAPE or g.source in resized or not g.differences(slots, self.symbols)
            for g in self
        ):
            for source, sizes in self.sizes().items():
                now = source.load(slots).shape
                yield from (
                    Quantity(source, "size", dim)
                    for dim, size in enumerate(sizes)
                    if size == now[dim]
                )

    def sizes_beside_changed(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """The sizes of the tensors that `changed_sizes` finds, and other tensors' first where it is
        theirs as well: so many rows, or samples, there are in all."""
        resized = {size.source for size in self.changed_sizes(slots)}
        given = self.sizes()
        rows = {given[source][0] for source in resized} - {None}
        for source, sizes in given.items():
            if source in resized:
                yield from (Quantity(source, "size", dim) for dim in range(len(sizes)))
            elif sizes and sizes[0] in rows:
                yield Quantity(source, "size", 0)

    def texts(self) -> list[str]:
        """One line for each guard."""
        return [guard.text for guard in self]

    def native_spec(self, inputs: Sequence[Source] = ()) -> dict[str, Any]:
        """What `native.GuardTree` is built from; `inputs` are the sources of the graph's inputs,
        which the walk collects."""
        return _Flattener(self, inputs).spec()


def closest(entries: Sequence[GuardSet], slots: Sequence[Any]) -> str:
    """What told a call from the entry that comes closest to it, for the report: the first of the
    fewest facts that differ, and which of the entries it is where there are several. "" where there
    is none, or one of them holds."""
    # what differs, by fact: entries have most of their facts in common
    known: dict[tuple[Any, ...], list[str]] = {}
    fewest: list[str] | None = None
    place = 0
    for position in reversed(range(len(entries))):  # of those that are equally close, the newest
        differing = entries[position].differing_facts(
            slots, known, len(fewest) if fewest is not None else None
        )
        if differing is not None:
            fewest, place = differing, position + 1
    if not fewest:
        return ""
    more = f", and {len(fewest) - 1} more" if len(fewest) > 1 else ""
    return (
        fewest[0]
        + more
        + (f", since variant {place} of {len(entries)}" if len(entries) > 1 else "")
    )


class _Flattener:
    """Lays the sources of a set out as a list of nodes, parents first, each object visited once.

    The spec: `nodes` [(access, parent or -1, key, checks [(kind, data)])], `relations` [(kind, data
    with node numbers for sources)], `quantities` [(node, what, dim)] giving the table that `shapes`
    [(postfix steps, relation, postfix steps)] read, `inputs` [node], `global_state` (expected,
    reader) or None."""

    def __init__(self, guards: GuardSet, inputs: Sequence[Source]) -> None:
        self.guards, self.inputs = guards, inputs
        self.nodes: list[tuple[str, int, Any, list[tuple[str, Any]]]] = []
        self.positions: dict[tuple[Any, ...], int] = {}
        self.relations: list[tuple[str, tuple[Any, ...]]] = []
        self.shapes: list[tuple[Any, str, Any]] = []
        self.global_state: tuple[Any, Any] | None = None

    def spec(self) -> dict[str, Any]:
        for guard in self.guards:
            _PLACEMENTS.get(guard.kind, _Flattener._place_check)(self, guard)
        used = {symbol for left, _, right in self.shapes for symbol in left.symbols | right.symbols}
        positions = {symbol: position for position, symbol in enumerate(sorted(used, key=str))}
        quantities = [self.guards.symbols[symbol] for symbol in positions]
        return {
            "quantities": [(self.node(q.source), q.what, q.dim) for q in quantities],
            "shapes": [
                (postfix(a, positions), relation, postfix(b, positions))
                for a, relation, b in self.shapes
            ],
            "inputs": [self.node(source) for source in self.inputs],
            "nodes": self.nodes,
            "relations": self.relations,
            "global_state": self.global_state,
        }

    def node(self, source: Source) -> int:
        """The position of a source's node, which is made, after those it depends on, when first
        asked for."""
        parent, access, key = source.step
        token = (source,) if parent is None else (parent, access, _data_key(key))
        if token not in self.positions:
            above = -1 if parent is None else self.node(parent)
            self.positions[token] = len(self.nodes)
            self.nodes.append((access, above, key, []))
        return self.positions[token]

    def _place_check(self, guard: Guard) -> None:
        assert guard.source is not None
        checks = self.nodes[self.node(guard.source)][3]
        # those of one class are one check: its version tag answers for all
        if guard.kind is Kind.CLASS_ATTRIBUTE:
            key, expected = guard.data
            pair = (key, *(() if expected is MISSING else (expected,)))
            for kind, pairs in checks:
                if kind == guard.kind.value:
                    pairs.append(pair)
                    return
            checks.append((guard.kind.value, [pair]))
        else:
            checks.append((guard.kind.value, guard.data))

    def _place_relation(self, guard: Guard) -> None:
        node = self.node
        if guard.kind is Kind.TENSOR_DISJOINT:
            written, others = guard.data
            data: tuple[Any, ...] = (tuple(map(node, written)), tuple(map(node, others)))
        elif guard.kind is Kind.SAME_STORAGE:
            data = (node(guard.source), node(guard.data[0]), guard.data[1])  # type: ignore[arg-type]
        else:
            data = (node(guard.source), node(guard.data))  # type: ignore[arg-type]
        self.relations.append((guard.kind.value, data))

    def _place_shape(self, guard: Guard) -> None:
        self.shapes.append(guard.data)

    def _place_state(self, guard: Guard) -> None:
        self.global_state = guard.data, read_global_state


_PLACEMENTS: dict[Kind, Callable[[_Flattener, Guard], None]] = {
    **dict.fromkeys(
        (Kind.SAME, Kind.DISTINCT, Kind.SAME_STORAGE, Kind.TENSOR_DISJOINT),
        _Flattener._place_relation,
    ),
    Kind.SHAPE: _Flattener._place_shape,
    Kind.GLOBAL_STATE: _Flattener._place_state,
}
