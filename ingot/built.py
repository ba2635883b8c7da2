"""What the pipeline gives: the results of its steps, each the input of the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ingot.codegen.triton.module import CompiledKernels
    from ingot.graph.aten_graph import AtenGraph
    from ingot.loops.ir import LoopGraph
    from ingot.native import _native
    from ingot.runtime.cuda_graphs import Replayed
    from ingot.runtime.program import MachineCode, Program
    from ingot.schedule.plan import Plan


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


class CompiledGraph(NamedTuple):
    """A captured graph's program. `run` takes the graph's inputs and gives its outputs, through the
    program that was `built` of its ATen graph, the forward if gradients are recorded."""

    run: Callable[..., Sequence[Any]]
    built: Built
