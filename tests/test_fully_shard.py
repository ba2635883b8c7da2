"""Models under `fully_shard`, `replicate` and `FullyShardedDataParallel`, of which blocks or all is
compiled, before or behind: steps are eager's, and nothing is compiled anew. A whole model is one
graph where that does what hooks do; else the hooks run in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from tests.long import long
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)

PLACE = "tests.fully_shard_ranks:find_all"

SHARDINGS = (
    "default", "kept", "in half", "offloaded", "wrapped checkpoints", "frozen", "in group",
    "prefetched", "replicated", "fsdp1", "fsdp1 with parameters",
)  # fmt: skip
OF_FOUR = "default", "of pairs", "hybrid", "with tensor parallel"

IN_ONE_GRAPH = {
    "default", "kept", "in half", "wrapped checkpoints", "frozen", "prefetched", "in group",
    "replicated", "hybrid",
}  # fmt: skip
"""Ways to shard a model of which a compiled whole is one graph, forward and backward."""

LARGEST = {"in half": 2e-3}
"""The largest relative difference after three steps, where it is not that of float32."""


def require(facts: dict[str, Any]) -> None:
    """AssertionError where training is not eager's, or where steps after the first compile."""
    for name, one in facts.items():
        sharding, way, *how = name.split(", ")
        assert one["differs"] < LARGEST.get(sharding, 1e-5), (name, one)
        first, *later = one["compilations"]
        assert later == [first] * len(later), (name, one)
        owners = set()
        for graph in one["graphs"]:
            owners.add(graph.partition(".")[0].removeprefix("FSDP").removeprefix("Replicate"))
        if way == "model" and sharding in IN_ONE_GRAPH and not how:
            assert owners == {"Net"} and len(one["graphs"]) == 1 and first == 2, (name, one)
            assert not one["breaks"], (name, one)
            continue
        breaks: dict[str, int] = {}
        if way == "model":
            breaks = {"module-hook": 2 if how else 4}  # two blocks, with gradients and without
        assert one["breaks"] == breaks, (name, one)
        assert owners - {"Net"} and owners <= OWNERS, (name, one)


OWNERS = {"Net", "Block", "CheckpointWrapper", "Module"}
"""The classes whose functions have graphs: forwards, and `Module._call_impl` where a block that is
compiled in place is wrapped. FSDP's own functions have none."""


def test_some_ways() -> None:
    for rank in on_ranks(2, PLACE, "default", "blocks,model"):
        assert len(rank) == 4
        require(rank)


def require_whole(ranks: int, sharding: str, every: str) -> None:
    for one in on_ranks(ranks, "tests.fully_shard_ranks:find_whole", sharding, every):
        assert one["differs"] < 1e-5 and one["breaks"] == 0
        assert one["graphs"] == ["FSDPOdd"]


def test_whole_model_in_turn_with_eager() -> None:
    require_whole(2, "default", "3")


def require_no_python(layers: int) -> None:
    """AssertionError where Python runs between the kernels and collectives of a step."""
    units = layers + 1  # with the root
    for rank in on_ranks(2, "tests.fully_shard_ranks:find_python", str(layers)):
        forward, backward = rank["forward"], rank["backward"]
        assert not forward["python"] and not backward["python"], rank
        assert forward["gather"] == units and backward["gather"] == layers  # the root stays whole
        assert backward["reduce"] == units
        assert forward["kernels"] >= 3 * layers and backward["kernels"] >= 6 * layers


def test_no_python_between_kernels_and_collectives() -> None:
    require_no_python(3)


@long
def test_no_python_in_a_step_of_64_layers() -> None:
    require_no_python(64)


@long
def test_python_between_kernels_is_seen() -> None:
    """Where FSDP's hooks run, the same look at a step finds them."""
    for rank in on_ranks(2, "tests.fully_shard_ranks:find_python", "3", "blocks"):
        for half in rank.values():
            assert any("_fsdp_param_group.py" in call for call in half["python"])


@long
def test_collectives_run_beside_what_is_computed() -> None:
    """Two gathers are under way at a time, and a reduction until the next one."""
    for forward, backward in on_ranks(2, "tests.fully_shard_ranks:find_order"):
        assert forward == ". gather | . gather . | gather . | gather . | ."
        assert backward == (
            ". gather . | gather . reduce | gather . | . reduce | . | . reduce | . reduce |"
        )


@long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sharding", ["default", "kept", "in half"])
def test_whole_models(ranks: int, sharding: str) -> None:
    require_whole(ranks, sharding, "0")


WAYS = (
    "blocks,blocks in place,forwards",
    "sharded blocks,sharded blocks in place",
    "sharded forwards,model",
)
"""All ways to compile, in parts that take as long."""


@long
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_two_ranks(sharding: str, ways: str) -> None:
    for rank in on_ranks(2, PLACE, sharding, ways):
        require(rank)


@long
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("sharding", OF_FOUR)
def test_four_ranks(sharding: str, ways: str) -> None:
    for rank in on_ranks(4, PLACE, sharding, ways):
        require(rank)


@long
def test_the_parts_are_all_ways() -> None:
    assert on_ranks(1, "tests.fully_shard_ranks:find_ways")[0] == ",".join(WAYS)


@long
@pytest.mark.parametrize("way", ["model", "sharded forwards", "blocks"])
def test_nothing_of_a_step_is_alive_after_it(way: str) -> None:
    """Without the collector of garbage there are as many tensors after each step, and no garbage
    holds any."""
    for counts, collected in on_ranks(2, "tests.fully_shard_ranks:find_alive", way):
        assert counts == counts[:1] * len(counts) and not collected, (counts, collected)


@long
def test_many_blocks_memory_and_hooks() -> None:
    for rank in on_ranks(2, "tests.fully_shard_ranks:find_more"):
        many = rank["many"]
        assert many["differs"] < 1e-5 and not many["variants"]
        first, second = many["compilations"]
        assert first == second == 1
        memory, seconds = rank["memory"], rank["seconds"]
        assert memory["blocks"] == memory[""]
        assert memory[""][0] > 0 and memory[""][1] == 0
        assert memory["model"] == [0] * 4  # FSDP has gathered none
        assert seconds["blocks"] < 2 * seconds[""], seconds
        assert seconds["model"] < seconds[""], seconds
