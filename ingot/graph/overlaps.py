"""Whether two fakes of one storage have elements in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.errors import unsupported
from ingot.graph import geometry
from ingot.graph.fakes import FakeTensor

_MOST_LISTED = 1 << 18
"""Elements of two views that are listed to see whether they meet."""


def addresses_differ(a: Tensor, b: Tensor) -> bool:
    """Whether two fakes are not the same elements in the same order."""
    if a.dtype != b.dtype or not geometry.same_sizes(a.shape, b.shape):
        return True
    if not geometry.same_sizes(a.stride(), b.stride()):  # eager minds those of single elements too
        return True
    return not (a.storage_offset() == b.storage_offset())


def elements_meet(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether two fakes may have an element in common."""
    if not bytes_meet(a, b):
        return False
    if a.dtype != b.dtype or _has_symbols(a) or _has_symbols(b):
        return True
    if a.numel() + b.numel() > _MOST_LISTED:
        return True
    return not _elements(a).isdisjoint(_elements(b))


def bytes_meet(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether the byte ranges of two fakes meet."""
    (start_a, end_a), (start_b, end_b) = _bytes(a), _bytes(b)
    return start_a < end_b and start_b < end_a


def last_element(sizes: Any, strides: Any) -> Any:
    """The distance from the first element of a tensor to its last, in elements."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides))


def refuse_beyond(base: FakeTensor, view: FakeTensor) -> None:
    """Raise Unsupported where a view of written memory leaves its base, the part that is known."""
    first = view.storage_offset() - base.storage_offset()
    last = first + last_element(view.shape, view.stride())
    end = last_element(base.shape, base.stride())
    if view.numel() and (first < 0 or last > end):
        raise unsupported(
            "op-writes",
            "as_strided reaches beyond a written tensor, into memory that is not its own",
        )


def _has_symbols(t: FakeTensor) -> bool:
    return geometry.has_symbols((*t.shape, *t.stride(), t.storage_offset()))


def _elements(t: FakeTensor) -> set[Any]:
    """The element numbers of a tensor in its storage."""
    elements: set[Any] = {t.storage_offset()}
    for size, stride in zip(t.shape, t.stride()):
        elements = {e + k * stride for e in elements for k in range(size)}
    return elements


def _bytes(t: Tensor) -> tuple[Any, Any]:
    first = end = t.storage_offset()
    if t.numel():
        end = first + last_element(t.shape, t.stride()) + 1
    return first * t.element_size(), end * t.element_size()
