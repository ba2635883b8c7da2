"""Keys whose class has a `__hash__` of its own: it is called as often as in eager, also for containers that are built
again behind a graph break or given back."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import ingot

LOG: list[str] = []


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        LOG.append(f"hash {self.name}")
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        LOG.append(f"eq {self.name}")
        return isinstance(other, Named) and other.name == self.name


CONTAINERS = {
    "dict": lambda a, b: {a: 1, "k": 2, b: 3},
    "set": lambda a, b: {a, "k", b},
    "defaultdict": lambda a, b: _filled(collections.defaultdict(list), a, b),
    "comprehension": lambda a, b: {key: [key] for key in (a, b)},
    "several": lambda a, b: [{a}, {a, b}, {a: {b}}],
}


def _filled(table: Any, a: Any, b: Any) -> Any:
    table[a].append(1)
    table[b] = 2
    return table


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_hash_is_asked_for_once(container, given):
    make = CONTAINERS[container]

    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        if not given:
            a, b = Named("a"), Named("b")
        held = make(a, b)
        LOG.append("made")
        y = x + 1
        if y.sum() > 0:  # breaks the graph
            y = y * 2
        LOG.append("behind")
        return y, held, len(held)

    compiled = ingot.compile(program)
    for _ in range(2):
        seen = []
        for function in (program, compiled):
            LOG.clear()
            _, held, count = function(torch.ones(3), Named("a"), Named("b"))
            logged = list(LOG)
            seen.append((logged, count, type(held), _shown(held)))
        assert seen[0] == seen[1]


def _shown(held: Any) -> str:
    if isinstance(held, dict):
        return str([(_shown(key), _shown(item)) for key, item in held.items()])
    if isinstance(held, (set, frozenset)):
        return str(sorted(map(_shown, held)))
    if isinstance(held, (list, tuple)):
        return str(list(map(_shown, held)))
    return held.name if isinstance(held, Named) else str(held)
