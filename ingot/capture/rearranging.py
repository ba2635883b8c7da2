"""`torch.func.rearrange` as views of a tensor: a Python version, run by the interpreter in its
place. What torch refuses, or warns of, is left to eager."""

from __future__ import annotations

import keyword
import math
from typing import Any

import torch

from ingot.capture.control_flow import left_to_eager
from ingot.capture.meanings import How, means

_ELLIPSIS, _ONE = "...", "1"


@means("torch.func.rearrange", how=How.POLYFILL)
def rearrange(tensor: Any, pattern: Any, **axes_lengths: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        tensor = torch.stack(tensor)
    sides = pattern.split("->")
    if len(sides) != 2:
        left_to_eager()
    before, after = axes_of(sides[0]), axes_of(sides[1])
    require_the_same(before, after, axes_lengths, tensor.ndim)
    if tensor.ndim == 0:
        return tensor
    sizes, places = taken_apart(tensor.shape, before, axes_lengths)
    order, lengths = list[int](), list[Any]()
    for axis in after:
        joined = list[int]()
        for name in named(axis):
            joined.extend(places[name])
        order.extend(joined)
        if axis == _ELLIPSIS:
            lengths.extend(map(sizes.__getitem__, joined))
        else:
            lengths.append(math.prod(map(sizes.__getitem__, joined)))
    ones = places[_ONE]
    result = tensor.reshape(sizes).permute([*order, *ones])
    if ones:  # as eager has it, which gives new memory then
        result = result.sum(list(range(len(order), len(sizes))))
    return result.reshape(lengths)


Axis = str | list[str]
"""A name of a side of a pattern, or the names in a pair of its brackets: none for a 1."""


def axes_of(side: str) -> list[Axis]:
    """The axes that make up each dimension, of a side of a pattern."""
    axes = list[Axis]()
    inside = None
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(" and inside is None:
            inside = list[str]()
        elif word == ")" and inside is not None:
            axes.append(inside)
            inside = None
        elif word == _ONE:
            if inside is None:
                axes.append([])
        elif not is_name(word):
            left_to_eager()
        elif inside is None:
            axes.append(word)
        else:
            inside.append(word)
    if inside is not None:
        left_to_eager()
    return axes


def is_name(word: str) -> bool:
    """Whether a word names an axis, and torch does not warn of it."""
    if word == _ELLIPSIS:
        return True
    if not word.isidentifier() or word.startswith("_") or word.endswith("_"):
        return False
    return not keyword.iskeyword(word) and word != "axis"


def named(axis: Axis) -> list[str]:
    return [axis] if isinstance(axis, str) else axis


def names_in(axes: list[Axis]) -> list[str]:
    """The names of a side, of which each stands once."""
    names = list[str]()
    for axis in axes:
        names.extend(named(axis))
    if len(set(names)) != len(names):
        left_to_eager()
    return names


def require_the_same(
    before: list[Axis], after: list[Axis], axes_lengths: dict[str, Any], rank: int
) -> None:
    """Checks that both sides have the same names, and that the left one is of a tensor of this
    rank."""
    names = names_in(before)
    if sorted(names_in(after)) != sorted(names):
        left_to_eager()
    for name, length in axes_lengths.items():
        if name not in names or type(length) is not int:
            left_to_eager()
    if [] in before and [] in after:  # which torch does not get right
        left_to_eager()
    rest = rank - (len(before) - 1)
    if rest < 0 or _ELLIPSIS not in before and (rest != 1 or _ELLIPSIS in names):
        left_to_eager()


def taken_apart(
    shape: Any, axes: list[Axis], axes_lengths: dict[str, int]
) -> tuple[list[Any], dict[str, list[int]]]:
    """The sizes of the dimensions with one for each name, and by name the positions of these."""
    sizes, places = list[Any](), dict[str, list[int]]()
    places[_ONE] = []
    remaining = list(shape)
    for axis in axes:
        if axis == _ELLIPSIS:
            count = len(shape) - (len(axes) - 1)
            places[_ELLIPSIS] = list(range(len(sizes), len(sizes) + count))
            sizes.extend(remaining[:count])
            del remaining[:count]
            continue
        size = remaining.pop(0)
        known, unknown = 1, 0
        for name in named(axis):
            known *= axes_lengths.get(name, 1)
            unknown += name not in axes_lengths
        if unknown > 1 or known <= 0 or size % known or (not unknown and size != known):
            left_to_eager()
        for name in named(axis) or [_ONE]:
            places.setdefault(name, []).append(len(sizes))
            sizes.append(axes_lengths.get(name, size // known))
    return sizes, places
