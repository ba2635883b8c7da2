"""What one rank of several finds of functions that communicate, in eager and compiled: see
test_torchs_collectives.py. The functions take a tensor that differs from rank to rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

import ingot

ALONE: Any = None  # groups of one rank, and of all, made once there is a group
ALL: Any = None
gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def summed(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def argument(x: Tensor) -> None:
    dist.all_reduce(x)


def window(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y[1:3])
    return y


def largest(x: Tensor) -> Tensor:
    y = x.sin()
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    return y


def integers(x: Tensor) -> Tensor:
    y = x.to(torch.int32)
    dist.all_reduce(y, dist.ReduceOp.MIN)
    return y


def halves(x: Tensor) -> Tensor:
    y = x.to(torch.bfloat16)
    dist.all_reduce(y)
    return y * 2


def twice(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(y)
    return y


def alike(x: Tensor) -> Tensor:
    """Both are wanted, though they communicate the same."""
    y, z = x * 2, x * 2
    dist.all_reduce(y)
    dist.all_reduce(z)
    return y - z


def unread(x: Tensor) -> Tensor:
    """Others wait for what this rank does not read."""
    y = x * 2
    dist.all_reduce(y)
    return x + 1


def in_order(x: Tensor) -> Tensor:
    y, z = x + 1, x * 3
    dist.broadcast(z, 1)
    dist.all_reduce(y, dist.ReduceOp.MAX)
    dist.broadcast(y, 0)
    return y * z


def functionally(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1  # type: ignore[arg-type]


def received(x: Tensor) -> Tensor:
    y = x + 1
    dist.broadcast(y, 1)
    return y * 2


def gathered(x: Tensor) -> Tensor:
    whole = x.new_empty(dist.get_world_size() * x.shape[0], x.shape[1])
    gather(whole, x * 2)
    return whole + 1


def scattered(x: Tensor) -> Tensor:
    part = x.new_empty(x.shape[0] // dist.get_world_size(), x.shape[1])
    scatter(part, x * 2, dist.ReduceOp.SUM)
    return part + 1


def exchanged(x: Tensor) -> Tensor:
    other = torch.empty_like(x)
    dist.all_to_all_single(other, x * 2)
    return other + 1


def exchanged_unevenly(x: Tensor) -> Tensor:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    given = [1] * ranks
    given[0] = x.shape[0] - ranks + 1
    taken = [given[rank]] * ranks
    other = x.new_empty(sum(taken), x.shape[1])
    dist.all_to_all_single(other, x * 2, taken, given)
    return other + 1


def ranks_and_sizes(x: Tensor) -> Tensor:
    assert dist.is_initialized()
    return x * (dist.get_rank() + 1) + dist.get_world_size() + dist.get_rank(ALL)


def in_groups(x: Tensor) -> Tensor:
    y, z = x * 2, x * 3
    dist.all_reduce(y, group=ALONE)
    dist.all_reduce(z, group=ALL)
    return y + z


class Shared(torch.autograd.Function):
    """The sum over all ranks, of results and of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def differentiated(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    loss = (Shared.apply(leaf * 2).sin() * leaf).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def lengths(x: Tensor) -> Tensor:
    """Of sizes that vary."""
    results = []
    for rows in (4, 6, 8):
        results.append(_length(torch.cat([x, x])[:rows]))
    return torch.cat(results)


@ingot.compile(dynamic=True, fullgraph=True)
def _length(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    other = torch.empty_like(y)
    dist.all_to_all_single(other, y + dist.get_rank())
    return other


WHOLE = (
    summed, argument, window, largest, integers, halves, twice, alike, unread, in_order,
    functionally, received, gathered, scattered, exchanged, exchanged_unevenly, ranks_and_sizes,
    in_groups, differentiated, lengths,
)  # fmt: skip


def asynchronous(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()  # type: ignore[union-attr]
    return y * z


def listed(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x * 2)
    return torch.stack(parts) + 1


def met(x: Tensor) -> Tensor:
    y = x + 1
    dist.barrier()
    return y * 2


BROKEN = (asynchronous, listed, met)


def wrong_size(x: Tensor) -> None:
    gather(x.new_empty(1), x * 2)


def wrong_rank(x: Tensor) -> None:
    dist.broadcast(x * 2, 7)


def wrong_reduction(x: Tensor) -> None:
    dist.all_reduce(x * 2, "sum")  # type: ignore[arg-type]


REFUSED = (wrong_size, wrong_rank, wrong_reduction)


def outcome(function: Any, x: Tensor) -> list[Tensor]:
    """What a function gives, and its argument afterwards."""
    x = x.clone()
    result = function(x)
    return [x] if result is None else [result, x]


def is_same(one: list[Tensor], other: list[Tensor]) -> bool:
    for a, b in zip(one, other, strict=True):
        if a.dtype != b.dtype or not torch.allclose(a, b, rtol=1e-6, atol=1e-6):
            return False
    return True


def facts(function: Any, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    inputs = [torch.randn(4, 3) + rank for _ in range(2)]
    eager = [outcome(function, x) for x in inputs]
    compiled = ingot.compile(function)
    found["equal"] = all(is_same(outcome(compiled, x), e) for x, e in zip(inputs, eager))
    # ranks that run different programs communicate the same
    mixed = compiled if rank == 0 else function
    found["beside eager"] = is_same(outcome(mixed, inputs[0]), eager[0])
    report = ingot.explain(compiled)(inputs[0].clone())
    found["graphs"], found["breaks"] = report.graph_count, report.break_count
    found["reasons"] = [str(one.reason) for one in report.breaks]
    return found


def error(function: Any, x: Tensor) -> str:
    try:
        function(x.clone())
    except Exception as problem:
        return type(problem).__name__
    return ""


def find_all() -> dict[str, Any]:
    """By the name of each function, what it does."""
    global ALONE, ALL
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    for one in range(ranks):
        group = dist.new_group([one])
        if one == rank:
            ALONE = group
    ALL = dist.new_group(list(range(ranks)))
    found: dict[str, Any] = {}
    for function in (*WHOLE, *BROKEN):
        found[function.__name__] = facts(function, rank)
    x = torch.ones(4, 3)
    for function in REFUSED:
        found[function.__name__] = error(function, x), error(ingot.compile(function), x)
    return found
