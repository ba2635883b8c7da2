"""The description of a program that another process can take: functions and kernels by name."""

from __future__ import annotations

from typing import Any

import torch

from ingot.kept.format import Named
from ingot.kept.loading import OWNER
from ingot.runtime.description import Description, faster
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.plan import Plan


class NamedDescription(Description):
    """A description without addresses."""

    def address(self, kernel: AnyKernel) -> Any:
        return self.compiled.name(kernel)

    def entry_point(self, function: Any) -> Any:
        return Named(faster(function) or function)


def packable(plan: Plan, code: Any, device: torch.device) -> tuple[Any, ...]:
    """The description of a plan's program, without the machine code that owns its kernels."""
    description = list(NamedDescription(plan, code, device).build())
    description[OWNER] = None
    return tuple(description)
