"""Scans: cumulative sums, products and extremes along one dimension, each a loop nest of its own,
and what is counted with one (`masked_scatter`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.graph.checks import along, source_of_dtype
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.families import contiguous_self, masked
from ingot.graph.meta.untried import unless_known
from ingot.graph.schemas import indexes
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, product
from ingot.loops.ir import Fault, Scan
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import unflattened
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.rules import LibraryCall, NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    broadcast_index,
    dense_strides,
    loop_symbols,
    loops_over,
    numel,
    rounded,
    stored,
)
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply

FEWEST_ROWS = 4  # that are worth computing side by side where each step takes long


def scan(
    lw: Lowering, out: Spec, kind: str, x: LoopTensor, dim: int, element: Callable[[int], int]
) -> LoopTensor:
    """`element(x)`, of the type to accumulate in, scanned along `dim`; rounded to `out.dtype` at
    each step."""
    if not lw.target.scatters:
        raise NotLowered("a scan for the library")
    index = loops_over(x.sizes)
    with ops.recording() as recorder:
        body = recorder.body(element(x.load(index)))
    strides = dense_strides(out.sizes, out.strides)
    spec = out._replace(strides=strides)
    buffer = lw.new_buffer(spec, strides)
    target = address_of(index, strides)
    rows = loop_symbols((*index[:dim], *index[dim + 1 :]))
    name, origin = lw.node_name(), x.root.origin.merged(lw.origin)
    lw.graph.nodes.append(
        Scan(name, origin, rows, loop_symbols((index[dim],)), kind, body, buffer, target, out.dtype)
    )
    return stored(buffer, spec)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """As eager's: doubles for floats, floats for halves."""
    if dtype in ops.FLOATS:
        return torch.float64
    if dtype in ops.HALVES:
        return torch.float32
    return torch.int64


def _cumulative(kind: str) -> Callable[..., LoopTensor]:
    def rule(lw: Lowering, out: Spec, x: LoopTensor, dim: int, *, dtype: Any = None) -> LoopTensor:
        accumulator = _accumulator(out.dtype)

        def element(value: int) -> int:
            return ops.to(rounded(value, out.dtype), accumulator)

        if ZERO in x.sizes:
            raise NotLowered("a scan of nothing")
        if not x.sizes or x.sizes[dim] is ONE:
            return pointwise(lw, out, _alone("" if not x.sizes else kind), [x])
        rows = product(size for d, size in enumerate(x.sizes) if d != dim % len(x.sizes))
        if kind == "logaddexp" and (rows.constant is None or rows.constant < FEWEST_ROWS):
            raise NotLowered(
                "steps that wait for each other, and too few rows to take side by side"
            )
        return scan(lw, out, kind, x, dim % len(x.sizes), element)

    return rule


def _alone(kind: str) -> Callable[[int], int]:
    """A scan of a single element: where sums are made, -0.0 gives way to the 0 that they begin
    with."""

    def scalar(value: int) -> int:
        if kind not in ("sum", "logaddexp") or ops.dtype_of(value) not in ops.FLOATS:
            return value
        return apply("add", value, ops.constant(0, ops.dtype_of(value)))

    return scalar


def _cumulative_extreme(kind: str) -> Callable[..., tuple[LoopTensor, LoopTensor]]:
    def rule(
        lw: Lowering, outs: Sequence[Spec], x: LoopTensor, dim: int
    ) -> tuple[LoopTensor, LoopTensor]:
        if not x.sizes or x.sizes[dim] is ONE or any(out is None for out in outs):
            raise NotLowered("a scan of single elements")
        if ZERO in x.sizes:
            raise NotLowered("a scan of nothing")
        lw.share(x)
        results = []
        for out, of_kind in zip(outs, (kind, "arg" + kind)):
            results.append(scan(lw, out, of_kind, x, dim % len(x.sizes), _comparable))
        return results[0], results[1]

    return rule


def _comparable(value: int) -> int:
    if ops.dtype_of(value) is torch.bool:
        return ops.to(value, torch.uint8)
    return value


def masked_scatter(
    lw: Lowering, out: Spec, x: LoopTensor, mask: LoopTensor, source: LoopTensor
) -> LoopTensor:
    """Elements of `source`, one after the other, where the mask holds: how many come before is
    counted by a scan."""
    whole, there = numel(out.sizes), numel(source.sizes)
    if whole in (ZERO, ONE) or there is ZERO or source.dtype is not out.dtype or not out.sizes:
        raise NotLowered("a single element or none, or none to choose from")
    flat = Spec((whole,), (ONE,), torch.int64, out.device)
    steps = contiguous_strides(out.sizes)

    def holds(index: Index) -> int:
        return mask.load(broadcast_index(index, mask.sizes))

    def in_order(index: Index) -> int:
        return holds(unflattened(index[0], out.sizes))

    listed = LoopTensor((whole,), (ONE,), torch.bool, in_order, cost=1, origin=lw.origin)
    count = scan(lw, flat, "sum", listed, 0, lambda value: ops.to(value, torch.int64))
    lw.realize_root(source)
    fault = Fault(RuntimeError, "Number of elements of source < number of ones in mask")

    def compute(index: Index) -> int:
        condition, place = holds(index), address_of(index, steps)
        with ops.masked(condition):
            number = apply("sub", count.load((place,)), ops.constant(1, torch.int64))
            at = ops.indirect(number, there, fault)
            new = source.load(unflattened(at, source.sizes))
        return apply("where", condition, new, x.load(broadcast_index(index, x.sizes)))

    return lw.computed(out, compute, [x, mask, source], cost=4)


# -- what they look like ---------------------------------------------------------------------------


@unless_known
def cumulative_extreme_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """The extremes, and where they are."""
    x = args[0]
    return fresh(x.shape, x.dtype), fresh(x.shape, torch.int64)


OPS = (
    op(
        aten.cumsum.default,
        meta=contiguous_self,
        refuses=along,
        takes_no_elements=True,
        lower=_cumulative("sum"),
        library=LibraryCall(torch.cumsum),
    ),
    op(aten.cumprod.default, meta=contiguous_self, refuses=along, lower=_cumulative("prod")),
    op(
        aten.logcumsumexp.default,
        meta=contiguous_self,
        refuses=along,
        lower=_cumulative("logaddexp"),
    ),
    op(aten.cummax.default, meta=cumulative_extreme_meta, lower=_cumulative_extreme("max")),
    op(aten.cummin.default, meta=cumulative_extreme_meta, lower=_cumulative_extreme("min")),
    op(
        aten.masked_scatter.default,
        meta=masked,
        refuses=source_of_dtype("source"),
        may_raise=indexes,
        lower=masked_scatter,
    ),
)
