"""What one rank of two finds of programs with DTensors, in eager and compiled: see
test_dtensors.py. A program takes DTensors, or plain tensors that each rank has its own of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

import ingot
from tests.compiled import compilations as compilations_of

MESH: Any = None  # made once there is a group
ROWS, COLUMNS, WHOLE, SUM = Shard(0), Shard(1), Replicate(), Partial()

Program = Callable[..., Any]
PROGRAMS: dict[str, tuple[Program, tuple[Any, ...]]] = {}
"""By name: a function and the placements of its arguments; None is a plain tensor."""


def program(*placements: Any) -> Callable[[Program], Program]:
    def note(function: Program) -> Program:
        PROGRAMS[function.__name__] = function, placements
        return function

    return note


# -- ops -------------------------------------------------------------------------------------------


@program(ROWS, ROWS)
def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * 2 + y).sin() - x


@program(ROWS, WHOLE)
def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w + 1)


@program(COLUMNS, ROWS)
def contracted(x: Tensor, w: Tensor) -> Tensor:
    """Which is a sum that is pending."""
    return x @ w


@program(ROWS)
def reduced(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(), x.mean(0), x.amax(1), x.var(1)


@program(COLUMNS)
def softmax(x: Tensor) -> Tensor:
    """Which gathers what is sharded."""
    return torch.softmax(x, -1) * 2


@program(ROWS, WHOLE)
def normalized(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (8,), w[0], w[1])


@program(ROWS)
def viewed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.T * 2, x.view(8, 2, 4).transpose(1, 2), x.unsqueeze(1)[:, :, :4]


@program(ROWS, COLUMNS)
def unlike(x: Tensor, y: Tensor) -> Tensor:
    """Whose placements are made alike first."""
    return x * y


@program(ROWS)
def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1).mul_(x)
    y[:, 1].neg_()
    return y


@program(ROWS)
def without_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = x * 3
    return y + x, x.detach().sin()


@program(ROWS)
def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) * 2


@program(ROWS)
def written(x: Tensor) -> Tensor:
    """An argument, which sees it, as do views of it."""
    x = x * 1
    y = x[1:]
    x.mul_(2)
    x[:, 2:4].add_(1)
    return y + x.sum()


@program(ROWS)
def held(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Results that share memory, which outlive the call."""
    y = x * 2
    return y, y.view(4, 2, 8), y.detach()


@program(ROWS, ROWS)
def clipped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """As the norm of many gradients is found."""
    norms = torch._foreach_norm([x.detach(), y.detach()], 2.0)
    total = torch.linalg.vector_norm(torch.stack(norms))
    return total, x * (1 / (total.full_tensor() + 1))


@program(ROWS)
def questions(x: Tensor) -> Tensor:
    assert isinstance(x, DTensor) and x.placements == (Shard(0),) and x.ndim == 2
    assert x.device_mesh.size() == 2 and x.device_mesh.ndim == 1
    if x.placements[0].is_shard():
        x = x * x.shape[0]
    return x + x.device_mesh.get_local_rank()


# -- from plain tensors and to them ----------------------------------------------------------------


@program(None)
def from_local(x: Tensor) -> Tensor:
    return DTensor.from_local(x * 2, MESH, [Shard(0)]).sin()


@program(None)
def from_partial(x: Tensor) -> Tensor:
    y = DTensor.from_local(x * 2, MESH, (Partial(),), run_check=False)
    return y.redistribute(placements=[Replicate()]).sin().to_local()


@program(ROWS)
def to_local(x: Tensor) -> Tensor:
    return (x * 2).to_local() + 1


@program(ROWS)
def gathered(x: Tensor) -> Tensor:
    return x.sin().redistribute(x.device_mesh, [Replicate()]) * 2


@program(WHOLE)
def chunked(x: Tensor) -> Tensor:
    return x.sin().redistribute(placements=(Shard(-1),), async_op=True).cos()


@program(ROWS)
def exchanged(x: Tensor) -> Tensor:
    return x.redistribute(placements=[Shard(1)]) * 3


@program(COLUMNS, ROWS)
def scattered(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).redistribute(placements=[Shard(0)]).relu()


@program(ROWS)
def full_tensor(x: Tensor) -> Tensor:
    return (x * 2).full_tensor() @ torch.ones(8)


@program(ROWS, None)
def both(x: Tensor, y: Tensor) -> Tensor:
    whole = x.full_tensor()
    return whole * 2 + DTensor.from_local(y, MESH, [Partial()]).full_tensor().sum()


@program(ROWS)
def awaited_result(x: Tensor) -> Tensor:
    """A result whose collective nobody has waited for."""
    return x.redistribute(placements=[Replicate()])


@program(None)
def distributed(x: Tensor) -> Tensor:
    y = distribute_tensor(x.detach(), MESH, [Shard(0)], src_data_rank=None)
    return y * 2


# -- what is left to eager -------------------------------------------------------------------------


@program(None)
def from_one_rank(x: Tensor) -> Tensor:
    return distribute_tensor(x.detach(), MESH, [Shard(0)]) * 2


@program(None)
def checked(x: Tensor) -> Tensor:
    return DTensor.from_local(x, MESH, [Replicate()], run_check=True) * 2


RESHARDED = {"softmax", "unlike", "written"}
"""Whose gradients eager gives whole where the tensors are sharded, and compiled code sharded."""

