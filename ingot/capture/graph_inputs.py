"""The inputs of a captured graph: the tensors and integers from outside that it takes.

In: a tensor or an integer of this call, and its source. Out: its value, guarded, whose node is a
placeholder. Placeholders stand before all operations, tensors before integers.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ingot.capture.facts import overlapping
from ingot.capture.guards import Kind, Quantity
from ingot.capture.size_marks import marks_of
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.errors import Unsupported
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import storage_key
from ingot.graph.ragged import is_noted, ragged_identity
from ingot.graph.shape_context import Bounds
from ingot.reasons import BREAK, SKIP, STATIC

if TYPE_CHECKING:
    from ingot.capture.session import Session


@dataclass(frozen=True)
class GraphInput:
    """A placeholder of the captured graph: where its tensor or integer is loaded from, and the fake
    tensor or SymInt that stands for it."""

    source: Source
    fake: Any


class _TensorInput(NamedTuple):
    """A tensor that is an input, and the real one of this call."""

    entry: GraphInput
    value: torch.Tensor


class GraphInputs:
    """The inputs of the graph so far. `dynamic` makes the sizes of argument tensors symbolic (None:
    those that are marked or seen to vary; False: none)."""

    def __init__(self, graph: fx.Graph, context: FakeContext, dynamic: bool | None) -> None:
        self.graph, self.context, self.dynamic = graph, context, dynamic
        self.tensors: dict[fx.Node, _TensorInput] = {}
        self.integers: dict[fx.Node, GraphInput] = {}
        self.marked: list[Quantity] = []  # the dimensions that are marked to be symbols
        self.speculative: list[Quantity] = []  # those that are, as they may vary
        # by id of the real tensor, which `tensors` keeps alive
        self._known: dict[int, TensorValue] = {}
        self._numbers: set[Source] = set()
        self._names: set[str] = set()
        self._last = graph._root  # the last placeholder

    def tensor(self, session: Session, tensor: torch.Tensor, source: Source) -> TensorValue:
        """The value of a tensor from outside, guarded; one that is met again on another path is the
        same value."""
        known = self._known.get(id(tensor))
        if known is not None:
            return self._met_again(session, known, source, session.where)
        dims, bounds = self._symbolic_dims(session, tensor, source)
        name, where = source.name, session.where
        try:
            fake = self.context.fake(tensor, dims, name, bounds)
        except Unsupported as reason:
            action = STATIC if dims else BREAK  # no guard tells of symbols yet
            sentence = reason.why.sentence
            if source.is_written:
                sentence = f"{name}: {sentence}"
            raise session.unsupported(reason.why.id, sentence, action=action) from None
        if dims:
            expr = self.context.shapes.to_expr
            sizes, strides = list(map(expr, fake.shape)), list(map(expr, fake.stride()))
            session.guards.add_tensor(source, tensor, where, sizes, strides)
            for size in filter(lambda size: size.source == source, self.speculative):
                self.context.shapes.speculative |= sizes[size.dim].symbols
        else:
            session.guards.add_tensor(source, tensor, where)
        return self._input(session, tensor, GraphInput(source, fake), where)

    def guarded(
        self, session: Session, tensor: torch.Tensor, source: Source, where: str
    ) -> TensorValue:
        """The same of a tensor of constant sizes whose facts are guarded already. `where` is the
        user's line that used it."""
        known = self._known.get(id(tensor))
        if known is not None:
            return self._met_again(session, known, source, where)
        entry = GraphInput(source, self.context.fake(tensor))
        return self._input(session, tensor, entry, where)

    def is_known(self, tensor: torch.Tensor, source: Source) -> bool:
        """Whether a tensor was met on another path."""
        known = self._known.get(id(tensor))
        return known is not None and known.source is not source

    def _met_again(
        self, session: Session, known: TensorValue, source: Source, where: str
    ) -> TensorValue:
        assert known.source is not None
        if source is not known.source:
            session.guards.add(source, Kind.SAME, known.source, where)
        return known

    def _input(
        self, session: Session, tensor: torch.Tensor, entry: GraphInput, where: str
    ) -> TensorValue:
        source, fake = entry.source, entry.fake
        node = self._placeholder(source.name, fake, where)
        self.tensors[node] = _TensorInput(entry, tensor)
        value = self._known[id(tensor)] = TensorValue(fake, node, source, type(tensor))
        session.graph.by_fake[id(fake)] = value
        return value

    def number(self, session: Session, tensor: torch.Tensor, source: Source) -> TensorValue:
        """The value of a tensor that is made of a number from outside; nobody writes it."""
        self._numbers.add(source)
        return self.tensor(session, tensor, source)

    def is_number(self, source: Source) -> bool:
        """Whether an input is made of a number from outside."""
        return source in self._numbers

    def _symbolic_dims(
        self, session: Session, tensor: torch.Tensor, source: Source
    ) -> tuple[frozenset[int], dict[int, Bounds]]:
        """The dimensions whose sizes are to be symbols, and the bounds of those that are marked."""
        if self.dynamic is False:
            return frozenset(), {}
        marks = marks_of(tensor)
        if not (marks or self.dynamic or session.symbols or session.speculative is not None):
            return frozenset(), {}
        sizes = []
        for d in range(tensor.dim()):
            sizes.append(Quantity(source, "size", d))
        symbolic = {size.dim for size in sizes if size in session.symbols}
        if session.is_given(source):
            if self.dynamic:
                symbolic.update(range(tensor.dim()))
            elif session.speculative is not None and not isinstance(tensor, torch.nn.Parameter):
                for size in sizes:
                    is_free = size.dim not in symbolic and size.dim not in marks
                    if is_free and session.speculative.includes(size):
                        self.speculative.append(size)
                        symbolic.add(size.dim)
        bounds = {}
        for d, mark in marks.items():
            if mark is not None:
                bounds[d] = mark
        self.marked += [Quantity(source, "size", d) for d in bounds]
        return frozenset(symbolic - marks.keys() | bounds.keys()), bounds

    def integer(self, session: Session, number: int, source: Source) -> SymIntValue:
        """The value of an int from outside that varies from call to call."""
        symbol, fake = self.context.shapes.integer(number, source.name)
        session.guards.bind(symbol, Quantity(source, "value"), session.where)
        node = self._placeholder(source.name, fake, session.where)
        self.integers[node] = GraphInput(source, fake)
        return SymIntValue.of_node(fake, node)

    def _placeholder(self, name: str, fake: Any, where: str) -> fx.Node:
        """A node for an input, with a name unlike those of the others."""
        base = name = _identifier(name)
        number = itertools.count(1)
        while name in self._names:
            name = f"{base}_{next(number)}"
        self._names.add(name)
        with self.graph.inserting_after(self._last):
            node = self._last = self.graph.placeholder(name)
        node.meta.update(val=fake, where=where)
        return node

    def value_of(self, tensor: TensorValue) -> torch.Tensor:
        """The real tensor of this call behind an input."""
        return self.tensors[tensor.fx_node].value

    # -- the end -----------------------------------------------------------------------------------

    def guard_memory(self, session: Session) -> None:
        """States how the inputs share memory, where one is written or its `.grad` is set.

        Which are disjoint, and which lie where in one storage."""
        inputs = list(self.tensors.values())
        pairs = overlapping([known.value for known in inputs])
        for i, j in pairs:
            (other, its_tensor), (entry, tensor) = inputs[i], inputs[j]
            if any(isinstance(s, torch.SymInt) for s in (*entry.fake.shape, *other.fake.shape)):
                raise session.unsupported(
                    "symbolic-memory",
                    f"{entry.source.name} and {other.source.name} overlap, are written, and are "
                    "symbolic",
                )
            # by way of an array, say
            if tensor.untyped_storage()._cdata != its_tensor.untyped_storage()._cdata:
                raise session.unsupported(
                    "op-writes",
                    f"{entry.source.name} and {other.source.name} share memory that is written, "
                    "and have two storages",
                )
            distance = tensor.data_ptr() - its_tensor.data_ptr()
            session.guard(other.source, Kind.SAME_STORAGE, (entry.source, distance))
            session.guard(other.source, Kind.DISTINCT, entry.source)
        disjoint = dict.fromkeys(known.entry.source for known in inputs)
        for source in (*self._numbers, *(inputs[j].entry.source for _, j in pairs)):
            disjoint.pop(source, None)
        if len(disjoint) > 1:
            session.guards.add(None, Kind.TENSOR_DISJOINT, (tuple(disjoint), ()), session.where)

    def guard_places(self, session: Session) -> None:
        """States where inputs lie in their memory, and how much that is, when it was addressed from
        its beginning."""
        for entry, tensor in self.tensors.values():
            if storage_key(entry.fake) in self.context.addressed:
                session.guard(entry.source, Kind.TENSOR_OFFSET, tensor.storage_offset())
                session.guard(entry.source, Kind.TENSOR_MEMORY, tensor.untyped_storage().nbytes())

    def guard_ragged(self, session: Session) -> None:
        """States that tensors whose nested integers differ here have other ones."""
        entries = []
        for entry, tensor in self.tensors.values():
            if is_noted(entry.fake):
                entries.append((DerivedSource(entry.source, ragged_identity), tensor))
        for j, (source, tensor) in enumerate(entries):
            for other, its_tensor in entries[:j]:
                if ragged_identity(tensor) is ragged_identity(its_tensor):
                    raise session.unsupported(
                        "nested-tensor",
                        "nested tensors of two tensors of offsets that count as one",
                        action=SKIP,
                    )
                session.guard(source, Kind.DISTINCT, other)

    def finish(self) -> list[GraphInput]:
        """Drops placeholders without a use and gives the inputs in their final order."""
        first_operation = self._last.next
        entries = {node: known.entry for node, known in self.tensors.items()} | self.integers
        for node in list(entries):
            if not node.users:
                self.graph.erase_node(node)
                del entries[node]
            elif node in self.integers:
                first_operation.prepend(node)
        return list(entries.values())


_RESERVED = frozenset({"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"})
_RESERVED |= {*dir(builtins), *keyword.kwlist}
"""Names that mean something else in the code of a graph."""

_NO_LETTER = re.compile(r"\W")


def _identifier(name: str) -> str:
    identifier = _NO_LETTER.sub("_", name).strip("_") or "input"
    if identifier in _RESERVED:
        return f"{identifier}_"
    if identifier.isidentifier():
        return identifier
    return f"input_{identifier}"
