"""Modules that torch.distributed wraps or shards, compiled: steps of training are eager's, and what
torch keeps of a module in tables of its own is found by the compiled one."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ingot
from tests.long import long
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 4))


def _ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def _fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def _fsdp1_in_blocks(model):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), auto_wrap_policy=policy)


def _fsdp2(model):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model[:2]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _plain(model):
    return model


WRAPPERS = {"ddp": _ddp, "fsdp1": _fsdp1, "fsdp1 in blocks": _fsdp1_in_blocks, "fsdp2": _fsdp2}
WAYS = {
    "around": lambda wrap: ingot.compile(wrap(_model())),
    "inside": lambda wrap: wrap(ingot.compile(_model())),
    "in place": lambda wrap: _compiled_forward(wrap(_model())),
}


def _compiled_forward(module):
    module.forward = ingot.compile(module.forward)
    return module


def _steps(module: nn.Module) -> list[float]:
    """Losses and what a module gives, of a few steps."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    found: list[float] = []
    for k in range(3):
        torch.manual_seed(10 * dist.get_rank() + k)
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        loss = ((module(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            found += [float(loss), float(module(x).abs().sum())]
    return found


def train() -> dict[str, dict[str, list[float]]]:
    """On a rank: for each wrapper, what the steps give in eager, and compiled in each way."""
    warnings.simplefilter("ignore")
    return {wrapper: _by_way(wrapper) for wrapper in WRAPPERS}


def _by_way(wrapper: str) -> dict[str, list[float]]:
    wrap = WRAPPERS[wrapper]
    found = {"eager": _steps(wrap(_model()))}
    for way, compiled_by in WAYS.items():
        compiled = compiled_by(wrap)
        found[way] = _steps(compiled)
        if wrapper == "fsdp2":
            compiled.set_requires_gradient_sync(True)
            compiled.unshard()
            compiled.reshard()
    return found


@long
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_is_eagers(ranks):
    for found in on_ranks(ranks, "tests.test_sharded_modules:train"):
        for wrapper, ways in found.items():
            for way in WAYS:
                assert ways[way] == pytest.approx(ways["eager"], rel=1e-4), (wrapper, way)
