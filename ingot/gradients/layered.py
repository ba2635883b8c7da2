"""Programs that record gradients and have many layers that are alike: their forwards and backwards
are made of graphs with a few of the layers.

A graph with some layers and its partition go in. Out come the contract of the whole program, the
layers that forward and backward leave out, and the backwards of the whole program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingot.built import Built
from ingot.compilation import Compilation, Log
from ingot.gradients.backwards import Backwards, Begin, GraphOfBackward
from ingot.gradients.captured_graph import CapturedGraph
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.joint import JointGraph
from ingot.graph.longer import in_all_layers, repeated
from ingot.graph.partition import Partition, gradient_inputs_of
from ingot.loops.ir import LoopGraph
from ingot.loops.layers import Layers, NotAlike, Row
from ingot.loops.training_contract import InputSlot, Slot, TrainingContract
from ingot.runtime.tangents import Backward, CompiledBackward, Demand, Tangents, WithZeros
from ingot.serial import serial


@dataclass(frozen=True)
class Whole:
    """What the program has, of which `cut` has some layers.

    `forward` says what the graph of the forward leaves out. The backward's first arguments are the
    `saved` values: those of the graph are at the positions `saved_at`, and `saved_rows` are what
    the layers save in one place.
    """

    cut: Partition
    forward: Layers
    contract: TrainingContract
    saved_at: tuple[int, ...]
    saved_rows: tuple[Row, ...]

    @classmethod
    def of(cls, cut: Partition, layers: Layers) -> Whole:
        """Raises `NotAlike` where the graphs do not tell what all layers need."""
        contract = cut.contract()
        _require_simple(contract, cut, layers)
        forward = _with_kept(cut, layers)
        saving = _Saving(forward, contract)
        saved, inputs = tuple(saving.all(cut.saved)), _input_slots(contract, layers)
        of_all = replace(contract, inputs=inputs, saved=saved)
        whole = cls(cut, forward, of_all, tuple(saving.places), tuple(saving.rows))
        repeated(cut.backward, whole.backward(cut.backward, contract.gradient_inputs))
        for k in range(len(contract.tangents)):
            whole.inputs(gradient_inputs_of(cut, [k]))
        return whole

    @property
    def copies(self) -> tuple[int, ...]:
        """How many of the program's saved values each one of the graph stands for, itself
        included."""
        counts = [1] * len(self.saved_at)
        for row in self.saved_rows:
            last = self.saved_at.index(row[len(row) - self.forward.left_out - 1])
            counts[last] += self.forward.left_out
        return tuple(counts)

    def backward(self, aten: AtenGraph, gradient_inputs: Sequence[int]) -> Layers:
        """What the graph of a backward leaves out, that gives the gradients of some inputs of the
        forward's graph."""
        first, behind = len(self.contract.saved), len(aten.inputs) - len(self.saved_at)
        position = {k: place for place, k in enumerate(self.inputs(gradient_inputs))}
        rows = []
        for row in self.forward.input_rows:
            if row[0] in position:
                rows.append(tuple(map(position.__getitem__, row)))
        return Layers(
            self.forward.left_out,
            (*self.saved_at, *range(first, first + behind)),
            self.saved_rows,
            tuple([position[self.forward.inputs[k]] for k in gradient_inputs]),
            tuple(rows),
        )

    def inputs(self, positions: Iterable[int]) -> list[int]:
        """Some inputs of the forward's graph, and those of the program that are like them. Raises
        `NotAlike` where only some layers' are among them."""
        result = {self.forward.inputs[k] for k in positions}
        for row in self.forward.input_rows:
            shown = result.intersection(self.forward.shown(row))
            if shown and len(shown) != len(self.forward.shown(row)):
                raise NotAlike("some layers have gradients")
            if shown:
                result.update(row)
        return sorted(result)

    def saved_values(self, positions: Iterable[int]) -> frozenset[int]:
        """Some of the saved values, and those of other layers that are like them."""
        result = {self.saved_at[k] for k in positions}
        for row in self.saved_rows:
            if not result.isdisjoint(row):
                result.update(row)
        return frozenset(result)


