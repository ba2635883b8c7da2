"""Views of every kind: index maps, never nodes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph.meta.families import exact_self, native
from ingot.loops.expr import ZERO, Expr, as_expr, product
from ingot.loops.ir import View
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import on_dim, slice_start
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    broadcast_index,
    numel,
    same_strides,
    stored,
    view_of,
)
from ingot.ops.op import Op, op
from ingot.torch_private import OpOverload, aten


def view(lw: Lowering, out: Spec, x: LoopTensor, *_: object) -> LoopTensor:
    return lw.reshaped(x, out)


def permute(lw: Lowering, out: Spec, x: LoopTensor, dims: Sequence[int]) -> LoopTensor:
    inverse = {d % len(dims): k for k, d in enumerate(dims)}
    order = [inverse[k] for k in range(len(dims))]
    return lw.mapped(x, out, lambda index: tuple(index[k] for k in order))


def transpose(lw: Lowering, out: Spec, x: LoopTensor, dim0: int, dim1: int) -> LoopTensor:
    if not x.sizes:
        return x
    dims = list(range(len(x.sizes)))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return permute(lw, out, x, dims)


def t(lw: Lowering, out: Spec, x: LoopTensor) -> LoopTensor:
    return permute(lw, out, x, list(range(len(x.sizes)))[::-1])


def expand(lw: Lowering, out: Spec, x: LoopTensor, *_: object, **__: object) -> LoopTensor:
    if product(out.sizes) is not product(x.sizes):
        lw.share(x)  # it would be computed once per copy
    return lw.mapped(x, out, lambda index: broadcast_index(index, x.sizes))


def alias(lw: Lowering, out: Spec, x: LoopTensor) -> LoopTensor:
    return x


def slice_(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int = 0,
    start: int | Expr | None = None,
    end: object = None,
    step: int = 1,
) -> LoopTensor:
    first = slice_start(start, x.sizes[dim])
    return lw.mapped(x, out, on_dim(dim, len(x.sizes), lambda i: i * step + first))


def select(lw: Lowering, out: Spec, x: LoopTensor, dim: int, index: int | Expr) -> LoopTensor:
    dim %= len(x.sizes)
    position = as_expr(index)  # one that varies counts from the start
    if (position.constant or 0) < 0:
        position = position + x.sizes[dim]
    return lw.mapped(x, out, lambda i: (*i[:dim], position, *i[dim:]))


def split(
    lw: Lowering, outs: Sequence[Spec], x: LoopTensor, sizes: object, dim: int = 0
) -> tuple[LoopTensor, ...]:
    """The pieces of `x` along `dim`, one after the other."""
    pieces = []
    start = ZERO
    for out in outs:
        index = on_dim(dim, len(x.sizes), functools.partial(operator.add, start))
        pieces.append(lw.mapped(x, out, index))
        start = start + out.sizes[dim]
    return tuple(pieces)


def unbind(
    lw: Lowering, outs: Sequence[Spec], x: LoopTensor, dim: int = 0
) -> tuple[LoopTensor, ...]:
    return tuple(select(lw, out, x, dim, k) for k, out in enumerate(outs))


def diagonal(
    lw: Lowering, out: Spec, x: LoopTensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> LoopTensor:
    rank = len(x.sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank

    def index_map(index: Index) -> Index:
        rest = iter(index[:-1])
        at = {dim1: index[-1] + max(-offset, 0), dim2: index[-1] + max(offset, 0)}
        return tuple(at[k] if k in at else next(rest) for k in range(rank))

    return lw.mapped(x, out, index_map)


def unfold(lw: Lowering, out: Spec, x: LoopTensor, dim: int, size: int, step: int) -> LoopTensor:
    if not x.sizes:
        raise NotLowered("unfold of a scalar")
    dim %= len(x.sizes)
    return lw.mapped(x, out, lambda i: (*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1]))


def as_strided(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    sizes: object,
    strides: Sequence[int | Expr],
    offset: int | Expr | None = None,
) -> LoopTensor:
    """A window on the storage under `x`, which must then be in memory, laid out as in eager."""
    buffer = _laid_out(lw, x).buffer or ""
    if offset is None:
        first = out.offset
    else:
        first = as_expr(offset)
    if buffer in lw.graph.inputs:
        lw.graph.addressed.add(buffer)
    return stored(buffer, out, first - lw.storage_offsets.get(buffer, ZERO))


def as_strided_scatter(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    source: LoopTensor,
    sizes: Sequence[int | Expr],
    strides: Sequence[int | Expr],
    offset: int | Expr | None = None,
) -> LoopTensor:
    """A copy of `x` in which a window is `source`: what lies under `x` is copied, and shown as `x`
    shows it. The window counts from where the storage begins, which is another place for a part of
    the arena than for eager's tensor."""
    root = _laid_out(lw, x)
    if offset is None:
        begin = ZERO
    else:
        begin = as_expr(offset) - lw.storage_offsets.get(root.buffer or "", ZERO)
    view = None
    if root is x.root:
        view = view_of(x)
    if view is None:
        if numel(x.sizes) is not numel(root.sizes):
            raise unsupported(
                "no-code", "as_strided of a part of a value that is laid out anew", lw.origin.where
            )
        view = View("", x.sizes, x.strides, ZERO, x.dtype)  # as eager lays out the whole
    whole = Spec(root.sizes, root.strides, root.dtype)
    copy = lw.result_of(_with_window, whole, [root, source, list(sizes), list(strides), begin])
    return stored(copy.buffer or "", out._replace(strides=view.strides), view.offset)


