"""Views of meta tensors with symbolic sizes: what torch's own kernels compute for plain ints only.

Each rule gives the sizes, strides and offset of the view; the comparisons in them are decided, and
guarded, by the size's context.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.graph import geometry
from ingot.graph.fakes import context_of
from ingot.graph.symbols import is_decided_by_data, to_expr
from ingot.graph.unbacked import expected
from ingot.sequences import at
from ingot.torch_private import OpOverload, aten

Geometry = tuple[Sequence[Any], Sequence[Any], Any]
"""Sizes, strides and offset of a view."""


def is_symbolic(t: Tensor) -> bool:
    """Whether a tensor was made with symbolic sizes or strides, also where guards have since made
    them constants: torch's own kernels refuse it."""
    return t._has_symbolic_sizes_strides  # type: ignore[attr-defined, no-any-return]


def view_symbolically(
    op: OpOverload, t: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a view op on a tensor with symbolic sizes, on the same storage."""
    refused = ""
    if op in _REFUSED:
        refused = _REFUSED[op](t, *args, **kwargs)
    if refused:
        raise EagerRaises(f"{op} does not take these arguments in eager: {refused}")
    if op in _SEVERAL:
        results = []
        for w in _SEVERAL[op](t, *args, **kwargs):
            results.append(t.as_strided(*w))
        return results
    rule = _RULES.get(op)
    if rule is None:
        raise unsupported("no-symbolic-rule", f"{op} has no rule for symbolic sizes")
    return t.as_strided(*rule(t, *args, **kwargs))


def _view(t: Tensor, sizes: Sequence[Any]) -> Geometry:
    sizes = _inferred(t, list(sizes))
    if any(map(is_decided_by_data, sizes)) and geometry.is_in_order(t.shape, t.stride()):
        steps = list(itertools.accumulate(reversed(sizes), operator.mul, initial=1))
        return sizes, steps[-2::-1], t.storage_offset()
    strides = _view_strides(t.shape, t.stride(), sizes)
    if strides is None:
        raise EagerRaises("a view of a tensor whose strides do not allow it: eager raises")
    return sizes, strides, t.storage_offset()


def reshaped(t: Tensor, *shape: Any, certain: bool = False) -> Tensor:
    """`reshape`: a view where the strides allow it, else a copy. `certain`: also a copy where that
    is a question of the sizes. torch's own asks more about the sizes than decides it."""
    if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
        (shape,) = shape
    sizes = _inferred(t, list(shape))
    if certain:
        is_view = _is_certain_view(t, sizes)
    else:
        is_view = _view_strides(t.shape, t.stride(), sizes) is not None
    if is_view:
        return t.view(sizes)
    return aten._unsafe_view.default(t.clone(memory_format=torch.contiguous_format), sizes)


def _is_certain_view(t: Tensor, sizes: Sequence[Any]) -> bool:
    """Whether the strides allow a view, without a question that would leave a guard."""
    context = context_of(t)
    with context.asks_nothing() if context is not None else nullcontext():
        try:
            return _view_strides(t.shape, t.stride(), sizes) is not None
        except Unsupported:
            return False


def _inferred(t: Tensor, sizes: list[Any]) -> list[Any]:
    """`sizes` with -1 replaced by the size that follows from the others."""
    total = math.prod(t.shape)
    for d, size in enumerate(sizes):
        if isinstance(size, int) and size == -1:
            sizes[d] = total // math.prod(sizes[:d] + sizes[d + 1 :])
            break
    if not expected(math.prod(sizes) == total):
        raise EagerRaises("a view of another number of elements: eager raises")
    return sizes


def _view_strides(
    old: Sequence[Any], strides: Sequence[Any], new: Sequence[Any]
) -> list[Any] | None:
    """Strides of a view, by matching runs of dimensions that lie in order; None if there are
    none."""
    if not old:
        return [1] * len(new)
    if geometry.has_zero(old):
        # without elements there is always a view
        same_sizes = list(map(to_expr, old)) == list(map(to_expr, new))
        return list(strides if same_sizes else geometry.contiguous(new))
    view = _View(new)
    run, inner = 1, len(old) - 1  # the elements of a run, and its innermost dimension
    for d in reversed(range(len(old))):
        run = run * old[d]
        step = strides[inner]
        if d > 0 and _run_goes_on(old, strides, d, run, step, view):
            continue
        if not view.fill(run, step, is_last=d == 0):
            break
        run, inner = 1, d - 1
    else:
        if view.is_complete:
            return view.strides
    view.ask_what_was_assumed()
    return None


def _run_goes_on(
    sizes: Sequence[Any], strides: Sequence[Any], d: int, run: Any, step: Any, view: _View
) -> bool:
    """Whether the dimension outside of `d` belongs to the run of `run` elements that ends there."""
    size, stride = sizes[d - 1], strides[d - 1]
    if geometry.surely_same(stride, run * step) or geometry.is_one(size):
        return True
    if view.may_end_run(run):
        return False
    return bool(_is_one(size) or stride == run * step)


class _View:
    """The strides of a view's sizes, from the innermost on, as runs of a tensor's elements are
    matched with them."""

    def __init__(self, sizes: Sequence[Any]) -> None:
        self.sizes = sizes
        self.strides: list[Any] = [1] * len(sizes)
        self._left = len(sizes)  # how many sizes have no stride yet
        # (elements, those of the run, the next size), of which nothing was asked: see `_takes_next`
        self._assumed: list[tuple[Any, Any, Any]] = []

    @property
    def is_complete(self) -> bool:
        return self._left == 0

    def may_end_run(self, run: Any) -> bool:
        """Whether the next sizes surely fill a run. The run may end there whether or not it goes
        on, since the stride of a size of 1 does not matter."""
        elements = 1
        for size in reversed(self.sizes[: self._left]):
            if geometry.surely_same(elements, run):
                return True
            elements = elements * size
        return geometry.surely_same(elements, run)

    def fill(self, run: Any, step: Any, is_last: bool) -> bool:
        """Give the next sizes their strides in a run. Whether they fill it; the last is filled by
        all that are left."""
        elements = 1
        while self._left and (is_last or self._takes_next(elements, run)):
            self._left -= 1
            self.strides[self._left] = elements * step
            elements = elements * self.sizes[self._left]
        return is_last or geometry.surely_same(elements, run) or not elements != run

    def _takes_next(self, elements: Any, run: Any) -> bool:
        """Whether the next size belongs to a run, of which the view has `elements`.

        A run that may be full is not asked about if the next size is 1, or if the run is not full
        in this call: in a view, which fills its runs, the other sizes are 1 then and belong there
        too. It is asked if there is no view.
        """
        size = self.sizes[self._left - 1]
        if geometry.surely_same(elements, run):
            return geometry.is_one(size)
        if geometry.at_hand(size) == 1 or geometry.at_hand(elements) != geometry.at_hand(run):
            self._assumed.append((elements, run, size))
            return True
        return bool(elements != run)

    def ask_what_was_assumed(self) -> None:
        """There is no view: leave the guards that say so."""
        for elements, run, size in self._assumed:
            _ = elements != run or _is_one(size)


def _is_one(size: Any) -> bool:
    return bool(size == 1)


def _expand(t: Tensor, sizes: Sequence[Any], implicit: bool = False) -> Geometry:
    """Elements repeated a symbol's times have a stride of 0, also where that is 1: there it does
    not matter."""
    missing = len(sizes) - t.dim()
    out_sizes, strides = list(sizes), [0] * len(sizes)
    for d, (size, stride) in enumerate(zip(t.shape, t.stride()), missing):
        is_same = isinstance(sizes[d], int) and sizes[d] == -1 or to_expr(sizes[d]) is to_expr(size)
        is_alike = geometry.at_hand(sizes[d]) == geometry.at_hand(size) > 1
        if is_same or is_alike or not _is_one(size):
            if not is_same and not expected(sizes[d] == size):
                raise EagerRaises("expand to a size that does not match: eager raises")
            out_sizes[d], strides[d] = size, stride
            continue
        _refuse_negative(sizes[d])
        if geometry.is_one(sizes[d]):
            strides[d] = stride
    for d in reversed(range(missing)):
        _refuse_negative(sizes[d])
        if geometry.is_one(sizes[d]):
            if d + 1 < len(sizes):
                strides[d] = out_sizes[d + 1] * strides[d + 1]
            else:
                strides[d] = 1
    return out_sizes, strides, t.storage_offset()


def _refuse_negative(size: Any) -> None:
    """Raises where an integer, which may be anything, is no size."""
    if size < 0:
        raise EagerRaises("expand to a negative size: eager raises")


def _permute(t: Tensor, dims: Sequence[int]) -> Geometry:
    return at(t.shape, dims), at(t.stride(), dims), t.storage_offset()


def _transpose(t: Tensor, a: int, b: int) -> Geometry:
    dims = list(range(t.dim()))
    dims[a], dims[b] = dims[b], dims[a]
    return _permute(t, dims)


def _select(t: Tensor, dim: int, index: Any) -> Geometry:
    dim %= t.dim()
    index = from_start(t.shape[dim], index)
    sizes, strides, offset = _without_dims(t, dim)
    return sizes, strides, offset + index * t.stride(dim)


def _without_dims(t: Tensor, *dims: int) -> Geometry:
    return _permute(t, [d for d in range(t.dim()) if d not in dims])


def from_start(size: Any, index: Any) -> Any:
    """An index counted from the first element. Raises where it is out of range."""
    if index < 0:
        index = index + size
    if is_decided_by_data(index) or is_decided_by_data(size):
        within = expected(index < size)
    else:
        within = 0 <= index < size
    if not within:
        raise EagerRaises("an index out of range: eager raises")
    return index


def slice_from_start(size: Any, start: Any) -> Any:
    """The first element of a slice, counted from the start, such that its bounds say so; unchanged
    where data decide it."""
    if is_decided_by_data(start) or is_decided_by_data(size):
        return start
    return torch.sym_max(start + size if start < 0 else start, 0)


def _slice(t: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Geometry:
    dim %= t.dim()
    size = t.shape[dim]
    if start is None:
        start = 0
    else:
        start = _clamped(start, size)
    if end is None or (isinstance(end, int) and end >= 2**62):
        end = size
    else:
        end = _clamped(end, size)
    if is_decided_by_data(start) or is_decided_by_data(end):
        end = torch.sym_max(start, end)
        is_empty = False
    else:
        is_empty = not end > start
    sizes, strides = list(t.shape), list(t.stride())
    if is_empty:
        sizes[dim] = 0
    else:
        sizes[dim] = (end - start + (step - 1)) // step
    strides[dim] = strides[dim] * step
    return sizes, strides, t.storage_offset() + start * t.stride(dim)


def _clamped(bound: Any, size: Any) -> Any:
    """A bound of a slice, counted from the start and within the dimension."""
    if bound < 0:
        bound = bound + size
        return bound if bound >= 0 else 0
    if is_decided_by_data(bound) or is_decided_by_data(size):
        return torch.sym_min(bound, size)
    return size if bound > size else bound


def _unsqueeze(t: Tensor, dim: int) -> Geometry:
    dim %= t.dim() + 1
    sizes, strides = list(t.shape), list(t.stride())
    strides.insert(dim, sizes[dim] * strides[dim] if dim < t.dim() else 1)
    sizes.insert(dim, 1)
    return sizes, strides, t.storage_offset()


def _squeeze(t: Tensor, dims: Any = None) -> Geometry:
    if dims is None:
        dims = range(t.dim())
    elif isinstance(dims, int):
        dims = [dims]
    return _without_dims(t, *(d % t.dim() for d in dims if t.shape[d] == 1))


def _as_strided(
    t: Tensor, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = None
) -> Geometry:
    return sizes, strides, t.storage_offset() if offset is None else offset


def _diagonal(t: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Geometry:
    first, second = dim1 % t.dim(), dim2 % t.dim()
    if first == second:
        raise EagerRaises("a diagonal of one dimension: eager raises")
    rows, columns = t.shape[first] - max(-offset, 0), t.shape[second] - max(offset, 0)
    shorter = columns
    if rows <= columns:
        shorter = rows
    sizes, strides, start = _without_dims(t, first, second)
    length = shorter if shorter > 0 else 0
    if length > 0 and offset >= 0:
        start = start + offset * t.stride(second)
    elif length > 0:
        start = start - offset * t.stride(first)
    return [*sizes, length], [*strides, t.stride(first) + t.stride(second)], start


def _unfold(t: Tensor, dim: int, size: Any, step: Any) -> Geometry:
    if not t.dim():
        raise unsupported("no-symbolic-rule", "an unfolded number has no rule for symbolic sizes")
    sizes, strides, offset = _same(t)
    dim %= t.dim()
    if size > sizes[dim] or size < 0 or step <= 0:
        raise EagerRaises("windows that are larger than what they show: eager raises")
    sizes, strides = [*sizes, size], [*strides, strides[dim]]
    sizes[dim], strides[dim] = (sizes[dim] - size) // step + 1, strides[dim] * step
    return sizes, strides, offset


def _same(t: Tensor) -> Geometry:
    return _permute(t, range(t.dim()))


def _split(t: Tensor, size: Any, dim: int = 0) -> list[Geometry]:
    count = int((t.shape[dim] + size - 1) // size)
    sizes, strides, offset = _same(t)
    pieces: list[Geometry] = []
    for i in range(count):
        piece = [*sizes]
        if i + 1 < count:
            piece[dim] = size
        else:
            piece[dim] = sizes[dim] - i * size
        pieces.append((piece, strides, offset + i * size * strides[dim]))
    return pieces


def _split_with_sizes(t: Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Geometry]:
    if not all(expected(size >= 0) for size in sizes) or not expected(sum(sizes) == t.shape[dim]):
        raise EagerRaises("parts of negative sizes, or of other sizes than the whole: eager raises")
    ends = itertools.accumulate(sizes)
    results = []
    for size, end in zip(sizes, ends):
        results.append(_slice(t, dim, end - size, end))
    return results


def _unbind(t: Tensor, dim: int = 0) -> list[Geometry]:
    return [_select(t, dim, i) for i in range(int(t.shape[dim]))]


_RULES: dict[OpOverload, Callable[..., Geometry]] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten._reshape_alias.default: lambda t, sizes, strides: (sizes, strides, t.storage_offset()),
    aten.expand.default: _expand,
    aten.permute.default: _permute,
    aten.t.default: lambda t: _same(t) if t.dim() < 2 else _transpose(t, 0, 1),
    aten.transpose.int: _transpose,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.as_strided.default: _as_strided,
    aten.diagonal.default: _diagonal,
    aten.unfold.default: _unfold,
    aten.alias.default: _same,
    aten.detach.default: _same,
}
_SEVERAL: dict[OpOverload, Callable[..., list[Geometry]]] = {
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
}


def _bad_dim(t: Tensor, dim: int = 0, *_: Any, **__: Any) -> str:
    return geometry.bad_dims(t, [dim])


def _bad_expand(t: Tensor, sizes: Sequence[Any], **_: Any) -> str:
    if len(sizes) < t.dim():
        return "fewer sizes than dimensions"
    return ""


def _bad_permute(t: Tensor, dims: Sequence[int]) -> str:
    if len(dims) == t.dim():
        return geometry.bad_dims(t, dims)
    return "another number of dimensions"


def _bad_t(t: Tensor) -> str:
    if t.dim() > 2:
        return "more than two dimensions"
    return ""


def _bad_unsqueeze(t: Tensor, dim: int) -> str:
    if -t.dim() - 1 <= dim <= t.dim():
        return ""
    return "a dimension out of range"


# What eager refuses for the rank, whatever the sizes are.
_REFUSED: dict[OpOverload, Callable[..., str]] = {
    aten.expand.default: _bad_expand,
    aten.permute.default: _bad_permute,
    aten.t.default: _bad_t,
    aten.transpose.int: lambda t, *dims: _bad_dim(t, dims[0]) or _bad_dim(t, dims[1]),
    aten.select.int: _bad_dim,
    aten.slice.Tensor: _bad_dim,
    aten.unsqueeze.default: _bad_unsqueeze,
    aten.squeeze.dim: _bad_dim,
    aten.squeeze.dims: geometry.bad_dims,
    aten.diagonal.default: lambda t, offset=0, dim1=0, dim2=1: geometry.bad_dims(t, [dim1, dim2]),
    aten.unfold.default: _bad_dim,
    aten.split.Tensor: lambda t, size, dim=0: _bad_dim(t, dim),
    aten.split_with_sizes.default: lambda t, sizes, dim=0: _bad_dim(t, dim),
    aten.unbind.int: _bad_dim,
}
