"""A GPU's plan in two: what the device does, and what the CPU does beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.schedule.plan import LibraryStep
from tests.codegen.triton.interpreter import planned_beside


def drawing(x: Tensor, n: Tensor) -> Tensor:
    torch.rand([])
    return torch.softmax(x, 0) * 2


def test_split_by_device() -> None:
    plan = planned_beside(drawing, torch.randn(8, 8), torch.randn(()))
    parts = plan.split_by_device()
    assert parts is not None
    device, cpu = parts
    assert len(device.steps) + len(cpu.steps) == len(plan.steps)
    assert [str(s.node.function) for s in cpu.steps if isinstance(s, LibraryStep)] == [
        "aten.rand.default"
    ]
    assert device.graph.outputs and not cpu.graph.outputs


def test_not_apart() -> None:
    """A number of the CPU's that a kernel takes, or the user gets; nothing there at all."""
    x, n = torch.randn(8, 8), torch.randn(())
    assert planned_beside(lambda x, n: x * torch.rand([]), x, n).split_by_device() is None
    assert planned_beside(lambda x, n: (x.sin(), torch.rand([])), x, n).split_by_device() is None
    assert planned_beside(lambda x, n: x.sin(), x, n).split_by_device() is None