def _with_window(
    x: Tensor, source: Tensor, sizes: list[int], strides: list[int], begin: int
) -> Tensor:
    return aten.as_strided_scatter.default(x, source, sizes, strides, x.storage_offset() + begin)


def _laid_out(lw: Lowering, x: LoopTensor) -> LoopTensor:
    """What `x` is a view of, in memory, laid out as in eager."""
    root = lw.realize(x.root)
    if not _has_own_strides(lw, root):
        root = lw.realize(lw.copied(root))
    if not _has_own_strides(lw, root):
        raise unsupported(
            "no-code", "as_strided of a value with gaps or shared elements", lw.origin.where
        )
    return root


def _has_own_strides(lw: Lowering, root: LoopTensor) -> bool:
    strides = lw.graph.buffers[root.buffer or ""].strides
    return same_strides(root.sizes, root.strides, strides)


# -- copies of views -------------------------------------------------------------------------------


_COPIED = (
    aten.alias, aten.as_strided, aten.detach, aten.diagonal, aten.expand, aten.permute, aten.select,
    aten.slice, aten.split, aten.split_with_sizes, aten.squeeze, aten.t, aten.transpose,
    aten.unbind, aten.unfold, aten.unsqueeze,
)  # fmt: skip


def _copy_of(view: OpOverload) -> Callable[..., Any]:
    def rule_(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = view(x, *args, **kwargs)
        if isinstance(result, Tensor):
            return result.clone(memory_format=torch.contiguous_format)
        return tuple(t.clone(memory_format=torch.contiguous_format) for t in result)

    return rule_


def view_copy(x: Tensor, size: Any) -> Tensor:
    return x.reshape(size).clone()


def view_copy_as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.view(dtype).clone()


def narrow_copy(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    return x.narrow(dim, start, length).clone()


def unsafe_split(x: Tensor, size: Any, dim: int = 0) -> Any:
    return tuple(x.split(size, dim))


def unsafe_split_with_sizes(x: Tensor, sizes: Any, dim: int = 0) -> Any:
    return tuple(x.split_with_sizes(sizes, dim))


def _copies() -> Iterator[Op]:
    for view in _COPIED:
        packet = getattr(aten, f"{view.__name__}_copy")
        for overload in set(packet.overloads()) & set(view.overloads()):
            yield op(getattr(packet, overload), decompose=_copy_of(getattr(view, overload)))


# -- what they look like, and what eager refuses ---------------------------------------------------


def as_strided_refusal(x: Tensor, size: Any, stride: Any, storage_offset: Any) -> str:
    offset = storage_offset
    if storage_offset is None:
        offset = x.storage_offset()
    if any(isinstance(s, int) and s < 0 for s in stride):
        return "a negative stride"  # which torch 2.11's own meta function takes
    if any(n == 0 for n in size):
        return ""
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    fits = (last + 1) * x.element_size() <= x.untyped_storage().nbytes()
    if fits:
        return ""
    return "a window beyond the storage"


def _meta_of(view: OpOverload) -> Callable[..., Any]:
    """The meta rule of an op that gives views, though torch does not say so."""
    return lambda op, args, kwargs: native(view, args, kwargs)


OPS = (
    op(aten.view.default, lower=view),
    op(
        aten._unsafe_view.default,
        aten._reshape_alias.default,
        meta=native,
        takes_no_elements=True,
        lower=view,
    ),
    op(
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        lower=view,
    ),
    op(aten.permute.default, lower=permute),
    op(aten.transpose.int, lower=transpose),
    op(aten.t.default, lower=t),
    op(aten.expand.default, lower=expand),
    op(aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, lower=alias),
    op(aten.lift_fresh.default, meta=native, takes_no_elements=True, lower=alias),
    op(aten.slice.Tensor, lower=slice_, reads_part=True),
    op(aten.select.int, lower=select, reads_part=True),
    op(aten.split.Tensor, aten.split_with_sizes.default, lower=split),
    op(aten.unsafe_split.Tensor, decompose=unsafe_split, meta=_meta_of(aten.split.Tensor)),
    op(
        aten.unsafe_split_with_sizes.default,
        decompose=unsafe_split_with_sizes,
        meta=_meta_of(aten.split_with_sizes.default),
    ),
    op(aten.unbind.int, lower=unbind),
    op(aten.diagonal.default, lower=diagonal, reads_part=True),
    op(aten.unfold.default, lower=unfold, reads_part=True),
    op(aten.as_strided.default, refuses=as_strided_refusal, lower=as_strided, reads_part=True),
    op(aten.as_strided_scatter.default, meta=exact_self, lower=as_strided_scatter),
    op(
        aten.view_as_real.default,
        aten.view_as_complex.default,
        aten.is_same_size.default,
        meta=native,
    ),
    op(aten.view_copy.default, decompose=view_copy),
    op(aten.view_copy.dtype, decompose=view_copy_as),
    op(aten.narrow_copy.default, decompose=narrow_copy),
    *_copies(),
)
