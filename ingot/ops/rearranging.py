"""Padding, and what only moves elements to other places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.checks import overflows
from ingot.graph.geometry import bad_dims
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.families import contiguous_self, like_self
from ingot.graph.meta.trials import tried_out
from ingot.graph.meta.untried import sized_as, unless_known
from ingot.graph.schemas import Cost, bind
from ingot.graph.symbols import is_decided_by_data
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, known_less_equal, maximum, minimum
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import compare, on_dim
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import Index, LoopTensor, Margins, Spec, rounded_number
from ingot.ops.creation import join
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten


def roll(
    lw: Lowering, out: Spec, x: LoopTensor, shifts: Sequence[int], dims: Sequence[int] = ()
) -> LoopTensor:
    if not dims:
        raise NotLowered("roll over the flattened tensor")
    moved = dict(zip((d % len(x.sizes) for d in dims), shifts))
    if len(moved) < len(dims):
        raise NotLowered("a dimension rolled twice")
    inner = next(
        (d for d in moved if x.strides[d] is ONE and as_expr(moved[d]).constant is not None), None
    )
    if inner is not None:  # in two pieces, so that neighbours in memory stay neighbours
        size, shift = x.sizes[inner], as_expr(moved.pop(inner)) % x.sizes[inner]
        moves: list[tuple[Expr, Callable[[Expr], Expr]]]
        moves = [(shift, lambda i: i + size - shift), (size - shift, lambda i: i)]
        specs = []
        for n, _ in moves:
            specs.append(out._replace(sizes=(*x.sizes[:inner], n, *x.sizes[inner + 1 :])))
        pieces = []
        for spec, (_, f) in zip(specs, moves):
            pieces.append(lw.mapped(x, spec, on_dim(inner, len(x.sizes), f)))
        x = join(lw, out, pieces, inner)

    def index_map(index: Index) -> Index:
        return tuple((i - moved[k]) % x.sizes[k] if k in moved else i for k, i in enumerate(index))

    if moved:
        return lw.mapped(x, out, index_map)
    return x


def _clamped(i: Expr, size: Expr) -> Expr:
    return minimum(maximum(i, 0), size - 1)


def _reflected(i: Expr, size: Expr) -> Expr:
    i = maximum(i, -i)
    from_end = size - 1 - i
    # which changes nothing, and is plainly in range
    return _clamped(size - 1 - maximum(from_end, -from_end), size)


def _padded(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    pad: Sequence[Any],
    position: Callable[[Expr, Expr], Expr],
    mirrored: bool,
) -> LoopTensor:
    """`position(i, size)` is the element that stands at place `i` of a dimension, where 0 is the
    first one.

    The last dimension is written in three parts, each of which walks through memory in steps of one
    length.
    """
    rank, padded = len(x.sizes), len(pad) // 2
    before = [ZERO] * rank
    for k in range(padded):
        before[rank - 1 - k] = as_expr(pad[2 * k])
    left, right, size = as_expr(pad[0]), as_expr(pad[1]), x.sizes[-1]
    if left.constant is None or right.constant is None or ZERO in x.sizes:
        raise NotLowered("padding of symbolic width, or of nothing")
    lw.realize_root(x)
    first, last = max(left.constant, 0), max(right.constant, 0)

    def piece(length: Expr, at: Callable[[Expr], Expr]) -> LoopTensor:
        def index_map(index: Index) -> Index:
            places = [*index[:-1], at(index[-1])]
            for k, size in enumerate(x.sizes[:-1]):
                if before[k] is not ZERO or out.sizes[k] is not size:
                    places[k] = position(places[k] - before[k], size)
            return tuple(places)

        return lw.mapped(x, out._replace(sizes=(*out.sizes[:-1], length)), index_map)

    middle = out.sizes[-1] - first - last
    if not known_less_equal(0, middle):
        raise NotLowered("padding of nothing that is left")
    pieces = [piece(middle, lambda i: i + first - left)]
    if first:
        pieces.insert(0, piece(as_expr(first), lambda i: first - i if mirrored else ZERO))
    if last:
        pieces.append(piece(as_expr(last), lambda i: size - 2 - i if mirrored else size - 1))
    return join(lw, out, pieces, rank - 1)


def _rule(position: Callable[[Expr, Expr], Expr], mirrored: bool) -> Callable[..., LoopTensor]:
    def rule(lw: Lowering, out: Spec, x: LoopTensor, pad: Sequence[Any]) -> LoopTensor:
        return _padded(lw, out, x, pad, position, mirrored)

    return rule


def constant_pad(
    lw: Lowering, out: Spec, x: LoopTensor, pad: Sequence[Any], number: Any = 0
) -> LoopTensor:
    rank = len(x.sizes)
    before: list[Any] = [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k] = pad[2 * k]
    if len(pad) // 2 > rank:
        raise NotLowered("more padding than dimensions")

    def compute(index: Index) -> int:
        inner = tuple(i - b for i, b in zip(index, before))
        inside = ops.constant(True, torch.bool)
        for i, pad_before, size, whole in zip(inner, before, x.sizes, out.sizes):
            if size is not whole or as_expr(pad_before) is not ZERO:
                inside = ops.apply("logical_and", inside, compare("ge", i, 0))
                inside = ops.apply("logical_and", inside, compare("lt", i, size))
        with ops.masked(inside):
            value = x.load(inner)
        return ops.apply(
            "where",
            inside,
            value,
            ops.constant(rounded_number(number, out.dtype), ops.dtype_of(value)),
        )

    value = lw.computed(out, compute, [x], cost=3)
    after = [whole - size - b for whole, size, b in zip(out.sizes, x.sizes, before)]
    margins = []
    for n in (*before, *after):
        margins.append(as_expr(n).constant)
    known = []
    for n in margins:
        if n is not None and n >= 0:
            known.append(n)
    if len(known) == 2 * rank:
        value.margins = Margins(x, known[:rank], known[rank:], rounded_number(number, out.dtype))
    return value


def flip(lw: Lowering, out: Spec, x: LoopTensor, dims: Sequence[int]) -> LoopTensor:
    if x.sizes:
        flipped = {d % len(x.sizes) for d in dims}
    else:
        flipped = set()

    def index_map(index: Index) -> Index:
        return tuple(x.sizes[k] - 1 - i if k in flipped else i for k, i in enumerate(index))

    return lw.mapped(x, out, index_map)


# -- as other ops ----------------------------------------------------------------------------------


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


def roll_in_steps(x: Tensor, shifts: list[Any], dims: list[int] | tuple[()] = ()) -> Tensor:
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


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    if x.dim() < 3 or factor < 1 or x.shape[-3] % (factor * factor):
        return NotImplemented
    *batch, channels, height, width = x.shape
    kept = len(batch)
    split = x.reshape(*batch, channels // (factor * factor), factor, factor, height, width)
    order = [*range(kept), *(kept + d for d in (0, 3, 1, 4, 2))]
    return split.permute(order).clone().reshape(_shuffled(x, factor))


def _shuffled(x: Tensor, factor: int) -> tuple[Any, ...]:
    *batch, channels, height, width = x.shape
    return (*batch, channels // (factor * factor), height * factor, width * factor)


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    if x.dim() < 3 or factor < 1 or x.shape[-2] % factor or x.shape[-1] % factor:
        return NotImplemented
    *batch, channels, height, width = x.shape
    kept = len(batch)
    split = x.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    order = [*range(kept), *(kept + d for d in (0, 2, 4, 1, 3))]
    return split.permute(order).clone().reshape(_unshuffled(x, factor))


def _unshuffled(x: Tensor, factor: int) -> tuple[Any, ...]:
    *batch, channels, height, width = x.shape
    return (*batch, channels * factor * factor, height // factor, width // factor)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    if x.dim() < 3 or groups < 1 or x.shape[1] % groups or geometry.is_empty(x):
        return NotImplemented
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return grouped.transpose(1, 2).clone().reshape(x.shape)


# -- what they look like, and what eager refuses ---------------------------------------------------


@unless_known
def folded_pad_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Padding with what is there."""
    x, sizes, amounts = args[0], list(args[0].shape), args[1]
    for d, (before, after) in enumerate(zip(amounts[::2], amounts[1::2])):
        if "reflection" in op._schema.name and (before >= sizes[-1 - d] or after >= sizes[-1 - d]):
            raise EagerRaises("a reflection of more than there is")
        sizes[-1 - d] = x.shape[-1 - d] + before + after
        if sizes[-1 - d] < 1:
            raise EagerRaises("padding to less than nothing")
    return sized_as(op, sizes, tried_out(op, args, kwargs))


