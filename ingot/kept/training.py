"""Programs that record gradients, as they are kept: a forward with its contract, and each backward
when it has first been asked for.

What no file has is made of the graph once more: backwards of other tangents, and gradients of
gradients.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ingot.built import Built
from ingot.codegen.store import store_in
from ingot.compilation import Compilation
from ingot.kept.contents import contents_of, found
from ingot.kept.format import packed
from ingot.kept.loading import native_program
from ingot.kept.names import NotKept
from ingot.loops.training_contract import (
    InputSlot,
    Layout,
    OutputGroup,
    OutputSlot,
    Slot,
    TangentSlot,
    TrainingContract,
)
from ingot.runtime.higher_order import CompiledGradients, HigherOrderProgram, Inputs, Kinds
from ingot.runtime.tangents import (
    BackwardGraph,
    CompiledBackward,
    Demand,
    lazy_keys,
    tangents_by_sizes,
)
from ingot.runtime.training import TrainingProgram
from ingot.serial import serial


class Whole(NamedTuple):
    """What compiles the gradients of a graph that was compiled in this process: its `backwards`
    (`gradients.backwards.Backwards`), and the gradients of gradients."""

    backwards: Any
    higher_order: HigherOrderProgram
    compilation: Compilation

    @staticmethod
    def of(program: TrainingProgram, compilation: Compilation) -> Whole:
        return Whole(program.backwards, program.higher_order, compilation)


# -- the contract ----------------------------------------------------------------------------------

_SLOTS: dict[str, type] = {}
for _slot in (InputSlot, OutputSlot, TangentSlot, OutputGroup, Layout, Slot, TrainingContract):
    _SLOTS[_slot.__name__] = _slot


def told(value: Any) -> Any:
    """A contract, or a part of one, as what can be packed."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _told_slot(value, names)
    if isinstance(value, Slot):
        return _told_slot(value, Slot._fields)
    if isinstance(value, frozenset):
        return "set", tuple(sorted(value))
    if isinstance(value, dict):
        if value:
            raise NotKept("sizes vary")
        return ("dict",)
    if isinstance(value, tuple):
        return "tuple", tuple(map(told, value))
    return "value", value


def _told_slot(value: Any, names: Sequence[str]) -> Any:
    parts = []
    for name in names:
        parts.append((name, told(getattr(value, name))))
    return "slot", type(value).__name__, tuple(parts)


def understood(content: Any) -> Any:
    """What was told."""
    kind, *parts = content
    if kind == "slot":
        values = {}
        for name, part in parts[1]:
            values[name] = understood(part)
        return _SLOTS[parts[0]](**values)
    if kind == "set":
        return frozenset(parts[0])
    if kind == "dict":
        return {}
    if kind == "tuple":
        return tuple(map(understood, parts[0]))
    return parts[0]


# -- the forward -----------------------------------------------------------------------------------


def told_training(program: TrainingProgram) -> Any:
    """What a file has of a program that records gradients, beside its forward."""
    contract, backwards = program.contract, program.backwards
    if contract.windows or contract.refused_outputs:
        raise NotKept("results share memory, or have no gradients")
    reads = []
    for k in range(len(contract.tangents)):
        reads.append(tuple(sorted(backwards.saved_for([k]))))
    higher_order = program.higher_order
    return (
        told(contract),
        (backwards.recomputes, backwards.has_effects, tuple(reads)),
        (higher_order.draws, higher_order.hooked),
    )


def training_program(
    forward: Callable[..., Any], content: Any, key: str, whole: Callable[[], Whole]
) -> TrainingProgram:
    """The program of a forward that was kept under this key, of what `told_training` gave; `whole`
    compiles the graph once more."""
    contract, about_backwards, about_gradients = content
    contract = understood(contract)

    def compile_vjp(kinds: Kinds, inputs: Inputs) -> CompiledGradients:
        return whole().higher_order.compile_vjp(kinds, inputs)

    return TrainingProgram(
        forward,
        contract,
        KeptBackwards(key, contract, about_backwards, whole),
        HigherOrderProgram(compile_vjp, contract, *about_gradients),
    )


# -- the backwards ---------------------------------------------------------------------------------


class KeptBackwards:
    """The backwards of one forward: those that are kept, and others, which are compiled and kept.

    `whole` gives the programs that the graph was compiled to.
    """

    def __init__(
        self, key: str, contract: TrainingContract, about: Any, whole: Callable[[], Whole]
    ) -> None:
        self.recomputes, self.has_effects, self._reads = about
        self.tangents = tangents_by_sizes(contract)
        self._key, self._whole = key, whole

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        """Which of the saved values the backward of these tangents may read."""
        needed = frozenset[int]()
        for k in tangents:
            needed = needed.union(self._reads[k])
        return needed

    @serial
    def compile(self, demand: Demand) -> CompiledBackward:
        """The program, and which gradients it computes."""
        store, key = store_in("programs"), self._key_of(demand)
        known = found(store, key, _restored)
        if known is not None:
            return known
        whole = self._whole()
        compiled: CompiledBackward = whole.backwards.compile(demand)
        built = whole.backwards.built_of(compiled)
        if built is not None:
            try:
                store.put(key, _content(compiled, built, whole.compilation))
            except NotKept as reason:
                store.counts.add_not_kept(str(reason))
        return compiled

    def graph(self, demand: Demand, sizes: tuple[int, ...] | None) -> BackwardGraph | None:
        """The same as a graph."""
        graph: BackwardGraph | None = self._whole().backwards.graph(demand, sizes)
        return graph

    def _key_of(self, demand: Demand) -> str:
        present = tuple(demand.present)
        return hashlib.sha256(packed((self._key, present, demand.inputs))).hexdigest()


class Keeping(KeptBackwards):
    """Those of a forward that was compiled in this process."""

    def __init__(self, key: str, contract: TrainingContract, whole: Whole) -> None:
        self.own = whole.backwards
        about = self.own.recomputes, self.own.has_effects, ()
        super().__init__(key, contract, about, lambda: whole)

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        saved: frozenset[int] = self.own.saved_for(tangents)
        return saved


def _content(compiled: CompiledBackward, built: Built, compilation: Compilation) -> bytes:
    """What a file has of a backward."""
    from ingot.kept.description import told_program

    description, code = told_program(built.plan, built.code)
    program = description, code, tuple(compiled.gradient_inputs)
    name = f"{compilation.name}, backward"
    return contents_of(name, compilation.where, len(code[0]), program)


def _restored(program: Any) -> CompiledBackward:
    description, (names, images), gradient_inputs = program
    native = native_program(description, names, images)
    native.lays_out = lazy_keys()  # a hook may have replaced what was saved
    return CompiledBackward(native.consume, gradient_inputs)
