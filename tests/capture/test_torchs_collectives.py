"""torch.distributed's collectives in the graph, with two ranks of gloo; eager is the oracle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ingot
from tests.capture import collective_ranks as ranks
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each rank found."""
    return on_ranks(2, "tests.capture.collective_ranks:find_all")


def names_of(functions: Iterable[Any]) -> list[str]:
    return [function.__name__ for function in functions]


@pytest.mark.parametrize("name", names_of(ranks.WHOLE))
def test_one_graph(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        one = rank[name]
        assert one["equal"] and one["beside eager"]
        assert not one["breaks"], one["reasons"]


@pytest.mark.parametrize("name", names_of(ranks.BROKEN))
def test_what_breaks(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank[name]["equal"] and rank[name]["beside eager"] and rank[name]["breaks"]


@pytest.mark.parametrize("name", names_of(ranks.REFUSED))
def test_errors(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        eager, compiled = rank[name]
        assert eager and compiled == eager


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
