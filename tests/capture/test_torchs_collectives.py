"""torch.distributed's collectives in the graph, with two ranks of gloo; eager is the oracle."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ingot
from tests.capture import collective_ranks as ranks
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)


def test_two_ranks() -> None:
    """In one test, so that they are started once."""
    for rank in on_ranks(2, "tests.capture.collective_ranks:find_all"):
        for function in (*ranks.WHOLE, *ranks.BROKEN):
            one = rank[function.__name__]
            assert one["equal"] and one["beside eager"], function.__name__
            broken = function in ranks.BROKEN
            assert bool(one["breaks"]) is broken, (function.__name__, one["reasons"])
        for function in ranks.REFUSED:
            eager, compiled = rank[function.__name__]
            assert eager and compiled == eager, function.__name__


def test_other_groups_are_other_facts() -> None:
    """A program is compiled for the group that it communicates in, and not for one that has
    ended."""

    def size(x: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            return x * dist.get_world_size() + dist.get_rank()
        return -x

    compiled, x = ingot.compile(size, fullgraph=True), torch.ones(3)
    assert torch.equal(compiled(x), -x)
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            assert torch.equal(compiled(x), x)
        finally:
            dist.destroy_process_group()
        assert torch.equal(compiled(x), -x)
