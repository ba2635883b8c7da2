"""Tensors out of nothing, and tensors put together: full, arange, cat, stack, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.checks import number_overflows, overflows
from ingot.graph.geometry import bad_dims
from ingot.graph.meta.basis import by_look, fresh
from ingot.graph.meta.families import factory, formatted_copy, like_self, native, new_factory
from ingot.graph.meta.trials import dtype_of
from ingot.graph.schemas import Cost, bind
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr
from ingot.loops.lowering.context import WINDOW, Lowering
from ingot.loops.lowering.index_maps import compare, with_place
from ingot.loops.lowering.pointwise import filled
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    compute_dtype,
    contiguous,
    rounded,
)
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply


def full(lw: Lowering, out: Spec, *args: Any, **_: object) -> LoopTensor:
    """What is filled with the last argument."""
    return filled(lw, out, args[-1])


def ones(lw: Lowering, out: Spec, *_: object, **__: object) -> LoopTensor:
    return filled(lw, out, 1)


def zeros(lw: Lowering, out: Spec, *_: object, **__: object) -> LoopTensor:
    """Zeros; an empty tensor may hold anything, so it holds zeros too."""
    return filled(lw, out, 0)


def arange(lw: Lowering, out: Spec, *args: Any, **_: object) -> LoopTensor:
    if len(args) == 1:
        args = (0, *args)
    start, _end, step = (*args, 1)[:3]
    if out.dtype in ops.INTS:
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if all(isinstance(v, (int, Expr)) for v in (start, step)) and out.dtype in ops.INTS:
        return lw.computed(
            out, lambda index: ops.index(index[0] * step + start, out.dtype), [], cost=0
        )
    if any(isinstance(v, Expr) for v in (start, step)):
        raise NotLowered("a symbolic arange of floats")
    # Eager computes start + step * i in the accumulation type of the result: double on a CPU.
    dtype = torch.float64

    def compute(index: Index) -> int:
        steps = apply("mul", ops.index(index[0], dtype), ops.constant(step, dtype))
        return rounded(
            ops.to(apply("add", steps, ops.constant(start, dtype)), compute_dtype(out.dtype)),
            out.dtype,
        )

    return lw.computed(out, compute, [], cost=2)


# -- putting together ------------------------------------------------------------------------------


class Joined(LoopTensor):
    """Tensors one after the other along `axis`. In memory, each piece is written straight into its
    place."""

    members: list[tuple[LoopTensor, Expr]]  # each with where it starts along the axis
    axis: int

    def pieces(self, strides: Sequence[Expr]) -> list[tuple[LoopTensor, Expr]]:
        results = []
        for tensor, start in self.members:
            results.append((tensor, start * strides[self.axis]))
        return results


def cat(lw: Lowering, out: Spec, tensors: Sequence[LoopTensor], dim: int = 0) -> LoopTensor:
    rank = len(out.sizes)
    dim %= rank
    return join(lw, out, [t for t in tensors if len(t.sizes) == rank], dim)


def join(lw: Lowering, out: Spec, tensors: Sequence[LoopTensor], dim: int) -> LoopTensor:
    """`tensors`, of `out`'s sizes but along `dim`, one after the other."""
    members: list[tuple[LoopTensor, Expr]] = []
    start = ZERO
    for t in tensors:
        if t.sizes[dim] is ZERO:
            continue
        spec = out._replace(sizes=t.sizes, strides=out.strides)
        members.append((lw.rounded_to(spec, t), start))
        start = start + t.sizes[dim]
    if not members:
        return filled(lw, out, 0)
    joined = Joined(
        out.sizes,
        out.strides,
        out.dtype,
        lambda index: _joined_at(members, dim, index),
        cost=3 * (len(members) - 1),
    )
    model = lw.computed(out, joined.compute, [t for t, _ in members])
    joined.origin, joined.cost, joined.heavy = model.origin, joined.cost + model.cost, model.heavy
    joined.members, joined.axis = members, dim
    # Read in place, a joined tensor computes all its pieces at every element.
    if len(members) > 2 or joined.heavy or model.cost > lw.target.cost_of_joining:
        lw.realize(
            joined, None if lw.returned else lw.strides_of_loads(joined, WINDOW * len(members))
        )
    return joined


