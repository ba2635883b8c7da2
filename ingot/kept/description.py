"""The description of a program that another process can take: functions and kernels by name."""

from __future__ import annotations

from typing import Any

import torch

from ingot.kept.format import Named
from ingot.kept.steps import OWNER, STEPS, require_kept
from ingot.runtime.description import Description, Row, faster
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.plan import Plan


class NamedDescription(Description):
    """A description without addresses."""

    def build(self) -> Row:
        """Raises NotKept for a program with a step that cannot be kept."""
        row = super().build()
        require_kept(row[STEPS])
        return row

    def address(self, kernel: AnyKernel) -> Any:
        return self.compiled.name(kernel)

    def entry_point(self, function: Any) -> Any:
        return Named(faster(function) or function)


def packable(plan: Plan, code: Any, device: torch.device) -> tuple[Any, ...]:
    """The description of a plan's program, without the machine code that owns its kernels."""
    description = list(NamedDescription(plan, code, device).build())
    description[OWNER] = None
    return tuple(description)


def told_program(plan: Plan, code: Any) -> tuple[Any, Any]:
    """The description of a plan's program for CPUs, and the names of its kernels with the object
    files that have them. Raises NotKept for a step that cannot be kept."""
    return packable(plan, code, torch.device("cpu")), (tuple(code.names), tuple(code.objects))
