"""Attention as a kernel: how its queries are cut into blocks, and what a block costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from ingot.loops.expr import Expr
from ingot.loops.ir import Attention, AttentionBackward, Buffer, View
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
    names = tuple(dict.fromkeys((*(v.buffer for v in node.operands), *node.writes())))
    parameters = tuple(
        Parameter(
            f"p{k}",
            node.query.dtype,
            name in node.reads(),
            name in node.writes(),
            buffers[name].length if name in buffers else None,
        )
        for k, name in enumerate(names)
    )
    make = _forward if isinstance(node, Attention) else _backward
    kernel, points, picoseconds = make(node, names, parameters)  # type: ignore[arg-type]
    work = picoseconds if picoseconds.constant is None else picoseconds.constant / 1000
    return KernelStep(kernel, names, points, work)


def _forward(
    node: Attention, names: Sequence[str], parameters: tuple[Parameter, ...]
) -> tuple[AnyKernel, Expr, Expr]:
    """The kernel, its points, and what each takes in picoseconds."""
    batches, heads, queries, width = node.query.sizes
    _, key_heads, keys, value_width = node.value.sizes
    operand = partial(_operand, names)
    kernel = AttentionKernel(
        "attention",
        node.origin,
        parameters,
        (batches, heads, queries, keys, width, value_width),
        _int(key_heads),
        operand(node.query),
        operand(node.key),
        operand(node.value),
        operand(node.target),
        None if node.mask is None else operand(node.mask),
        node.scale,
        node.causal,
        node.zero_rows,
        node.replaces,
        query_block(queries),
        None if node.logarithms is None else operand(node.logarithms),
    )
    weights = kernel.query_block * (0.5 if node.causal else 1.0)  # for each key
    return (
        kernel,
        batches * heads * kernel.blocks,
        _picoseconds(weights, _int(width) + _int(value_width)) * keys,
    )


def _backward(
    node: AttentionBackward, names: Sequence[str], parameters: tuple[Parameter, ...]
) -> tuple[AnyKernel, Expr, Expr]:
    batches, heads, queries, width = node.query.sizes
    keys, value_width = node.value.sizes[2:]
    operand = partial(_operand, names)
    kernel = AttentionBackwardKernel(
        "attention_backward",
        node.origin,
        parameters,
        (batches, heads, queries, keys, width, value_width),
        operand(node.tangent),
        operand(node.query),
        operand(node.key),
        operand(node.value),
        None if node.mask is None else operand(node.mask),
        operand(node.result),
        operand(node.logarithms),
        operand(node.of_query),
        operand(node.of_key),
        operand(node.of_value),
        node.scale,
        node.causal,
        query_block(queries),
    )
    widths = 3 * _int(width) + 2 * _int(value_width)  # of the five products
    return (
        kernel,
        batches * heads,
        _picoseconds(0.5 if node.causal else 1.0, widths) * keys * queries,
    )


def _operand(names: Sequence[str], view: View) -> Operand:
    return Operand(names.index(view.buffer), view.strides, view.offset)


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
