"""One graph of a whole backward: autograd's graph run node by node on fakes, under a recorder, in
the order in which its engine takes the nodes."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from ingot.backward import functions
from ingot.backward.formulas import FORMULAS, LOOK_AT_NO_SIZES, Kept
from ingot.backward.hooks import Hooks
from ingot.backward.sizes import Sizes, at
from ingot.backward.structure import (
    ACCUMULATE,
    FORMULA,
    FUNCTION,
    IDENTITY,
    PROGRAM,
    Geometry,
    Step,
    Structure,
    kept_by,
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
class Traced:
    """The graph of a backward. Its inputs are the tangents, what the steps keep, the gradients that
    are there, and what `conditions` load; its outputs the gradients of `leaves` that had none
    (positions of steps), or of the targets, None for those that have none, and then those that are
    `retained`, by step and which of its inputs. `into` are the steps with a gradient that is
    written; `conditions` have to hold of the hooks; `order` is that in which leaves get their
    gradients."""

    graph: AtenGraph
    leaves: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    present: list[bool] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    retained: list[tuple[int, int]] = field(default_factory=list)
    # by step of a program: tangents that came in
    passed: dict[int, tuple[bool, ...]] = field(default_factory=dict)
    sizes: Sizes | None = None
    # by step that was asked
    materialized: dict[int, functions.Materialized] = field(default_factory=dict)


class BackwardTracer(AtenTracer):
    """Records what nodes of autograd's graph do. Tensors that they keep stand for inputs of the
    graph."""

    def __init__(self, context: FakeContext) -> None:
        super().__init__(context)
        # None: a tensor is a constant of the graph's
        self.kept: dict[tuple[Any, ...], FakeTensor] | None = None

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.kept is not None:
            args, kwargs = self._as_inputs(args), self._as_inputs(kwargs or {})
        return super().__torch_dispatch__(op, types, args, kwargs)

    def _as_inputs(self, tree: Any) -> Any:
        if isinstance(tree, FakeTensor) or tree is None:
            return tree
        if isinstance(tree, torch.Tensor):
            assert self.kept is not None
            found = self.kept.get(place_of(tree))
            if found is None:
                raise unsupported(
                    "backward-node", f"{self.where} reads a tensor that it does not show"
                )
            return found
        if isinstance(tree, (list, tuple)):
            return type(tree)([self._as_inputs(item) for item in tree])
        if isinstance(tree, dict):
            return {k: self._as_inputs(v) for k, v in tree.items()}
        return tree


def place_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's elements are: equal for two tensors only where they are the same."""
    return t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype


def trace_backward(
    structure: Structure,
    tangents: Sequence[torch.Tensor],
    hooks: Hooks,
    geometry: Geometry,
    before: Sequence[tuple[int, ...]] | None,
) -> Traced:
    """The graph of a backward: where it is known what its sizes were `before`, with symbols for
    those that vary. Raises Unsupported for what cannot be one."""
    context = FakeContext()
    sizes = Sizes(context, geometry, before)
    recorder = BackwardTracer(context)
    with preserved(), torch.no_grad(), recorder:
        recorder.region = BEHIND
        traced, outputs = _Trace(structure, sizes, recorder, hooks).run(tangents)
    traced.graph, traced.sizes = recorder.finish(outputs), sizes
    placeholders_first(traced.graph.graph)
    context.release()
    run_passes(traced.graph)
    return traced