def _joined_at(members: list[tuple[LoopTensor, Expr]], dim: int, index: Index) -> int:
    """The value at `index`, chosen among the members from the last to the first."""
    result: int | None = None
    for tensor, start in reversed(members):
        position = index[dim] - start
        inside = ops.constant(True, torch.bool)
        if start is not ZERO:
            inside = compare("ge", position, 0)
        if result is not None:
            inside = apply("logical_and", inside, compare("lt", position, tensor.sizes[dim]))
        with ops.masked(inside):
            value = tensor.load(with_place(index, dim, position))
        if result is None:
            result = value
        else:
            result = apply("where", inside, value, result)
    assert result is not None
    return result


def stack(lw: Lowering, out: Spec, tensors: Sequence[LoopTensor], dim: int = 0) -> LoopTensor:
    dim %= len(out.sizes)
    sizes = tuple(as_expr(1) if k == dim else size for k, size in enumerate(out.sizes))
    spec = out._replace(sizes=sizes)
    return cat(
        lw, out, [lw.mapped(t, spec, lambda i: (*i[:dim], *i[dim + 1 :])) for t in tensors], dim
    )


def repeat(lw: Lowering, out: Spec, x: LoopTensor, repeats: Sequence[Any]) -> LoopTensor:
    """Written with a loop for the copies and one for what is copied: a remainder in the index would
    be a gather."""
    lw.share(x)
    rank = len(x.sizes)
    sizes: list[Expr] = []
    # of each dimension of `x`: which of `sizes` counts it; None where it has one element
    place: list[int | None] = []
    for dim, times in enumerate(repeats, rank - len(repeats)):
        size, copies = x.sizes[dim] if dim >= 0 else ONE, as_expr(times)
        if size is ONE:
            sizes.append(copies)
        elif copies is ONE:
            sizes.append(size)
        else:
            sizes += [copies, size]
        if dim >= 0:
            place.append(None if size is ONE else len(sizes) - 1)
    spec = contiguous(sizes, out.dtype)

    def index_map(index: Index) -> Index:
        return tuple(ZERO if k is None else index[k] for k in place)

    written: LoopTensor = lw.mapped(x, spec, index_map)
    if len(sizes) > len(repeats):
        written = lw.copied(written)
    return lw.reshaped(written, out)


# -- as other ops: what looks at a tensor's metadata only must not keep its value alive ------------


