"""What surrounds the programs of a graph that records gradients: the forward's and the backward's,
a backward for each choice of outputs whose gradients come in, the program of second derivatives,
tangents, and outputs that are windows on memory of others."""

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
from ingot.graph import OutputSpec
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.graph.aten_graph import AtenGraph, Place
from ingot.graph.differentiation import forget_histories, vjp
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, has_history, is_rebased, requires_grad
from ingot.graph.joint import Joint, trace_joint, trace_part
from ingot.graph.module_hooks import sees_inputs, tells_none
from ingot.graph.output_windows import Window as OutputWindow
from ingot.graph.partition import Partition, backward_of_part, kept_for, partition, reached
from ingot.graph.schemas import draws
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Expr, Symbol
from ingot.loops.side_effects import has_effect
from ingot.native import _native
from ingot.runtime.cuda_graphs import Replayed
from ingot.runtime.training import (
    Backward,
    Demand,
    ForSizes,
    Original,
    Tangent,
    TrainingProgram,
    WithZeros,
    lazy_keys,
)
from ingot.runtime.windows import BySizes, Window, WithWindows
from ingot.serial import serial
from ingot.torch_private import GRADIENTS, require
from ingot.wrapped import is_wrapped

MOST_CHOICES = 8
"""Of inputs whose gradients are asked for, each with a backward of its own that computes no
others."""

WindowSpec = tuple[int, tuple[str, int], OutputSpec]
"""An output that is a window, on ("input" | "output", position)."""

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Sizes, strides and the type of a tensor."""

Compile = Callable[[Compilation], "_native.Program | Replayed"]
"""Makes the program of the ATen graph in a compilation."""


class GraphOfBackward(NamedTuple):
    """What computes the gradients of the inputs `wanted`: the results at the positions `picked` of
    `aten`, whose inputs are what the forward keeps, the tangents for which `takes` is true (zeros
    where none came in), and the values of the size symbols."""

    aten: AtenGraph
    takes: tuple[bool, ...]
    picked: Sequence[int]
    wanted: Sequence[int]

    def by_eager(
        self, saved: list[Any], tangents: Sequence[Any], sizes: Sequence[int]
    ) -> Sequence[Any]:
        """The gradients, by eager's operations."""
        given: list[Any] = [*saved, *itertools.compress(tangents, self.takes), *sizes]
        found = _by_eager(self.aten)(given)
        return [found[k] for k in self.picked]


def wants_gradients(captured: Captured) -> bool:
    """Whether eager would give one of the outputs a history. Raises Unsupported where that is not
    understood."""
    nodes = captured.graph_module.graph.nodes
    outputs = next(node for node in nodes if node.op == "output").all_input_nodes
    tracked = [
        n
        for n in outputs
        if isinstance(n.meta["val"], torch.Tensor) and requires_grad(n.meta["val"])
    ]
    written = [i for i in captured.inputs if isinstance(i.fake, FakeTensor) and is_rebased(i.fake)]
    if not tracked and not written:
        return False
    where = tracked[0].meta.get("where", "") if tracked else ""
    if not torch.is_grad_enabled():
        # windows on inputs
        if not written and not any(has_history(n.meta["val"]) for n in tracked):
            return False
        raise unsupported(
            "gradients-wanted",
            "gradients are wanted by a part of a function that is called without",
            where,
        )
    return True


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
    modes = Modes.now()
    with stage(compilation, "differentiate"):
        joint = trace_joint(graph, fakes, context)
        forget_histories(graph)
        parts = partition(joint)
        context.shapes.unbacked.settle()
    compilation.aten = parts.forward
    run: Callable[..., Sequence[Any]] = compile_program(compilation)
    if joint.differentiable or joint.spent:

        @serial
        def trace(demand: Demand) -> Joint:
            outputs = frozenset(itertools.compress(joint.differentiable, demand.given))
            with undisturbed(), paused_collection(), preserved():
                modes.set()
                try:
                    return trace_part(joint, outputs, demand.inputs, graph, fakes, context)
                except EagerRaises as error:  # the backward of a function that has its own
                    raise error.__cause__ or error from None

        targets = [node.target for node in graph.graph.nodes]
        repeats, hooked = any(map(tells_none, targets)), any(map(sees_inputs, targets))
        backwards = Backwards(parts, trace, repeats, compilation, compile_program)
        of_memory = {
            w.base[1]: ("memory", w.output) for w in joint.windows if _shows_memory(w, joint.given)
        }
        of_inputs = {
            output: ("input", position) for position, output in joint.written_outputs.items()
        }
        heads = [(of_memory | of_inputs).get(k, ("output", k)) for k in joint.differentiable]
        written = [position for position, _ in joint.aten.mutations]

        @serial
        def compile_vjp(
            kinds: tuple[bool | None, ...], asked: tuple[int, ...] | None
        ) -> tuple[Callable[..., Sequence[Any]], Sequence[int]]:
            given = tuple(kind is not None for kind in kinds)
            wanted = backwards.wanted_for(backwards.least(Demand(given, asked)))
            tangents = [
                _fake_tangent(node, kind)
                for node, kind in zip(joint.tangents, kinds)
                if kind is not None
            ]
            if not wanted:
                return lambda *inputs: (), ()
            gradients = vjp(
                graph, modes, list(itertools.compress(heads, given)), written, wanted, tangents
            )
            inputs = [*fakes[:tensors], *tangents, *fakes[tensors:]]
            return _second_derivatives(
                gradients, inputs, context, compilation, compile_program
            ), wanted

        tensors = sum(isinstance(fake, torch.Tensor) for fake in fakes)
        original = Original(compile_vjp, tensors, written, _unread(joint), parts.draws, hooked)
        run = _training_program(run, backwards, original)
    return WithWindows(run, _at_run_time(joint.views, parts), joint.given) if joint.windows else run


