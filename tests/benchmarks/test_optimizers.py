"""The benchmark of optimizers: that it runs, and that its peers do the same work."""

from __future__ import annotations

import pytest
import torch

from benchmarks import optimizers
from tests.long import long


@pytest.mark.parametrize("kind", optimizers.KINDS)
def test_peers_do_the_same(kind):
    taken = optimizers.side_by_side(kind, ["loop", "foreach", "fused", "ingot"], 7, 2)
    assert {peer: len(times) for peer, times in taken.items()} == dict.fromkeys(taken, 2)
    assert optimizers.launches(kind, 7) <= 3


def test_ratios_have_an_interval():
    middle, low, high = optimizers.ratio([2.0, 2.2, 1.8, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert low <= middle <= high and middle == 2.0


@long
def test_the_table(capsys):
    assert optimizers.main(["sgd", "--tensors", "3", "--rounds", "2", "--peers", "foreach"]) == 0
    shown = capsys.readouterr().out
    assert "foreach" in shown and "ingot" in shown and torch.get_num_threads() > 0
