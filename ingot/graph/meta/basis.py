"""Tensors in the arguments of an op, and new ones of given sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.sequences import map_leaves

Rule = Callable[..., Any]

BY_LOOK: set[Rule] = set()
"""The rules to which only the geometry of tensors and the other arguments matter."""

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})


def by_look(rule: Rule) -> Rule:
    """Note that the rule is one of `BY_LOOK`."""
    BY_LOOK.add(rule)
    return rule


def fresh(sizes: Sequence[Any], dtype: torch.dtype, strides: Sequence[Any] | None = None) -> Tensor:
    if strides is None:
        if not geometry.has_symbols(sizes):
            return torch.empty(sizes, dtype=dtype, device="meta")
        strides = geometry.contiguous(sizes)
    return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device="meta")


def like(t: Tensor, is_needed: Any = True) -> Tensor | None:
    if is_needed:
        return fresh(t.shape, t.dtype)
    return None


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Nested lists, tuples and dicts with what `function` gives for their tensors."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    results = []
    for item in tree:
        if type(item) not in _PLAIN:
            for t in tensors_in(item):
                results.append(t)
    return results


def has_symbols(args: Any) -> bool:
    if isinstance(args, (list, tuple)):
        return any(map(has_symbols, args))
    return isinstance(args, torch.SymInt)


def all_at_hand(tree: Any) -> Any:
    """Nested lists and tuples with symbolic ints as what they are in the present call."""
    if isinstance(tree, (list, tuple)):
        return list(map(all_at_hand, tree))
    return geometry.at_hand(tree)


def first_line(error: Exception) -> str:
    """The message of an error of torch's without the C++ stack."""
    return str(error).split("\n", 1)[0]
