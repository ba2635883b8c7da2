"""Images read at places that a grid names: `grid_sample` by bilinear weights and by nearest
neighbours.

Eager's kernel for a GPU takes other steps than that for a CPU where coordinates are not finite,
reflects by another formula, and computes with halves in float32. cuDNN, which eager calls there for
bilinear weights, zeros outside and -1 and 1 as the middles of the corners, takes for a place's left
neighbour the nearest number of 32 bits, so that a place that is not finite gives NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ingot.graph.meta.basis import fresh, like
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr
from ingot.loops.ir import Fault
from ingot.loops.lowering.context import Lowering
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

BILINEAR, NEAREST, _ = range(3)
ZEROS, BORDER, REFLECTION = range(3)
_INSIDE = Fault(IndexError, "a sampled place is inside of the image", False)  # places are clamped


def grid_sampler_2d(
    lw: Lowering, out: Spec, x: LoopTensor, grid: LoopTensor, interpolation: int, padding: int,
    corners: bool, by_cudnn: bool = False,
) -> LoopTensor:  # fmt: skip
    """`x` (N, C, H, W) at the places of `grid` (N, rows, columns, 2), which are (column, row) from
    -1 to 1."""
    on_gpu = lw.target.device == "cuda"
    if out.dtype not in (*ops.FLOATS, *(ops.HALVES if on_gpu else ())) or interpolation not in (
        BILINEAR,
        NEAREST,
    ):
        raise NotLowered("sampling for the library: of halves on a CPU, or by cubic weights")
    if ZERO in x.sizes:
        raise NotLowered("sampling of nothing")
    height, width = x.sizes[2:]
    if x.root.cost:
        lw.realize_root(x)
    dtype = compute_dtype(out.dtype)
    places = []
    for number in range(2):
        places.append(_places(lw, x, grid, number, padding, corners, by_cudnn))

    def compute(index: Index) -> int:
        batch, channel, *place = index
        across, down = (tensor.load((batch, *place)) for tensor in places)
        zero, one = (ops.constant(number, dtype) for number in (0, 1))

        def element(row: int, column: int) -> int:
            at = _position(row, height), _position(column, width)
            value = x.load((batch, channel, *at))
            inside = apply(
                "logical_and", _inside(row, height, padding), _inside(column, width, padding)
            )
            return apply("where", inside, value, zero)

        if interpolation == NEAREST:
            return element(apply("round", down), apply("round", across))
        left, top = apply("floor", across), apply("floor", down)
        if by_cudnn:
            left, top = _of_32_bits(left), _of_32_bits(top)
        right, bottom = apply("add", left, one), apply("add", top, one)
        weight_right, weight_bottom = apply("sub", across, left), apply("sub", down, top)
        weight_left, weight_top = apply("sub", one, weight_right), apply("sub", one, weight_bottom)

        def terms() -> Iterator[tuple[int, int]]:
            for row, by_row in ((top, weight_top), (bottom, weight_bottom)):
                for column, by_column in ((left, weight_left), (right, weight_right)):
                    yield element(row, column), apply("mul", by_column, by_row)

        return rounded(ops.weighted_sum(terms(), zero if on_gpu else None), out.dtype)

    return lw.computed(out, compute, [x, *places], cost=40, heavy=True)


def cudnn_grid_sampler(lw: Lowering, out: Spec, x: LoopTensor, grid: LoopTensor) -> LoopTensor:
    return grid_sampler_2d(lw, out, x, grid, BILINEAR, ZEROS, True, by_cudnn=True)


def _places(
    lw: Lowering,
    x: LoopTensor,
    grid: LoopTensor,
    number: int,
    padding: int,
    corners: bool,
    by_cudnn: bool,
) -> LoopTensor:
    """One of the grid's two coordinates as a place in the image; on a CPU in memory, where several
    channels need it."""
    sizes, last = grid.sizes[:-1], x.sizes[3 - number]
    spec = contiguous(sizes, compute_dtype(grid.dtype))
    on_gpu = lw.target.device == "cuda"
    if on_gpu:
        lw.share(grid)

    def compute(index: Index) -> int:
        return _place(
            grid.load((*index, as_expr(number))), last, padding, corners, on_gpu, by_cudnn
        )

    place = lw.computed(spec, compute, [grid], cost=12, heavy=True)
    if x.sizes[1] is ONE or on_gpu:
        return place
    return lw.realize(place)


def _place(
    coordinate: int, size: Expr, padding: int, corners: bool, on_gpu: bool, by_cudnn: bool
) -> int:
    """Where a coordinate from -1 to 1 lies among `size` elements, in the steps that eager takes:
    they decide which neighbour is the nearest."""
    dtype = ops.dtype_of(coordinate)

    def number(value: float) -> int:
        return ops.constant(value, dtype)

    span = ops.index(size - 1 if corners else size, dtype)
    low = number(0.0 if corners else -0.5)
    place = apply(
        "fma", apply("add", coordinate, number(1.0)), apply("mul", span, number(0.5)), low
    )
    if padding == ZEROS:
        if on_gpu and not by_cudnn:  # what is not finite, or no integer of 32 bits, is outside
            place = apply(
                "where", apply("lt", apply("abs", place), number(2.0**31)), place, number(-100.0)
            )
        return place
    if padding == REFLECTION and corners and size is ONE:
        return number(0.0)
    if padding == REFLECTION and on_gpu:
        away = apply("abs", apply("sub", place, low))
        rest = apply("fmod", away, span)
        flips = ops.to(apply("floor", apply("div", away, span)), torch.int32)
        odd = ops.to(apply("bitwise_and", flips, ops.constant(1, torch.int32)), torch.bool)
        place = apply("add", apply("where", odd, apply("sub", span, rest), rest), low)
    elif padding == REFLECTION:
        period = apply("mul", span, number(2.0))
        away = apply("abs", apply("sub", place, low))
        flips = apply("trunc", apply("div", away, period))
        rest = apply("fma", apply("neg", flips), period, away)
        place = apply("add", apply("minimum", rest, apply("sub", period, rest)), low)
    last = ops.index(size - 1, dtype)
    place = apply("where", apply("gt", place, number(0.0)), place, number(0.0))  # NaN too
    return apply("where", apply("lt", place, last), place, last)


def _of_32_bits(place: int) -> int:
    """The nearest whole number of 32 bits; NaN stays."""
    least, most = (ops.constant(float(n), ops.dtype_of(place)) for n in (-(2**31), 2**31 - 1))
    place = apply("where", apply("lt", place, least), least, place)
    return apply("where", apply("gt", place, most), most, place)


def _inside(place: int, size: Expr, padding: int) -> int:
    """Whether a whole number, as a float, is a position among `size`; with padding it cannot be
    negative."""
    dtype = ops.dtype_of(place)
    below = apply("le", place, ops.index(size - 1, dtype))
    if padding != ZEROS:
        return below
    return apply("logical_and", apply("ge", place, ops.constant(0, dtype)), below)


def _position(place: int, size: Expr) -> Expr:
    """The nearest position among `size` to a whole number."""
    number = ops.to(place, torch.int32)
    number = apply("maximum", number, ops.constant(0, torch.int32))
    return ops.indirect(apply("minimum", number, ops.index(size - 1, torch.int32)), size, _INSIDE)


# -- what they look like ---------------------------------------------------------------------------


def cudnn_grid_sampler_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    images, grid = args
    return fresh((*images.shape[:2], *grid.shape[1:3]), images.dtype)


def cudnn_grid_sampler_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Any, ...]:
    return tuple(map(like, args[:2]))


OPS = (
    op(aten.grid_sampler_2d.default, lower=grid_sampler_2d),
    op(aten.cudnn_grid_sampler.default, gpu_meta=cudnn_grid_sampler_meta, lower=cudnn_grid_sampler),
    op(aten.cudnn_grid_sampler_backward.default, gpu_meta=cudnn_grid_sampler_backward_meta),
)
