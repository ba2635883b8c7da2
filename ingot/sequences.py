"""Small questions about sequences, and the types of arguments, that many rooms share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
"""The arguments of a call, by position and by name."""


def present(items: Iterable[Item | None]) -> list[Item]:
    """The items that are not None."""
    return [item for item in items if item is not None]


def are_present(items: Iterable[Any]) -> tuple[bool, ...]:
    """Which of the items are not None."""
    return tuple([item is not None for item in items])


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested tuples, lists and dicts with what `function` gives for each of their leaves."""
    if isinstance(tree, dict):
        result = {}
        for key, item in tree.items():
            result[key] = map_leaves(function, item)
        return result
    if not isinstance(tree, (tuple, list)):
        return function(tree)
    items = []
    for item in tree:
        items.append(map_leaves(function, item))
    if isinstance(tree, tuple):
        return tuple(items)
    return items


def at(items: Sequence[Item] | Mapping[Any, Item], keys: Iterable[Any]) -> list[Item]:
    """The items at these positions, or of these keys."""
    return [items[key] for key in keys]
