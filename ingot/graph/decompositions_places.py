"""Ops that only move elements, recorded as views, copies and indexing. The rules of
`decompositions.py` apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.decompositions import rule
from ingot.torch_private import OpOverload, aten

# -- copies of views -------------------------------------------------------------------------------

_COPIED = (
    "alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t "
    "transpose unbind "
    "unfold unsqueeze"
).split()


def _copy_of(view: OpOverload) -> Callable[..., Any]:
    def rule_(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = view(x, *args, **kwargs)
        if isinstance(result, Tensor):
            return result.clone(memory_format=torch.contiguous_format)
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in result)

    return rule_


def _register_copies() -> None:
    for name in _COPIED:
        packet, view = getattr(aten, f"{name}_copy"), getattr(aten, name)
        for overload in set(packet.overloads()) & set(view.overloads()):
            rule(getattr(packet, overload))(_copy_of(getattr(view, overload)))


_register_copies()


@rule(aten.view_copy.default)
def view_copy(x: Tensor, size: Any) -> Tensor:
    return x.reshape(size).clone()


@rule(aten.view_copy.dtype)
def view_copy_as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.view(dtype).clone()


@rule(aten.narrow_copy.default)
def narrow_copy(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    return x.narrow(dim, start, length).clone()


@rule(aten.unsafe_split.Tensor)
def unsafe_split(x: Tensor, size: Any, dim: int = 0) -> Any:
    return tuple(x.split(size, dim))


@rule(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(x: Tensor, sizes: Any, dim: int = 0) -> Any:
    return tuple(x.split_with_sizes(sizes, dim))


# -- diagonals -------------------------------------------------------------------------------------


@rule(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    rank = x.dim() + 1
    if not (-rank <= dim1 < rank and -rank <= dim2 < rank) or dim1 % rank == dim2 % rank:
        return NotImplemented  # eager raises
    sizes = list(x.shape[:-1])
    for d in sorted((dim1 % rank, dim2 % rank)):
        sizes.insert(d, x.shape[-1] + abs(offset))
    return torch.diagonal_scatter(x.new_zeros(sizes), x, offset, dim1, dim2)


@rule(aten.block_diag.default)
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors or any(t.dim() > 2 for t in tensors):
        return NotImplemented
    dtype = tensors[0].dtype
    for t in tensors:
        dtype = torch.promote_types(dtype, t.dtype)
    blocks = [torch.atleast_2d(t).to(dtype) for t in tensors]
    width, before = sum(b.shape[1] for b in blocks), 0
    rows = []
    for b in blocks:
        rows.append(torch.constant_pad_nd(b, (before, width - before - b.shape[1])))
        before = before + b.shape[1]
    return torch.cat(rows)


# -- rearrangements --------------------------------------------------------------------------------


@rule(aten.rot90.default)
def rot90(x: Tensor, k: int = 1, dims: list[int] | tuple[int, int] = (0, 1)) -> Tensor:
    rank = x.dim()
    if (
        len(dims) != 2
        or any(not -rank <= d < rank for d in dims)
        or dims[0] % rank == dims[1] % rank
    ):
        return NotImplemented  # eager raises
    if k % 4 == 0:
        return x.clone(memory_format=torch.contiguous_format)
    if k % 4 == 2:
        return x.flip(dims)
    return x.flip([dims[k % 4 == 1]]).transpose(dims[0], dims[1])


@rule(aten.roll.default)
def roll(x: Tensor, shifts: list[Any], dims: list[int] | tuple[()] = ()) -> Tensor:
    """Over the flattened tensor; a dimension given twice in two steps."""
    if not dims and len(shifts) == 1 and x.dim() != 1:
        return torch.roll(x.reshape(-1), shifts, 0).view(x.shape)
    if not dims and len(shifts) == 1:
        return torch.roll(x, shifts, 0)
    rank = x.dim()
    if len(dims) != len(shifts) or any(not -rank <= d < rank for d in dims):
        return NotImplemented
    if len({d % rank for d in dims}) == len(dims):
        return NotImplemented  # as it is
    return torch.roll(torch.roll(x, shifts[:1], dims[:1]), shifts[1:], dims[1:])


@rule(aten.pixel_shuffle.default)
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    if x.dim() < 3 or factor < 1 or x.shape[-3] % (factor * factor):
        return NotImplemented
    *batch, channels, height, width = x.shape
    kept = len(batch)
    split = x.reshape(*batch, channels // (factor * factor), factor, factor, height, width)
    order = [*range(kept), *(kept + d for d in (0, 3, 1, 4, 2))]
    sizes = (*batch, channels // (factor * factor), height * factor, width * factor)
    return split.permute(order).clone().reshape(sizes)


@rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    if x.dim() < 3 or factor < 1 or x.shape[-2] % factor or x.shape[-1] % factor:
        return NotImplemented
    *batch, channels, height, width = x.shape
    kept = len(batch)
    split = x.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    order = [*range(kept), *(kept + d for d in (0, 2, 4, 1, 3))]
    sizes = (*batch, channels * factor * factor, height // factor, width // factor)
    return split.permute(order).clone().reshape(sizes)


@rule(aten.channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    if x.dim() < 3 or groups < 1 or x.shape[1] % groups or geometry.is_empty(x):
        return NotImplemented
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return grouped.transpose(1, 2).clone().reshape(x.shape)


# -- indexing --------------------------------------------------------------------------------------


@rule(aten.take.default)
def take(x: Tensor, index: Tensor) -> Tensor:
    if index.dtype is not torch.int64 or geometry.is_empty(x):
        return NotImplemented
    return x.reshape(-1)[index]