def roll_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """A clone where there are no elements. Else the parts before and behind a place are joined
    anew, one dimension after the other: in the memory format of both, of which one may be empty."""
    t, bound = args[0], bind(op, args, kwargs)
    if geometry.is_empty(t) and bound["dims"]:
        return fresh(t.shape, t.dtype, geometry.preserved(t))
    joined = bool(bound["dims"]) and geometry.like_channels_last(t)
    for shift, dim in zip(bound["shifts"], bound["dims"]):
        joined = joined and (
            shift % t.shape[dim] != 0 or geometry.like_channels_last(t.narrow(dim, 0, 0))
        )
    return fresh(t.shape, t.dtype, geometry.suggested(t) if joined else None)


def constant_pad_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    t, amounts = args[0], args[1]
    sizes = list(t.shape)
    for i in range(len(amounts) // 2):
        sizes[-1 - i] = sizes[-1 - i] + amounts[2 * i] + amounts[2 * i + 1]
    if not geometry.surely_contiguous(t) and all(n <= 0 for n in amounts):  # a copy of a part
        return fresh(sizes, t.dtype, geometry.preserved(t.as_strided(sizes, t.stride())))
    return fresh(sizes, t.dtype, geometry.suggested(t, sizes))


@unless_known
def rot90_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    bound = bind(op, args, kwargs)
    x, k, (first, second) = args[0], bound.get("k", 1) % 4, bound.get("dims", (0, 1))
    if first % x.dim() == second % x.dim():
        raise EagerRaises(f"{op}: dimensions {first} and {second} are one")
    sizes, strides = (
        list(x.shape),
        list(geometry.preserved(x) if k else geometry.contiguous(x.shape)),
    )
    if k % 2:
        for of in (sizes, strides):
            of[first], of[second] = of[second], of[first]
    return fresh(sizes, x.dtype, strides)


@unless_known
def pixel_shuffle_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    x, factor = args
    if x.dim() < 3 or factor < 1 or x.shape[-3] % (factor * factor) != 0:
        raise EagerRaises(f"{op}: {tuple(x.shape)} cannot be shuffled by {factor}")
    sizes = _shuffled(x, factor)
    return fresh(sizes, x.dtype, geometry.suggested(x, sizes))


@unless_known
def pixel_unshuffle_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    x, factor = args
    if x.dim() < 3 or factor < 1 or x.shape[-2] % factor != 0 or x.shape[-1] % factor != 0:
        raise EagerRaises(f"{op}: {tuple(x.shape)} cannot be shuffled back by {factor}")
    sizes = _unshuffled(x, factor)
    return fresh(sizes, x.dtype, geometry.suggested(x, sizes))


def roll_refusal(x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> str:
    if dims:
        aligned = len(shifts) == len(dims)
    else:
        aligned = len(shifts) == 1
    if aligned and not any(bad_dims(x, [d]) for d in dims):
        return ""
    return "shifts and dimensions that do not align"


def flip_refusal(x: Tensor, dims: Sequence[int]) -> str:
    return bad_dims(x, dims)


def constant_pad_refusal(x: Tensor, pad: Sequence[Any], value: Any = 0, **_: Any) -> str:
    """Negative padding takes elements away at both ends before others are added."""
    if overflows(x.dtype, value):
        return "a number that the tensor's type cannot hold"
    for size, before, after in zip(reversed(x.shape), pad[::2], pad[1::2]):
        if any(map(is_decided_by_data, (size, before, after))):
            continue
        if size + torch.sym_min(before, 0) + torch.sym_min(after, 0) < 0:
            return "padding that takes away more elements than there are"
    return ""


OPS = (
    op(
        aten.constant_pad_nd.default,
        meta=constant_pad_meta,
        refuses=constant_pad_refusal,
        takes_no_elements=True,
        cost=Cost.LIGHT,
        lower=constant_pad,
        reads_part=True,
    ),
    op(
        aten.reflection_pad1d.default,
        aten.reflection_pad2d.default,
        aten.reflection_pad3d.default,
        meta=folded_pad_meta,
        lower=_rule(_reflected, True),
    ),
    op(
        aten.replication_pad1d.default,
        aten.replication_pad2d.default,
        aten.replication_pad3d.default,
        meta=folded_pad_meta,
        lower=_rule(_clamped, False),
    ),
    op(aten.flip.default, meta=like_self, refuses=flip_refusal, takes_no_elements=True, lower=flip),
    op(
        aten.roll.default,
        decompose=roll_in_steps,
        meta=roll_meta,
        gpu_meta=contiguous_self,
        refuses=roll_refusal,
        lower=roll,
    ),
    op(aten.rot90.default, decompose=rot90, meta=rot90_meta),
    op(aten.pixel_shuffle.default, decompose=pixel_shuffle, meta=pixel_shuffle_meta),
    op(aten.pixel_unshuffle.default, decompose=pixel_unshuffle, meta=pixel_unshuffle_meta),
    op(aten.channel_shuffle.default, decompose=channel_shuffle),
)
