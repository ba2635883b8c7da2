"""The description of a program that another process can take: functions and kernels by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ingot.kept.format import Named
from ingot.kept.steps import CONSTANTS, OWNER, STEPS, Packed, require_kept
from ingot.runtime.description import Description, Row, faster
from ingot.runtime.gpu_description import GpuDescription
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.plan import Plan

if TYPE_CHECKING:
    from ingot.codegen.loaded_kernels import Image
    from ingot.codegen.triton.module import Binary, CompiledForm


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


class NamedGpuDescription(NamedDescription, GpuDescription):
    """The same of a program on a GPU: its kernels stand by their numbers among the `images`."""

    def __init__(self, plan: Plan, compiled: Any, device: torch.device) -> None:
        GpuDescription.__init__(self, plan, compiled, device, lasting=True)
        self.images: dict[Image, int] = {}
        self.position = 0

    def steps(self, position: int) -> list[Row]:
        self.position = position
        return super().steps(position)

    def load(self, binary: Binary) -> Row:
        return (self.images.setdefault(binary.launched, len(self.images)),)

    def load_later(self, form: CompiledForm) -> Row:
        return ((self.position, form.number),)


def packable(plan: Plan, code: Any, device: torch.device) -> tuple[tuple[Any, ...], Packed]:
    """The description of a plan's program, without the machine code that owns its kernels, and what
    has these. Raises NotKept for a step that cannot be kept."""
    images: tuple[tuple[Any, ...], ...] = ()
    if device.type == "cpu":
        row = list(NamedDescription(plan, code, device).build())
    else:
        named = NamedGpuDescription(plan, code, device)
        row = list(named.build())
        images = tuple(map(tuple, named.images))
    row[OWNER] = None
    row[CONSTANTS] = tuple([tensor.cpu() for tensor in row[CONSTANTS]])
    return tuple(row), (tuple(code.names), tuple(code.objects), images)
