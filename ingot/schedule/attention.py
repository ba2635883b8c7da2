"""Attention as a kernel: how its queries are cut into blocks, and what a block costs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ingot.loops.expr import Expr
from ingot.loops.ir import Attention, AttentionBackward, Buffer, view_fields
from ingot.schedule.kernel import (
    AnyKernel,
    AttentionBackwardKernel,
    AttentionKernel,
    Operand,
    Parameter,
)
from ingot.schedule.plan import KernelStep

LANES = 16  # queries of a block are a multiple of this, which fills the widest vectors
WIDEST = 4  # vectors of queries in a block, at most
# of one core, a multiplication and an addition counting as two
PICOSECONDS_PER_OPERATION = 1000 / 120
PICOSECONDS_PER_WEIGHT = 500


def attention_step(
    node: Attention | AttentionBackward, buffers: Mapping[str, Buffer] = MappingProxyType({})
) -> KernelStep:
    """The launch that computes the node; the lengths of its parameters are those of `buffers`."""
    views = view_fields(node)
    names = list(dict.fromkeys([*(v.buffer for v in node.operands), *node.writes()]))
    parameters = []
    for k, name in enumerate(names):
        length = buffers[name].length if name in buffers else None
        is_read, is_written = name in node.reads(), name in node.writes()
        parameters.append(Parameter(f"p{k}", node.query.dtype, is_read, is_written, length))
    batches, heads, queries, width = node.query.sizes
    keys, value_width = node.value.sizes[2:]
    shared: dict[str, Any] = {
        "origin": node.origin,
        "parameters": tuple(parameters),
        "sizes": (batches, heads, queries, keys, width, value_width),
        "mask": None,
        "scale": node.scale,
        "causal": node.causal,
        "query_block": query_block(queries),
    }
    for field, view in views.items():
        shared[field] = Operand(names.index(view.buffer), view.strides, view.offset)
    points, weights, widths = batches * heads, 1.0, _int(width) + _int(value_width)
    if node.causal:
        weights = 0.5
    kernel: AnyKernel
    if isinstance(node, Attention):
        kernel = AttentionKernel(
            "attention",
            key_heads=_int(node.value.sizes[1]),
            zero_rows=node.zero_rows,
            replaces=node.replaces,
            **shared,
        )
        points *= kernel.blocks
        picoseconds = _picoseconds(kernel.query_block * weights, widths) * keys
    else:
        kernel = AttentionBackwardKernel("attention_backward", **shared)
        widths += 2 * _int(width) + _int(value_width)  # there are five products
        picoseconds = _picoseconds(weights, widths) * keys * queries
    work = picoseconds if picoseconds.constant is None else picoseconds.constant / 1000
    return KernelStep(kernel, tuple(names), points, work)


def _picoseconds(weights: float, widths: int) -> int:
    """The time for so many weights, of products that are so wide together."""
    return round(
        2 * weights * widths * PICOSECONDS_PER_OPERATION + weights * PICOSECONDS_PER_WEIGHT
    )


def query_block(queries: Expr) -> int:
    """How many queries make a block: wide ones do more with each key that is loaded, narrow ones
    fill up better."""
    known = queries.constant
    if known is None:
        return LANES * WIDEST

    def cost(vectors: int) -> float:
        return -(-known // (LANES * vectors)) * (vectors + 0.4)

    return LANES * min(range(WIDEST, 0, -1), key=cost)


def _int(size: Expr) -> int:
    assert size.constant is not None
    return size.constant