def _at_run_time(windows: Sequence[OutputWindow], parts: Partition) -> BySizes[Sequence[Window]]:
    specs = [(w.output, w.base, w.spec) for w in windows]
    return windows_of(specs, places_for(specs, parts.symbols, parts.joint.results) if specs else {})


def _shows_memory(window: OutputWindow, given: int) -> bool:
    """Whether an output is memory that is none of the `given` outputs, or a view of it in
    autograd's eyes."""
    (kind, position), spec = window.base, window.spec
    return (
        kind == "output"
        and position >= given
        and spec.tracked
        and spec.alias in ("view", "one of several", "same")
    )


def _unread(joint: Joint) -> list[int]:
    """The inputs that are written, and that neither an output with a gradient nor a gradient
    depends on."""
    written, outputs = [position for position, _ in joint.aten.mutations], joint.aten.outputs
    heads = [outputs[k] for k in joint.differentiable] + outputs[joint.outputs :]
    shown = [w.base[1] for w in joint.windows_in_node if w.base[0] == "input"]
    shown += [head.position for head in heads if head.position is not None]
    if joint.written or not set(shown).isdisjoint(written):  # what they are then is a part of it
        return []
    stack = [head.node for head in heads if head.node is not None]
    found = set(stack)
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                stack.append(node)
    inputs = joint.aten.inputs
    return [k for k in written if inputs[k] not in found]


@serial
def _second_derivatives(
    gradients: torch.fx.GraphModule,
    fakes: Sequence[FakeTensor],
    context: FakeContext,
    compilation: Compilation,
    compile_program: Compile,
) -> Callable[..., Sequence[Any]]:
    """The program of the graph of gradients that somebody wants to differentiate. It is for sizes
    above 1 where these are symbols: further questions about them cannot be guarded, as the forward
    has run."""
    tensors = ((k, fake) for k, fake in enumerate(fakes) if isinstance(fake, torch.Tensor))
    sizes = [
        (k, d)
        for k, fake in tensors
        for d, size in enumerate(fake.shape)
        if isinstance(size, torch.SymInt)
    ]
    made, always = Compilation(f"{compilation.name}, gradients", compilation.where), False
    assert compilation.backward is not None
    compilation.backward.backward = made
    with undisturbed(), paused_collection():
        try:
            if torch.is_anomaly_enabled():  # which looks at the values
                raise unsupported("backward-call", "anomalies are to be detected")
            with context.shapes.above_one():
                program = with_history(gradients, fakes, context, made, compile_program)
            always = not made.aten.checks and not sizes
            drawn = any(draws(node.target) for node in made.aten.graph.nodes)
            if made.aten.checks and (made.aten.mutations or drawn):
                raise unsupported(
                    "late-error", f"{made.aten.checks[0]} is checked where eager could not go on"
                )
        except Exception as problem:  # the forward has run: eager's operations, one by one
            made.skipped, program = _reason(problem), None

    def run(*inputs: torch.Tensor) -> Sequence[Any]:
        transformed = any(map(is_wrapped, inputs))
        if program is not None and always and not transformed:
            return program(*inputs)
        try:
            if (
                program is not None
                and not transformed
                and all(inputs[k].shape[d] != 1 for k, d in sizes)
            ):
                return program(*inputs)
        except RuntimeError:  # a check of sizes, or what eager raises as well
            pass
        with preserved():
            return gradients(*[t.view_as(t) if isinstance(t, torch.Tensor) else t for t in inputs])

    return run


