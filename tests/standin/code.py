"""The code of the stand-in: a function in Python for each kernel, which interprets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ingot.codegen.reference import run_kernel
from ingot.loops.expr import Expr, Symbol, integer
from ingot.loops.ir import Fault
from ingot.loops.target import CPU
from ingot.options import Options
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.plan import Plan

TARGET = replace(CPU, contracts=False, shares_launches=False)
"""Products are the library's, and each launch runs one kernel."""

Function = Callable[[Sequence[torch.Tensor], Sequence[int]], None]


class Code:
    """A plan's kernels: `function` of each takes its flat buffers, and what the sizes are."""

    def __init__(self, kernels: Sequence[AnyKernel], symbols: Sequence[Symbol]) -> None:
        self.symbols = tuple(symbols)
        self.launched: list[str] = []  # by name, in order
        self._functions: dict[AnyKernel, Function] = {}
        for kernel in kernels:
            self._functions[kernel] = self._compiled(kernel)

    def _compiled(self, kernel: AnyKernel) -> Function:
        names = [p.name for p in kernel.parameters]

        def launch(buffers: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
            self.launched.append(kernel.name)
            run_kernel(kernel, dict(zip(names, buffers)), dict(zip(self.symbols, sizes)))

        return launch

    def function(self, kernel: AnyKernel) -> Function:
        return self._functions[kernel]

    def unit(self, kernel: AnyKernel) -> int:
        return 1

    def scratch_bytes(self, kernel: AnyKernel) -> Expr:
        return integer(0)

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        return ()


def machine_code(
    plan: Plan, device: torch.device, hints: Mapping[Symbol, int], options: Options
) -> Any:
    """The code of a plan, as a row of `ingot.devices.DEVICES` makes it."""
    return Code(plan.kernels, [symbol for symbol, *_ in plan.graph.symbols])
