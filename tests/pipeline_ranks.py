"""What one rank finds of models whose layers are spread over ranks, in eager and compiled: see
test_pipelines.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.nn import functional as F

import ingot

WIDTH, PARTS = 16, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


SCHEDULES: dict[str, tuple[Callable[..., Any], int]] = {
    "GPipe": (ScheduleGPipe, 1),
    "1F1B": (Schedule1F1B, 1),
    "interleaved 1F1B": (ScheduleInterleaved1F1B, 2),
    "looped, breadth first": (ScheduleLoopedBFS, 2),
    "interleaved, zero bubble": (ScheduleInterleavedZeroBubble, 2),
}
"""By name: the schedule, and how many stages a rank has."""


def _loss(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def _blocks(stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(Block(), Block()) for _ in range(stages)]


def _batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 2 * PARTS, WIDTH, generator=generator).unbind()  # type: ignore[return-value]


def _trained_whole(stages: int) -> dict[int, list[Tensor]]:
    """By stage: gradients and parameters of two steps of one process."""
    blocks = _blocks(stages)
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found: dict[int, list[Tensor]] = {k: [] for k in range(stages)}
    for step in range(2):
        x, y = _batch(step)
        _loss(model(x), y).backward()
        for k, block in enumerate(blocks):
            found[k] += [p.grad.clone() for p in block.parameters()]  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    for k, block in enumerate(blocks):
        found[k] += [p.detach().clone() for p in block.parameters()]
    return found


def _trained(name: str, compiled_by: Callable[[nn.Module], Any]) -> dict[int, list[Tensor]]:
    """The same, of the stages of this rank."""
    schedule_of, own = SCHEDULES[name]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = own * ranks
    blocks = {k: block for k, block in enumerate(_blocks(stages)) if k % ranks == rank}
    device, made = torch.device("cpu"), []
    group = dist.new_group()  # in one of gloo's, a second schedule of several stages waits for ever
    for k, block in blocks.items():
        made.append(PipelineStage(compiled_by(block), k, stages, device, group=group))
    schedule = schedule_of(made if own > 1 else made[0], PARTS, loss_fn=_loss)
    parameters = [p for block in blocks.values() for p in block.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    found: dict[int, list[Tensor]] = {k: [] for k in blocks}
    for step in range(2):
        x, y = _batch(step)
        inputs, targets = (), {}
        if 0 in blocks:
            inputs = (x,)
        if stages - 1 in blocks:
            targets = {"target": y, "losses": []}
        schedule.step(*inputs, **targets)
        for k, block in blocks.items():
            found[k] += [p.grad.clone() for p in block.parameters()]  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    for k, block in blocks.items():
        found[k] += [p.detach().clone() for p in block.parameters()]
    return found


def compare(names: str) -> dict[str, dict[str, Any]]:
    """By schedule: the largest difference from one process, graphs of a stage, breaks."""
    warnings.simplefilter("ignore")
    found = {}
    for name in names.split("; "):
        whole = _trained_whole(SCHEDULES[name][1] * dist.get_world_size())
        results = {}
        for way, compiled_by in {"eager": lambda m: m, "compiled": ingot.compile}.items():
            ingot.reset()
            differences = []
            for k, tensors in _trained(name, compiled_by).items():
                for one, other in zip(tensors, whole[k], strict=True):
                    differences.append(float((one - other).norm() / other.norm()))
            results[way] = max(differences)
        counters = ingot.counters()
        found[name] = {**results, "graphs": counters["captures"], "breaks": counters["breaks"]}
    return found
