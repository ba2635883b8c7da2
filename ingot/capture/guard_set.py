"""The guards of one entry: a set of facts, and their form for the native walk.

Facts go in as capture uses them; out come texts, differences and the tree that native code walks.
Each fact is there once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.autograd import forward_ad

from ingot.capture.facts import TensorFacts, is_plain_constant, read_global_state
from ingot.capture.guards import LEVEL_OF_DUALS, LOST, MISSING, RELATIONS, Guard, Kind, Quantity
from ingot.capture.sources import Source
from ingot.graph.shape_context import INTEGERS
from ingot.graph.shape_guards import ShapeGuard
from ingot.loops.expr import Expr, Symbol, as_expr, size_symbol
from ingot.loops.postfix import postfix


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
    if isinstance(data, (Source, Expr, Kind, type, TensorFacts)):
        return data
    return id(data)


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

    def add(
        self,
        source: Source | None,
        kind: Kind,
        data: Any = None,
        where: str | Callable[[], str] = "",
    ) -> None:
        """States a fact; what `data` is stands beside each `Kind`. `where` is the user's
        "file:line" that relied on it, or gives that for a fact that is new."""
        key = kind, source, _data_key(data)
        if key in self._guards:
            return
        if kind is Kind.EQUALS and not is_plain_constant(data):
            raise TypeError(
                f"EQUALS cannot guard {type(data).__qualname__}: guard its parts or its identity"
            )
        if not isinstance(where, str):
            where = where()
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
        numbers: dict[str, Sequence[Any]] = {
            "size": sizes or facts.sizes,
            "stride": strides or facts.strides,
        }
        dims = {what: list(map(as_expr, exprs)) for what, exprs in numbers.items()}
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
            self.add(LEVEL_OF_DUALS, Kind.EQUALS, forward_ad._current_level, where)

    def adopt(self, other: GuardSet) -> None:
        """States what another capture of the same call relied on, but for relations between its
        size symbols."""
        for guard in other:
            if guard.kind is not Kind.SHAPE:
                self._guards.setdefault(_key(guard), guard)

    def drop(self, guards: Iterable[Guard]) -> None:
        """No longer states these facts."""
        for guard in guards:
            del self._guards[_key(guard)]

    # -- use ---------------------------------------------------------------------------------------

    def check_python(self, slots: Sequence[Any]) -> Guard | None:
        """The first guard that fails, in the order of use; None if all hold. The oracle of the
        native walk."""
        return next((guard for guard in self if guard.differences(slots, self.symbols)), None)

    def describe_difference(self, slots: Sequence[Any]) -> str | None:
        """The first fact that differs, for the report: "x.shape[0] was 4, is 8 (model.py:12)". None
        if all hold."""
        guard = self.check_python(slots)
        if guard is None:
            return None
        return _with_line(guard.differences(slots, self.symbols)[0], guard)

    def differing_facts(
        self, slots: Sequence[Any], known: dict[tuple[Any, ...], list[str]], limit: int | None
    ) -> list[str] | None:
        """One line for each fact that differs; None if there are `limit` of them or more. What
        facts that other sets have as well come to is looked up in `known`, and left there."""
        lines: list[str] = []
        for key, guard in self._guards.items():
            differences = known.get(key)
            if differences is None:
                differences = guard.differences(slots, self.symbols)
                if guard.kind is not Kind.SHAPE:  # whose symbols are this set's own
                    known[key] = differences
            if differences:
                lines.append(_with_line(differences[0], guard))
                if limit is not None and len(lines) >= limit:
                    return None
        return lines

    def changed_floats(self, slots: Sequence[Any]) -> Iterator[Source]:
        """Where another float is now than the one that is relied on."""
        return self._changed(float, slots)

    def _changed(self, cls: type, slots: Sequence[Any]) -> Iterator[Source]:
        for guard in self:
            if guard.kind is not Kind.EQUALS or type(guard.data) is not cls:
                continue
            if guard.differences(slots, self.symbols):
                assert guard.source is not None
                with suppress(LOST):
                    if type(guard.source.load(slots)) is cls:
                        yield guard.source

    def changed_integers(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """Where another int is now than the one that is relied on."""
        for source in self._changed(int, slots):
            yield Quantity(source, "value")

    def integers(self) -> Iterator[Source]:
        """The ints that are relied on."""
        for guard in self:
            if guard.kind is Kind.EQUALS and type(guard.data) is int and guard.source is not None:
                yield guard.source

    def takes_integers(self) -> bool:
        """Whether ints from outside are symbols."""
        return any(quantity.what == "value" for quantity in self.symbols.values())

    def is_exceeded(self, slots: Sequence[Any]) -> bool:
        """Whether nothing but integers that are too large, or what is computed of them, keeps a
        call out."""
        if not self.takes_integers():
            return False
        try:
            values = {}
            for symbol, quantity in self.symbols.items():
                values[symbol] = quantity.load(slots)
            integers = []
            for s, quantity in self.symbols.items():
                if quantity.what == "value":
                    integers.append(s)
            if all(
                INTEGERS[0] <= e.evaluate(values) <= INTEGERS[1] for e in (*integers, *self.limited)
            ):
                return False
            for left, relation, right, _ in self.conditions:
                if not RELATIONS[relation](left.evaluate(values), right.evaluate(values)):
                    return False
        except LOST:
            return False
        return self._holds_but_for(frozenset(), slots)

    def _holds_but_for(self, resized: Collection[Source | None], slots: Sequence[Any]) -> bool:
        """Whether all but the relations between sizes and the facts of some tensors hold."""
        for guard in self:
            if guard.kind is Kind.SHAPE or guard.source in resized:
                continue
            if guard.differences(slots, self.symbols):
                return False
        return True

    def changed_sizes(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """Where a tensor has another size now than the one that is relied on, and all else that
        makes it what it is stayed."""
        for guard in self:
            if guard.kind is not Kind.TENSOR:
                continue
            assert guard.source is not None
            try:
                now = TensorFacts.of(guard.source.load(slots))
            except LOST:
                continue
            if guard.data.is_resized(now):
                for dim, (was, size) in enumerate(zip(guard.data.sizes, now.sizes, strict=True)):
                    if was is not None and was != size:
                        yield Quantity(guard.source, "size", dim)

    def sizes(self) -> dict[Source, tuple[int | None, ...]]:
        """The sizes of tensors that are relied on; None where there are symbols."""
        sizes = {}
        for guard in self:
            if guard.kind is Kind.TENSOR and guard.source is not None:
                sizes[guard.source] = guard.data.sizes
        return sizes

    def settled_sizes(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """The sizes that are relied on and have stayed, where nothing but other sizes differs."""
        if not self._holds_but_for(self._resized(slots), slots):
            return
        for source, sizes in self.sizes().items():
            for dim, now in enumerate(source.load(slots).shape):
                if sizes[dim] == now:
                    yield Quantity(source, "size", dim)

    def _resized(self, slots: Sequence[Any]) -> set[Source | None]:
        return {size.source for size in self.changed_sizes(slots)}

    def sizes_beside_changed(self, slots: Sequence[Any]) -> Iterator[Quantity]:
        """The sizes of the tensors that `changed_sizes` finds, and alike first sizes of others.

        So many rows, or samples, there are in all."""
        resized, tensors = self._resized(slots), self.sizes()
        rows = {sizes[0] for source, sizes in tensors.items() if source in resized} - {None}
        for source, sizes in tensors.items():
            for dim in range(len(sizes)):
                if source in resized or dim == 0 and sizes[0] in rows:
                    yield Quantity(source, "size", dim)

    def texts(self) -> list[str]:
        """One line for each guard."""
        return [guard.text for guard in self]

    def native_spec(self, inputs: Sequence[Source] = ()) -> dict[str, Any]:
        """What `native.GuardTree` is built from; `inputs` are the sources of the graph's inputs,
        which the walk collects."""
        return _Flattener(self, inputs).spec()


def _with_line(fact: str, guard: Guard) -> str:
    """A fact with the user's line that relies on it."""
    if guard.where:
        return f"{fact} ({guard.where})"
    return fact


