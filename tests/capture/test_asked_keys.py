"""Containers whose keys or classes have methods of their own: these are called as often as in
eager, also where the container is built again behind a graph break or given back."""

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


class _Plain:
    """Hashes by its identity."""


@pytest.mark.parametrize("broken", [False, True])
def test_tuples_of_keys_are_found_again(broken):
    """Also beside objects that are made, or tensors: their hashes are not known before."""

    def program(x: torch.Tensor, named: Any, plain: Any) -> Any:
        own, other = _Plain(), Named("own")
        y = x * 2
        keys = [
            (named, 1),
            (plain, named),
            (own, named),
            (y, named),
            (other, "k", 2.0),
            ((named, own), other),
            (x, named),
        ]
        table, members = {key: k for k, key in enumerate(keys)}, set(keys)
        frozen, nested = frozenset(keys[:3]), {"inner": {keys[2]: {keys[3]}}}
        if broken and y.sum() > 0:
            y = y + 1
        return keys, table, members, frozen, nested

    compiled = ingot.compile(program)
    for _ in range(2):
        keys, table, members, frozen, nested = compiled(torch.ones(3), Named("a"), _Plain())
        assert [table[key] for key in keys] == list(range(len(keys))) and list(table) == keys
        assert all(key in members for key in keys) and len(members) == len(keys)
        assert all(key in frozen for key in keys[:3])
        assert keys[3] in nested["inner"][keys[2]]


def _shown(held: Any) -> str:
    if isinstance(held, dict):
        return str([(_shown(key), _shown(item)) for key, item in held.items()])
    if isinstance(held, (set, frozenset)):
        return str(sorted(map(_shown, held)))
    if isinstance(held, (list, tuple)):
        return str(list(map(_shown, held)))
    return held.name if isinstance(held, Named) else str(held)


class _Iterates(dict):
    def __iter__(self):
        LOG.append("iter")
        return iter([7, 8])

    def __getitem__(self, key):
        LOG.append("get")
        return 9


class _TellsKeys(_Iterates):
    def keys(self):
        LOG.append("keys")
        return ["a", "z"]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("content", [{}, {"a": 1, "b": 2}], ids=["empty", "filled"])
@pytest.mark.parametrize("cls", [_Iterates, _TellsKeys])
@pytest.mark.parametrize("operation", [
    lambda d, p: d | d, lambda d, p: d | p, lambda d, p: p | d, lambda d, p: d.copy(), lambda d,
    p: dict.copy(d), lambda d, p: dict(d), lambda d, p: {**d}, lambda d, p: p.update(d), lambda d,
    p: d.update(d), lambda d, p: list(d),
])  # fmt: skip
def test_a_dict_that_says_how_to_iterate_is_read_by_its_methods(operation, cls, content, made):
    def program(x, d, p):
        d = cls(content) if made else d
        return x + 1, operation(d, p), d, p

    found = []
    for function in (program, ingot.compile(program)):
        LOG.clear()
        _, result, *left = function(torch.ones(1), cls(content), {"q": 0})
        held = [list(dict.items(v)) if isinstance(v, dict) else v for v in (result, *left)]
        found.append((list(LOG), type(result), held))
    assert found[0] == found[1]