BROKEN = {"from_one_rank", "checked"}


# -- comparing -------------------------------------------------------------------------------------


def arguments(placements: tuple[Any, ...], seed: int, gradients: bool) -> list[Tensor]:
    results = []
    for k, placement in enumerate(placements):
        torch.manual_seed(100 * seed + 10 * k + dist.get_rank())
        x = torch.randn(8, 8)
        if placement is not None:
            torch.manual_seed(100 * seed + 10 * k)
            x = distribute_tensor(torch.randn(8, 8), MESH, [placement])
        results.append(x.requires_grad_(gradients))
    return results


def tensors_of(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def difference(one: Any, other: Any, by_placement: bool = True) -> str:
    """How two results differ; "" where they are alike."""
    for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
        if isinstance(a, DTensor) is not isinstance(b, DTensor):
            return f"{type(a).__name__} for {type(b).__name__}"
        if isinstance(a, DTensor):
            if not by_placement:  # how a sum is spread over ranks while it is pending is free
                whole = [Replicate()] * MESH.ndim
                a, b = a.redistribute(placements=whole), b.redistribute(placements=whole)
            if a.placements != b.placements or a.device_mesh != b.device_mesh:
                return f"{a.placements} for {b.placements}"
            if a.shape != b.shape or a.stride() != b.stride():
                return f"{a.shape} {a.stride()} for {b.shape} {b.stride()}"
            a, b = a.to_local(), b.to_local()
        if a.shape != b.shape or a.dtype != b.dtype or a.requires_grad is not b.requires_grad:
            return f"{a.shape}, {a.dtype}, {a.requires_grad} for {b.shape}, {b.requires_grad}"
        scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        if not torch.allclose(a, b, rtol=1e-5, atol=1e-6 * scale):
            return f"other values: {(a - b).abs().max().item()}"
    return ""


def local_of(tensor: Tensor) -> Tensor:
    """What a loss may take of a tensor. `to_local` of a sum that is pending wants the same gradient
    on each rank, which a loss of its parts does not have."""
    if not isinstance(tensor, DTensor):
        return tensor
    if any(placement.is_partial() for placement in tensor.placements):
        return tensor.full_tensor()
    return tensor.to_local()


def gradients_of(result: Any, inputs: list[Tensor]) -> list[Tensor]:
    total: Any = 0
    for one in tensors_of(result):
        if one.requires_grad:
            total = total + local_of(one).square().sum()
    if not isinstance(total, Tensor):
        return []
    total.backward()
    return [x.grad for x in inputs if x.grad is not None]


def compared(function: Program, placements: tuple[Any, ...], gradients: bool) -> str:
    """How a compiled program differs from eager over some calls; "" where it does not."""
    compiled = ingot.compile(function)
    for seed in range(3):
        pair, found = [], []
        for run in (function, compiled):
            inputs = arguments(placements, seed, gradients)
            torch.manual_seed(seed)
            result = run(*inputs)
            pair.append(result)
            found.append(gradients_of(result, inputs))
        if problem := difference(pair[1], pair[0]):
            return problem
        if len(found[0]) != len(found[1]):
            return f"{len(found[1])} gradients for {len(found[0])}"
        if problem := difference(found[1], found[0], function.__name__ not in RESHARDED):
            return f"gradients: {problem}"
    return ""


def facts(name: str) -> dict[str, Any]:
    function, placements = PROGRAMS[name]
    found: dict[str, Any] = {}
    for gradients in (False, True):
        try:
            found[f"differs {gradients}"] = compared(function, placements, gradients)
        except Exception as error:
            found[f"differs {gradients}"] = f"{type(error).__name__}: {error}"[:2000]
        report = ingot.explain(function)(*arguments(placements, 0, gradients))
        found[f"breaks {gradients}"] = [str(one.reason) for one in report.breaks]
        found[f"graphs {gradients}"] = report.graph_count
    return found


def find_all(*names: str) -> dict[str, Any]:
    """By the name of each program, what it does."""
    global MESH
    warnings.simplefilter("ignore")
    MESH = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {name: facts(name) for name in names or PROGRAMS}
    found |= {"compilations": compilations(), "gradients inside": gradients_inside()}
    return {**found, "broken": sorted(BROKEN)}


def gradients_inside() -> list[str]:
    """How gradients differ from eager's that a compiled function adds up by itself: that of a
    replicated weight is a sum that is pending."""

    def step(x: Tensor, w: Tensor) -> None:
        F.layer_norm(x, (8,), w).square().sum().backward()

    (x,) = arguments((ROWS,), 0, False)
    runs = step, ingot.compile(step)
    weights: list[Any] = []
    for _ in runs:
        weights.append(distribute_tensor(torch.ones(8), MESH, [WHOLE]).requires_grad_())
    found = []
    for _ in range(2):
        for run, w in zip(runs, weights):
            run(x, w)
        found.append(difference(weights[1].grad, weights[0].grad))
    return found


def compilations() -> list[int]:
    """How often a program was compiled after calls with new values, placements and sizes."""
    compiled = ingot.compile(pointwise)
    counts = []
    for placement, rows in ((ROWS, 8), (ROWS, 8), (COLUMNS, 8), (COLUMNS, 4)):
        x = distribute_tensor(torch.randn(rows, 8), MESH, [placement])
        compiled(x, x)
        counts.append(len(compilations_of(compiled)))
    return counts
