"""One ATen graph of a whole backward.

A `Structure` of autograd's graph goes in; a graph comes out that computes the gradients. The nodes
run one by one on fake tensors, under a recorder, in the order in which autograd's engine takes
them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.fx

from ingot.backward import functions
from ingot.backward.formulas import FORMULAS, LOOK_AT_NO_SIZES, SavedValues
from ingot.backward.hooks import Hooks
from ingot.backward.sizes import Sizes, at
from ingot.backward.structure import (
    ACCUMULATE,
    FORMULA,
    FUNCTION,
    IDENTITY,
    PROGRAM,
    Edge,
    Geometry,
    Step,
    Structure,
    saved_attributes,
    storage_of,
)
from ingot.errors import unsupported
from ingot.graph.ambient import preserved
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.aten_tracer import BEHIND, AtenTracer
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor
from ingot.graph.geometry import is_dense
from ingot.graph.joint import placeholders_first
from ingot.graph.passes import run_passes
from ingot.runtime.node_hooks import NO_HOOKS
from ingot.runtime.tangents import Demand
from ingot.torch_private import OpOverload, aten, disable_current_modes


@dataclass
class TracedGradients:
    """What is known of the outputs of a traced backward, by positions of steps.

    The outputs are the gradients of `new_leaves`, which had none, or of the targets, where one is
    `present`; then the `retained` ones, by step and which of its inputs. `updated_leaves` have a
    gradient that is written; `leaf_order` is that in which leaves get their gradients. `consumed`
    tells of a step that is a program which of its outputs had a gradient, `materialized` what
    became of gradients that did not come in.
    """

    consumed: dict[int, tuple[bool, ...]]
    materialized: dict[int, functions.Materialized]
    new_leaves: list[int] = field(default_factory=list)
    updated_leaves: list[int] = field(default_factory=list)
    present: list[bool] = field(default_factory=list)
    leaf_order: list[int] = field(default_factory=list)
    retained: list[tuple[int, int]] = field(default_factory=list)


class TracedBackward(NamedTuple):
    """A backward as a graph. It takes the tangents, what the steps saved, the gradients that are
    there, and what the conditions of hooks load."""

    graph: AtenGraph
    sizes: Sizes
    gradients: TracedGradients


class BackwardTracer(AtenTracer):
    """Records what nodes of autograd's graph do. Tensors that they saved stand for inputs of the
    graph."""

    def __init__(self, context: FakeContext) -> None:
        super().__init__(context)
        # by place; None: a tensor is a constant of the graph's
        self.saved: dict[tuple[Any, ...], FakeTensor] | None = None

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.saved is not None:
            args, kwargs = self._as_inputs(args), self._as_inputs(kwargs or {})
        return super().__torch_dispatch__(op, types, args, kwargs)

    def _as_inputs(self, tree: Any) -> Any:
        if isinstance(tree, FakeTensor) or tree is None:
            return tree
        if isinstance(tree, torch.Tensor):
            assert self.saved is not None
            fake = self.saved.get(place_of(tree))
            if fake is None:
                raise unsupported(
                    "backward-node", f"{self.where} reads a tensor that it does not show"
                )
            return fake
        if isinstance(tree, (list, tuple)):
            return type(tree)(map(self._as_inputs, tree))
        if isinstance(tree, dict):
            return dict(zip(tree, map(self._as_inputs, tree.values())))
        return tree


def place_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's elements are: equal for two tensors only where they are the same."""
    return storage_of(t), t.storage_offset(), t.shape, t.stride(), t.dtype


def trace_backward(
    structure: Structure,
    tangents: Sequence[torch.Tensor],
    hooks: Hooks,
    geometry: Geometry,
    before: Sequence[tuple[int, ...]] | None,
) -> TracedBackward:
    """The graph of a backward: where it is known what its sizes were `before`, with symbols for
    those that vary. Raises Unsupported for what cannot be one."""
    context = FakeContext()
    sizes = Sizes(context, geometry, before)
    recorder = BackwardTracer(context)
    with preserved(), torch.no_grad(), recorder:
        recorder.region = BEHIND
        gradients, outputs = _Trace(structure, sizes, recorder, hooks).run(tangents)
    graph = recorder.finish(outputs)
    graph.is_backward = True
    placeholders_first(graph.graph)
    context.release()
    run_passes(graph)
    return TracedBackward(graph, sizes, gradients)


