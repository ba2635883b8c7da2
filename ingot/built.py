"""What the pipeline gives: the results of its steps, each the input of the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.graph.meta import tensors_in
from ingot.lockstep import Calls, calls_of

if TYPE_CHECKING:
    from ingot.codegen.triton.module import CompiledKernels
    from ingot.graph.aten_graph import AtenGraph
    from ingot.loops.ir import LoopGraph
    from ingot.native import _native
    from ingot.runtime.cuda_graphs import Replayed
    from ingot.runtime.program import MachineCode, Program
    from ingot.schedule.plan import Plan


class Risks(NamedTuple):
    """What a program may do beside giving its results: it decides what follows where it raises.

    It may raise an error for what its tensors hold at `fails_at`, the user's line (None if it does
    not, or none is known), in its `checks`, or where it `binds` sizes that the data decide. It
    takes random numbers from `generators`, if it `draws`. Each step that may raise comes before
    the first that leaves a trace, if it `fails_first`. `is_replayed`: as a CUDA graph, which does
    not say how far it came. What it issues to process groups is in `collectives`.
    """

    fails_at: str | None
    checks: bool
    binds: bool
    draws: bool
    generators: tuple[torch.Generator, ...]
    leaves_traces: bool
    fails_first: bool
    is_replayed: bool
    collectives: Calls = MappingProxyType({})


class Built(NamedTuple):
    """An ATen graph's program, and what it went through. `replayed` replays the program as CUDA
    graphs; None if nothing does."""

    aten: AtenGraph
    loops: LoopGraph
    plan: Plan
    code: MachineCode | CompiledKernels
    program: Program
    replayed: Replayed | None

    @property
    def run(self) -> _native.Program | Replayed:
        """Takes the inputs of the graph and gives its outputs."""
        if self.replayed is None:
            return self.program.native
        return self.replayed

    @property
    def risks(self) -> Risks:
        aten, program = self.aten, self.program
        fails_at = _may_fail_at(aten)
        return Risks(
            fails_at,
            bool(aten.checks),
            bool(aten.bindings),
            any(aten.random_nodes),
            _generators_of(aten) if fails_at is not None else (),
            program.leaves_traces,
            program.fails_first,
            self.replayed is not None,
            calls_of(aten),
        )


def _generators_of(aten: AtenGraph) -> tuple[torch.Generator, ...]:
    """The generators that an ATen graph takes numbers from."""
    generators: dict[torch.device, torch.Generator] = {}
    for node in aten.random_nodes:
        device = tensors_in(node.meta["val"])[0].device
        generators[device] = generator_of(device)
    return tuple(generators.values())


def generator_of(device: torch.device) -> torch.Generator:
    """What random numbers on a device are taken from where the program names nothing else."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator


def _may_fail_at(aten: AtenGraph) -> str | None:
    """Where an ATen graph may raise an error for what its tensors hold; None where it does not, or
    none is known."""
    if aten.checks:
        return aten.checks[0].where
    for node in aten.graph.nodes:
        if node.meta.get("may_raise"):
            return str(node.meta.get("where", ""))
    return None


class CompiledGraph(NamedTuple):
    """A captured graph's program. `run` takes the graph's inputs and gives its outputs, through the
    program that was `built` of its ATen graph, the forward if gradients are recorded."""

    run: Callable[..., Sequence[Any]]
    built: Built
