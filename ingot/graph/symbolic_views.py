"""Views of meta tensors with symbolic sizes: what torch's own kernels compute for plain ints only.

Each rule gives the sizes, strides and offset of the view; the comparisons in them are decided, and
guarded, by the size's context.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.graph import geometry
from ingot.graph.symbols import is_decided_by_data, to_expr
from ingot.graph.unbacked import expected
from ingot.torch_private import OpOverload, aten

Window = tuple[Sequence[Any], Sequence[Any], Any]  # sizes, strides, offset


def is_symbolic(t: Tensor) -> bool:
    """Whether a tensor was made with symbolic sizes or strides, also where guards have since made
    them constants: torch's own kernels refuse it."""
    return t._has_symbolic_sizes_strides  # type: ignore[attr-defined, no-any-return]


def view_symbolically(
    op: OpOverload, t: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a view op on a tensor with symbolic sizes, on the same storage."""
    refused = _REFUSED[op](t, *args, **kwargs) if op in _REFUSED else ""
    if refused:
        raise EagerRaises(f"{op} does not take these arguments in eager: {refused}")
    if op in _SEVERAL:
        return [t.as_strided(*w) for w in _SEVERAL[op](t, *args, **kwargs)]
    rule = _RULES.get(op)
    if rule is None:
        raise unsupported("no-symbolic-rule", f"{op} has no rule for symbolic sizes")
    return t.as_strided(*rule(t, *args, **kwargs))


def _view(t: Tensor, sizes: Sequence[Any]) -> Window:
    sizes = _inferred(t, list(sizes))
    if any(map(is_decided_by_data, sizes)) and geometry.is_in_order(t.shape, t.stride()):
        steps = list(itertools.accumulate(reversed(sizes), operator.mul, initial=1))
        return sizes, steps[-2::-1], t.storage_offset()
    strides = _view_strides(t.shape, t.stride(), sizes)
    if strides is None:
        raise EagerRaises("a view of a tensor whose strides do not allow it: eager raises")
    return sizes, strides, t.storage_offset()


def reshaped(t: Tensor, *shape: Any, certain: bool = False) -> Tensor:
    """`reshape`: a view where the strides allow it, or if these are `certain` to, for whom a copy
    does as well. torch's own asks more about the sizes than decides it."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
    sizes = _inferred(t, list(sizes))
    if (
        _is_certain_view(t, sizes)
        if certain
        else _view_strides(t.shape, t.stride(), sizes) is not None
    ):
        return t.view(sizes)
    return aten._unsafe_view.default(t.clone(memory_format=torch.contiguous_format), sizes)


def _is_certain_view(t: Tensor, sizes: Sequence[Any]) -> bool:
    (context, *_) = [
        size.node.context for size in (*t.shape, *t.stride()) if isinstance(size, torch.SymInt)
    ] or [None]
    closed, asked = nullcontext() if context is None else context.asks_nothing(), None
    with closed, suppress(Unsupported):
        asked = _view_strides(t.shape, t.stride(), sizes)
    return asked is not None


def _inferred(t: Tensor, sizes: list[Any]) -> list[Any]:
    """`sizes` with -1 replaced by what is left."""
    unknown = [d for d, s in enumerate(sizes) if isinstance(s, int) and s == -1]
    total = math.prod(t.shape)
    if unknown:
        known = math.prod(s for d, s in enumerate(sizes) if d != unknown[0])
        sizes[unknown[0]] = total // known
    if not expected(math.prod(sizes) == total):
        raise EagerRaises("a view of another number of elements: eager raises")
    return sizes


def _view_strides(
    old: Sequence[Any], strides: Sequence[Any], new: Sequence[Any]
) -> list[Any] | None:
    """Strides of a view, found by matching runs of dimensions that lie in order; None if there are
    none."""
    result: list[Any] = [1] * len(new)
    assumed: list[tuple[Any, Any, Any]] = []  # of which nothing was asked: see _goes_on
    if not old:
        return result
    # a view, however the rest of it lies
    if any(isinstance(size, int) and size == 0 for size in old):
        return list(
            strides
            if list(map(to_expr, old)) == list(map(to_expr, new))
            else geometry.contiguous(new)
        )
    v = len(new) - 1
    step, run, filled = strides[-1], 1, 1
    for d in range(len(old) - 1, -1, -1):
        run = run * old[d]
        if d > 0 and (
            geometry.surely_same(strides[d - 1], run * step) or geometry.is_one(old[d - 1])
        ):
            continue
        if (
            d > 0
            and not _fills(new[: v + 1], filled, run)
            and (_is_one(old[d - 1]) or strides[d - 1] == run * step)
        ):
            continue
        while v >= 0 and (d == 0 or _goes_on(filled, run, new[v], assumed)):
            result[v] = filled * step
            filled = filled * new[v]
            v -= 1
        if d > 0 and not geometry.surely_same(filled, run) and filled != run:
            break
        if d > 0:
            step, run, filled = strides[d - 1], 1, 1
    else:
        if v < 0:
            return result
    for filled, run, size in assumed:
        _ = filled != run or _is_one(size)  # as it is now: a guard
    return None


def _fills(sizes: Sequence[Any], filled: Any, run: Any) -> bool:
    """Whether the last of a view's sizes surely fill a run, of which `filled` elements are: it may
    end there, whether or not it goes on, as what a stride of a size of 1 is does not matter."""
    for size in reversed(sizes):
        if geometry.surely_same(filled, run):
            return True
        filled = filled * size
    return geometry.surely_same(filled, run)


def _goes_on(filled: Any, run: Any, size: Any, assumed: list[tuple[Any, Any, Any]]) -> bool:
    """Whether the next size of a view belongs to a run, of which it has `filled` elements. What may
    be full already is not asked where the next size is 1, or it is not full now, but put down as
    `assumed`: in a view, which fills its runs, there is nothing more to fill then, so the rest of
    them are 1 and belong there too. Where there is no view, it has to be asked."""
    if geometry.surely_same(filled, run):
        return geometry.is_one(size)
    if geometry.at_hand(size) == 1 or geometry.at_hand(filled) != geometry.at_hand(run):
        assumed.append((filled, run, size))
        return True
    return bool(filled != run)


def _is_one(size: Any) -> bool:
    return bool(size == 1)


def _expand(t: Tensor, sizes: Sequence[Any], implicit: bool = False) -> Window:
    """Elements repeated a symbol's times have a stride of 0, also where that is 1: there it does
    not matter."""
    missing = len(sizes) - t.dim()
    out_sizes, strides = list(sizes), [0] * len(sizes)
    for d, (size, stride) in enumerate(zip(t.shape, t.stride()), missing):
        kept = (isinstance(sizes[d], int) and sizes[d] == -1) or to_expr(sizes[d]) is to_expr(size)
        if kept or geometry.at_hand(sizes[d]) == geometry.at_hand(size) > 1 or not _is_one(size):
            if not kept and not expected(sizes[d] == size):
                raise EagerRaises("expand to a size that does not match: eager raises")
            out_sizes[d], strides[d] = size, stride
            continue
        _refuse_negative(sizes[d])
        if geometry.is_one(sizes[d]):
            strides[d] = stride
    for d in reversed(range(missing)):
        _refuse_negative(sizes[d])
        if geometry.is_one(sizes[d]):
            strides[d] = out_sizes[d + 1] * strides[d + 1] if d + 1 < len(sizes) else 1
    return out_sizes, strides, t.storage_offset()


def _refuse_negative(size: Any) -> None:
    """Raises where an integer, which may be anything, is no size."""
    if size < 0:
        raise EagerRaises("expand to a negative size: eager raises")


def _permute(t: Tensor, dims: Sequence[int]) -> Window:
    return [t.shape[d] for d in dims], [t.stride(d) for d in dims], t.storage_offset()


def _transpose(t: Tensor, a: int, b: int) -> Window:
    dims = list(range(t.dim()))
    dims[a], dims[b] = dims[b], dims[a]
    return _permute(t, dims)


def _select(t: Tensor, dim: int, index: Any) -> Window:
    dim %= t.dim()
    index = from_start(t.shape[dim], index)
    keep = [d for d in range(t.dim()) if d != dim]
    sizes, strides, offset = _permute(t, keep)
    return sizes, strides, offset + index * t.stride(dim)


def from_start(size: Any, index: Any) -> Any:
    """An index counted from the first element. Raises where it is out of range."""
    index = index + size if index < 0 else index
    if is_decided_by_data(index) or is_decided_by_data(size):
        within = expected(index < size)
    else:
        within = 0 <= index < size
    if not within:
        raise EagerRaises("an index out of range: eager raises")
    return index


def slice_from_start(size: Any, start: Any) -> Any:
    """The first element of a slice, counted from the start, such that its bounds say so; as it is
    where data decide."""
    if is_decided_by_data(start) or is_decided_by_data(size):
        return start
    return torch.sym_max(start + size if start < 0 else start, 0)


def _slice(t: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Window:
    dim %= t.dim()
    size = t.shape[dim]

    def clamped(value: Any) -> Any:
        if value < 0:
            value = value + size
            return value if value >= 0 else 0
        if is_decided_by_data(value) or is_decided_by_data(size):
            return torch.sym_min(value, size)
        return size if value > size else value

    start = 0 if start is None else clamped(start)
    end = size if end is None or (isinstance(end, int) and end >= 2**62) else clamped(end)
    if is_decided_by_data(start) or is_decided_by_data(end):
        end = torch.sym_max(start, end)
        length = (end - start + (step - 1)) // step
    else:
        length = (end - start + (step - 1)) // step if end > start else 0
    sizes, strides = list(t.shape), list(t.stride())
    sizes[dim], strides[dim] = length, strides[dim] * step
    return sizes, strides, t.storage_offset() + start * t.stride(dim)


def _unsqueeze(t: Tensor, dim: int) -> Window:
    dim %= t.dim() + 1
    sizes, strides = list(t.shape), list(t.stride())
    strides.insert(dim, sizes[dim] * strides[dim] if dim < t.dim() else 1)
    sizes.insert(dim, 1)
    return sizes, strides, t.storage_offset()


def _squeeze(t: Tensor, dims: Any = None) -> Window:
    chosen = range(t.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    dropped = {d % t.dim() for d in chosen if t.shape[d] == 1}
    return _permute(t, [d for d in range(t.dim()) if d not in dropped])


def _as_strided(
    t: Tensor, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = None
) -> Window:
    return sizes, strides, t.storage_offset() if offset is None else offset


def _diagonal(t: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Window:
    first, second = dim1 % t.dim(), dim2 % t.dim()
    if first == second:
        raise EagerRaises("a diagonal of one dimension: eager raises")
    rows, columns = t.shape[first] - max(-offset, 0), t.shape[second] - max(offset, 0)
    shorter = rows if rows <= columns else columns
    sizes, strides, start = _permute(t, [d for d in range(t.dim()) if d not in (first, second)])
    length = shorter if shorter > 0 else 0
    if length > 0:
        start = start + (offset * t.stride(second) if offset >= 0 else -offset * t.stride(first))
    return [*sizes, length], [*strides, t.stride(first) + t.stride(second)], start


def _unfold(t: Tensor, dim: int, size: Any, step: Any) -> Window:
    if not t.dim():
        raise unsupported("no-symbolic-rule", "an unfolded number has no rule for symbolic sizes")
    sizes, strides, offset = _same(t)
    dim %= t.dim()
    if size > sizes[dim] or size < 0 or step <= 0:
        raise EagerRaises("windows that are larger than what they show: eager raises")
    sizes, strides = [*sizes, size], [*strides, strides[dim]]
    sizes[dim], strides[dim] = (sizes[dim] - size) // step + 1, strides[dim] * step
    return sizes, strides, offset


def _same(t: Tensor) -> Window:
    return _permute(t, range(t.dim()))


def _split(t: Tensor, size: Any, dim: int = 0) -> list[Window]:
    count = int((t.shape[dim] + size - 1) // size)
    sizes, strides, offset = _same(t)
    parts: list[Window] = []
    for i in range(count):
        part = [*sizes]
        part[dim] = size if i + 1 < count else sizes[dim] - i * size
        parts.append((part, strides, offset + i * size * strides[dim]))
    return parts


def _split_with_sizes(t: Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Window]:
    if not all(expected(size >= 0) for size in sizes) or not expected(sum(sizes) == t.shape[dim]):
        raise EagerRaises("parts of negative sizes, or of other sizes than the whole: eager raises")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_slice(t, dim, end - size, end) for size, end in zip(sizes, ends)]


def _unbind(t: Tensor, dim: int = 0) -> list[Window]:
    return [_select(t, dim, i) for i in range(int(t.shape[dim]))]


_RULES: dict[OpOverload, Callable[..., Window]] = {
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
_SEVERAL: dict[OpOverload, Callable[..., list[Window]]] = {
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
}


def _bad_dim(t: Tensor, dim: int = 0, *_: Any, **__: Any) -> str:
    return geometry.bad_dims(t, [dim])


# What eager refuses for the rank, whatever the sizes are.
_REFUSED: dict[OpOverload, Callable[..., str]] = {
    aten.expand.default: lambda t, sizes, **_: (
        "fewer sizes than dimensions" if len(sizes) < t.dim() else ""
    ),
    aten.permute.default: lambda t, dims: (
        geometry.bad_dims(t, dims) if len(dims) == t.dim() else "another number of dimensions"
    ),
    aten.t.default: lambda t: "more than two dimensions" if t.dim() > 2 else "",
    aten.transpose.int: lambda t, *dims: _bad_dim(t, dims[0]) or _bad_dim(t, dims[1]),
    aten.select.int: _bad_dim,
    aten.slice.Tensor: _bad_dim,
    aten.unsqueeze.default: lambda t, dim: (
        "" if -t.dim() - 1 <= dim <= t.dim() else "a dimension out of range"
    ),
    aten.squeeze.dim: _bad_dim,
    aten.squeeze.dims: geometry.bad_dims,
    aten.diagonal.default: lambda t, offset=0, dim1=0, dim2=1: geometry.bad_dims(t, [dim1, dim2]),
    aten.unfold.default: _bad_dim,
    aten.split.Tensor: lambda t, size, dim=0: _bad_dim(t, dim),
    aten.split_with_sizes.default: lambda t, sizes, dim=0: _bad_dim(t, dim),
    aten.unbind.int: _bad_dim,
}
