"""Models under DistributedDataParallel, compiled inside of it, around it and by blocks: training is
eager's, graphs and breaks are no more than torch.compile's, and buckets are launched while the
compiled backward runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from tests.data_parallel_ranks import PLACES, WAYS
from tests.long import long
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)

PLACE = "tests.data_parallel_ranks"
COMPARE = f"{PLACE}:compare"


def require(ranks: list[dict[str, dict[str, Any]]]) -> None:
    """AssertionError where training is not eager's."""
    for rank, found in enumerate(ranks):
        assert found
        for name, facts in found.items():
            assert facts["difference"] < facts["largest"], (rank, name, facts)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return on_ranks(2, f"{PLACE}:find_few")


def test_a_few_ways(found: list[dict[str, Any]]) -> None:
    require([rank["few"] for rank in found])
    for facts in found[0]["few"].values():
        assert facts["graphs"] == 2 and not facts["breaks"]  # one for training, one without


def test_buckets_are_launched_while_the_backward_runs(found: list[dict[str, Any]]) -> None:
    """Shares of the backward's kernels that have begun before each bucket: all of them where the
    backward is one node of autograd's, few where it has links."""
    for rank in found:
        one_node, linked = rank["launches"]["one node"], rank["launches"]["links"]
        assert len(one_node) == len(linked) >= 4 and set(one_node) == {1.0}
        assert linked == sorted(linked)
        assert linked[0] < 0.4 and sum(linked) / len(linked) < 0.8


def test_a_compiled_ddp_is_still_itself(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert len(rank["identity"]) == 5 and all(rank["identity"].values()), rank["identity"]


def test_links_come_and_go_with_the_wrapper(found: list[dict[str, Any]]) -> None:
    """There are none before a compiled model is wrapped, and once its wrapper is gone."""
    assert [rank["links"] for rank in found] == [[False, True, False]] * 2


@long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("part", range(8))
def test_all_ways(part: int, ranks: int) -> None:
    require(on_ranks(ranks, COMPARE, "; ".join(list(WAYS)[part::8]), "; ".join(PLACES)))


@long
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("place", PLACES)
def test_graphs_and_breaks_are_no_more_than_torchs(place: str, part: int) -> None:
    names = [name for name in WAYS if name != "compiled_backward"][part::2]
    torchs = on_ranks(2, f"{PLACE}:count_torchs", "; ".join(names), place)[0]
    ours = on_ranks(2, COMPARE, "; ".join(names), place)[0]
    assert len(torchs) == len(ours) > 12
    # at the end `.module` is called, which torch.compile leaves in eager
    more = 1 if place == "around" else 0
    for name, (graphs, breaks) in torchs.items():
        facts = ours[name]
        assert facts["graphs"] <= graphs + more and facts["breaks"] <= breaks, (name, facts)