def _training_program(
    forward: Callable[..., Sequence[Any]], backwards: Backwards, original: Original
) -> TrainingProgram:
    """The forward's program, and those of the backward."""
    parts, joint = backwards.parts, backwards.joint
    if isinstance(forward, Replayed):
        forward.visible = joint.outputs
    windows = _at_run_time(joint.windows_in_node, parts) if joint.windows_in_node else None
    return TrainingProgram(
        forward,
        backwards.compile,
        backwards.graph,
        original,
        repeats=backwards.repeats,
        acts=backwards.acts,
        inputs=joint.primals,
        outputs=joint.outputs,
        written=joint.written_outputs,
        differentiable=joint.differentiable,
        tangents=backwards.tangents,
        wanted=joint.wanted,
        saved=[(s.kind, s.position) for s in parts.saved],
        shares=joint.shares,
        reentrant=joint.reentrant,
        passed=joint.passed,
        groups=joint.groups,
        kept_for=functools.partial(kept_for, parts),
        spent=joint.spent,
        hidden=joint.hidden,
        apart=joint.apart,
        windows=windows,
    )


class Backwards:
    """The backward programs of a forward: one for each choice of outputs whose gradients come in,
    and of inputs whose gradients are asked for, compiled when it is first met. `trace` gives the
    joint graph of a part. With `repeats` the gradients are computed from the inputs where what is
    kept for all would not suffice; else the others are zeros then."""

    def __init__(
        self,
        parts: Partition,
        trace: Callable[[Demand], Joint],
        repeats: bool,
        compilation: Compilation,
        compile_program: Compile,
    ) -> None:
        self.parts, self.joint, self.repeats = parts, parts.joint, repeats
        self._trace, self._part = trace, functools.cache(trace)
        self.wanted_for = functools.cache(self._find_wanted)
        self._like = [_Geometry.of(node.meta["val"]) for node in self.joint.tangents]
        self._compilation, self._compile_program = compilation, compile_program
        self._name, where = f"{compilation.name}, backward", compilation.where
        self._program: Backward | None = None
        # choices of inputs that have programs of their own
        self._of_inputs = set[tuple[int, ...]]()
        self.acts = any(has_effect(node.target) for node in parts.backward.graph.nodes)
        self._whole = compilation.backward = Compilation(self._name, where, aten=parts.backward)
        kept = self.joint.outputs + sum(s.kind == "kept" for s in parts.saved)
        decided = {symbol: (kept + k, "result value", 0) for k, symbol in enumerate(parts.decided)}
        self.tangents = BySizes(self._tangents_for, parts.symbols | decided)

    def _tangents_for(self, sizes: Mapping[Symbol, int]) -> Sequence[Tangent]:
        return [
            Tangent(k, *geometry.at(sizes))
            for k, geometry in zip(self.joint.differentiable, self._like)
        ]

    @serial
    def _find_wanted(self, demand: Demand) -> Sequence[int]:
        """The inputs that have a gradient then."""
        if demand.is_whole:
            return self.joint.wanted
        try:
            return self._part(demand).wanted
        except Unsupported:  # a size is asked about that the joint graph does not depend on
            known = {symbol: self._shapes.hints[symbol] for symbol in self.parts.symbols}
        try:  # which they are is no matter of sizes: those of the first call will do
            return self._shapes.supposing(known, functools.partial(self._trace, demand))[0].wanted
        except Unsupported:
            found = reached(self.parts, itertools.compress(range(len(demand.given)), demand.given))
            return [k for k in found if demand.inputs is None or k in demand.inputs]

    def least(self, demand: Demand) -> Demand:
        """The same demand for inputs that are told only where these are not all that have a
        gradient then."""
        for_all = Demand(demand.given)
        if demand.inputs is None or set(self.wanted_for(for_all)).issubset(demand.inputs):
            return for_all
        return demand

    @serial
    def compile(self, demand: Demand) -> tuple[Backward | None, Sequence[int]]:
        """The program, None where there is none, and which gradients it computes: where many
        choices of inputs are asked for, those of the others too."""
        demand = self.least(demand)
        if demand.inputs is not None and not self.acts:
            self._of_inputs.add(demand.inputs)
            if len(self._of_inputs) > MOST_CHOICES:
                demand = Demand(demand.given)
        wanted = self.wanted_for(demand)
        if demand.is_whole:
            return self._run_whole, wanted
        try:
            graph, _ = self._graph_by(self._part, demand)
        except Unsupported:
            return None if self.repeats else self._compile_for_sizes(demand, wanted), wanted
        if graph is not None:
            return self._compile_part(graph, demand), wanted
        return None if self.repeats else self._with_zeros(demand, wanted), wanted

    @serial
    def graph(self, demand: Demand, sizes: tuple[int, ...] | None) -> GraphOfBackward | None:
        """The same as a graph, for these sizes if they are told. Raises Unsupported where it
        depends on them."""
        demand = self.least(demand)
        if demand.is_whole:
            return self._graph_of_whole(demand.given, self.joint.wanted)
        try:
            graph, wanted = self._graph_by(self._part, demand)
        except Unsupported:
            if sizes is None:
                raise
            known = dict(zip(self.tangents.places, sizes))
            try:
                (graph, wanted), _ = self._shapes.supposing(
                    known, lambda: self._graph_by(self._trace, demand)
                )
            except Unsupported:
                graph, wanted = None, self.wanted_for(demand)
        if graph is not None:
            return GraphOfBackward(graph, demand.given, range(len(wanted)), wanted)
        return None if self.repeats else self._graph_of_whole((True,) * len(demand.given), wanted)

    def _graph_by(
        self, trace: Callable[[Demand], Joint], demand: Demand
    ) -> tuple[AtenGraph | None, Sequence[int]]:
        part = trace(demand)
        return backward_of_part(self.parts, part), part.wanted

    def _graph_of_whole(self, takes: tuple[bool, ...], wanted: Sequence[int]) -> GraphOfBackward:
        return GraphOfBackward(self.parts.backward, takes, self._places(wanted), wanted)

    def _places(self, wanted: Sequence[int]) -> Sequence[int]:
        """Where the whole backward has these gradients."""
        return [self.joint.wanted.index(k) for k in wanted]

    @property
    def _shapes(self) -> ShapeContext:
        return self.joint.aten.shapes

    @property
    def _run_whole(self) -> Backward:
        # compiled in no cached_property, which has a lock of its own in Python 3.11
        if self._program is None:
            self._program = self._program_of(self._whole)
        return self._program

    def _with_zeros(self, demand: Demand, wanted: Sequence[int]) -> Backward:
        return WithZeros(self._run_whole, self.tangents, demand.given, self._places(wanted))

    def _compile_part(self, graph: AtenGraph, demand: Demand) -> Backward:
        outputs = ", ".join(
            str(k) for k in itertools.compress(self.joint.differentiable, demand.given)
        )
        name = self._name if all(demand.given) else f"{self._name} of outputs {outputs}"
        if demand.inputs is not None:
            name = f"{name} for inputs {', '.join(map(str, demand.inputs))}"
        made = Compilation(name, self._compilation.where, aten=graph)
        self._compilation.partial_backwards.append(made)
        return self._program_of(made)

    def _compile_for_sizes(self, demand: Demand, wanted: Sequence[int]) -> Backward:
        """A program for each answer to what only this part asks of the sizes."""
        made: list[tuple[list[ShapeGuard], Backward]] = []

        def compile_traced() -> Backward:
            graph, found = self._graph_by(self._trace, demand)
            if graph is None or found != wanted:
                raise unsupported("backward-sizes", "what is kept for other sizes")
            return self._compile_part(graph, demand)

        @serial
        def for_sizes(sizes: Mapping[Symbol, int]) -> Backward:
            for guards, run in made:
                if all(guard.holds(sizes) for guard in guards):
                    return run
            try:
                run, guards = self._shapes.supposing(sizes, compile_traced)
            except Unsupported:  # at these sizes
                return self._with_zeros(demand, wanted)
            made.append((guards, run))
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
            made = self._compile_program(backward)
        for native in (made.program, made.recorded) if isinstance(made, Replayed) else (made,):
            native.lays_out = lazy_keys()  # a hook may have made what was saved anew
        backward.skipped = None
        return made.consume


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
    values = [node.meta.get("in_eager", node.meta["val"]) for node in aten.inputs]

    like = [_Geometry.of(v) if isinstance(v, torch.Tensor) else None for v in values]

    def layouts(sizes: Mapping[Symbol, int]) -> Sequence[Layout | None]:
        return [None if geometry is None else geometry.at(sizes)[:3] for geometry in like]

    laid = BySizes(layouts, aten.symbols)
    return lambda inputs: function(*map(_laid_as, inputs, laid.at(laid.read(inputs))))