def _filled(
    x: Tensor, sizes: Any, value: Any, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    return aten.full.default(sizes, value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, **options: Any) -> Tensor:
    return _filled(x, x.shape, 0, **options)


def ones_like(x: Tensor, **options: Any) -> Tensor:
    return _filled(x, x.shape, 1, **options)


def full_like(x: Tensor, value: Any, **options: Any) -> Tensor:
    return _filled(x, x.shape, value, **options)


def efficientzerotensor(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return torch.full(size, 0, dtype=dtype or torch.get_default_dtype(), device=device)


def new_zeros(x: Tensor, size: Any, **options: Any) -> Tensor:
    return _filled(x, size, 0, **options)


def new_ones(x: Tensor, size: Any, **options: Any) -> Tensor:
    return _filled(x, size, 1, **options)


def empty_like(
    x: Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
) -> Tensor:
    if memory_format not in (None, torch.preserve_format):
        return torch.empty(
            x.shape, dtype=dtype or x.dtype, device=device or x.device, memory_format=memory_format
        )
    return torch.empty_strided(
        x.shape, geometry.preserved(x), dtype=dtype or x.dtype, device=device or x.device
    )


def new_empty(x: Tensor, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return torch.empty(size, dtype=dtype or x.dtype, device=device or x.device)


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    rank = x.dim() + 1
    if not (-rank <= dim1 < rank and -rank <= dim2 < rank) or dim1 % rank == dim2 % rank:
        return NotImplemented  # eager raises
    sizes = list(x.shape[:-1])
    for d in sorted((dim1 % rank, dim2 % rank)):
        sizes.insert(d, x.shape[-1] + abs(offset))
    return torch.diagonal_scatter(x.new_zeros(sizes), x, offset, dim1, dim2)


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


# -- what they look like, and what eager refuses ---------------------------------------------------


def _is_legacy_empty(t: Tensor) -> bool:
    """Whether cat takes it whatever the others' rank is: the tensor of one dimension without
    elements."""
    return t.dim() == 1 and isinstance(t.shape[0], int) and t.shape[0] == 0


@by_look
def cat_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    tensors = [t for t in args[0] if not _is_legacy_empty(t)]
    if not tensors:
        return fresh((0,), dtype_of(op, args, kwargs))
    first = tensors[0]
    ranked = [t.new_empty((0,) * first.dim()) if _is_legacy_empty(t) else t for t in args[0]]
    dtype = dtype_of(op, (ranked, *args[1:]), kwargs)
    dim = bind(op, args, kwargs)["dim"] % first.dim()
    sizes = list(first.shape)
    for t in tensors[1:]:
        pairs = []
        for d, pair in enumerate(zip(t.shape, first.shape)):
            if d != dim:
                pairs.append(pair)
        if t.dim() != first.dim() or not all(geometry.expect_same(*pair) for pair in pairs):
            raise EagerRaises("cat_meta of tensors whose sizes differ outside the joined dimension")
        sizes[dim] = sizes[dim] + t.shape[dim]
    last = all(geometry.like_channels_last(t) for t in tensors)
    return fresh(sizes, dtype, geometry.channels_last(sizes) if last else None)


@by_look
def stack_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    tensors = args[0]
    sizes = list(tensors[0].shape)
    if not all(geometry.expect_same_sizes(t.shape, tensors[0].shape) for t in tensors):
        raise EagerRaises("stack_meta of tensors of different sizes")
    dim = bind(op, args, kwargs)["dim"] % (len(sizes) + 1)
    strides = None
    # a cat along dim, taken apart
    if dim < len(sizes) and all(geometry.like_channels_last(t) for t in tensors):
        joined = geometry.channels_last(
            [s * len(tensors) if d == dim else s for d, s in enumerate(sizes)]
        )
        strides = (*joined[:dim], joined[dim] * sizes[dim], *joined[dim:])
    sizes.insert(dim, len(tensors))
    return fresh(sizes, dtype_of(op, args, kwargs), strides)


@by_look
def repeat_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    t, times = args
    sizes = [1] * (len(times) - t.dim()) + list(t.shape)
    return fresh([s * n for s, n in zip(sizes, times)], t.dtype)


def arange_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    bound = bind(op, args, kwargs)
    start, end, step = bound.get("start", 0), bound["end"], bound.get("step", 1)
    whole = not any(isinstance(v, (float, torch.SymFloat)) for v in (start, end, step))
    dtype = bound["dtype"] or (torch.int64 if whole else torch.get_default_dtype())
    if dtype is torch.int64 and not whole and _arange_truncates():
        start, end, step, whole = int(start), int(end), int(step), True
        if step == 0:
            raise EagerRaises("arange_meta with a step of 0")
    if whole:
        return fresh((-((start - end) // step),), dtype)
    start, end, step = [float(v) if type(v) is int else v for v in (start, end, step)]
    return fresh((math.ceil((end - start) / step),), dtype)


@cache
def _arange_truncates() -> bool:
    """Whether eager truncates the numbers of an int64 arange before it counts its elements: until
    torch 2.14."""
    return torch.arange(0, 1.5, 1.0, dtype=torch.int64, device="cpu").shape[0] == 1


def empty_strided_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    *source, sizes, strides = args
    dtype = kwargs.get("dtype") or (source[0].dtype if source else torch.get_default_dtype())
    return fresh(sizes, dtype, strides)


def empty_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    format_ = kwargs.get("memory_format")
    last = format_ in (torch.channels_last, torch.channels_last_3d)
    strides = None
    if last:
        strides = geometry.channels_last(args[0])
    return fresh(args[0], kwargs.get("dtype") or torch.get_default_dtype(), strides)


def cat_refusal(tensors: Sequence[Tensor], dim: int) -> str:
    """One dimension without elements is as good as any."""
    ranked = []
    for t in tensors:
        if t.dim() != 1 or not geometry.is_empty(t):
            ranked.append(t)
    if ranked:
        return bad_dims(ranked[0], [dim])
    return ""


def repeat_refusal(x: Tensor, repeats: Sequence[Any]) -> str:
    if len(repeats) >= x.dim():
        return ""
    return "fewer repeats than dimensions"


def full_refusal(
    fill_value: Any, x: Tensor | None = None, dtype: torch.dtype | None = None, **_: Any
) -> str:
    if dtype is None and x is None:
        if isinstance(fill_value, float):
            dtype = torch.get_default_dtype()
        else:
            dtype = torch.int64
    kept = dtype or x.dtype  # type: ignore[union-attr]
    if overflows(kept, fill_value):
        return "a number that the tensor's type cannot hold"
    return ""


def scalar_tensor_refusal(s: Any, dtype: torch.dtype | None = None, **_: Any) -> str:
    return full_refusal(s, dtype=dtype or torch.get_default_dtype())


def arange_refusal(end: Any, start: Any = 0, step: Any = 1, **_: Any) -> str:
    if any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in (start, end, step)):
        if step == 0:
            return "a step of 0"
        return ""
    if step < 0:
        away = start < end
    else:
        away = start > end
    if step == 0:
        return "a step of 0"
    if away:
        return "a step that leads away from the end"
    return ""


def stack_refusal(tensors: Sequence[Tensor], dim: int) -> str:
    rank = tensors[0].dim()
    if -rank - 1 <= dim <= rank:
        return ""
    return "a dimension out of range"


OPS = (
    op(
        aten.full.default,
        meta=factory,
        refuses=full_refusal,
        takes_no_elements=True,
        cost=Cost.LIGHT,
        lower=full,
    ),
    op(aten.fill.Scalar, meta=like_self, refuses=number_overflows, lower=full),
    op(aten.fill.Tensor, meta=like_self, refuses=number_overflows),
    op(aten.zero.default, meta=like_self),
    op(aten.scalar_tensor.default, meta=native, refuses=scalar_tensor_refusal, lower=full),
    op(aten.ones.default, meta=factory, takes_no_elements=True, lower=ones),
    op(aten.zeros.default, meta=factory, takes_no_elements=True, lower=zeros),
    op(aten.eye.default, aten.eye.m, meta=factory),
    op(aten.empty.memory_format, meta=empty_meta, takes_no_elements=True, lower=zeros),
    op(aten.empty_strided.default, meta=empty_strided_meta, takes_no_elements=True, lower=zeros),
    op(aten.new_empty_strided.default, meta=empty_strided_meta, lower=zeros),
    op(aten.zeros_like.default, decompose=zeros_like, meta=formatted_copy, takes_no_elements=True),
    op(aten.ones_like.default, decompose=ones_like, meta=formatted_copy, takes_no_elements=True),
    op(
        aten.full_like.default,
        decompose=full_like,
        meta=formatted_copy,
        refuses=full_refusal,
        takes_no_elements=True,
    ),
    op(aten.empty_like.default, decompose=empty_like, meta=formatted_copy, takes_no_elements=True),
    op(aten.new_zeros.default, decompose=new_zeros, meta=new_factory, takes_no_elements=True),
    op(aten.new_ones.default, decompose=new_ones, meta=new_factory, takes_no_elements=True),
    op(
        aten.new_full.default,
        decompose=_filled,
        meta=new_factory,
        refuses=full_refusal,
        takes_no_elements=True,
    ),
    op(aten.new_empty.default, decompose=new_empty, meta=new_factory, takes_no_elements=True),
    op(aten._efficientzerotensor.default, decompose=efficientzerotensor),
    op(
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        meta=arange_meta,
        refuses=arange_refusal,
        takes_no_elements=True,
        cost=Cost.LIGHT,
        lower=arange,
    ),
    op(
        aten.cat.default,
        meta=cat_meta,
        refuses=cat_refusal,
        takes_no_elements=True,
        cost=Cost.LIGHT,
        lower=cat,
    ),
    op(
        aten.stack.default,
        meta=stack_meta,
        refuses=stack_refusal,
        takes_no_elements=True,
        lower=stack,
    ),
    op(
        aten.repeat.default,
        meta=repeat_meta,
        refuses=repeat_refusal,
        takes_no_elements=True,
        lower=repeat,
    ),
    op(aten.diag_embed.default, decompose=diag_embed),
    op(aten.block_diag.default, decompose=block_diag),
)
