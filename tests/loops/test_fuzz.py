"""Random programs of views, pointwise ops, reductions and writes: lowered, they agree with
eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.loops.test_lowering import assert_lowered

Step = Callable[[torch.Tensor, random.Random], torch.Tensor]


def _assign_row(a: torch.Tensor, rng: random.Random) -> torch.Tensor:
    a = a.clone()
    a[0] = a[-1] * 2
    return a


def _add_to_columns(a: torch.Tensor, rng: random.Random) -> torch.Tensor:
    a = a * 1
    a[:, 1:] += 1
    return a * a.mean()


def _reshape(a: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return a.reshape(-1).view(a.shape if rng.random() < 0.3 else (a.shape[1], a.shape[0]))


STEPS: list[Step] = [
    lambda a, rng: a.sin(),
    lambda a, rng: torch.exp(-a.abs()),
    lambda a, rng: a.transpose(0, 1),
    _reshape,
    lambda a, rng: a * a.sum(rng.randint(0, 1), keepdim=True).expand(a.shape),
    lambda a, rng: a.softmax(rng.randint(0, 1)),
    lambda a, rng: torch.cat([a[:, :2], a[:, 2:] * 2], 1),
    lambda a, rng: a.flip(rng.randint(0, 1)),
    lambda a, rng: F.pad(a, (1, -1)),
    _assign_row,
    _add_to_columns,
    lambda a, rng: torch.where(a > 0, a, a * 0.1),
    lambda a, rng: a.roll(1, rng.randint(0, 1)),
    lambda a, rng: a @ (a.t() @ a) * 0.01,
    lambda a, rng: a.contiguous().tril(),
    lambda a, rng: a.add_(1),
]


def _program(seed: int) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rng = random.Random(seed)
        values = [x, y]
        for _ in range(rng.randint(3, 9)):
            a, b = rng.choice(values), rng.choice(values)
            values.append(rng.choice(STEPS)(a, rng))
            if rng.random() < 0.3:
                values.append(a + b if a.shape == b.shape else a.t() + b)
        return tuple(values[-2:])

    return program


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 20):
        torch.manual_seed(seed)
        y = torch.randn(6, 4).t() if seed % 3 == 0 else torch.randn(4, 6)
        assert_lowered(_program(seed), torch.randn(4, 6), y, tolerance=5e-5)
