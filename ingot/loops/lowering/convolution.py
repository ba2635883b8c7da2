"""Convolutions. Depthwise ones with small windows over contiguous images are loops, which fuse with what surrounds
them: they do so little arithmetic per element that a library's change of layout costs more. All others are library
calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, known_less, known_less_equal
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.indexing import compare
from ingot.loops.lowering.library import call_aten
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Index, Spec, TensorValue

aten = torch.ops.aten
apply = ops.apply

MOST_TAPS = 9
"""Elements of a window that are written out: 3x3."""


@lowers(aten.convolution.default)
def convolution(lw: Lowering, out: Spec, x: TensorValue, weight: TensorValue, *rest: Any) -> TensorValue:
    try:
        return depthwise(lw, out, x, weight, *rest)
    except NotLowered:
        pass
    window = lw.view(x)
    # The library's method, and with it the error, depends on the layout: oneDNN's for channels-last ones has up to
    # twice the error of that for contiguous ones. So it is given the layout that eager gives it.
    if not lw.fast_libraries and not _same_layout(x, window.strides):
        x = lw.copied(x)
    return call_aten(lw, aten.convolution.default, [out], [x, weight, *rest], {})[0]


def _same_layout(x: TensorValue, strides: Sequence[Expr]) -> bool:
    return all(a is b or size is ONE for size, a, b in zip(x.sizes, x.strides, strides))


def depthwise(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
) -> TensorValue:
    """A small window over each channel by itself. Raises NotLowered for all others."""
    rank = len(out.sizes) - 2
    channels = out.sizes[1].constant
    window = [size.constant for size in weight.sizes[2:]]
    if transposed or out.dtype is not torch.float32 or None in window or rank not in (1, 2):
        raise NotLowered("a convolution for the library")
    taps = 1
    for size in window:
        taps *= size or 0
    one_to_one = groups == channels and groups > 1 and x.sizes[1].constant == channels and len(x.sizes) == rank + 2
    rows = stride[-1] == 1 and x.strides[-1] is ONE  # neighbours in a row fill a vector
    if not one_to_one or not 1 <= taps <= MOST_TAPS or not rows:
        raise NotLowered("a convolution for the library")
    geometry = [list(values) * rank if len(values) == 1 else list(values) for values in (stride, padding, dilation)]
    lw.realize(x)

    def tap(index: Index, offsets: tuple[int, ...]) -> tuple[int, int]:
        """The input under one element of the window, 0 outside, and its weight."""
        inside: int | None = None
        at = []
        for d, (k, step, before, apart) in enumerate(zip(offsets, *geometry)):
            position = index[d + 2] * step + (k * apart - before)
            at.append(position)
            bounds = [] if known_less_equal(0, position) else [("ge", ZERO)]
            bounds += [] if known_less(position, x.sizes[d + 2]) else [("lt", x.sizes[d + 2])]
            for name, bound in bounds:
                holds = compare(name, position, bound)
                inside = holds if inside is None else apply("logical_and", inside, holds)
        factor = weight.load((index[1], ZERO, *[ZERO + k for k in offsets]))
        if inside is None:
            return x.load((*index[:2], *at)), factor
        with ops.masked(inside):
            value = x.load((*index[:2], *at))
        return apply("where", inside, value, ops.constant(0.0, torch.float32)), factor

    def compute(index: Index) -> int:
        total: int | None = bias.load((index[1],)) if bias is not None else None
        for offsets in _offsets([size or 0 for size in window]):
            value, factor = tap(index, offsets)
            total = apply("mul", value, factor) if total is None else apply("fma", value, factor, total)
        assert total is not None
        return total

    return lw.computed(out, compute, [x], cost=4 * taps, heavy=True)


def _offsets(window: Sequence[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size in window:
        found = [(*offset, k) for offset in found for k in range(size)]
    return found
