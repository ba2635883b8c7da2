"""torch.distributed's collectives in the graph, with two and four ranks of gloo; eager is the
oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import ingot
from tests.capture import collective_programs as programs
from tests.long import long
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)


def check(found: dict[str, Any]) -> None:
    """What one rank has found."""
    for row in programs.ROWS:
        name = row.function.__name__
        if name not in found:
            continue
        one = found[name]
        assert one["equal"] and one["beside eager"], (name, one)
        if row.broken:
            assert any(row.broken in reason for reason in one["reasons"]), (name, one)
        else:
            assert one["graphs"] == 1 and not one["reasons"], (name, one)
    for function in programs.REFUSED:
        eager, compiled = found[function.__name__]
        assert eager and compiled == eager, function.__name__


def test_two_ranks() -> None:
    """In one test, so that they are started once."""
    for found in on_ranks(2, "tests.capture.collective_ranks:find_all", "quick"):
        check(found)


@long
@pytest.mark.parametrize("count", (2, 4))
def test_all_collectives(count: int) -> None:
    """None breaks that is one graph of torch.compile's."""
    for found in on_ranks(count, "tests.capture.collective_ranks:find_all", "all"):
        check(found)
        for row in programs.ROWS:
            one = found[row.function.__name__]
            assert not (one["whole to torch"] and one["reasons"]), (row.function.__name__, one)


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
