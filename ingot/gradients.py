"""The programs of a captured graph that records gradients.

The graph goes in, and one callable comes out: its forward, a backward for each choice of tangents
that come in and of inputs whose gradients are asked for, and the higher-order program. What is
compiled after the forward has run may fail; it then runs in eager, op by op.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ingot.capture import Captured
from ingot.collection import paused_collection
from ingot.compilation import Compilation, stage
from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.failures import ATTEMPTS, PASSING, Failure, explained
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.differentiation import forget_histories, vjp
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, has_history, is_rebased, requires_grad
from ingot.graph.joint import JointGraph, trace_joint, trace_part
from ingot.graph.module_hooks import sees_inputs, tells_none
from ingot.graph.partition import (
    Partition,
    backward_of_part,
    gradient_inputs_of,
    partition,
    saved_for,
)
from ingot.graph.schemas import draws
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Symbol
from ingot.loops.side_effects import has_effect
from ingot.loops.training_contract import (
    JointContract,
    KnownLayout,
    Layout,
    OutputWindow,
    Slot,
    TrainingContract,
)
from ingot.native import _native
from ingot.runtime.by_sizes import BySizes
from ingot.runtime.cuda_graphs import Replayed
from ingot.runtime.higher_order import CompiledGradients, HigherOrderProgram, Inputs, Kinds
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
from ingot.runtime.training import TrainingProgram
from ingot.runtime.windows import WithWindows, windows_by_sizes
from ingot.serial import serial
from ingot.torch_private import GRADIENTS, require
from ingot.wrapped import is_wrapped

MOST_CHOICES = 8
"""Of inputs whose gradients are asked for, each with a backward of its own that computes no
others."""

Compile = Callable[[Compilation], "_native.Program | Replayed"]
"""Makes the program of the ATen graph in a compilation."""


class GraphOfBackward(NamedTuple):
    """A backward as a graph: `aten` takes what the forward saves, the tangents that it `takes`
    (zeros where none came in), and the values of the size symbols. The `picked` ones of its results
    are the gradients of `gradient_inputs`."""

    aten: AtenGraph
    takes: tuple[bool, ...]
    picked: Sequence[int]
    gradient_inputs: Sequence[int]

    def by_eager(
        self, saved: list[Any], tangents: Sequence[Any], sizes: Sequence[int]
    ) -> Sequence[Any]:
        """The gradients, by eager's operations."""
        arguments = [*saved, *itertools.compress(tangents, self.takes), *sizes]
        results = _by_eager(self.aten)(arguments)
        return [results[k] for k in self.picked]


def wants_gradients(captured: Captured) -> bool:
    """Whether eager would give one of the outputs a history. Raises Unsupported where that is not
    understood."""
    tracked = _tracked_outputs(captured.graph_module.graph)
    fakes = [i.fake for i in captured.inputs]
    written = any(isinstance(fake, FakeTensor) and is_rebased(fake) for fake in fakes)
    if torch.is_grad_enabled():
        return written or bool(tracked)
    # windows on inputs have a history even then
    if not written and not any(has_history(node.meta["val"]) for node in tracked):
        return False
    where = tracked[0].meta.get("where", "") if tracked else ""
    raise unsupported(
        "gradients-wanted",
        "gradients are wanted by a part of a function that is called without",
        where,
    )


