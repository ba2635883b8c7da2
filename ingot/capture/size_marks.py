"""What is said of a tensor's sizes before it is compiled for: that one is a symbol from the start,
or never is. The marks of torch.compile's equivalents count as well, and are read without importing
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ingot.graph.shape_context import ANY_SIZE, Bounds

_MARKS: MutableMapping[torch.Tensor, dict[int, Bounds | None]] = WeakIdKeyDictionary()


def mark(tensor: torch.Tensor, dim: int, bounds: Bounds | None) -> None:
    """Says of a dimension that its size is a symbol within these bounds, or, by None, that it is
    compiled for."""
    _MARKS.setdefault(tensor, {})[dim] = bounds


def marks_of(tensor: torch.Tensor) -> dict[int, Bounds | None]:
    """What is said of a tensor's dimensions."""
    if not _MARKS and not vars(tensor):
        return {}
    return {**dict(_marks_of_torch(vars(tensor))), **_MARKS.get(tensor, {})}


def _marks_of_torch(attributes: dict[str, Any]) -> Iterator[tuple[int, Bounds | None]]:
    limits_of_unbacked = attributes.get("_dynamo_unbacked_bounds", {})
    for kind in ("weak_dynamic", "unbacked", "strict_unbacked", "dynamic"):
        for dim in _indices(attributes, f"_dynamo_{kind}_indices"):
            yield dim, _bounds(*limits_of_unbacked.get(dim, ()))
    # named tuples of a dimension and its limits
    for limits in _indices(attributes, "_dynamo_dynamic_range"):
        yield limits.dim, _bounds(limits.min, limits.max)
    for dim in _indices(attributes, "_dynamo_static_indices"):
        yield dim, None


def _bounds(least: int | None = None, greatest: int | None = None) -> Bounds:
    return Bounds(max(least or 0, ANY_SIZE.lower), greatest)


def _indices(attributes: dict[str, Any], name: str) -> Iterable[Any]:
    indices = attributes.get(name, ())
    if isinstance(indices, (set, frozenset)):
        return indices
    return ()


@contextmanager
def marked(marks: Iterable[tuple[torch.Tensor, dict[int, Bounds]]]) -> Iterator[None]:
    """Within it, these dimensions are symbols, beside what was said before."""
    before = []
    for tensor, bounds in marks:
        before.append((tensor, _MARKS.get(tensor)))
        _MARKS[tensor] = {**_MARKS.get(tensor, {}), **bounds}
    try:
        yield
    finally:
        for tensor, known in before:
            if known is None:
                del _MARKS[tensor]
            else:
                _MARKS[tensor] = known
