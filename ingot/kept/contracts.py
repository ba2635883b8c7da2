"""Contracts of programs that record gradients, and the windows of results, as they are kept.

Each slot is told by the names of its fields, and expressions of sizes as `sizes.py` tells them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ingot.kept.sizes import Sizes
from ingot.loops.expr import Expr
from ingot.loops.training_contract import (
    InputSlot,
    Layout,
    OutputGroup,
    OutputSlot,
    OutputWindow,
    Slot,
    TangentSlot,
    TrainingContract,
)
from ingot.runtime.windows import Windows, WithWindows

_SLOTS: dict[str, type] = {}
for _slot in (
    InputSlot,
    OutputSlot,
    TangentSlot,
    OutputGroup,
    OutputWindow,
    Layout,
    Slot,
    TrainingContract,
):
    _SLOTS[_slot.__name__] = _slot


def told(value: Any, sizes: Sizes) -> Any:
    """A contract, or a part of one, as what can be packed."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _told_slot(value, names, sizes)
    if isinstance(value, Slot):
        return _told_slot(value, Slot._fields, sizes)
    if isinstance(value, frozenset):
        return "set", tuple(sorted(value))
    if isinstance(value, dict):  # the places of symbols
        items = []
        for symbol, place in value.items():
            items.append((sizes.number(symbol), place))
        return "places", tuple(items)
    if isinstance(value, tuple):
        parts = []
        for part in value:
            parts.append(told(part, sizes))
        return "tuple", tuple(parts)
    if isinstance(value, Expr):
        return "size", sizes.told(value)
    return "value", value


def _told_slot(value: Any, names: Sequence[str], sizes: Sizes) -> Any:
    parts = []
    for name in names:
        parts.append((name, told(getattr(value, name), sizes)))
    return "slot", type(value).__name__, tuple(parts)


def understood(content: Any, sizes: Sizes) -> Any:
    """What was told."""
    kind, *parts = content
    if kind == "slot":
        values = {}
        for name, part in parts[1]:
            values[name] = understood(part, sizes)
        return _SLOTS[parts[0]](**values)
    if kind == "set":
        return frozenset(parts[0])
    if kind == "places":
        places = {}
        for number, place in parts[0]:
            places[sizes.symbols[number]] = place
        return places
    if kind == "tuple":
        items = []
        for part in parts[0]:
            items.append(understood(part, sizes))
        return tuple(items)
    if kind == "size":
        return sizes.understood(parts[0])
    return parts[0]


def told_windows(run: WithWindows, sizes: Sizes) -> Any:
    """The windows of a program's results."""
    windows = run.windows
    return told((tuple(windows.windows), windows.places, run.count), sizes)


def with_windows(run: Callable[..., Any], content: Any, sizes: Sizes) -> WithWindows:
    """A program with the windows that were told."""
    windows, places, count = understood(content, sizes)
    return WithWindows(run, Windows(windows, places), count)