def _require_simple(contract: TrainingContract, cut: Partition, layers: Layers) -> None:
    special = contract.windows, contract.groups, contract.refused_outputs, contract.rebased_inputs
    if any(special) or cut.decided or cut.symbols or layers.output_rows:
        raise NotAlike("outputs share memory, or have histories of their own")
    if contract.user_outputs != len(contract.outputs):
        raise NotAlike("there is memory that only views show")


def _with_kept(cut: Partition, layers: Layers) -> Layers:
    """The layers that the forward leaves out, with what it keeps for the backward."""
    known = len(layers.outputs)
    outputs, rows = list(layers.outputs), []
    chains = {k: chain for chain in repeated(cut.forward, layers).chains() for k in chain}
    end, placed = known, dict[int, int]()
    for k in range(known, len(cut.forward.outputs)):
        chain = chains.get(k, [k])
        if k in placed:
            continue
        length = len(chain) + (layers.left_out if k in chains else 0)
        row = tuple(range(end, end + length))
        placed.update(zip(chain, row))
        if k in chains:
            rows.append(row)
        end += length
    for k in range(known, len(cut.forward.outputs)):
        outputs.append(placed[k])
    return replace(layers, outputs=tuple(outputs), output_rows=(*layers.output_rows, *rows))


class _Saving:
    """Finds the saved values of a program from those of some layers."""

    def __init__(self, forward: Layers, contract: TrainingContract) -> None:
        self.forward, self.outputs = forward, len(contract.outputs)
        self.rows: list[Row] = []
        self.places: list[int] = []

    def all(self, saved: Sequence[Slot]) -> list[Slot]:
        """The slots of the program."""
        where = {slot: k for k, slot in enumerate(saved)}
        slots, placed = list[Slot](), dict[Slot, int]()
        for slot in saved:
            if slot in placed:
                continue
            row = self._row(slot)
            if len(row) > 1:
                shown = row[: len(row) - self.forward.left_out]
                own = [self._own_slot(each) for each in shown]
                if not all(each in where for each in own):
                    raise NotAlike("some layers save what others do not")
                placed.update(zip(own, range(len(slots), len(slots) + len(own))))
                self.rows.append(tuple(range(len(slots), len(slots) + len(row))))
            else:
                placed[slot] = len(slots)
            slots += row
        self.places = [placed[slot] for slot in saved]
        return slots

    def _row(self, slot: Slot) -> list[Slot]:
        """The slots of the program that one of the graph stands for."""
        if slot.role == "input":
            position, rows, first = self.forward.inputs[slot.position], self.forward.input_rows, 0
        else:
            first = self.outputs if slot.role == "kept" else 0
            position = self.forward.outputs[slot.position + first]
            rows = self.forward.output_rows
        for row in rows:
            if position in row:
                return [Slot(slot.role, k - first) for k in row]
        return [Slot(slot.role, position - first)]

    def _own_slot(self, slot: Slot) -> Slot:
        """The slot of the graph at a slot of the program."""
        if slot.role == "input":
            return Slot("input", self.forward.inputs.index(slot.position))
        first = self.outputs if slot.role == "kept" else 0
        return Slot(slot.role, self.forward.outputs.index(slot.position + first) - first)


def _input_slots(contract: TrainingContract, layers: Layers) -> tuple[InputSlot, ...]:
    """The contract's slots of all inputs of the program."""
    slots: dict[int, InputSlot] = {}
    for slot in contract.inputs:
        place = layers.inputs[slot.position]
        slots[place] = replace(slot, position=place)
    for row in layers.input_rows:
        of_row = [slots[k] for k in layers.shown(row)]
        if any(replace(slot, position=row[0]) != of_row[0] for slot in of_row):
            raise NotAlike("the inputs of some layers are other ones than those of others")
        for k in row:
            slots[k] = replace(of_row[0], position=k)
    return tuple([slots[k] for k in range(len(slots))])


# -- the backwards ---------------------------------------------------------------------------------


Lower = Callable[[AtenGraph], LoopGraph]
"""Lowers a graph as it is done for the program."""


def show_whole(log: Log, whole: Callable[[], AtenGraph], lower: Lower) -> None:
    """Has a report show the graphs with all layers."""

    def show(log: Log) -> None:
        log.aten = aten = whole()
        log.loops, log.longer = lower(aten), True

    log.compile_again = show