def closest(entries: Sequence[GuardSet], slots: Sequence[Any]) -> str:
    """What tells a call from the entry that comes closest to it, for the report.

    It is the first of the fewest facts that differ, and which of the entries it is where there are
    several. "" where there is none, or one of them holds."""
    # what differs, by fact: entries have most of their facts in common
    known: dict[tuple[Any, ...], list[str]] = {}
    fewest: list[str] | None = None
    place = 0
    limit: int | None = None
    for position in reversed(range(len(entries))):  # of those that are equally close, the newest
        differing = entries[position].differing_facts(slots, known, limit)
        if differing is not None:
            fewest, limit, place = differing, len(differing), position + 1
    if not fewest:
        return ""
    text = fewest[0]
    if len(fewest) > 1:
        text += f", and {len(fewest) - 1} more"
    if len(entries) > 1:
        text += f", since variant {place} of {len(entries)}"
    return text


class _Flattener:
    """Lays the sources of a set out as a list of nodes, parents first, each object visited once.

    The spec: `nodes` [(access, parent or -1, key, checks [(kind, data)])], `relations` [(kind, data
    with node numbers for sources)], `quantities` [(node, what, dim)] giving the table that `shapes`
    [(postfix steps, relation, postfix steps)] read, `inputs` [node], `global_state` (expected,
    reader) or None."""

    def __init__(self, guards: GuardSet, inputs: Sequence[Source]) -> None:
        self.guards, self.inputs = guards, inputs
        self.nodes: list[tuple[str, int, Any, list[tuple[str, Any]]]] = []
        self.positions: dict[tuple[Any, ...], int] = {}  # by step
        self.known: dict[Source, int] = {}  # several may have the same step
        self.relations: list[tuple[str, tuple[Any, ...]]] = []
        self.shapes: list[tuple[Any, str, Any]] = []
        self.global_state: tuple[Any, Any] | None = None

    def spec(self) -> dict[str, Any]:
        for guard in self.guards:
            _PLACEMENTS.get(guard.kind, _Flattener._place_check)(self, guard)
        used = set[Symbol]()
        for left, _, right in self.shapes:
            used |= left.symbols | right.symbols
        positions = {}
        for position, symbol in enumerate(sorted(used, key=str)):
            positions[symbol] = position
        quantities = []
        for symbol in positions:
            quantities.append(self.guards.symbols[symbol])
        places = []
        for q in quantities:
            places.append((self.node(q.source), q.what, q.dim))
        shapes = []
        for a, how, b in self.shapes:
            shapes.append((postfix(a, positions), how, postfix(b, positions)))
        return {
            "quantities": places,
            "shapes": shapes,
            "inputs": list(map(self.node, self.inputs)),
            "nodes": self.nodes,
            "relations": self.relations,
            "global_state": self.global_state,
        }

    def node(self, source: Source) -> int:
        """The position of a source's node, which is made, after those it depends on, when first
        asked for."""
        position = self.known.get(source)
        if position is None:
            position = self.known[source] = self._node_of_step(source)
        return position

    def _node_of_step(self, source: Source) -> int:
        parent, access, key = source.step
        token: tuple[Any, ...] = (source,)
        if parent is not None:
            token = parent, access, _data_key(key)
        if token not in self.positions:
            above = -1
            if parent is not None:
                above = self.node(parent)
            self.positions[token] = len(self.nodes)
            self.nodes.append((access, above, key, []))
        return self.positions[token]

    def _place_check(self, guard: Guard) -> None:
        source, check, data = guard.native_check
        checks = self.nodes[self.node(source)][3]
        # those of one class are one check: its version tag answers for all
        if guard.kind is Kind.CLASS_ATTRIBUTE:
            if data[1] is MISSING:
                data = data[:1]
            for kind, pairs in checks:
                if kind == check:
                    pairs.append(data)
                    return
            data = [data]
        checks.append((check, data))

    def _place_relation(self, guard: Guard) -> None:
        node, data = self.node, guard.data
        if guard.kind is Kind.TENSOR_DISJOINT:
            data = tuple([tuple(map(node, sources)) for sources in data])
        elif guard.kind is Kind.SAME_STORAGE:
            data = (node(guard.source), node(data[0]), data[1])  # type: ignore[arg-type]
        else:
            data = (node(guard.source), node(data))  # type: ignore[arg-type]
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
