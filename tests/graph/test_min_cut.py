"""Minimum cuts of small random networks against all cuts there are."""

from __future__ import annotations

import itertools
import random

import pytest

from ingot.graph.min_cut import INFINITE, Network


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(3, 9)
    capacities = {
        (a, b): rng.choice((0, 1, 2, 5, 9, INFINITE if rng.random() < 0.2 else 3))
        for a, b in itertools.permutations(range(count), 2)
        if rng.random() < 0.5 and (a, b) != (0, 1)
    }
    network = Network()
    for _ in range(count):
        network.node()
    for (a, b), capacity in capacities.items():
        network.edge(a, b, capacity)

    def cost(beyond: set[int]) -> int:
        return sum(c for (a, b), c in capacities.items() if a not in beyond and b in beyond)

    others = range(2, count)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(others, n) for n in range(count - 1)
    )
    cuts = [{1, *subset} for subset in subsets]
    least = min(map(cost, cuts))
    if least >= INFINITE:
        with pytest.raises(ValueError, match="no finite cut"):
            network.cut(0, 1)
        return
    beyond = {node for node, inside in enumerate(network.cut(0, 1)) if inside}
    assert 1 in beyond and 0 not in beyond
    assert cost(beyond) == least
    assert len(beyond) == min(len(cut) for cut in cuts if cost(cut) == least)  # nearest to the sink
