"""The higher-order program of a captured graph: the gradients of its gradients.

A captured graph goes in. Out comes a program that is compiled when somebody differentiates the
gradients: from the inputs, as a graph that records gradients itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.built import CompiledGraph
from ingot.collection import paused_collection
from ingot.compilation import Compilation
from ingot.errors import unsupported
from ingot.gradients.backwards import Backwards
from ingot.gradients.captured_graph import CapturedGraph
from ingot.gradients.eager_backward import unsupported_by
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.graph.differentiation import vjp
from ingot.graph.fakes import FakeTensor
from ingot.graph.module_hooks import sees_inputs
from ingot.graph.partition import Partition
from ingot.graph.schemas import draws
from ingot.loops.training_contract import JointContract, OutputWindow, Slot
from ingot.runtime.higher_order import CompiledGradients, HigherOrderProgram, Inputs, Kinds
from ingot.runtime.tangents import Demand
from ingot.serial import serial
from ingot.wrapped import is_wrapped

if TYPE_CHECKING:
    from ingot.gradients.layered import LayeredBackwards

CompileTraining = Callable[[CapturedGraph, Compilation], CompiledGraph]
"""Compiles a graph that records gradients (`pipeline.compile_training`)."""


def higher_order_program(
    graph: CapturedGraph,
    cut: Partition,
    backwards: Backwards | LayeredBackwards,
    compilation: Compilation,
    compile_training: CompileTraining,
) -> HigherOrderProgram:
    """The program of the gradients' own gradients, of which nothing is compiled yet."""
    compiler = _VjpCompiler(graph, backwards, compilation, compile_training)
    hooked = any(sees_inputs(node.target) for node in graph.module.graph.nodes)
    return HigherOrderProgram(compiler.compile, backwards.contract, cut.draws, hooked)


def _head_slots(contract: JointContract) -> list[Slot]:
    """What each tangent belongs to: an output, memory that an output is a view of, or an input as
    it was written."""
    slots: dict[int, Slot] = {}
    for window in contract.windows:
        if _shows_memory(window, contract.user_outputs):
            slots[window.base.position] = Slot("memory", window.output)
    for position, output in contract.rebased_inputs.items():
        slots[output] = Slot("input", position)
    results = []
    for k in contract.differentiable_outputs:
        results.append(slots.get(k, Slot("output", k)))
    return results


def _shows_memory(window: OutputWindow, user_outputs: int) -> bool:
    """Whether an output is memory that is no output that the user gets, or a view of it in
    autograd's eyes."""
    is_memory = window.base.role == "output" and window.base.position >= user_outputs
    is_view = window.alias in ("view", "one of several", "same")
    return is_memory and is_view and window.tracked


class _VjpCompiler(NamedTuple):
    """Compiles the gradients of one captured graph as a graph that records gradients itself."""

    graph: CapturedGraph
    backwards: Backwards | LayeredBackwards
    compilation: Compilation
    compile_training: CompileTraining

    @serial
    def compile(self, kinds: Kinds, inputs: Inputs) -> CompiledGradients:
        """The program of the gradients of these inputs, for tangents of these kinds."""
        graph, backwards, contract = self.graph, self.backwards, self.backwards.contract
        present = tuple([kind is not None for kind in kinds])
        gradient_inputs = backwards.gradient_inputs(backwards.least(Demand(present, inputs)))
        if not gradient_inputs:
            return CompiledGradients(lambda *inputs: (), ())
        tangents = []
        for node, requires in zip(backwards.joint.tangents, kinds):
            if requires is not None:
                tangents.append(_fake_tangent(node, requires))
        heads = list(itertools.compress(_head_slots(backwards.joint.contract), present))
        mutated = contract.mutated_inputs
        gradients = vjp(graph.module, graph.modes, heads, mutated, gradient_inputs, tangents)
        tensors = contract.tensors
        fakes = [*graph.fakes[:tensors], *tangents, *graph.fakes[tensors:]]
        return CompiledGradients(self._program_of(gradients, fakes), gradient_inputs)

    @serial
    def _program_of(
        self, gradients: torch.fx.GraphModule, fakes: Sequence[FakeTensor]
    ) -> Callable[..., Sequence[Any]]:
        """The program of a graph of gradients.

        The forward has run: what cannot be compiled runs by eager's operations, one by one.
        """
        outer, context = self.compilation, self.graph.context
        compilation = Compilation(f"{outer.name}, gradients", outer.where)
        assert outer.backward is not None
        outer.backward.backward = compilation
        with undisturbed(), paused_collection():
            try:
                if torch.is_anomaly_enabled():  # which looks at the values
                    raise unsupported("backward-call", "anomalies are to be detected")
                with context.shapes.above_one():
                    graph = CapturedGraph(gradients, fakes, context, Modes.now())
                    run, built = self.compile_training(graph, compilation)
                aten = built.aten
                changes_state = aten.mutations or any(draws(n.target) for n in aten.graph.nodes)
                if aten.checks and changes_state:
                    raise unsupported(
                        "late-error", f"{aten.checks[0]} is checked where eager could not go on"
                    )
            except Exception as problem:
                compilation.skipped = unsupported_by(problem)
                return functools.partial(_run_in_eager, gradients)
        return _GuardedProgram(run, gradients, _symbolic_sizes(fakes), bool(aten.checks))


def _symbolic_sizes(fakes: Sequence[Any]) -> list[tuple[int, int]]:
    """The sizes that are symbols: (input, dimension)."""
    sizes = []
    for k, fake in enumerate(fakes):
        if isinstance(fake, torch.Tensor):
            sizes += [(k, d) for d, n in enumerate(fake.shape) if isinstance(n, torch.SymInt)]
    return sizes


def _run_in_eager(graph: torch.fx.GraphModule, *inputs: Any) -> Sequence[Any]:
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
            return _run_in_eager(self._graph, *inputs)
        if not self._may_raise:
            return self._program(*inputs)
        try:
            if all(inputs[k].shape[d] != 1 for k, d in self._sizes):
                return self._program(*inputs)
        except RuntimeError:
            pass
        return _run_in_eager(self._graph, *inputs)


def _fake_tangent(node: torch.fx.Node, requires_gradient: bool) -> FakeTensor:
    value = node.meta["val"]
    tangent = FakeTensor(value.meta, value.device)
    tangent.required_grad = tangent.is_followed = requires_gradient
    return tangent
