"""The backward programs of one forward.

A captured graph and its partition go in. Out come programs, one for each choice of tangents that
come in and of inputs whose gradients are asked for. Each is compiled when it is first asked for.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ingot import events
from ingot.built import Built
from ingot.collection import paused_collection
from ingot.compilation import Compilation, Log
from ingot.errors import Unsupported, unsupported
from ingot.gradients.captured_graph import CapturedGraph
from ingot.gradients.eager_backward import TriedAgain, run_in_eager, unsupported_by
from ingot.graph.ambient import Modes, preserved
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.differentiation import without_autocast
from ingot.graph.joint import JointGraph
from ingot.graph.module_hooks import tells_none
from ingot.graph.partition import Partition, gradient_inputs_of, partial_backward, saved_for
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.lockstep import announce, calls_of
from ingot.loops.expr import Symbol
from ingot.loops.side_effects import has_effect
from ingot.loops.training_contract import TrainingContract
from ingot.runtime.by_sizes import BySizes
from ingot.runtime.tangents import (
    Backward,
    CompiledBackward,
    Demand,
    ForSizes,
    Tangents,
    WithZeros,
    lazy_keys,
    tangents_by_sizes,
)
from ingot.sequences import at
from ingot.serial import serial

MOST_CHOICES = 8
"""Of inputs whose gradients are asked for, each with a backward of its own that computes no
others."""


class Building(Protocol):
    """An ATen graph that is being compiled (`pipeline.Building`)."""

    def advance(self) -> bool:
        """Takes the next step; whether there was one."""

    def finish(self) -> Built:
        """Takes all that are left."""


Begin = Callable[[AtenGraph, Log], Building]
"""Begins to compile an ATen graph."""


class GraphOfBackward(NamedTuple):
    """A backward as a graph.

    `aten` takes what the forward saves, the tangents that it `takes` (zeros where none came in),
    and the values of the size symbols. The `picked` ones of its results are the gradients of
    `gradient_inputs`.
    """

    aten: AtenGraph
    takes: tuple[bool, ...]
    picked: Sequence[int]
    gradient_inputs: Sequence[int]

    def by_eager(
        self, saved: list[Any], tangents: Sequence[Any], sizes: Sequence[int]
    ) -> Sequence[Any]:
        """The gradients, by eager's operations."""
        arguments = [*saved, *itertools.compress(tangents, self.takes), *sizes]
        results = run_in_eager(self.aten)(arguments)
        return at(results, self.picked)


