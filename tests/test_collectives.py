"""Collectives in compiled functions: each rank makes the calls that eager makes, in its order, and
waits as it does."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch
import torch.distributed as dist

import ingot
from tests.long import long
from tests.ranks import on_ranks

if dist.is_available():
    import torch.distributed._functional_collectives as fc

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)
RANKS = 2
ops = torch.ops._c10d_functional


def _functional(x, group):
    return fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def _waited_for_alone(x, group):
    y = ops.all_reduce(x * 2, "sum", group)
    ops.wait_tensor(y)
    return y + 1


def _twice(x, group):
    first = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    second = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return first * second


def _unused(x, group):
    ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return x + 1


def _on_some_ranks_results_are_unused(x, group):
    y = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return x + y.detach() if dist.get_rank() else x.sin()


def _overlapping(x, group):
    begun = [ops.all_reduce(x * k, "sum", group) for k in range(4)]
    z = x.sin() @ x.cos()
    return sum(ops.wait_tensor(y) for y in begun) + z


def _gathered(x, group):
    y = ops.all_gather_into_tensor((x + 1) * 3, RANKS, group)
    z = (x - 1) * 3
    return ops.wait_tensor(y).sum() + z.sin()


def _scattered(x, group):
    return ops.wait_tensor(ops.reduce_scatter_tensor(x * 2, "sum", RANKS, group)) + 1


def _exchanged(x, group):
    half = [x.shape[0] // RANKS] * RANKS
    return ops.wait_tensor(ops.all_to_all_single(x * 2, half, half, group)) + 1


def _by_names(x, group):
    world = dist.group.WORLD
    y = fc.all_gather_tensor(x, 0, world) * 2
    z = fc.reduce_scatter_tensor(y, "sum", 0, world)
    return fc.all_to_all_single(z, None, None, world) + z


def _in_place(x, group):
    y = x * 2
    dist.all_reduce(y)
    dist.broadcast(y, 0)
    return y + 1


def _begun_and_awaited(x, group):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    return y + z


def _into_lists(x, group):
    outputs = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(outputs, x.detach())
    return torch.cat(outputs) * x.sum()


PROGRAMS = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, FunctionType)
    and value.__module__ == __name__
    and value.__code__.co_argcount == 2
}


def breaks_of_programs() -> dict[str, list[str]]:
    """On a rank: the graph breaks of each program, which gives what it gives in eager."""
    return {
        name: [*_breaks(program, False), *_breaks(program, True)]
        for name, program in PROGRAMS.items()
    }


def _breaks(program: FunctionType, gradients: bool) -> list[str]:
    compiled, group = ingot.compile(program), dist.group.WORLD.group_name
    for k in range(5):
        x = torch.arange(64.0, dtype=torch.float64).view(8, 8) / 50 + dist.get_rank() + k
        x.requires_grad_(gradients)
        expected, result = program(x, group), compiled(x, group)
        torch.testing.assert_close(result, expected, msg=program.__name__)
        if gradients and expected.requires_grad:
            pair = [torch.autograd.grad((y * y).sum(), x)[0] for y in (result, expected)]
            torch.testing.assert_close(*pair, msg=program.__name__)
    return [str(b) for b in ingot.explain(compiled)(x, group).breaks]


@long
def test_two_ranks():
    for breaks in on_ranks(RANKS, "tests.test_collectives:breaks_of_programs"):
        for name, program in PROGRAMS.items():
            if "ops" in program.__code__.co_names and "get_rank" not in program.__code__.co_names:
                assert not breaks[name], name
