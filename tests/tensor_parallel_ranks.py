"""What one rank of two finds of models in tensor and sequence parallel, trained in eager and
compiled: see test_tensor_parallel.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

import ingot
from tests.capture import dtensor_ranks
from tests.compiled import compilations as compilations_of

MESH: Any = None  # made once there is a group
WIDTH, HEADS, WORDS = 16, 4, 32


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "qkvo":
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = []
        for part in (self.q, self.k, self.v):
            heads.append(part(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 32, bias=False), nn.Linear(WIDTH, 32, bias=False)
        self.down = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.gated = Attention(), Gated()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.gated(self.second(x))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# -- plans -----------------------------------------------------------------------------------------


def _mlp() -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(MLP(), MESH, plan)


def _mlp_of_dtensors() -> nn.Module:
    """Which takes and gives DTensors."""
    plan = {"up": ColwiseParallel(use_local_output=False),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False)}  # fmt: skip
    return parallelize_module(MLP(), MESH, plan)


def _in_sequence(block: nn.Module) -> nn.Module:
    rows = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    plan = {
        "first": SequenceParallel(), "second": SequenceParallel(),
        "attention": PrepareModuleInput(**rows), "gated": PrepareModuleInput(**rows),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "gated.down": RowwiseParallel(output_layouts=Shard(1)),
    }  # fmt: skip
    for name in ("attention.q", "attention.k", "attention.v", "gated.gate", "gated.up"):
        plan[name] = ColwiseParallel()
    return parallelize_module(block, MESH, plan)


def _block() -> nn.Module:
    around = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
    return parallelize_module(_in_sequence(Block()), MESH, around)


def _language(whole: bool = True) -> nn.Module:
    model = Language()
    head = ColwiseParallel(
        input_layouts=Shard(1),
        output_layouts=Replicate() if whole else Shard(-1),
        use_local_output=whole,
    )
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    plan = {"embedding": embedding, "norm": SequenceParallel(), "head": head}
    parallelize_module(model, MESH, plan)
    for block in model.blocks:
        _in_sequence(block)
    return model


def _rows(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x: model(x).square().mean()


def _entropy(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x: F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def _of_dtensors(model: nn.Module) -> Callable[..., Tensor]:
    def loss(x: Tensor) -> Tensor:
        return model(DTensor.from_local(x, MESH, [Replicate()])).square().mean().full_tensor()

    return loss


def _numbers() -> Tensor:
    return torch.randn(4, 8, WIDTH)


def _words() -> Tensor:
    return torch.randint(WORDS, (2, 9))


def _sharded_language() -> nn.Module:
    """Whose logits are sharded by words."""
    return _language(whole=False)


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "mlp": (_mlp, _rows, _numbers),
    "mlp of dtensors": (_mlp_of_dtensors, _of_dtensors, _numbers),
    "block": (_block, _rows, _numbers),
    "language": (_language, _entropy, _words),
    "parallel loss": (_sharded_language, _entropy, _words),
}
"""By name: a model, a loss of it, and the input."""

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
    "adamw of many": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
}


# -- training --------------------------------------------------------------------------------------


def _local(tensor: Tensor) -> list[Any]:
    """The placements of a DTensor and some numbers of it."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return ["plain", tensor.double().sum().item(), tensor.double().norm().item()]
    local = tensor.to_local().double()
    return [str(tensor.placements), list(local.shape), local.sum().item(), local.norm().item()]


RESHARDED = frozenset({"embedding.weight"})
"""Sharded parameters whose gradients eager gives whole. A backward outside gives them sharded."""


def _gradient(name: str, parameter: Any, is_resharded: bool) -> Any:
    if is_resharded and name in RESHARDED:
        return parameter.grad.redistribute(placements=parameter.placements)
    return parameter.grad


def trained(
    model: nn.Module, loss_of: Any, inputs: Any, optimizer: str, compiled: str, way: str
) -> Any:
    """Losses, gradients and parameters after some steps; gradients as `way` gives them."""
    around = loss_parallel if model.head_is_sharded else nullcontext
    loss_of_model = loss_of(model)
    if compiled == "loss":
        loss_of_model = ingot.compile(loss_of_model)

    def gradients_of(x: Tensor) -> Tensor:
        with around():
            loss = loss_of_model(x)
            loss.backward()
        return loss

    optimize = OPTIMIZERS[optimizer](model.parameters())
    run, step = gradients_of, optimize.step
    if compiled == "step":
        run, step = ingot.compile(run), ingot.compile(step)
    found = []
    for k in range(3):
        torch.manual_seed(k)
        loss = run(inputs())
        gradients = []
        for name, parameter in model.named_parameters():
            gradients.append(_local(_gradient(name, parameter, way == "loss")))
        step()
        optimize.zero_grad()
        found.append([_local(loss), gradients, [_local(p) for p in model.parameters()]])
    return found


def distance(one: Any, other: Any) -> float:
    """The largest relative difference of numbers in nested lists; infinite where other things
    differ."""
    if isinstance(one, list):
        if len(one) != len(other):
            return float("inf")
        return max(map(distance, one, other), default=0.0)
    if isinstance(one, float):
        return abs(one - other) / max(1.0, abs(other))
    return 0.0 if one == other else float("inf")


def facts(name: str, optimizer: str) -> dict[str, Any]:
    make, loss_of, inputs = MODELS[name]
    found: dict[str, Any] = {}

    def model() -> nn.Module:
        torch.manual_seed(0)
        made = make()
        made.head_is_sharded = make is _sharded_language
        return made

    for way in ("loss", "step"):
        eager = trained(model(), loss_of, inputs, optimizer, "", way)
        found[way] = distance(trained(model(), loss_of, inputs, optimizer, way, way), eager)
    one = model()
    with loss_parallel() if one.head_is_sharded else nullcontext():
        report = ingot.explain(loss_of(one))(inputs())
    found["graphs"] = report.graph_count
    found["breaks"] = [str(one.reason) for one in report.breaks]
    return found


def breaks_of_step(optimizer: str) -> list[str]:
    """The graph breaks of an optimizer's first step over DTensors, and of the next one, which has
    its counts; and how often the steps behind these are compiled."""
    model = _mlp()
    model(torch.randn(4, WIDTH)).sum().backward()
    optimize = OPTIMIZERS[optimizer](model.parameters())
    step, breaks = ingot.compile(optimize.step), []
    for _ in range(2):
        breaks += [str(one.reason) for one in ingot.explain(optimize.step)().breaks]
        step()
    known = len(compilations_of(step))
    step()
    step()
    return breaks + ["compiled again"] * (len(compilations_of(step)) - known)


def find_all(optimizer: str, *names: str) -> dict[str, Any]:
    """By model, how training with an optimizer differs from eager's."""
    global MESH
    warnings.simplefilter("ignore")
    MESH = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {name: facts(name, optimizer) for name in names or MODELS}
    found["step"] = breaks_of_step(optimizer)
    return found


def find_some(*programs: str) -> dict[str, Any]:
    """What dtensor_ranks.py finds of some programs, and what training one model gives, so that the
    ranks are started once."""
    found = dtensor_ranks.find_all(*programs)
    return {**found, "models": find_all("sgd", "mlp"), "counted step": breaks_of_step("adamw")}
