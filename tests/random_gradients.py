"""Which gradients are asked for of a random program: of all of its results or of some, for all
inputs or some, in one backward or two, and the same at each call or others.

Choices come of a generator of their own: they leave open what program a seed makes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Pass(NamedTuple):
    """A backward: of which heads and for which leaves, by their positions, and whether the graph is
    kept."""

    heads: tuple[int, ...]
    leaves: tuple[int, ...]
    keeps: bool


class Asked:
    """What is asked of the program of a seed. `frozen` are the leaves that require no gradient."""

    def __init__(self, seed: int, leaves: int) -> None:
        rng = random.Random(f"gradients {seed}")
        self.seed, self.leaves = seed, leaves
        self.manner = rng.choices(["all", "some", "others each time"], [2, 3, 5])[0]
        self.twice = rng.random() < 0.5
        self.of_some_leaves = rng.random() < 0.3
        self.frozen = frozenset[int]()
        if leaves > 1 and rng.random() < 0.25:
            self.frozen = frozenset(rng.sample(range(leaves), rng.randint(1, leaves - 1)))

    def passes(self, call: int, heads: int) -> list[Pass]:
        """The backwards behind a call, by its number, whose results have so many `heads`."""
        rng = random.Random(
            f"gradients {self.seed} {call if self.manner == 'others each time' else ''}"
        )
        wanted = [k for k in range(self.leaves) if k not in self.frozen]
        made = []
        for kept in [True, False] if self.twice else [False]:
            all_heads = self.manner == "all" or rng.random() < 0.1
            of = range(heads) if all_heads else _some(range(heads), rng)
            made.append(
                Pass(tuple(of), tuple(_some(wanted, rng) if self.of_some_leaves else wanted), kept)
            )
        return made

    def gradients(
        self,
        call: int,
        heads: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
    ) -> list[tuple[torch.Tensor | None, ...] | RuntimeError]:
        """Of each backward, the gradients, or what autograd raised, which ends it. `leaves` are
        those not frozen."""
        numbers = [k for k in range(self.leaves) if k not in self.frozen]
        found: list[Any] = []
        for asked in self.passes(call, len(heads)) if heads else ():
            chosen = (
                [heads[k] for k in asked.heads],
                [leaves[numbers.index(k)] for k in asked.leaves],
            )
            given = [tangents[k] for k in asked.heads]
            try:
                found.append(
                    torch.autograd.grad(*chosen, given, retain_graph=asked.keeps, allow_unused=True)
                )
            except RuntimeError as error:
                return [*found, error]
        return found

    def __str__(self) -> str:
        some, times = " for some leaves" * self.of_some_leaves, "twice" if self.twice else "once"
        return f"gradients of {self.manner}{some}, {times}; frozen {sorted(self.frozen)}"


def _some(of: Sequence[int], rng: random.Random) -> list[int]:
    """At least one, often few."""
    return sorted(rng.sample(of, rng.choice([1, 1, rng.randint(1, len(of))])))