class _Trace:
    """The state of a backward that is traced. Gradients that have come in at a node wait in its
    buffer, by the number of the input."""

    def __init__(
        self, structure: Structure, sizes: Sizes, recorder: BackwardTracer, hooks: Hooks
    ) -> None:
        self.structure, self.sizes, self.recorder, self.hooks = structure, sizes, recorder, hooks
        self.buffers: list[dict[int, Any]] = [{} for _ in structure.steps]
        self.target_gradients: dict[tuple[int, int], Any] = {}
        self.leaf_gradients: dict[int, Any] = {}  # by step that accumulates
        self.retained: dict[tuple[int, int], Any] = {}
        self.consumed: dict[int, tuple[bool, ...]] = {}
        self.materialized: dict[int, functions.Materialized] = {}

    def run(self, tangents: Sequence[torch.Tensor]) -> tuple[TracedGradients, list[Any]]:
        """What is known of the graph, and its outputs."""
        steps, ends = self.structure.steps, self.sizes.geometry.ends
        heads = []
        for k, t in enumerate(tangents):
            heads.append(self._input(f"tangent_{k}", t, 2 * k))
        self.saved: list[list[FakeTensor]] = []
        for n, step in enumerate(steps):
            named = enumerate(step.saved)
            self.saved.append([self._input(f"kept_{n}_{k}", t, ends[n] + 2 * k) for k, t in named])
        written: dict[int, FakeTensor] = {}  # the gradients that are there, by step
        for n, step in enumerate(steps):
            for gradient in self.structure.gradients_of(step):
                group = ends[n] + 2 * len(step.saved)
                written[n] = self._input(f"grad_{n}", gradient, group)
        if self.sizes.before is not None and written:
            self._refuse_shared([*tangents, *self.structure.saved_tensors()])
        self.numbers = list(map(self._numbers, steps, ends[1:]))
        self.hooks.begin(self._read_by_hook)
        for (position, number), tangent in zip(self.structure.heads, heads):
            self._add(position, number, tangent)
        for position in self._engine_order():
            self._pass(position)
        return self._finish(written)

    def _numbers(self, step: Step, end: int) -> dict[str, Any]:
        """The numbers of a step, whose groups of the geometry end at `end`."""
        groups = range(end - len(step.numbers), end)
        return dict(zip(step.numbers, map(self.sizes.numbers, groups)))

    def _refuse_shared(self, read: Sequence[torch.Tensor]) -> None:
        """Raises Unsupported where a gradient that is written is among what is read, whose memory
        is not looked at with symbols."""
        written = self.structure.written_gradients()
        storages = set(map(storage_of, written))
        if storages.intersection(map(storage_of, read)) or len(storages) < len(written):
            raise unsupported(
                "backward-gradient", "a gradient that is added to, and shares its memory"
            )

    def _input(self, name: str, t: torch.Tensor, group: int) -> FakeTensor:
        with disable_current_modes():
            return self.recorder.input(name, self.sizes.tensor(name, group, t))

    def _read_by_hook(self, name: str, t: torch.Tensor) -> FakeTensor:
        with disable_current_modes():
            return self.recorder.input(name, self.sizes.context.fake(t.detach()))

    # -- the order of the engine -------------------------------------------------------------------

    def _engine_order(self) -> Iterator[int]:
        """The positions of the nodes, each when all that lead to it have been passed; later ones of
        the forward first."""
        steps = self.structure.steps
        waiting = [0] * len(steps)
        for step in steps:
            for position, _ in step.known_edges:
                waiting[position] += 1
        ready: list[tuple[int, int, int]] = []
        count = itertools.count()

        def push(position: int) -> None:
            order = -steps[position].node._sequence_nr()
            heapq.heappush(ready, (order, next(count), position))

        for position in dict(self.structure.heads):
            if not waiting[position]:
                push(position)
        while ready:
            position = heapq.heappop(ready)[-1]
            if steps[position].needed:
                yield position
            for following, _ in steps[position].known_edges:
                waiting[following] -= 1
                if not waiting[following]:
                    push(following)

    def _add(self, position: int, number: int, gradient: Any) -> None:
        """A gradient comes in."""
        if gradient is None:
            return
        buffer = self.buffers[position]
        if number in buffer:
            buffer[number] = buffer[number] + gradient
        else:
            buffer[number] = gradient

    # -- one node ----------------------------------------------------------------------------------

    def _pass(self, position: int) -> None:
        step = self.structure.steps[position]
        buffer, self.buffers[position] = self.buffers[position], {}
        self.recorder.where = type(step.node).__name__
        self._run_tensor_hooks(step, buffer)
        self._capture(position, step, buffer)
        if step.kind == ACCUMULATE:
            self._accumulate(position, step, buffer)
        elif not self._leads_to_target(step):
            return
        elif all(gradient is None for gradient in buffer.values()):
            _refuse_untouched(step)
        else:
            self._hand_on(position, step, buffer)

    def _run_tensor_hooks(self, step: Step, buffer: dict[int, Any]) -> None:
        for table, number in step.hooks.tensor:
            buffer[number] = self.hooks.on_gradient(self.recorder, table, buffer.get(number))
        if step.leaf_hooks:
            buffer[0] = self.hooks.on_gradient(self.recorder, step.leaf_hooks, buffer.get(0))

    def _capture(self, position: int, step: Step, buffer: dict[int, Any]) -> None:
        """Notes the gradients that tensors retain, and those that are asked for."""
        for number in step.hooks.retained:
            if buffer.get(number) is not None:
                self.retained[position, number] = buffer[number]
        for target in self.structure.targets or ():
            if target is not None and target[0] == position:
                self.target_gradients[target] = buffer.get(target[1])

    def _accumulate(self, position: int, step: Step, buffer: dict[int, Any]) -> None:
        assert step.variable is not None
        # requires_grad may have been set since
        if not self.structure.accumulates or not step.variable.requires_grad:
            return
        if buffer.get(0) is None:
            if step.accumulated_hooks:
                raise unsupported("backward-hook", "a hook on a gradient that does not come in")
            return
        if step.has_node_hooks:
            raise unsupported("backward-hook", "hooks on a node that accumulates a gradient")
        self.leaf_gradients[position] = buffer[0]

    def _leads_to_target(self, step: Step) -> bool:
        """Whether a gradient of a step leads to what is asked for."""
        if not self.structure.targets:
            return True
        steps = self.structure.steps
        return any(steps[position].needed for position, _ in step.known_edges)

    def _hand_on(self, position: int, step: Step, buffer: dict[int, Any]) -> None:
        """Computes a step's gradients, and has them come in where its edges lead."""
        if step.has_node_hooks:
            buffer = dict(enumerate(self._incoming(step, buffer)))
        results = self._RUN[step.kind](self, position, step, buffer)
        gradients = tuple(map(self._validated, step.edges, results))
        for table in step.hooks.behind:
            gradients = self.hooks.behind(self.recorder, table, gradients, tuple(buffer.values()))
        for edge, gradient in zip(step.edges, gradients):
            if edge is not None:
                self._add(*edge, gradient)

    def _incoming(self, step: Step, buffer: dict[int, Any]) -> tuple[Any, ...]:
        """The gradients that come in, as hooks on the node have them."""
        gradients = tuple(_by_input(step, buffer))
        for table in step.hooks.before:
            gradients = self.hooks.before(self.recorder, table, gradients)
        return gradients

    def _run_identity(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        """The node at which torch has a module's hooks: it hands gradients on, zeros where none
        came in."""
        sizes, gradients = self.numbers[position], []
        for k, metadata in enumerate(step.node._input_metadata):
            if buffer.get(k) is None:
                gradients.append(_zeros(sizes[f"input {k}"], metadata))
            else:
                gradients.append(buffer[k])
        return gradients

    def _run_formula(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        if self.sizes.before is not None:
            results = self._with_symbols(position, step, buffer)
            if results is not NotImplemented:
                return results  # type: ignore[no-any-return]
        self.recorder.saved = self._by_place(position, step)
        try:
            results = step.node(*_by_input(step, buffer))
        except NotImplementedError as error:
            raise unsupported("backward-refused", f"{type(step.node).__name__}: {error}") from error
        finally:
            self.recorder.saved = None
        if isinstance(results, (list, tuple)):
            return results
        return (results,)

    def _by_place(self, position: int, step: Step) -> dict[tuple[Any, ...], FakeTensor]:
        """The fakes of a step's saved tensors, by the places of these."""
        result = {}
        for t, fake in zip(step.saved, self.saved[position]):
            result[place_of(t)] = fake
        return result

    def _with_symbols(self, position: int, step: Step, buffer: dict[int, Any]) -> Any:
        """What the node gives where sizes are symbols; NotImplemented where that is as it is
        without."""
        name = type(step.node).__name__
        if name in FORMULAS:
            values = self._saved_values(position, step)
            results = FORMULAS[name](values, _by_input(step, buffer))
            if results is not NotImplemented:
                if any(step.edges[len(results) :]):
                    raise unsupported("backward-node", f"the gradients of some inputs of {name}")
                return results
        varies = False
        for key, numbers in self.numbers[position].items():
            if key[0] == "_" and any(isinstance(n, torch.SymInt) for n in numbers):
                varies = True
        if varies or name not in LOOK_AT_NO_SIZES:
            raise unsupported("backward-sizes", f"{name} has a formula that looks at sizes")
        return NotImplemented

    def _saved_values(self, position: int, step: Step) -> SavedValues:
        """What a node saved, in terms of symbols."""
        fakes = self._by_place(position, step)

        def fake_of(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return list(map(fake_of, value))
            if isinstance(value, torch.Tensor):
                return fakes[place_of(value.detach())]
            return None

        tensors = {}
        with disable_current_modes():
            for name in saved_attributes(type(step.node)):
                if name.startswith("_saved_"):
                    tensors[name.removeprefix("_saved_")] = fake_of(getattr(step.node, name))
        inputs = list(map(self._sizes_at, step.edges))
        return SavedValues(self.numbers[position], step.node, tensors, inputs)

    def _sizes_at(self, edge: Edge | None) -> Sequence[Any] | None:
        """The sizes of the gradient that goes over an edge, as far as they are known."""
        if edge is None:
            return None
        position, number = edge
        step, numbers = self.structure.steps[position], self.numbers[position]
        if step.kind == ACCUMULATE:
            return numbers["sizes"]
        if step.kind == PROGRAM:
            tangent = self._like(position, number)
            if tangent is None:
                return None
            return tangent.sizes
        if step.needed:
            return numbers[f"input {number}"]
        return None

    def _run_program(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        program, sizes = step.node.program, self.numbers[position]["sizes"]
        tangents = at(program.tangents, sizes)
        present = tuple([buffer.get(k) is not None for k in range(program.outputs)])
        if any(map(present.__getitem__, program.refused_outputs)):
            raise unsupported("backward-refused", "a backward that autograd refuses")
        demand = Demand(tuple([present[t.output] for t in tangents]))
        self.consumed[position] = present
        gradients = program.no_gradients()
        if program.gradient_inputs and any(demand.present):
            backward = self._graph_of_backward(program, demand, sizes)
            arguments: list[Any] = [*self.saved[position]]
            for tangent, takes in zip(tangents, backward.takes):
                if takes:
                    arguments.append(_in_layout(tangent, buffer.get(tangent.output)))
            results = backward.aten.function()(*arguments, *sizes)
            for k, index in zip(backward.picked, backward.gradient_inputs):
                gradients[index] = results[k]
        of_tensors = gradients[: program.contract.tensors]
        if program.leaf is None:
            return of_tensors
        return [None, *of_tensors]

    def _graph_of_backward(self, program: Any, demand: Demand, sizes: Sequence[Any]) -> Any:
        known = all(isinstance(size, int) for size in sizes)
        with disable_current_modes():  # it may be traced for this
            backward = program.backwards.graph(demand, tuple(sizes) if known else None)
        if backward is None:
            raise unsupported(
                "backward-part",
                "a part of a compiled forward's outputs, whose gradients need its inputs again",
            )
        return backward

    def _run_function(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        tangents = _by_input(step, buffer)
        if None in tangents:
            if step.hooks is not NO_HOOKS:
                raise unsupported(
                    "backward-hook",
                    "a hook on a torch.autograd.Function that not all gradients come to",
                )
            with disable_current_modes():
                zeros = self.materialized[position] = functions.materialized(step.node)
            tangents = [_zeros_of(zero) if t is None else t for t, zero in zip(tangents, zeros)]
        result = self.hooks.function(self.recorder, position, step.call, tuple(tangents))
        return functions.by_edge(step.node, step.edges, result)

    _RUN = {
        PROGRAM: _run_program,
        FORMULA: _run_formula,
        IDENTITY: _run_identity,
        FUNCTION: _run_function,
    }

    def _validated(self, edge: Edge | None, gradient: Any) -> Any:
        """A gradient in the shape and the dtype of what it is one of, as the engine has it."""
        if edge is None or gradient is None:
            return None
        like, shape = self._like(*edge), self._sizes_at(edge)
        if like is None or shape is None:  # nobody goes on from there
            return gradient
        if gradient.device != like.device:
            raise unsupported(
                "backward-gradient", "a gradient on another device than what it is one of"
            )
        if gradient.dim() != len(shape) or tuple(gradient.shape) != tuple(shape):
            if not _sums_to(gradient.shape, shape):
                raise unsupported(
                    "backward-gradient", "a gradient that has not the shape of what it is one of"
                )
            gradient = gradient.sum_to_size(shape)
        if gradient.dtype != like.dtype:
            if gradient.dtype.is_complex != like.dtype.is_complex:
                raise unsupported("backward-gradient", "a complex gradient of what is real")
            gradient = gradient.to(like.dtype)
        return gradient

    def _like(self, position: int, number: int) -> Any:
        """What has the dtype and device of an incoming gradient; None for an output of a program
        that has no tangent."""
        step = self.structure.steps[position]
        if step.kind == ACCUMULATE:
            return step.variable
        if step.kind != PROGRAM:
            return step.node._input_metadata[number]
        for tangent in at(step.node.program.tangents, self.numbers[position]["sizes"]):
            if tangent.output == number:
                return tangent
        return None

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self, written: Mapping[int, FakeTensor]) -> tuple[TracedGradients, list[Any]]:
        outputs: list[Any] = []
        traced = TracedGradients(self.consumed, self.materialized)
        if self.structure.accumulates:
            traced.leaf_order = [*self.leaf_gradients]
            for position, gradient in self.leaf_gradients.items():
                if position in written:
                    written[position].add_(gradient)
                    traced.updated_leaves.append(position)
                else:
                    outputs.append(self._own(gradient, self.numbers[position]))
                    traced.new_leaves.append(position)
        else:
            assert self.structure.targets is not None
            for target in self.structure.targets:
                if target is None:
                    gradient = None
                else:
                    gradient = self.target_gradients.get(target)
                traced.present.append(gradient is not None)
                if gradient is not None:
                    outputs.append(self._own(gradient, None))
        for place, gradient in self.retained.items():
            outputs.append(self._own(gradient, None))
            traced.retained.append(place)
        return traced, outputs

    def _own(self, gradient: FakeTensor, variable: Mapping[str, Any] | None) -> Any:
        """A gradient in memory of its own, laid out as the engine does: like what it is one of
        where that has no gaps."""
        sizes, strides = gradient.shape, gradient.stride()
        if variable is not None:
            sizes, strides = variable["sizes"], variable["strides"]
        if not is_dense(sizes, strides):
            strides = tuple(_contiguous(sizes))
        own = torch.empty_strided(
            gradient.shape, strides, dtype=gradient.dtype, device=gradient.device
        )
        return aten.copy.default(own, gradient)


def _by_input(step: Step, buffer: dict[int, Any]) -> list[Any]:
    """The gradients that have come in, for each input of a node."""
    return list(map(buffer.get, range(len(step.node._input_metadata))))


def _refuse_untouched(step: Step) -> None:
    """Raises Unsupported for a step that no gradient comes to, if the user's code would see it."""
    if step.hooks is not NO_HOOKS:
        raise unsupported("backward-hook", "a hook on a node that no gradient comes to")
    if step.kind == FUNCTION:
        raise unsupported(
            "backward-function", "a torch.autograd.Function that no gradient comes to"
        )


def _in_layout(tangent: Any, gradient: Any) -> torch.Tensor:
    """A gradient in the layout of a program's tangent; zeros where there is none."""
    if gradient is not None and gradient.stride() == tangent.strides:
        return gradient
    laid_out = torch.empty_strided(
        tangent.sizes, tangent.strides, dtype=tangent.dtype, device=tangent.device
    )
    if gradient is None:
        return laid_out.zero_()
    return laid_out.copy_(gradient)


def _sums_to(shape: Sequence[Any], smaller: Sequence[Any]) -> bool:
    """Whether a gradient of one shape is what broadcasting made of another."""
    if len(shape) < len(smaller):
        return False
    pairs = zip(reversed(shape), reversed(smaller))
    return all(size in (1, own) for own, size in pairs)


def _zeros(sizes: Sequence[Any], like: Any) -> torch.Tensor:
    return torch.zeros(tuple(sizes), dtype=like.dtype, device=like.device)


def _zeros_of(
    described: tuple[tuple[int, ...], torch.dtype, torch.device] | None,
) -> torch.Tensor | None:
    if described is None:
        return None
    sizes, dtype, device = described
    return torch.zeros(sizes, dtype=dtype, device=device)


def _contiguous(sizes: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