def _tracked_outputs(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The outputs that require a gradient."""
    output = next(node for node in graph.nodes if node.op == "output")
    tracked = []
    for node in output.all_input_nodes:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and requires_grad(value):
            tracked.append(node)
    return tracked


class _CapturedGraph(NamedTuple):
    """A captured graph that records gradients, and what its programs are compiled from."""

    graph: torch.fx.GraphModule
    fakes: Sequence[FakeTensor]
    context: FakeContext
    modes: Modes
    compilation: Compilation
    compile_program: Compile

    def trace_part(self, joint: JointGraph, demand: Demand) -> JointGraph:
        """The joint graph of a part of the backward."""
        present = itertools.compress(joint.contract.differentiable_outputs, demand.present)
        outputs = frozenset(present)
        with undisturbed(), paused_collection(), preserved():
            self.modes.set()
            try:
                return trace_part(
                    joint, outputs, demand.inputs, self.graph, self.fakes, self.context
                )
            except EagerRaises as error:  # the backward of a function that has its own
                raise error.__cause__ or error from None


def with_history(
    graph: torch.fx.GraphModule,
    fakes: Sequence[FakeTensor],
    context: FakeContext,
    compilation: Compilation,
    compile_program: Compile,
) -> Callable[..., Sequence[Any]]:
    """The program of a graph whose outputs have a history: it, and the program of their gradients.
    `compile_program` is what becomes of each ATen graph."""
    require(GRADIENTS)
    captured = _CapturedGraph(graph, fakes, context, Modes.now(), compilation, compile_program)
    with stage(compilation, "differentiate"):
        joint = trace_joint(graph, fakes, context)
        forget_histories(graph)
        cut = partition(joint)
        context.shapes.unbacked.settle()
    compilation.aten = cut.forward
    run: Callable[..., Sequence[Any]] = compile_program(compilation)
    contract = cut.contract()
    if contract.tangents or contract.refused_outputs:
        run = _training_program(run, captured, cut, contract)
    if not contract.windows:
        return run
    views = windows_by_sizes(contract.views, contract.window_places if contract.views else {})
    return WithWindows(run, views, contract.user_outputs)


def _training_program(
    forward: Callable[..., Sequence[Any]],
    captured: _CapturedGraph,
    cut: Partition,
    contract: TrainingContract,
) -> TrainingProgram:
    """The program that records gradients, of the forward's program and those of the backward."""
    targets = [node.target for node in captured.graph.graph.nodes]
    hooked = any(map(sees_inputs, targets))
    backwards = Backwards(captured, cut, contract, recomputes=any(map(tells_none, targets)))
    compile_vjp = functools.partial(_compile_vjp, captured, backwards)
    higher_order = HigherOrderProgram(compile_vjp, contract, cut.draws, hooked)
    if isinstance(forward, Replayed):
        forward.visible = len(contract.outputs)
    return TrainingProgram(forward, contract, backwards, higher_order)


# -- the higher-order program ----------------------------------------------------------------------


def _head_slots(contract: JointContract) -> list[Slot]:
    """What each tangent belongs to: an output, memory that an output is a view of, or an input as
    it was written."""
    slots: dict[int, Slot] = {}
    for window in contract.windows:
        if _shows_memory(window, contract.user_outputs):
            slots[window.base.position] = Slot("memory", window.output)
    for position, output in contract.rebased_inputs.items():
        slots[output] = Slot("input", position)
    return [slots.get(k, Slot("output", k)) for k in contract.differentiable_outputs]


def _shows_memory(window: OutputWindow, user_outputs: int) -> bool:
    """Whether an output is memory that is no output that the user gets, or a view of it in
    autograd's eyes."""
    is_memory = window.base.role == "output" and window.base.position >= user_outputs
    is_view = window.alias in ("view", "one of several", "same")
    return is_memory and is_view and window.tracked


@serial
def _compile_vjp(
    captured: _CapturedGraph, backwards: Backwards, kinds: Kinds, inputs: Inputs
) -> CompiledGradients:
    """The program of the gradients of these inputs, for tangents of these kinds."""
    contract, joint = backwards.contract, backwards.joint
    present = tuple([kind is not None for kind in kinds])
    gradient_inputs = backwards.gradient_inputs(backwards.least(Demand(present, inputs)))
    if not gradient_inputs:
        return CompiledGradients(lambda *inputs: (), ())
    tangents = []
    for node, requires in zip(joint.tangents, kinds):
        if requires is not None:
            tangents.append(_fake_tangent(node, requires))
    heads = list(itertools.compress(_head_slots(contract), present))
    mutated = contract.mutated_inputs
    gradients = vjp(captured.graph, captured.modes, heads, mutated, gradient_inputs, tangents)
    tensors = contract.tensors
    fakes = [*captured.fakes[:tensors], *tangents, *captured.fakes[tensors:]]
    return CompiledGradients(_higher_order_program(gradients, fakes, captured), gradient_inputs)


@serial
def _higher_order_program(
    gradients: torch.fx.GraphModule, fakes: Sequence[FakeTensor], captured: _CapturedGraph
) -> Callable[..., Sequence[Any]]:
    """The program of a graph of gradients that somebody wants to differentiate; eager's operations,
    one by one, where it cannot be compiled: the forward has run."""
    outer = captured.compilation
    compilation = Compilation(f"{outer.name}, gradients", outer.where)
    assert outer.backward is not None
    outer.backward.backward = compilation
    with undisturbed(), paused_collection():
        try:
            if torch.is_anomaly_enabled():  # which looks at the values
                raise unsupported("backward-call", "anomalies are to be detected")
            with captured.context.shapes.above_one():
                program = with_history(
                    gradients, fakes, captured.context, compilation, captured.compile_program
                )
            aten = compilation.aten
            if aten.checks and (aten.mutations or any(draws(n.target) for n in aten.graph.nodes)):
                raise unsupported(
                    "late-error", f"{aten.checks[0]} is checked where eager could not go on"
                )
        except Exception as problem:
            compilation.skipped = _reason(problem)
            return functools.partial(_run_by_eager, gradients)
    return _GuardedProgram(program, gradients, _symbolic_sizes(fakes), bool(aten.checks))


def _symbolic_sizes(fakes: Sequence[Any]) -> list[tuple[int, int]]:
    """The sizes that are symbols: (input, dimension)."""
    sizes = []
    for k, fake in enumerate(fakes):
        if isinstance(fake, torch.Tensor):
            sizes += [(k, d) for d, n in enumerate(fake.shape) if isinstance(n, torch.SymInt)]
    return sizes


def _run_by_eager(graph: torch.fx.GraphModule, *inputs: Any) -> Sequence[Any]:
    with preserved():
        return graph(*[t.view_as(t) if isinstance(t, torch.Tensor) else t for t in inputs])


class _GuardedProgram:
    """Runs a program of gradients, or its graph in eager where the program is not for the inputs.

    It is for sizes above 1 where these are symbols: further questions about them cannot be guarded,
    as the forward has run. If it `may_raise`, what it raises is a check of sizes, or what eager
    raises as well.
    """

    def __init__(
        self,
        program: Callable[..., Sequence[Any]],
        graph: torch.fx.GraphModule,
        symbolic_sizes: Sequence[tuple[int, int]],
        has_checks: bool,
    ) -> None:
        self._program, self._graph, self._sizes = program, graph, symbolic_sizes
        self._may_raise = has_checks or bool(symbolic_sizes)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        if any(map(is_wrapped, inputs)):
            return _run_by_eager(self._graph, *inputs)
        if not self._may_raise:
            return self._program(*inputs)
        try:
            if all(inputs[k].shape[d] != 1 for k, d in self._sizes):
                return self._program(*inputs)
        except RuntimeError:
            pass
        return _run_by_eager(self._graph, *inputs)


# -- the backward programs -------------------------------------------------------------------------


class Backwards:
    """The backward programs of a forward: one for each choice of tangents that come in, and of
    inputs whose gradients are asked for, compiled when it is first met.

    Where what the forward saves for all tangents does not suffice for some of them, the gradients
    are computed from the inputs if it `recomputes`; else the other tangents are zeros.
    """

    def __init__(
        self, captured: _CapturedGraph, cut: Partition, contract: TrainingContract, recomputes: bool
    ) -> None:
        self.cut, self.joint, self.contract = cut, cut.joint, contract
        self.recomputes, compilation = recomputes, captured.compilation
        self._trace = serial(functools.partial(captured.trace_part, cut.joint))
        self._part = functools.cache(self._trace)
        self.gradient_inputs = functools.cache(self._find_gradient_inputs)
        self._compilation, self._compile_program = compilation, captured.compile_program
        self._name, where = f"{compilation.name}, backward", compilation.where
        self._program: Backward | None = None
        # choices of inputs that have programs of their own
        self._of_inputs = set[tuple[int, ...]]()
        self.has_effects = any(has_effect(node.target) for node in cut.backward.graph.nodes)
        self._whole = compilation.backward = Compilation(self._name, where, aten=cut.backward)
        self.tangents: Tangents = tangents_by_sizes(contract)

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        """Which of the saved values the backward of these tangents may read."""
        return saved_for(self.cut, tangents)

    @serial
    def _find_gradient_inputs(self, demand: Demand) -> Sequence[int]:
        """The inputs that have a gradient then."""
        if demand.is_whole:
            return self.contract.gradient_inputs
        try:
            return self._part(demand).contract.gradient_inputs
        except Unsupported:  # a size is asked about that the joint graph does not depend on
            hints = {symbol: self._shapes.hints[symbol] for symbol in self.cut.symbols}
        try:  # which they are is no matter of sizes: those of the first call will do
            part, _ = self._shapes.supposing(hints, functools.partial(self._trace, demand))
            return part.contract.gradient_inputs
        except Unsupported:
            present = itertools.compress(range(len(demand.present)), demand.present)
            inputs = gradient_inputs_of(self.cut, present)
        return [k for k in inputs if demand.inputs is None or k in demand.inputs]

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
            graph, _ = self._graph_by(self._part, demand)
        except Unsupported:
            return None if self.recomputes else self._compile_for_sizes(demand, inputs)
        if graph is not None:
            return self._compile_part(graph, demand)
        return None if self.recomputes else self._with_zeros(demand, inputs)

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
            return self._graph_by(self._part, demand)
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
        """The graph of a part, None where what is saved does not suffice, and the inputs that it
        has gradients of."""
        part = trace(demand)
        return backward_of_part(self.cut, part), part.contract.gradient_inputs

    def _graph_of_whole(self, takes: tuple[bool, ...], inputs: Sequence[int]) -> GraphOfBackward:
        return GraphOfBackward(self.cut.backward, takes, self._results_for(inputs), inputs)

    def _results_for(self, inputs: Sequence[int]) -> Sequence[int]:
        """Where the whole backward has the gradients of these inputs."""
        return [self.contract.gradient_inputs.index(k) for k in inputs]

    @property
    def _shapes(self) -> ShapeContext:
        return self.joint.aten.shapes

    @property
    def _run_whole(self) -> Backward:
        # compiled in no cached_property, which has a lock of its own in Python 3.11
        if self._program is None:
            self._program = self._program_of(self._whole)
        return self._program

    def _with_zeros(self, demand: Demand, inputs: Sequence[int]) -> Backward:
        results = self._results_for(inputs)
        return WithZeros(self._run_whole, self.tangents, demand.present, results)

    def _compile_part(self, graph: AtenGraph, demand: Demand) -> Backward:
        name = self._name
        if not all(demand.present):
            outputs = itertools.compress(self.contract.differentiable_outputs, demand.present)
            name = f"{name} of outputs {', '.join(map(str, outputs))}"
        if demand.inputs is not None:
            name = f"{name} for inputs {', '.join(map(str, demand.inputs))}"
        compilation = Compilation(name, self._compilation.where, aten=graph)
        self._compilation.partial_backwards.append(compilation)
        return self._program_of(compilation)

    def _compile_for_sizes(self, demand: Demand, inputs: Sequence[int]) -> Backward:
        """A program for each answer to what only this part asks of the sizes."""
        programs: list[tuple[list[ShapeGuard], Backward]] = []

        def compile_traced() -> Backward:
            graph, gradient_inputs = self._graph_by(self._trace, demand)
            if graph is None or gradient_inputs != inputs:
                raise unsupported("backward-sizes", "what is kept for other sizes")
            return self._compile_part(graph, demand)

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
    def _program_of(self, backward: Compilation) -> Backward:
        try:
            return self._compiled(backward)
        except Exception as problem:  # the forward has run: eager's operations, one by one
            backward.skipped = _reason(problem)
            by_eager = _by_eager(backward.aten)
            if isinstance(problem, Unsupported):
                return by_eager
            return TriedAgain(functools.partial(self._compiled, backward), by_eager)

    @serial
    def _compiled(self, backward: Compilation) -> Backward:
        with paused_collection():
            compiled = self._compile_program(backward)
        natives: Sequence[Any] = [compiled]
        if isinstance(compiled, Replayed):
            natives = [compiled.program, compiled.recorded]
        for native in natives:
            native.lays_out = lazy_keys()  # a hook may have replaced what was saved
        backward.skipped = None
        return compiled.consume


class TriedAgain:
    """A backward whose compilation failed for no reason that lies in it: it runs in eager, and is
    compiled again, at intervals that grow."""

    def __init__(self, compile_again: Callable[[], Backward], by_eager: Backward) -> None:
        self._compile, self._run = compile_again, by_eager
        self._failure: Failure | None = Failure(lambda slots: True)
        self._failure.note()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        failure = self._failure
        if failure is not None and failure.left:
            failure.left -= 1
        elif failure is not None:
            self._try_again(failure)
        return self._run(inputs)

    def _try_again(self, failure: Failure) -> None:
        try:
            self._run = self._compile()
            self._failure = None
        except Exception as problem:
            failure.note()
            if failure.count >= ATTEMPTS and not isinstance(problem, PASSING):
                self._failure = None


def _by_eager(aten: AtenGraph) -> Backward:
    """Runs the graph's operations in eager, each given its inputs in the layouts that it has there:
    its results may depend on them."""
    function = aten.function()
    layouts: list[Layout | None] = []
    for node in aten.inputs:
        value = node.meta.get("in_eager", node.meta["val"])
        is_tensor = isinstance(value, torch.Tensor)
        layouts.append(Layout.of(value).converted(to_expr) if is_tensor else None)

    def layouts_at(sizes: Mapping[Symbol, int]) -> Sequence[KnownLayout | None]:
        return [None if layout is None else layout.at(sizes) for layout in layouts]

    by_sizes = BySizes(layouts_at, aten.symbols)
    return lambda inputs: function(*map(_in_layout, inputs, by_sizes.at(by_sizes.read(inputs))))


def _in_layout(value: Any, layout: KnownLayout | None) -> Any:
    """A tensor in a layout, with its dtype; what is no tensor as it is."""
    if layout is None or is_wrapped(value):
        return value
    if value.shape != layout.sizes:
        raise RuntimeError(
            "a hook on saved tensors gave back a tensor of other sizes than it was given"
        )
    if value.stride() == layout.strides and value.dtype is layout.dtype:
        return value
    empty = torch.empty_strided(
        layout.sizes, layout.strides, dtype=layout.dtype, device=value.device
    )
    return empty.copy_(value)


def _reason(problem: Exception) -> Unsupported:
    return problem if isinstance(problem, Unsupported) else explained(problem)


def _fake_tangent(node: torch.fx.Node, requires_gradient: bool) -> FakeTensor:
    value = node.meta["val"]
    tangent = FakeTensor(value.meta, value.device)
    tangent.is_wanted = tangent.is_followed = requires_gradient
    return tangent
