"""Branches on numbers that are drawn, of which no draw decides otherwise."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.compiled import breaks
from tests.oracle import assert_same

COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge]
DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand([]),
    "of one element": lambda: torch.rand(1, dtype=torch.float64),
    "item": lambda: torch.rand(()).item(),
    "python": lambda: random.random(),
    "converted": lambda: torch.rand([]).double().clone(),
}


def states() -> tuple[Any, ...]:
    return torch.rand(1).item(), random.random()


@pytest.mark.parametrize("reflected", [False, True])
@pytest.mark.parametrize("bound", [-0.5, 0, 0.0, 0.25, 1, 1.5, float("nan")])
@pytest.mark.parametrize("compare", COMPARISONS)
def test_a_side_that_all_draws_take(compare: Any, bound: float, reflected: bool) -> None:
    def dropped(x: Tensor, draw: Callable[[], Any]) -> Tensor:
        for k in range(2):
            drawn = draw()
            if compare(bound, drawn) if reflected else compare(drawn, bound):
                continue
            x = x * (2 + k)
        return x + torch.rand(3)

    samples = torch.tensor([0.0, 0.5, 1 - 2**-24])
    sides = {bool(compare(bound, s) if reflected else compare(s, bound)) for s in samples}
    for name, draw in DRAWS.items():
        compiled = ingot.compile(dropped)
        for seed in range(3):
            outcomes = []
            for run in (dropped, compiled):
                torch.manual_seed(seed)
                random.seed(seed)
                outcomes.append((run(torch.ones(3), draw), states()))
            assert_same(outcomes[1], outcomes[0])
        if bound == bound:
            assert (not breaks(compiled)) == (len(sides) == 1), name


def test_draws_that_are_rounded_or_written() -> None:
    def rounded(x: Tensor) -> Tensor:
        return x + 1 if torch.rand(1, dtype=torch.bfloat16) < 1 else x

    def written(x: Tensor) -> Tensor:
        drawn = torch.rand(1)
        drawn.sub_(5)
        return x + 1 if drawn < 0 else x

    def scaled(x: Tensor) -> Tensor:
        return x + 1 if torch.rand(1) * -3 < 0 else x

    def normal(x: Tensor) -> Tensor:
        return x + 1 if torch.randn(1) < 0 else x

    for function in (rounded, written, scaled, normal):
        compiled = ingot.compile(function)
        for seed in range(3):
            results = []
            for run in (function, compiled):
                torch.manual_seed(seed)
                results.append(run(torch.ones(3)))
            assert_same(results[1], results[0])
        assert breaks(compiled)


def test_layers_that_are_dropped_at_a_rate() -> None:
    """Each rate is another program, and that of 0 is one graph."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
            self.rate = 0.0

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                skipped = self.training and torch.rand([]) < self.rate
                if not skipped:
                    x = layer(x)
            return x

    model = Layers()
    compiled = ingot.compile(model)
    for rate, is_broken in ((0.0, False), (0.5, True), (1.0, True)):
        model.rate = rate
        for seed in range(3):
            results = []
            for run in (model, compiled):
                torch.manual_seed(seed)
                results.append((run(torch.ones(2, 4)), torch.rand(1)))
            assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
            assert torch.equal(results[0][1], results[1][1])
        assert bool(breaks(compiled)) == is_broken
