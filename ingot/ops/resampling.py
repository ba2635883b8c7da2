"""Resampling by nearest neighbours and by linear and cubic weights: one dimension after the other,
the last one first.

Which elements an output place reads, and with which weights, depends on sizes only: where sizes are
known, tables that belong to the program say it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.trials import probe
from ingot.graph.schemas import bind
from ingot.loops import ops
from ingot.loops.expr import Expr
from ingot.loops.ir import Fault
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import with_place
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    compute_dtype,
    contiguous,
    exprs,
)
from ingot.ops.op import op
from ingot.ops.pooling import constant_lengths, spec_like
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply

LONGEST_TABLE = 1 << 16
CHEAP_USES = 1.5  # a pass whose results are used up to so often is computed where they are used
# the tables are made so
_INSIDE = Fault(IndexError, "a resampled place is inside of the tensor", False)


class Taps(NamedTuple):
    """The elements that each output place along a dimension reads (taps, places), with weights.

    A weight of 0 counts, as it makes NaN of infinity. Where places read unequally many, `padded`
    says that one of NaN is no tap.
    """

    positions: torch.Tensor
    weights: torch.Tensor | None
    padded: bool = False


KEPT = Taps(torch.zeros((0, 0), dtype=torch.int64), None)
"""Of a dimension that keeps its size, whose elements eager multiplies by 1 and by 0, and adds."""


def lengths(x: LoopTensor, out: Spec, rank: int) -> list[tuple[int, int]]:
    pairs = constant_lengths(x, out, rank)
    if any(n == 0 or not 0 < m <= LONGEST_TABLE for n, m in pairs):
        raise NotLowered("resampling of nothing, or to very many places")
    return pairs


def resampled(lw: Lowering, out: Spec, x: LoopTensor, taps: Sequence[Taps | None]) -> LoopTensor:
    """`x` with its last dimensions resampled; None leaves one as it is. What is between two passes
    is not rounded."""
    first = len(x.sizes) - len(taps)
    sizes: list[Expr] = list(x.sizes)
    lw.realize_root(x)
    for k in reversed(range(len(taps))):
        tap, (n, m) = taps[k], lengths(x, out, len(taps))[k]
        if tap is None:
            continue
        if tap is KEPT:
            x = _kept(lw, x, out)
            continue
        if len(tap.positions) * m > CHEAP_USES * n:
            lw.realize_root(x)
        sizes[first + k] = out.sizes[first + k]
        spec = spec_like(sizes, out, compute_dtype(out.dtype))
        x = _along(lw, spec, x, first + k, tap)
    return lw.rounded_to(out, lw.mapped(x, out._replace(dtype=x.dtype), lambda index: index))


def _kept(lw: Lowering, x: LoopTensor, out: Spec) -> LoopTensor:
    spec = spec_like(x.sizes, out, compute_dtype(out.dtype))

    def compute(index: Index) -> int:
        value = ops.to(x.load(index), spec.dtype)
        return apply("add", value, apply("mul", value, ops.constant(0, spec.dtype)))

    return lw.computed(spec, compute, [x], cost=2)


def _along(lw: Lowering, out: Spec, x: LoopTensor, dim: int, taps: Taps) -> LoopTensor:
    count, extent = len(taps.positions), x.sizes[dim]
    places = []
    for row in taps.positions:
        places.append(_place(lw, row, extent))
    weights = None
    if taps.weights is not None:
        weights = []
        for row in taps.weights:
            weights.append(_table(lw, row))

    def terms(index: Index) -> Iterator[int]:
        zero = ops.constant(0, out.dtype)
        for k in range(count):
            at = with_place(index, dim, places[k](index[dim]))
            if weights is None:
                yield ops.to(x.load(at), out.dtype)
                continue
            weight = weights[k].load((index[dim],))
            read = ops.constant(True, torch.bool)
            if taps.padded:
                read = apply("eq", weight, weight)
            with ops.masked(read):
                value = ops.to(x.load(at), out.dtype)
            yield apply("where", read, apply("mul", value, weight), zero)

    def compute(index: Index) -> int:
        return ops.total_of(terms(index))

    return lw.computed(out, compute, [x], cost=3 * count, heavy=count > 1)


def _place(lw: Lowering, positions: torch.Tensor, extent: Expr) -> Callable[[Expr], Any]:
    """From a place along the dimension to the element it reads: a formula where a simple one fits,
    else a table."""
    listed = positions.tolist()
    n, m = max(listed) + 1, len(listed)
    for a, b in ((1, 1), (1, m // n or 1), (n, m)):
        if all(i * a // b == p for i, p in enumerate(listed)):
            return lambda i: i * a // b
    steps = {b - a for a, b in zip(listed, listed[1:])}
    if len(steps) == 1:
        step, first = steps.pop(), listed[0]
        return lambda i: i * step + first
    table = _table(lw, positions)
    return lambda i: ops.indirect(table.load((i,)), extent, _INSIDE)


def _table(lw: Lowering, values: torch.Tensor) -> LoopTensor:
    """A constant of the program."""
    graph = lw.graph
    for name, known in graph.constants.items():
        if name.startswith("table") and known.dtype is values.dtype and torch.equal(known, values):
            break
    else:
        name = f"table{len(graph.constants)}"
        graph.constants[name] = values.contiguous()
    return lw.declared(name, contiguous(exprs([len(values)]), values.dtype), "constant")


# -- nearest neighbours ----------------------------------------------------------------------------


def nearest_taps(
    n: int, m: int, scale: float | None, dtype: torch.dtype, eager: Callable[..., torch.Tensor]
) -> Taps | None:
    if n >= 1 << 24:
        raise NotLowered("places that float32 cannot count")
    counted = torch.arange(n, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    row = eager(counted[None, None], [m], scale)[0, 0].long()  # whose rounding decides
    if n == m and torch.equal(row, torch.arange(n)):
        return None
    return Taps(row[None], None)


def _nearest(rank: int, eager: Callable[..., torch.Tensor]) -> Callable[..., LoopTensor]:
    def rule(
        lw: Lowering, out: Spec, x: LoopTensor, size: Any, *scales: float | None
    ) -> LoopTensor:
        pairs = zip(lengths(x, out, rank), scales or (None,) * rank)
        return _copied(
            lw, out, x, [nearest_taps(n, m, scale, out.dtype, eager) for (n, m), scale in pairs]
        )

    return rule


def _copied(lw: Lowering, out: Spec, x: LoopTensor, taps: Sequence[Taps | None]) -> LoopTensor:
    """One tap in each dimension, without weights: a single pass."""
    first = len(x.sizes) - len(taps)
    places = {}
    for k, t in enumerate(taps):
        if t is not None:
            places[first + k] = _place(lw, t.positions[0], x.sizes[first + k])
    lw.share(x)

    def compute(index: Index) -> int:
        return x.load(tuple(places[d](i) if d in places else i for d, i in enumerate(index)))

    return lw.computed(out, compute, [x], cost=2)


# -- weights ---------------------------------------------------------------------------------------


def _source(n: int, m: int, corners: bool, scale: float | None) -> torch.Tensor:
    """Where each of m places lies among n elements, before clamping; in float64."""
    places = torch.arange(m, dtype=torch.float64)
    if corners:
        return places * ((n - 1) / (m - 1) if m > 1 else 0)
    if scale is not None and scale > 0:
        step = 1 / scale
    else:
        step = n / m
    return step * (places + 0.5) - 0.5


def linear_taps(n: int, m: int, corners: bool, scale: float | None, dtype: torch.dtype) -> Taps:
    source = _source(n, m, corners, scale).clamp(min=0)
    low = source.long().clamp(max=n - 1)
    weight = (source - low).clamp(0, 1)
    return Taps(
        torch.stack([low, (low + 1).clamp(max=n - 1)]), torch.stack([1 - weight, weight]).to(dtype)
    )


def cubic_taps(n: int, m: int, corners: bool, scale: float | None, dtype: torch.dtype) -> Taps:
    """Convolution with the cubic kernel of parameter -0.75 (Keys 1981)."""
    source = _source(n, m, corners, scale)
    floor = source.floor()
    t, a = (source - floor).clamp(0, 1), -0.75

    def near(v: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * v - (a + 3)) * v * v + 1

    def far(v: torch.Tensor) -> torch.Tensor:
        return ((a * v - 5 * a) * v + 8 * a) * v - 4 * a

    positions = torch.stack([(floor.long() + k).clamp(0, n - 1) for k in (-1, 0, 1, 2)])
    return Taps(positions, torch.stack([far(t + 1), near(t), near(1 - t), far(2 - t)]).to(dtype))


def weighted_taps(
    taps_of: Callable[..., Taps], pairs: Sequence[tuple[int, int]], corners: bool,
    scales: Sequence[float | None],
    dtype: torch.dtype, device: torch.device, backward: bool = False,
) -> list[Taps | None]:  # fmt: skip
    """Of all dimensions. Where all sizes are kept eager copies on a GPU, and the gradients of cubic
    weights; where one is, linear weights on a CPU take an element twice."""
    on_cpu = device.type == "cpu"
    copies = not on_cpu or backward and taps_of is cubic_taps
    if copies and all(n == m for n, m in pairs):
        return [None] * len(pairs)
    return [
        KEPT
        if on_cpu and n == m and taps_of is linear_taps
        else taps_of(n, m, corners, scale, dtype)
        for (n, m), scale in zip(pairs, scales)
    ]


def _weighted(rank: int, taps_of: Callable[..., Taps]) -> Callable[..., LoopTensor]:
    def rule(
        lw: Lowering, out: Spec, x: LoopTensor, size: Any, corners: bool, *scales: float | None
    ) -> LoopTensor:
        if not out.dtype.is_floating_point:
            raise NotLowered("weights for integers, which eager keeps in fixed point")
        scales, dtype = scales or (None,) * rank, compute_dtype(out.dtype)
        taps = weighted_taps(taps_of, lengths(x, out, rank), corners, scales, dtype, out.device)
        return resampled(lw, out, x, taps)

    return rule


# -- what they look like, and what eager refuses ---------------------------------------------------


def resampled_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """upsample_*: spatial sizes given, or by scale factors."""
    t, bound = args[0], bind(op, args, kwargs)
    if geometry.is_empty(t):
        return probe(op, args, kwargs)
    spatial = bound.get("output_size")
    if spatial is None:
        spatial = []
        for s, f in zip(t.shape[2:], bound["scale_factors"]):
            spatial.append(math.floor(s * f))
    sizes = (*t.shape[:2], *spatial)
    return fresh(sizes, t.dtype, geometry.suggested(t, sizes))


def resampled_refusal(x: Tensor, output_size: Sequence[Any] | None = None, **_: Any) -> str:
    if not x.is_floating_point() and x.dtype is not torch.uint8:
        return "integers of more than 8 bits, or with a sign"
    if output_size and any(size <= 0 for size in output_size):
        return "a size of 0 or less"
    return ""


OPS = (
    op(
        aten.upsample_nearest1d.default,
        meta=resampled_meta,
        refuses=resampled_refusal,
        lower=_nearest(1, aten.upsample_nearest1d.default),
    ),
    op(
        aten.upsample_nearest2d.default,
        meta=resampled_meta,
        refuses=resampled_refusal,
        lower=_nearest(2, aten.upsample_nearest1d.default),
    ),
    op(
        aten.upsample_nearest3d.default,
        refuses=resampled_refusal,
        lower=_nearest(3, aten.upsample_nearest1d.default),
    ),
    op(aten.upsample_linear1d.default, refuses=resampled_refusal, lower=_weighted(1, linear_taps)),
    op(
        aten.upsample_bilinear2d.default,
        meta=resampled_meta,
        refuses=resampled_refusal,
        lower=_weighted(2, linear_taps),
    ),
    op(
        aten.upsample_trilinear3d.default,
        refuses=resampled_refusal,
        lower=_weighted(3, linear_taps),
    ),
    op(
        aten.upsample_bicubic2d.default,
        meta=resampled_meta,
        refuses=resampled_refusal,
        lower=_weighted(2, cubic_taps),
    ),
    op(
        aten._upsample_nearest_exact1d.default,
        lower=_nearest(1, aten._upsample_nearest_exact1d.default),
    ),
    op(
        aten._upsample_nearest_exact2d.default,
        meta=resampled_meta,
        lower=_nearest(2, aten._upsample_nearest_exact1d.default),
    ),
    op(
        aten._upsample_nearest_exact3d.default,
        lower=_nearest(3, aten._upsample_nearest_exact1d.default),
    ),
)