class _Geometry(NamedTuple):
    """How a tensor lies in terms of the size symbols, and of what type and where it is."""

    sizes: Sequence[int | Expr]
    strides: Sequence[int | Expr]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: torch.Tensor) -> _Geometry:
        return cls(
            _expressions(value.shape), _expressions(value.stride()), value.dtype, value.device
        )

    def at(
        self, sizes: Mapping[Symbol, int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]:
        return _known(self.sizes, sizes), _known(self.strides, sizes), self.dtype, self.device


def _laid_as(value: Any, layout: Layout | None) -> Any:
    """A tensor with these strides, and of this type; what is no tensor as it is."""
    if layout is None or is_wrapped(value):
        return value
    sizes, strides, dtype = layout
    if value.shape != sizes:
        raise RuntimeError(
            "a hook on saved tensors gave back a tensor of other sizes than it was given"
        )
    if value.stride() == strides and value.dtype is dtype:
        return value
    return torch.empty_strided(sizes, strides, dtype=dtype, device=value.device).copy_(value)


def _reason(problem: Exception) -> Unsupported:
    return problem if isinstance(problem, Unsupported) else explained(problem)


def _fake_tangent(node: torch.fx.Node, wanted: bool) -> FakeTensor:
    made = FakeTensor(node.meta["val"].meta, node.meta["val"].device)
    made.is_wanted = made.is_followed = wanted
    return made


def places_for(
    windows: Sequence[WindowSpec], symbols: Mapping[Symbol, Place], outputs: Sequence[OutputSpec]
) -> Mapping[Symbol, Place]:
    """Where the symbols in windows are read: in the inputs, or, if the data decide them, in the
    other outputs. Raises Unsupported where they are in neither."""
    places = dict(symbols)
    for k, spec in enumerate(outputs):
        for dim, size in enumerate(spec.sizes if spec.node is not None else ()):
            e = to_expr(size)
            if isinstance(e, Symbol):
                places.setdefault(e, (k, "result size", dim))
    numbers = [
        to_expr(n) for _, _, spec in windows for n in (*spec.sizes, *spec.strides, spec.offset)
    ]
    if any(not e.symbols <= places.keys() for e in numbers):
        raise unsupported("backward-sizes", "a window whose place the data decide")
    return places


def windows_of(
    windows: Sequence[WindowSpec], symbols: Mapping[Symbol, Place]
) -> BySizes[Sequence[Window]]:
    """The outputs that are windows, each on (`"input"` | `"output"`, position), for values of the
    size symbols."""
    geometries = [_expressions([spec.offset, *spec.sizes, *spec.strides]) for _, _, spec in windows]

    def made(sizes: Mapping[Symbol, int]) -> Sequence[Window]:
        return [
            _window(*window, _known(numbers, sizes)) for window, numbers in zip(windows, geometries)
        ]

    return BySizes(made, symbols)


def _window(output: int, base: tuple[str, int], spec: OutputSpec, numbers: Sequence[int]) -> Window:
    """The window whose offset, sizes and strides are these numbers."""
    assert spec.dtype is not None
    (offset, *geometry), rank = numbers, len(spec.sizes)
    sizes, strides = tuple(geometry[:rank]), tuple(geometry[rank:])
    return Window(output, base, sizes, strides, offset, spec.dtype, spec.tracked, spec.alias)


def _expressions(numbers: Sequence[Any]) -> Sequence[int | Expr]:
    """Numbers that may be symbolic, in terms of the symbols as they are now: while a thread
    compiles, it may suppose more of these (`ShapeContext.supposing`) than other threads may
    know."""
    return [n if isinstance(n, int) else to_expr(n) for n in numbers]


def _known(numbers: Sequence[int | Expr], sizes: Mapping[Symbol, int]) -> tuple[int, ...]:
    """Such numbers, for these values of the symbols."""
    return tuple([n if isinstance(n, int) else n.evaluate(sizes) for n in numbers])