class _Trace:
    def __init__(
        self, structure: Structure, sizes: Sizes, recorder: BackwardTracer, hooks: Hooks
    ) -> None:
        self.structure, self.sizes, self.recorder, self.hooks = structure, sizes, recorder, hooks
        self.buffers: list[dict[int, Any]] = [{} for _ in structure.steps]
        self.captured: dict[tuple[int, int], Any] = {}
        self.results: dict[int, Any] = {}  # by step that accumulates
        self.order: list[int] = []
        self.retained: dict[tuple[int, int], Any] = {}
        self.passed: dict[int, tuple[bool, ...]] = {}
        self.materialized: dict[int, functions.Materialized] = {}

    def run(self, tangents: Sequence[torch.Tensor]) -> tuple[Traced, list[Any]]:
        """What is known of the graph, and its outputs."""
        steps = self.structure.steps
        given = [self._input(f"tangent_{k}", t, 2 * k) for k, t in enumerate(tangents)]
        first = [*self.sizes.geometry.ends]
        self.kept = [
            [self._input(f"kept_{n}_{k}", t, first[n] + 2 * k) for k, t in enumerate(s.saved)]
            for n, s in enumerate(steps)
        ]
        grads = {
            n: self._input(f"grad_{n}", t, first[n] + 2 * len(s.saved))
            for n, s in enumerate(steps)
            for t in self.structure.tensors_of(s)[len(s.saved) :]
        }
        if self.sizes.before is not None and grads:
            self._refuse_shared([*tangents, *(t for s in steps for t in s.saved)])
        self.numbers = [
            {
                name: self.sizes.numbers(first[n + 1] - len(s.numbers) + k)
                for k, name in enumerate(s.numbers)
            }
            for n, s in enumerate(steps)
        ]
        self.hooks.begin(self._read_by_hook)
        for (position, number), tangent in zip(self.structure.heads, given):
            self._add(position, number, tangent)
        for position in self._engine_order():
            self._pass(position)
        return self._finish(grads)

    def _refuse_shared(self, read: Sequence[torch.Tensor]) -> None:
        """Gradients that are written are not among what is read, whose memory is not looked at with
        symbols."""
        added = [
            t for s in self.structure.steps for t in self.structure.tensors_of(s)[len(s.saved) :]
        ]
        written = {t.untyped_storage()._cdata for t in added}
        if len(written) < len(added) or written & {t.untyped_storage()._cdata for t in read}:
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

    def _engine_order(self) -> Any:
        """The positions of the nodes, each when all that lead to it have been passed; later ones of
        the forward first."""
        steps = self.structure.steps
        waiting = [0] * len(steps)
        for step in steps:
            for edge in step.edges:
                if edge is not None:
                    waiting[edge[0]] += 1
        ready: list[tuple[int, int, int]] = []
        count = 0
        for position in dict.fromkeys(position for position, _ in self.structure.heads):
            if not waiting[position]:
                heapq.heappush(ready, (-steps[position].node._sequence_nr(), count, position))
                count += 1
        while ready:
            position = heapq.heappop(ready)[-1]
            if steps[position].needed:
                yield position
            for edge in steps[position].edges:
                if edge is not None:
                    waiting[edge[0]] -= 1
                    if not waiting[edge[0]]:
                        heapq.heappush(ready, (-steps[edge[0]].node._sequence_nr(), count, edge[0]))
                        count += 1

    def _add(self, position: int, number: int, gradient: Any) -> None:
        """A gradient comes in."""
        if gradient is None:
            return
        buffer = self.buffers[position]
        buffer[number] = buffer[number] + gradient if number in buffer else gradient

    # -- one node ----------------------------------------------------------------------------------

    def _pass(self, position: int) -> None:
        step = self.structure.steps[position]
        buffer, self.buffers[position] = self.buffers[position], {}
        self.recorder.where = type(step.node).__name__
        for table, number in step.hooks.tensor:
            buffer[number] = self.hooks.on_gradient(self.recorder, table, buffer.get(number))
        if step.leaf_hooks:
            buffer[0] = self.hooks.on_gradient(self.recorder, step.leaf_hooks, buffer.get(0))
        for number in step.hooks.retained:
            if buffer.get(number) is not None:
                self.retained[position, number] = buffer[number]
        for aim in self.structure.targets or ():
            if aim is not None and aim[0] == position:
                self.captured[aim] = buffer.get(aim[1])
        if step.kind == ACCUMULATE:
            assert step.variable is not None
            # it may have been told so since
            if not self.structure.accumulates or not step.variable.requires_grad:
                return
            if buffer.get(0) is None and step.accumulated_hooks:
                raise unsupported("backward-hook", "a hook on a gradient that does not come in")
            if buffer.get(0) is not None:
                if any(step.hooks.before) or any(step.hooks.behind):
                    raise unsupported(
                        "backward-hook", "hooks on a node that accumulates a gradient"
                    )
                self.results[position] = buffer[0]
                self.order.append(position)
            return
        if self.structure.targets and not any(
            e is not None and self._leads_on(e[0]) for e in step.edges
        ):
            return  # no gradient of it is asked for
        if not any(t is not None for t in buffer.values()):
            if step.hooks is not NO_HOOKS:
                raise unsupported("backward-hook", "a hook on a node that no gradient comes to")
            if step.kind == FUNCTION:
                raise unsupported(
                    "backward-function", "a torch.autograd.Function that no gradient comes to"
                )
            return
        if any(step.hooks.before) or any(step.hooks.behind):
            buffer = dict(enumerate(self._incoming(step, buffer)))
        found = self._RUN[step.kind](self, position, step, buffer)
        gradients = tuple(
            [
                None if edge is None or g is None else self._validated(*edge, g)
                for edge, g in zip(step.edges, found)
            ]
        )
        for table in step.hooks.behind:
            gradients = self.hooks.behind(self.recorder, table, gradients, tuple(buffer.values()))
        for edge, gradient in zip(step.edges, gradients):
            if edge is not None:
                self._add(*edge, gradient)

    def _incoming(self, step: Step, buffer: dict[int, Any]) -> tuple[Any, ...]:
        """The gradients that come in, as hooks on the node have them."""
        gradients = tuple([buffer.get(k) for k in range(len(step.node._input_metadata))])
        for table in step.hooks.before:
            gradients = self.hooks.before(self.recorder, table, gradients)
        return gradients

    def _run_identity(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        """The node at which torch has a module's hooks: it hands gradients on, zeros where none
        came in."""
        metadata = enumerate(step.node._input_metadata)
        sizes = self.numbers[position]
        return [
            _zeros(sizes[f"input {k}"], m) if buffer.get(k) is None else buffer[k]
            for k, m in metadata
        ]

    def _leads_on(self, position: int) -> bool:
        return self.structure.steps[position].needed

    def _run_formula(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        if self.sizes.before is not None:
            found = self._with_symbols(position, step, buffer)
            if found is not NotImplemented:
                return found  # type: ignore[no-any-return]
        self.recorder.kept = {place_of(t): own for t, own in zip(step.saved, self.kept[position])}
        metadata = step.node._input_metadata
        try:
            found = step.node(*[buffer.get(k) for k in range(len(metadata))])
        except NotImplementedError as error:
            raise unsupported("backward-refused", f"{type(step.node).__name__}: {error}") from error
        finally:
            self.recorder.kept = None
        return found if isinstance(found, (list, tuple)) else (found,)

    def _with_symbols(self, position: int, step: Step, buffer: dict[int, Any]) -> Any:
        """What the node gives where sizes are symbols; NotImplemented where that is as it is
        without."""
        name, numbers = type(step.node).__name__, self.numbers[position]
        if name in FORMULAS:
            gradients = [buffer.get(k) for k in range(len(step.node._input_metadata))]
            found = FORMULAS[name](self._kept_by(position, step), gradients)
            if found is not NotImplemented:
                if any(edge is not None for edge in step.edges[len(found) :]):
                    raise unsupported("backward-node", f"the gradients of some inputs of {name}")
                return found
        varies = any(
            isinstance(n, torch.SymInt)
            for key in numbers
            if key.startswith("_")
            for n in numbers[key]
        )
        if varies or name not in LOOK_AT_NO_SIZES:
            raise unsupported("backward-sizes", f"{name} has a formula that looks at sizes")
        return NotImplemented

    def _kept_by(self, position: int, step: Step) -> Kept:
        """What a node keeps, in terms of symbols."""
        own = {place_of(t): fake for t, fake in zip(step.saved, self.kept[position])}

        def found(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [found(v) for v in value]
            return own[place_of(value.detach())] if isinstance(value, torch.Tensor) else None

        with disable_current_modes():
            names = [name for name in kept_by(type(step.node)) if name.startswith("_saved_")]
            tensors = {
                name.removeprefix("_saved_"): found(getattr(step.node, name)) for name in names
            }
        inputs = [None if edge is None else self._sizes_of(*edge) for edge in step.edges]
        return Kept(self.numbers[position], step.node, tensors, inputs)

    def _sizes_of(self, position: int, number: int) -> Sequence[Any] | None:
        """Of the gradient that comes in at a step, as far as it is known."""
        step, numbers = self.structure.steps[position], self.numbers[position]
        if step.kind == ACCUMULATE:
            return numbers["sizes"]
        if step.kind == PROGRAM:
            by_output = {t.output: t for t in at(step.node.program.tangents, numbers["sizes"])}
            return by_output[number].sizes if number in by_output else None
        return numbers[f"input {number}"] if step.needed else None

    def _run_program(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        program, sizes = step.node.program, self.numbers[position]["sizes"]
        tangents = at(program.tangents, sizes)
        if any(buffer.get(output) is not None for output in program.refused_outputs):
            raise unsupported("backward-refused", "a backward that autograd refuses")
        given = tuple([buffer.get(t.output) is not None for t in tangents])
        self.passed[position] = tuple([buffer.get(k) is not None for k in range(program.outputs)])
        gradients: list[Any] = program.no_gradients()
        if program.gradient_inputs and any(given):
            known = all(isinstance(size, int) for size in sizes)
            with disable_current_modes():  # it may be traced for this
                part = program.backwards.graph(Demand(given), tuple(sizes) if known else None)
            if part is None:
                raise unsupported(
                    "backward-part",
                    "a part of a compiled forward's outputs, whose gradients need its inputs again",
                )
            laid = [
                self._laid_out(t, buffer.get(t.output))
                for t, takes in zip(tangents, part.takes)
                if takes
            ]
            results = part.aten.function()(*self.kept[position], *laid, *sizes)
            for k, index in zip(part.picked, part.gradient_inputs):
                gradients[index] = results[k]
        of_tensors = gradients[: program.contract.tensors]
        return of_tensors if program.leaf is None else [None, *of_tensors]

    def _run_function(self, position: int, step: Step, buffer: dict[int, Any]) -> Sequence[Any]:
        tangents = [buffer.get(k) for k in range(len(step.node._input_metadata))]
        if None in tangents:
            if step.hooks is not NO_HOOKS:
                raise unsupported(
                    "backward-hook",
                    "a hook on a torch.autograd.Function that not all gradients come to",
                )
            with disable_current_modes():
                zeros = self.materialized[position] = functions.materialized(step.node)
            tangents = [_zeros_of(zero) if t is None else t for t, zero in zip(tangents, zeros)]
        found = self.hooks.function(self.recorder, position, step.call, tuple(tangents))
        return functions.of_edges(step.node, step.edges, found)

    _RUN = {
        PROGRAM: _run_program,
        FORMULA: _run_formula,
        IDENTITY: _run_identity,
        FUNCTION: _run_function,
    }

    def _laid_out(self, tangent: Any, given: Any) -> torch.Tensor:
        """A gradient as a program expects it."""
        if given is not None and given.stride() == tangent.strides:
            return given
        made = torch.empty_strided(
            tangent.sizes, tangent.strides, dtype=tangent.dtype, device=tangent.device
        )
        return made.zero_() if given is None else made.copy_(given)

    def _validated(self, position: int, number: int, gradient: Any) -> Any:
        """A gradient in the shape and the type of what it is one of, as the engine has it."""
        step = self.structure.steps[position]
        like: Any
        if step.kind == ACCUMULATE:
            like = step.variable
        elif step.kind == PROGRAM:
            by_output = {
                t.output: t for t in at(step.node.program.tangents, self.numbers[position]["sizes"])
            }
            if number not in by_output:
                return gradient
            like = by_output[number]
        else:
            like = step.node._input_metadata[number]
        shape = self._sizes_of(position, number)
        if shape is None:  # nobody goes on from there
            return gradient
        if gradient.device != like.device:
            raise unsupported(
                "backward-gradient", "a gradient on another device than what it is one of"
            )
        if gradient.dim() != len(shape) or tuple(gradient.shape) != tuple(shape):
            if gradient.dim() < len(shape) or any(
                size not in (1, own) for own, size in zip(reversed(gradient.shape), reversed(shape))
            ):
                raise unsupported(
                    "backward-gradient", "a gradient that has not the shape of what it is one of"
                )
            gradient = gradient.sum_to_size(shape)
        if gradient.dtype != like.dtype:
            if gradient.dtype.is_complex != like.dtype.is_complex:
                raise unsupported("backward-gradient", "a complex gradient of what is real")
            gradient = gradient.to(like.dtype)
        return gradient

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self, grads: dict[int, FakeTensor]) -> tuple[Traced, list[Any]]:
        outputs: list[Any] = []
        traced = Traced(None, order=self.order, passed=self.passed, materialized=self.materialized)  # type: ignore[arg-type]
        if self.structure.accumulates:
            for position in self.order:
                gradient = self.results[position]
                if position in grads:
                    grads[position].add_(gradient)
                    traced.into.append(position)
                else:
                    outputs.append(self._own(gradient, self.numbers[position]))
                    traced.leaves.append(position)
        else:
            assert self.structure.targets is not None
            for aim in self.structure.targets:
                gradient = self.captured.get(aim) if aim is not None else None
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
        strides = gradient.stride()
        if variable is not None:
            sizes, strides = variable["sizes"], variable["strides"]
            strides = strides if is_dense(sizes, strides) else tuple(_contiguous(sizes))
        elif not is_dense(gradient.shape, strides):
            strides = tuple(_contiguous(gradient.shape))
        made = torch.empty_strided(
            gradient.shape, strides, dtype=gradient.dtype, device=gradient.device
        )
        return aten.copy.default(made, gradient)


def _zeros(sizes: Sequence[Any], like: Any) -> torch.Tensor:
    return torch.zeros(tuple(sizes), dtype=like.dtype, device=like.device)


def _zeros_of(
    what: tuple[tuple[int, ...], torch.dtype, torch.device] | None,
) -> torch.Tensor | None:
    return None if what is None else torch.zeros(what[0], dtype=what[1], device=what[2])


def _contiguous(sizes: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
