"""The description of a program that another process can take: functions and kernels by name."""

from __future__ import annotations

from typing import Any

from ingot.kept.format import Named
from ingot.runtime.description import Description, faster
from ingot.schedule.kernel import AnyKernel


class NamedDescription(Description):
    """A description without addresses."""

    def address(self, kernel: AnyKernel) -> Any:
        return self.compiled.name(kernel)

    def entry_point(self, function: Any) -> Any:
        return Named(faster(function) or function)
