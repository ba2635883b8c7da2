"""Pooling over windows: one dimension after the other, so that a window of 3x3 is read with 3 + 3 loads, not 9."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, Expr, contiguous_strides, known_less, known_less_equal
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.indexing import compare
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Index, Spec, TensorValue, channels_last_strides, compute_dtype, rounded

aten = torch.ops.aten
apply = ops.apply

WIDEST_WINDOW = 8
"""Loads of one window along one dimension that are written out."""


def _per_dimension(values: Any, rank: int, default: Sequence[int]) -> list[int]:
    listed = list(values) if isinstance(values, (list, tuple)) else [values]
    return list(default) if not listed else listed * rank if len(listed) == 1 else listed


def _along(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    dim: int,
    window: tuple[int, int, int, int],
    combine: Callable[[int, int], int],
    neutral: float,
) -> TensorValue:
    """Combine windows of (size, stride, padding, dilation) along one dimension; outside of `x` lies `neutral`."""
    size, stride, padding, dilation = window

    def element(index: Index, k: int) -> int:
        position = index[dim] * stride + (k * dilation - padding)
        inside = None
        if not known_less_equal(0, position):
            inside = compare("ge", position, 0)
        if not known_less(position, x.sizes[dim]):
            below = compare("lt", position, x.sizes[dim])
            inside = below if inside is None else apply("logical_and", inside, below)
        at = (*index[:dim], position, *index[dim + 1 :])
        if inside is None:
            return ops.to(x.load(at), dtype)
        with ops.masked(inside):
            value = ops.to(x.load(at), dtype)
        return apply("where", inside, value, ops.constant(neutral, dtype))

    dtype = compute_dtype(out.dtype)

    def compute(index: Index) -> int:
        return rounded(functools.reduce(combine, [element(index, k) for k in range(size)]), out.dtype)

    return lw.computed(out, compute, [x], cost=4 * size, heavy=True)


def _max_pool(
    rank: int,
    lw: Lowering,
    outs: Sequence[Spec],
    x: TensorValue,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue | None, ...]:
    if lw.used[1] or not outs[0].dtype.is_floating_point:
        raise NotLowered("the positions of the largest elements")
    sizes = _per_dimension(kernel, rank, ())
    windows = list(
        zip(
            sizes,
            _per_dimension(stride, rank, sizes),
            _per_dimension(padding, rank, ()),
            _per_dimension(dilation, rank, ()),
        )
    )
    if max(sizes) > WIDEST_WINDOW or not all(isinstance(n, int) for window in windows for n in window):
        raise NotLowered("a wide window")
    return _windows(lw, outs[0], x, windows, lambda a, b: apply("maximum", a, b), float("-inf")), None


lowers(aten.max_pool2d_with_indices.default)(functools.partial(_max_pool, 2))
lowers(aten.max_pool3d_with_indices.default)(functools.partial(_max_pool, 3))


def _windows(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    windows: Sequence[tuple[int, int, int, int]],
    combine: Callable[[int, int], int],
    neutral: float,
) -> TensorValue:
    """Pool the last dimensions, the first of them first: there, neighbours in memory are neighbours in a vector."""
    lw.share(x)
    first = len(x.sizes) - len(windows)
    sizes: list[Expr] = list(x.sizes)
    for k, window in enumerate(windows):
        if window == (1, 1, 0, 1):
            continue
        sizes[first + k] = out.sizes[first + k]
        spec = Spec(tuple(sizes), _strides_like(sizes, out), out.dtype, out.device)
        x = lw.realize(_along(lw, spec, x, first + k, window, combine, neutral))
    return lw.mapped(x, out, lambda index: index)


def _strides_like(sizes: Sequence[Expr], out: Spec) -> tuple[Expr, ...]:
    """Dense strides in the order of `out`'s: channels last or contiguous."""
    rank = len(sizes)
    if rank < 4 or out.strides[1] is not ONE or out.sizes[1] is ONE:
        return contiguous_strides(sizes)
    return channels_last_strides(sizes)