class Backwards:
    """The backward programs of a forward, each compiled when it is first met.

    There is one for each choice of tangents that come in, and of inputs whose gradients are asked
    for. Where what the forward saves for all tangents does not suffice for some of them, the
    gradients are computed from the inputs if it `recomputes`; else the other tangents are zeros.
    """

    def __init__(
        self,
        graph: CapturedGraph,
        cut: Partition,
        contract: TrainingContract,
        compilation: Compilation,
        begin: Begin,
    ) -> None:
        self.cut, self.joint, self.contract = cut, cut.joint, contract
        self.recomputes = any(tells_none(node.target) for node in graph.module.graph.nodes)
        self.has_effects = any(has_effect(node.target) for node in cut.backward.graph.nodes)
        self.tangents: Tangents = tangents_by_sizes(contract)
        self._trace = serial(functools.partial(graph.trace_partial, cut.joint))
        self._partial_joint = functools.cache(self._trace)
        self.gradient_inputs = functools.cache(self._find_gradient_inputs)
        self._compilation, self._begin = compilation, begin
        self._begun: Building | Exception | None = None  # for all tangents, or why it cannot be
        self._name = f"{compilation.name}, backward"
        self._whole = compilation.backward = self._new_compilation(self._name, cut.backward)
        self._whole.log.compile_again = self._compile_for_report
        self._program: Backward | None = None
        self._built = list[Built]()
        # choices of inputs that have programs of their own
        self._of_inputs = set[tuple[int, ...]]()

    def _new_compilation(self, name: str, aten: AtenGraph) -> Compilation:
        return Compilation(name, self._compilation.where, log=Log(aten=aten))

    def plan_ahead(self, is_awaited: Callable[[], bool]) -> None:
        """Plans the backward that will be asked for, as long as something else `is_awaited`: its
        kernels are begun, and nobody waits for them. What fails is raised where it is asked for.

        That is the backward of all tangents. If there are several, maybe not all will come in.
        """
        if len(self.contract.tangents) != 1 or not self.contract.gradient_inputs:
            return
        try:
            if is_awaited():
                with preserved():
                    # as where autograd asks for it
                    without_autocast(Modes.now())._replace(grad=False).set()
                    begun = self._begun = self._begin(self.cut.backward, self._whole.log)
                    while is_awaited() and begun.advance():
                        pass
        except Exception as problem:
            self._begun = problem

    def _building(self, aten: AtenGraph, log: Log) -> Building:
        """What compiles a graph, with the steps behind it that were taken ahead."""
        if aten is not self.cut.backward or self._begun is None:
            return self._begin(aten, log)
        begun, self._begun = self._begun, None
        if isinstance(begun, Exception):
            raise begun
        return begun

    def _compile_for_report(self, log: Log) -> None:
        """Has a report show the backward of all tangents, which nobody may have asked for yet."""
        _ = self._run_whole

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        """Which of the saved values the backward of these tangents may read."""
        return saved_for(self.cut, tangents)

    @serial
    def _find_gradient_inputs(self, demand: Demand) -> Sequence[int]:
        """The inputs that have a gradient then."""
        if demand.is_whole:
            return self.contract.gradient_inputs
        try:
            return self._partial_joint(demand).contract.gradient_inputs
        except Unsupported:  # a size is asked about that the joint graph does not depend on
            hints = {}
            for symbol in self.cut.symbols:
                hints[symbol] = self._shapes.hints[symbol]
        try:  # which they are is no matter of sizes: those of the first call will do
            joint, _ = self._shapes.supposing(hints, functools.partial(self._trace, demand))
            return joint.contract.gradient_inputs
        except Unsupported:
            present = itertools.compress(range(len(demand.present)), demand.present)
            inputs = gradient_inputs_of(self.cut, present)
        results = []
        for k in inputs:
            if demand.inputs is None or k in demand.inputs:
                results.append(k)
        return results

    def built_of(self, compiled: CompiledBackward) -> Built | None:
        """What a backward was built to, if it is one program of its own."""
        for built in self._built:
            if built.run.consume == compiled.run:
                return built
        return None

    def least(self, demand: Demand) -> Demand:
        """The same demand, for all inputs if its own are all that have a gradient then."""
        for_all = Demand(demand.present)
        if demand.inputs is None or set(self.gradient_inputs(for_all)).issubset(demand.inputs):
            return for_all
        return demand

    @serial
    def compile(self, demand: Demand) -> CompiledBackward:
        """The program, and which gradients it computes: where many choices of inputs are asked for,
        those of the others too."""
        demand = self.least(demand)
        if demand.inputs is not None and not self.has_effects:
            self._of_inputs.add(demand.inputs)
            if len(self._of_inputs) > MOST_CHOICES:
                demand = Demand(demand.present)
        return CompiledBackward(self._compile(demand), self.gradient_inputs(demand))

    def _compile(self, demand: Demand) -> Backward | None:
        if demand.is_whole:
            return self._run_whole
        inputs = self.gradient_inputs(demand)
        try:
            graph, _ = self._graph_by(self._partial_joint, demand)
        except Unsupported:
            if self.recomputes:
                return None
            return self._compile_for_sizes(demand, inputs)
        if graph is not None:
            return self._compile_partial(graph, demand)
        if self.recomputes:
            return None
        return self._with_zeros(demand, inputs)

    @serial
    def graph(self, demand: Demand, sizes: tuple[int, ...] | None) -> GraphOfBackward | None:
        """The same as a graph, for these sizes if there are any. Raises Unsupported where it
        depends on them."""
        demand = self.least(demand)
        if demand.is_whole:
            return self._graph_of_whole(demand.present, self.contract.gradient_inputs)
        graph, inputs = self._graph_at(demand, sizes)
        if graph is not None:
            return GraphOfBackward(graph, demand.present, range(len(inputs)), inputs)
        if self.recomputes:
            return None
        return self._graph_of_whole((True,) * len(demand.present), inputs)

    def _graph_at(
        self, demand: Demand, sizes: tuple[int, ...] | None
    ) -> tuple[AtenGraph | None, Sequence[int]]:
        try:
            return self._graph_by(self._partial_joint, demand)
        except Unsupported:
            if sizes is None:
                raise
        values = dict(zip(self.tangents.places, sizes))
        try:
            ask = functools.partial(self._graph_by, self._trace, demand)
            return self._shapes.supposing(values, ask)[0]
        except Unsupported:
            return None, self.gradient_inputs(demand)

    def _graph_by(
        self, trace: Callable[[Demand], JointGraph], demand: Demand
    ) -> tuple[AtenGraph | None, Sequence[int]]:
        """The graph of a partial backward, None where what is saved does not suffice, and the
        inputs that it has gradients of."""
        joint = trace(demand)
        return partial_backward(self.cut, joint), joint.contract.gradient_inputs

    def _graph_of_whole(self, takes: tuple[bool, ...], inputs: Sequence[int]) -> GraphOfBackward:
        return GraphOfBackward(self.cut.backward, takes, self._results_for(inputs), inputs)

    def _results_for(self, inputs: Sequence[int]) -> Sequence[int]:
        """Where the whole backward has the gradients of these inputs."""
        results = []
        for k in inputs:
            results.append(self.contract.gradient_inputs.index(k))
        return results

    @property
    def _shapes(self) -> ShapeContext:
        return self.joint.aten.shapes

    @property
    def _run_whole(self) -> Backward:
        # compiled in no cached_property, which has a lock of its own in Python 3.11
        if self._program is None:
            self._program = self._program_of(self.cut.backward, self._whole)
        return self._program

    def _with_zeros(self, demand: Demand, inputs: Sequence[int]) -> Backward:
        results = self._results_for(inputs)
        return WithZeros(self._run_whole, self.tangents, demand.present, results)

    def _compile_partial(self, graph: AtenGraph, demand: Demand) -> Backward:
        name = self._name
        if not all(demand.present):
            outputs = itertools.compress(self.contract.differentiable_outputs, demand.present)
            name = f"{name} of outputs {', '.join(map(str, outputs))}"
        if demand.inputs is not None:
            name = f"{name} for inputs {', '.join(map(str, demand.inputs))}"
        compilation = self._new_compilation(name, graph)
        self._compilation.partial_backwards.append(compilation)
        return self._program_of(graph, compilation)

    def _compile_for_sizes(self, demand: Demand, inputs: Sequence[int]) -> Backward:
        """A program for each answer to what only this part asks of the sizes."""
        programs: list[tuple[list[ShapeGuard], Backward]] = []

        def compile_traced() -> Backward:
            graph, gradient_inputs = self._graph_by(self._trace, demand)
            if graph is None or gradient_inputs != inputs:
                raise unsupported("backward-sizes", "what is kept for other sizes")
            return self._compile_partial(graph, demand)

        @serial
        def for_sizes(sizes: Mapping[Symbol, int]) -> Backward:
            for guards, run in programs:
                if all(guard.holds(sizes) for guard in guards):
                    return run
            try:
                run, guards = self._shapes.supposing(sizes, compile_traced)
            except Unsupported:  # at these sizes
                return self._with_zeros(demand, inputs)
            programs.append((guards, run))
            return run

        return ForSizes(BySizes(for_sizes, self.tangents.places))

    @serial
    def _program_of(self, aten: AtenGraph, compilation: Compilation) -> Backward:
        try:
            return self._compiled(aten, compilation)
        except Exception as problem:  # the forward has run: eager's operations, one by one
            compilation.skipped = unsupported_by(problem)
            title, where, of = compilation.title, compilation.where, self._compilation.event
            events.note_reason(events.FALLBACK, title, where, compilation.skipped, of)
            by_eager = run_in_eager(aten)
            if isinstance(problem, Unsupported):
                return by_eager
            return TriedAgain(functools.partial(self._compiled, aten, compilation), by_eager)

    @serial
    def _compiled(self, aten: AtenGraph, compilation: Compilation) -> Backward:
        of = self._compilation.event
        span = events.Span(events.BACKWARD, compilation.title, compilation.where, of)
        compilation.event = span.id
        with span, paused_collection():
            built = self._building(aten, compilation.log).finish()
        self._built.append(built)
        natives = [built.program.native]
        if built.replayed is not None:
            natives.append(built.replayed.recorded)
        for native in natives:
            native.lays_out = lazy_keys()  # a hook may have replaced what was saved
        compilation.skipped = None
        announce(calls_of(aten))
        return built.run.consume
