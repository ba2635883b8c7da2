"""Parameters that a graph gathers of shards, and their gradients: what is exchanged, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import ingot
from ingot.graph.gathers import Gather, Piece, Reduction

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)
RANKS = 2


@pytest.fixture(scope="module", autouse=True)
def groups() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Exchange:
    """Stands for the collectives: what each rank would give lies one behind the other."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        self.given, self.sent = list(given), list[Tensor]()

    def all_gather_into_tensor(self, flat: Tensor, ranks: int, group: str) -> Tensor:
        self.sent.append(flat)
        return torch.cat([flat, *self.given])

    def reduce_scatter_tensor(self, flat: Tensor, op: str, ranks: int, group: str) -> Tensor:
        self.sent.append(flat)
        return flat.view(ranks, -1)[0].clone()

    def wait_tensor(self, tensor: Tensor) -> Tensor:
        return tensor


SIZES = (3, 4), (5,), (1, 2)


def made(dtype: torch.dtype) -> tuple[Gather, list[Tensor], list[list[Tensor]]]:
    """How parameters of these sizes are gathered; them; and the padded shards of each rank."""
    whole, shards, pieces = [], [list[Tensor]() for _ in range(RANKS)], []
    for sizes in SIZES:
        parameter = torch.randn(sizes)
        rows = -(-sizes[0] // RANKS)
        padded = parameter.new_zeros(rows * RANKS, *sizes[1:])
        padded[: sizes[0]] = parameter
        for of_rank, shard in zip(shards, padded.chunk(RANKS)):
            of_rank.append(shard.flatten().clone())
        whole.append(parameter)
        pieces.append(Piece(sizes, padded.numel() // RANKS, dtype))
    reduction = Reduction(torch.float32, "avg", None, None, None, None)
    return Gather(pieces, RANKS, ("", ""), reduction, True), whole, shards


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_and_gradients(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    gather, whole, (mine, others) = made(dtype)
    exchange = Exchange([torch.cat(others).to(dtype)])
    monkeypatch.setattr("ingot.graph.gathers.collectives", exchange)
    mine[0].requires_grad_()
    mine[1].requires_grad_()
    found = gather(*mine)
    for one, parameter in zip(found, whole):
        assert one.shape == parameter.shape and torch.equal(one, parameter.to(dtype))
    assert [one.requires_grad for one in found] == [True, True, False]
    found[0].sum().backward()  # the second is not used
    assert mine[1].grad is None and mine[2].grad is None and mine[0].grad is not None
    assert exchange.sent[-1].dtype is torch.float32 and exchange.sent[-1].numel() == 16
    assert mine[0].grad.dtype is torch.float32 and torch.equal(mine[0].grad, torch.ones(8))


# -- a whole model ---------------------------------------------------------------------------------


def test_a_model_on_one_rank_exchanges_nothing() -> None:
    from torch.distributed.fsdp import fully_shard

    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (1,))
    for unit in (model[0], model):
        fully_shard(unit, mesh=mesh)
    compiled, x = ingot.compile(model, fullgraph=True), torch.randn(2, 4)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.to_local().clone() for p in model.parameters()]
    model.zero_grad()
    result = compiled(x)
    result.sum().backward()
    torch.testing.assert_close(result, expected)
    found = [p.grad.to_local() for p in model.parameters()]
    torch.testing.assert_close(found, gradients)
    report = ingot.explain(compiled)(x)
    assert not report.breaks and not any(k.name.endswith("_tensor") for k in report.kernels)
