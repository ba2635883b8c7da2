"""Formulas of collectives at their limits, and timelines of steps: what can be hidden is."""

from __future__ import annotations

import pytest

from benchmarks.distributed_plan import (
    PLANS,
    Lanes,
    Model,
    Network,
    all_gather,
    all_reduce,
    data_parallel,
    data_parallel_at_end,
    prices,
    reduce_scatter,
    sharded,
)

FLAT = Network(latency=0.0, latency_in_node=0.0, bandwidth=10e9, bandwidth_in_node=10e9)
SLOW = Network(latency=1e-3, latency_in_node=1e-3, bandwidth=1e20, bandwidth_in_node=1e20)
NO_COST = Network(latency=0.0, latency_in_node=0.0, bandwidth=1e30, bandwidth_in_node=1e30)
RANKS = (2, 8, 64, 1024)


def test_one_rank_communicates_nothing():
    for collective in (all_gather, reduce_scatter, all_reduce):
        assert collective(1e9, 1, Network()) == 0


@pytest.mark.parametrize("ranks", RANKS)
def test_collectives_at_their_limits(ranks):
    size = 1e9
    # each rank sends (p - 1) / p of the bytes, and twice that for a sum: from half to all of them
    part = (ranks - 1) / ranks * size / FLAT.bandwidth
    assert all_gather(size, ranks, FLAT) == pytest.approx(part)
    assert all_reduce(size, ranks, FLAT) == pytest.approx(2 * part)
    assert all_reduce(size, ranks, FLAT) < 2 * size / FLAT.bandwidth
    # without bytes there are but messages
    assert all_gather(0, ranks, SLOW) == pytest.approx((ranks - 1) * SLOW.latency)
    assert all_reduce(0, ranks, SLOW) == pytest.approx(2 * (ranks - 1) * SLOW.latency)
    whole = reduce_scatter(size, ranks, Network()) + all_gather(size, ranks, Network())
    assert all_reduce(size, ranks, Network()) == whole


def test_a_ring_goes_as_its_slowest_link():
    network = Network(node_ranks=8)
    assert network.of_ring(8) == (network.latency_in_node, network.bandwidth_in_node)
    assert network.of_ring(9) == (network.latency, network.bandwidth)
    assert all_gather(1e9, 16, network) > all_gather(1e9, 8, network)


def test_lanes_run_side_by_side():
    lanes = Lanes()
    ready = lanes.compute(1.0)
    assert lanes.communicate(3.0, ready) == 4.0
    lanes.compute(2.0)
    assert (lanes.end, lanes.computed, lanes.communicated, lanes.exposed) == (4.0, 3.0, 3.0, 1.0)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("ranks", RANKS)
def test_steps_at_their_limits(name, ranks):
    model, plan = Model(), PLANS[name]
    computed = 3 * model.blocks * model.forward
    free, priced = plan(model, ranks, NO_COST), plan(model, ranks, Network())
    assert free.end == pytest.approx(computed) and free.exposed == pytest.approx(0, abs=1e-9)
    assert priced.computed == pytest.approx(computed)
    assert 0 <= priced.exposed <= priced.communicated * (1 + 1e-9)
    assert priced.end >= max(priced.computed, priced.communicated)
    faster = Network()._replace(bandwidth=100e9, bandwidth_in_node=800e9)
    assert plan(model, ranks, faster).end <= priced.end


@pytest.mark.parametrize("ranks", RANKS)
def test_early_gradients_hide_what_they_can(ranks):
    model = Model(blocks=32)
    early = data_parallel(model, ranks, Network())
    late = data_parallel_at_end(model, ranks, Network())
    assert late.exposed == pytest.approx(late.communicated)
    assert early.communicated == pytest.approx(late.communicated, rel=0.05)
    assert early.exposed < late.exposed
    if early.communicated < model.forward * model.blocks:  # then all but the last two are hidden
        assert early.exposed <= 2 * all_reduce(25 << 20, ranks, Network())


def test_all_bytes_are_communicated():
    model, ranks = Model(), 8
    total = model.blocks * model.block_bytes
    expected = all_reduce(total, ranks, FLAT)
    assert data_parallel(model, ranks, FLAT).communicated == pytest.approx(expected)
    whole = sharded(model, ranks, FLAT).communicated  # gathered twice, and scattered once
    assert whole == pytest.approx(3 * all_gather(total, ranks, FLAT))


def test_a_table_has_each_plan_for_each_number_of_ranks():
    found = prices(Model(), RANKS, Network())
    assert [(price.ranks, price.plan) for price in found] == [(r, p) for r in RANKS for p in PLANS]
    by_plan = {price.plan: price for price in found if price.ranks == 1024}
    assert by_plan["FSDP2 of blocks"].held < by_plan["FSDP2 of the whole"].held
    assert by_plan["FSDP2 of the whole"].held < by_plan["DDP"].held
