"""How a program runs the stand-in's code: a kernel is a step that calls its function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ingot.codegen.reference import flat_storage
from ingot.runtime.description import Description, Row, whole
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.plan import KernelStep, Plan


def _launch(function: Callable[..., None], count: int, *operands: Any) -> None:
    """The first operands are the buffers; behind these come where each begins, and the sizes."""
    buffers = [flat_storage(tensor) for tensor in operands[:count]]
    begins, sizes = operands[count : 2 * count], operands[2 * count :]
    function([buffer[begin:] for buffer, begin in zip(buffers, begins)], sizes)


class Launches(Description):
    """All steps but kernels are as on a CPU."""

    def kernel(self, step: KernelStep) -> Row:
        items = []
        for name in step.arguments:
            items.append(self.tensor(whole(self.plan.graph.buffers[name])))
        for begin in step.offsets or [0] * len(step.arguments):
            items.append(("int", self.value(begin)))
        for symbol in self.compiled.symbols:
            items.append(("int", self.value(symbol)))
        function = self.compiled.function(step.kernel)
        launch = functools.partial(_launch, function, len(step.arguments))
        return "call", launch, tuple(items), None, (), ()

    def address(self, kernel: AnyKernel) -> Any:
        raise AssertionError("it has no machine code")


def launcher(plan: Plan, code: Any, device: torch.device, lasting: bool) -> Launches:
    """A row of `ingot.runtime.program.LAUNCHERS`."""
    return Launches(plan, code, device)
