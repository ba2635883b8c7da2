"""A plan and its machine code as a program: a flat list of steps that C runs without Python frames.

`description.py` has the format of the tuple that the native program is made of; on a GPU,
`gpu_description.py` fills it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ingot.loops.expr import Expr
from ingot.loops.ir import Fault, View
from ingot.native import _native
from ingot.runtime import quota
from ingot.runtime.description import Description
from ingot.runtime.gpu_description import GpuDescription
from ingot.runtime.traces import Step, first_trace, is_effectful, mutated_inputs
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.plan import KernelStep, Plan

if TYPE_CHECKING:
    from ingot.codegen.triton.module import CompiledKernels

_CPU = torch.device("cpu")


class MachineCode(Protocol):
    """The result of code generation (`codegen.llvm.CompiledKernels`)."""

    def address(self, kernel: AnyKernel) -> int: ...
    def scratch_bytes(self, kernel: AnyKernel) -> Expr: ...
    def unit(self, kernel: AnyKernel) -> int: ...
    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]: ...


Launcher = Callable[[Plan, Any, torch.device, bool], Description]
"""Describes how a program of a plan and its machine code runs: what each step does, in the words
that native code knows. Code that is loaded into a device stays there if it is to be lasting."""


def _on_cpu(plan: Plan, compiled: Any, device: torch.device, lasting: bool) -> Description:
    quota.heed()
    return Description(plan, compiled, device)


LAUNCHERS: dict[str, Launcher] = {"cpu": _on_cpu, "cuda": GpuDescription}
"""By torch's type of device."""


class Program:
    """A compiled graph: `program(inputs)` returns its outputs, tensors and ints, in a list.

    `native` is what the dispatcher runs. The inputs must be as the guards promise: only their
    number is checked here. What is loaded into a GPU stays there if it is to be `lasting`.
    """

    def __init__(
        self,
        plan: Plan,
        compiled: MachineCode | CompiledKernels,
        device: torch.device = _CPU,
        lasting: bool = True,
    ) -> None:
        self.plan, self.device = plan, device
        description = LAUNCHERS[device.type](plan, compiled, device, lasting)
        self._errors = description.errors
        self.native = _native.Program(description.build())
        self._plan_steps = description.plan_steps

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return list(self.native(*inputs))

    @property
    def arena_bytes(self) -> Expr:
        """The size of the block that all temporaries share, an expression over the size symbols."""
        return self.plan.arena_bytes

    @property
    def peak_bytes(self) -> Expr:
        """The most bytes held at once: inputs, outputs, arena and library results."""
        return self.plan.peak_bytes

    def profile(self, on: bool) -> list[float]:
        """Begin (anew) or end to measure the steps.

        Returns the seconds of each step of the plan, with what it allocates and releases, over all
        calls since it began; nothing if it was off.
        """
        measured = self.native.profile(on)
        seconds = []
        if measured:
            seconds = [0.0] * len(self.plan.steps)
        for position, nanoseconds in zip(self._plan_steps, measured):
            if position is not None:
                seconds[position] += nanoseconds * 1e-9
        return seconds

    @property
    def fails_first(self) -> bool:
        """Whether each step that may raise for its data comes before the first trace.

        A program that raises has then left its inputs, and the world, alone.
        """
        behind = self.plan.steps[first_trace(self.plan) :]
        return not any(map(self._may_fail, behind))

    @property
    def leaves_traces(self) -> bool:
        """Whether a step writes an input or has an effect."""
        return first_trace(self.plan) < len(self.plan.steps)

    @property
    def written_inputs(self) -> set[int]:
        """The positions of the inputs that are written."""
        return self._positions(mutated_inputs(self.plan))

    @property
    def counted_writes(self) -> set[int]:
        """Those of whose writes autograd is told."""
        return self._positions(mutated_inputs(self.plan) - self.plan.graph.uncounted)

    def _positions(self, names: set[str]) -> set[int]:
        return {k for k, name in enumerate(self.plan.graph.inputs) if name in names}

    def _may_fail(self, step: Step) -> bool:
        if isinstance(step, KernelStep):
            return bool(self._errors(step.kernel))
        if step.node.binds:  # whose unbacked sizes are checked
            return True
        # capture has seen to effectful ops that raise
        return step.node.may_raise and not is_effectful(step)

    @property
    def layout_mismatches(self) -> int:
        """How many library results so far had another layout than predicted, and were copied."""
        return self.native.layout_mismatches

    def __str__(self) -> str:
        """The steps, one per line, and where every buffer lives."""
        lines = [f"arena {self.arena_bytes} bytes, peak {self.peak_bytes} bytes"]
        for step in self.plan.steps:
            lines.append(f"  {_step_text(step, self.plan)}")
        lines.append(f"  return {', '.join(map(_output_text, self.plan.graph.outputs))}")
        return "\n".join(lines)


def _step_text(step: Step, plan: Plan) -> str:
    def places(names: Iterable[str | None]) -> str:
        return ", ".join(_place_text(plan, name) for name in names)

    if isinstance(step, KernelStep):
        return f"kernel {step.kernel.name}({places(step.arguments)}) over {step.extent}"
    node = step.node
    return f"call {node.function}({places(sorted(node.reads()))}) -> {places(node.targets)}"


def _place_text(plan: Plan, name: str | None) -> str:
    if name is None:
        return "_"
    place = plan.places[name]
    if place.kind == "arena":
        return f"{name}:arena+{place.offset}"
    return f"{name}:{place.kind}"


def _output_text(output: View | Expr) -> str:
    if isinstance(output, View):
        return f"{output.buffer}[{', '.join(map(str, output.sizes))}]"
    return str(output)
