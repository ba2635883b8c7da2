"""The backward of what reads a few elements along each dimension: resampling, averages over
windows, and padding.

Each is linear, and one dimension after the other, so that its backward is the same with the taps
transposed: for each element the places that read it, with the weights they gave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import NotLowered, Rule
from ingot.loops.lowering.values import LoopTensor, Spec, compute_dtype
from ingot.ops.op import Op, op
from ingot.ops.resampling import (
    KEPT,
    Taps,
    cubic_taps,
    lengths,
    linear_taps,
    nearest_taps,
    resampled,
    weighted_taps,
)
from ingot.torch_private import OpOverload, aten

MOST_TAPS = 16
"""Places along one dimension that read one element, which are written out."""


def transposed(taps: Taps | None, n: int, dtype: torch.dtype) -> Taps | None:
    """For each of n elements the places that read it."""
    if taps is None or taps is KEPT:
        return taps
    # by sign: infinity times each is summed
    readers: list[dict[tuple[int, float], float]] = [{} for _ in range(n)]
    if taps.weights is None:
        weights = torch.ones(taps.positions.shape)
    else:
        weights = taps.weights
    for elements, factors in zip(taps.positions.tolist(), weights.tolist()):
        for place, (element, weight) in enumerate(zip(elements, factors)):
            if not math.isnan(weight):
                key = place, math.copysign(weight != 0, weight)
                readers[element][key] = readers[element].get(key, 0) + weight
    count = max(map(len, readers))
    if not 0 < count <= MOST_TAPS:
        raise NotLowered("an element that very many places read")
    positions, of_places = [[[fill] * n for _ in range(count)] for fill in (0, math.nan)]
    for element, reads in enumerate(readers):
        for k, ((place, _), weight) in enumerate(reads.items()):
            of_places[k][element] = weight
            for row in positions[k:]:
                row[element] = place
    listed, padded = torch.tensor(of_places, dtype=dtype), min(map(len, readers)) < count
    if not padded and bool((listed == 1).all()):
        return Taps(torch.tensor(positions), None)
    return Taps(torch.tensor(positions), listed, padded)


def _backward(
    lw: Lowering, out: Spec, grad: LoopTensor, rank: int, taps_of: Callable[..., Taps | None]
) -> Any:
    """`taps_of(dimension, n, m)` are the forward's, from n elements to m places."""
    pairs = _lengths(out, grad, rank)
    return _scattered(lw, out, grad, [taps_of(d, n, m) for d, (n, m) in enumerate(pairs)])


def _lengths(out: Spec, grad: LoopTensor, rank: int) -> list[tuple[int, int]]:
    return [(n, m) for m, n in lengths(grad, out, rank)]


def _scattered(lw: Lowering, out: Spec, grad: LoopTensor, taps: Sequence[Taps | None]) -> Any:
    if not out.dtype.is_floating_point:
        raise NotLowered("gradients of integers")
    dtype, pairs = compute_dtype(out.dtype), _lengths(out, grad, len(taps))
    return resampled(lw, out, grad, [transposed(tap, n, dtype) for tap, (n, _) in zip(taps, pairs)])


# -- resampling ------------------------------------------------------------------------------------


def _nearest(rank: int, eager: Callable[..., torch.Tensor]) -> Rule:
    def rule(
        lw: Lowering, out: Spec, grad: LoopTensor, size: Any, sizes: Any, *scales: float | None
    ) -> Any:
        factors = scales or (None,) * rank
        return _backward(
            lw, out, grad, rank, lambda d, n, m: nearest_taps(n, m, factors[d], out.dtype, eager)
        )

    return rule


def _weighted(rank: int, taps_of: Callable[..., Taps]) -> Rule:
    def rule(
        lw: Lowering,
        out: Spec,
        grad: LoopTensor,
        size: Any,
        sizes: Any,
        corners: bool,
        *scales: float | None,
    ) -> Any:
        pairs, factors = _lengths(out, grad, rank), scales or (None,) * rank
        taps = weighted_taps(
            taps_of, pairs, corners, factors, torch.float64, out.device, backward=True
        )
        return _scattered(lw, out, grad, taps)

    return rule


# -- averages --------------------------------------------------------------------------------------


def _inside(position: int, last: int) -> float:
    """1 inside of a window; beyond it NaN, which marks taps that do not count."""
    if position < last:
        return 1.0
    return math.nan