class _OfSomeLayers(Backwards):
    """The backwards of the graph, which build those of the program."""

    def __init__(self, whole: Whole, lower: Lower, *args: Any) -> None:
        super().__init__(*args)
        self.whole, self._lower = whole, lower
        self.wanted: Sequence[int] = self.contract.gradient_inputs

    def whole_inputs(self, present: tuple[bool, ...]) -> list[int]:
        """The inputs of the program that have a gradient where these tangents come in."""
        try:
            return self.whole.inputs(self.gradient_inputs(Demand(present)))
        except NotAlike:
            tangents = itertools.compress(range(len(present)), present)
            return self.whole.inputs(gradient_inputs_of(self.cut, tangents))

    def _with_zeros(self, demand: Demand, inputs: Sequence[int]) -> Backward:
        position = self.whole.contract.gradient_inputs.index
        results = list(map(position, self.whole_inputs(demand.present)))
        return WithZeros(self._run_whole, self.tangents, demand.present, results)

    def _compile_partial(self, graph: AtenGraph, demand: Demand) -> Backward:
        inputs = self.gradient_inputs(demand)
        try:
            repeated(graph, self.whole.backward(graph, inputs))
        except NotAlike:
            return self._with_zeros(demand, inputs)
        before, self.wanted = self.wanted, inputs
        try:
            return super()._compile_partial(graph, demand)
        finally:
            self.wanted = before

    def _program_of(self, aten: AtenGraph, compilation: Compilation) -> Backward:
        aten.layers = self.whole.backward(aten, self.wanted)
        whole = functools.partial(in_all_layers, aten, aten.layers)
        try:
            run = self._compiled(aten, compilation)
        except Exception:  # with all layers it may be compiled, and can be run in eager
            return super()._program_of(whole(), compilation)
        show_whole(compilation.log, whole, self._lower)
        return run


class LayeredBackwards:
    """The backwards of a whole program: see `Backwards`."""

    recomputes = has_effects = False

    def __init__(
        self,
        whole: Whole,
        graph: CapturedGraph,
        compilation: Compilation,
        begin: Begin,
        lower: Lower,
    ) -> None:
        cut = whole.cut
        self.whole, self.contract = whole, whole.contract
        contract = cut.contract()
        self._some = _OfSomeLayers(whole, lower, graph, cut, contract, compilation, begin)
        if self._some.recomputes or self._some.has_effects:
            raise NotAlike("a backward has effects")
        self.joint: JointGraph = cut.joint
        self.tangents: Tangents = self._some.tangents
        self._aten = functools.cache(self._whole_graph)

    def _whole_graph(self) -> AtenGraph:
        aten, wanted = self.whole.cut.backward, self._some.contract.gradient_inputs
        return in_all_layers(aten, self.whole.backward(aten, wanted))

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        return self.whole.saved_values(self._some.saved_for(tangents))

    def built_of(self, compiled: CompiledBackward) -> Built | None:
        return self._some.built_of(compiled)

    def least(self, demand: Demand) -> Demand:
        for_all = Demand(demand.present)
        if demand.inputs is None or set(self.gradient_inputs(for_all)).issubset(demand.inputs):
            return for_all
        return demand

    def gradient_inputs(self, demand: Demand) -> Sequence[int]:
        """The inputs that have a gradient then."""
        of_all = self._some.whole_inputs(demand.present)
        if demand.inputs is None:
            return of_all
        return [k for k in of_all if k in demand.inputs]

    @serial
    def compile(self, demand: Demand) -> CompiledBackward:
        """The program, which computes the gradients of all inputs."""
        for_all = Demand(demand.present)
        compiled = self._some.compile(for_all)
        return CompiledBackward(compiled.run, self.gradient_inputs(for_all))

    @serial
    def graph(self, demand: Demand, sizes: tuple[int, ...] | None) -> GraphOfBackward:
        wanted = self.gradient_inputs(demand)
        picked = [self.contract.gradient_inputs.index(k) for k in wanted]
        return GraphOfBackward(self._aten(), (True,) * len(demand.present), picked, wanted)