def _window_taps(windows: Sequence[tuple[int, int]], counts: Sequence[int]) -> Taps:
    """The elements from the first to before the last of each window, each by one over the count."""
    longest = max(last - first for first, last in windows)
    positions = []
    for k in range(longest):
        positions.append([min(first + k, last - 1) for first, last in windows])
    inside = []
    for k in range(longest):
        inside.append([_inside(first + k, last) for first, last in windows])
    weights = torch.tensor(inside, dtype=torch.float64) / torch.tensor(counts, dtype=torch.float64)
    return Taps(torch.tensor(positions), weights, padded=True)


def _avg_pool(rank: int) -> Rule:
    def rule(
        lw: Lowering, out: Spec, grad: LoopTensor, x: LoopTensor, kernel: Sequence[int],
        stride: Sequence[int], padding: Sequence[int], ceil_mode: bool, count_include_pad: bool,
        divisor: int | None = None,
    ) -> Any:  # fmt: skip
        sizes = list(kernel) * (rank // len(kernel))
        steps, pads = (list(v) * (rank // len(v)) for v in (stride or sizes, padding))

        def taps_of(d: int, n: int, m: int) -> Taps:
            starts = []
            for i in range(m):
                starts.append(i * steps[d] - pads[d])
            ends = []
            for start in starts:
                ends.append(min(start + sizes[d], n + pads[d]))
            windows = []
            for start, end in zip(starts, ends):
                windows.append((max(start, 0), min(end, n)))
            counted = zip(starts, ends) if count_include_pad else windows
            counts = [end - start for start, end in counted]
            if divisor is not None:
                counts = [1 if d else divisor] * m
            return _window_taps(windows, counts)

        return _backward(lw, out, grad, rank, taps_of)

    return rule


def _adaptive_avg_pool(rank: int) -> Rule:
    def rule(lw: Lowering, out: Spec, grad: LoopTensor, x: LoopTensor) -> Any:
        def taps_of(d: int, n: int, m: int) -> Taps | None:
            windows = []
            for i in range(m):
                windows.append((i * n // m, -(-(i + 1) * n // m)))
            if n == m:
                return None
            return _window_taps(windows, [end - start for start, end in windows])

        return _backward(lw, out, grad, rank, taps_of)

    return rule


# -- padding ---------------------------------------------------------------------------------------


def _pad(rank: int, eager: Callable[..., torch.Tensor]) -> Rule:
    def rule(lw: Lowering, out: Spec, grad: LoopTensor, x: LoopTensor, pad: Sequence[Any]) -> Any:
        def taps_of(d: int, n: int, m: int) -> Taps | None:
            before, after = pad[2 * (rank - 1 - d) : 2 * (rank - d)]
            counted = torch.arange(n, dtype=torch.float64)[None, None]
            if before == after == 0:
                return None
            return Taps(eager(counted, [before, after])[0, 0].long()[None], None)

        return _backward(lw, out, grad, rank, taps_of)

    return rule


def _each(rule: Callable[[int], Rule], *overloads: OpOverload, first: int = 1) -> Iterator[Op]:
    """The records of an op in one dimension, or in `first`, and in each number more."""
    for rank, overload in enumerate(overloads, first):
        yield op(overload, lower=rule(rank))


OPS = (
    *_each(
        partial(_nearest, eager=aten.upsample_nearest1d.default),
        aten.upsample_nearest1d_backward.default,
        aten.upsample_nearest2d_backward.default,
        aten.upsample_nearest3d_backward.default,
    ),
    *_each(
        partial(_nearest, eager=aten._upsample_nearest_exact1d.default),
        aten._upsample_nearest_exact1d_backward.default,
        aten._upsample_nearest_exact2d_backward.default,
        aten._upsample_nearest_exact3d_backward.default,
    ),
    *_each(
        partial(_weighted, taps_of=linear_taps),
        aten.upsample_linear1d_backward.default,
        aten.upsample_bilinear2d_backward.default,
        aten.upsample_trilinear3d_backward.default,
    ),
    op(aten.upsample_bicubic2d_backward.default, lower=_weighted(2, cubic_taps)),
    *_each(_avg_pool, aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default, first=2),
    *_each(
        _adaptive_avg_pool,
        aten._adaptive_avg_pool2d_backward.default,
        aten._adaptive_avg_pool3d_backward.default,
        first=2,
    ),
    *_each(
        partial(_pad, eager=aten.reflection_pad1d.default),
        aten.reflection_pad1d_backward.default,
        aten.reflection_pad2d_backward.default,
        aten.reflection_pad3d_backward.default,
    ),
    *_each(
        partial(_pad, eager=aten.replication_pad1d.default),
        aten.replication_pad1d_backward.default,
        aten.replication_pad2d_backward.default,
        aten.replication_pad3d_backward.default,
    ),
)
