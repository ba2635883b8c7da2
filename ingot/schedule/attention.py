"""Attention as a kernel: how its queries are cut into blocks, and what a block costs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ingot.loops.expr import Expr
from ingot.loops.ir import Attention, Buffer, View
from ingot.schedule.kernel import AttentionKernel, Operand, Parameter
from ingot.schedule.plan import KernelStep

LANES = 16  # queries of a block are a multiple of this, which fills the widest vectors
WIDEST = 4  # vectors of queries in a block, at most
PICOSECONDS_PER_OPERATION = 1000 / 120  # of one core, a multiplication and an addition counting as two
PICOSECONDS_PER_WEIGHT = 500


def attention_step(node: Attention, buffers: Mapping[str, Buffer] = MappingProxyType({})) -> KernelStep:
    """The launch that computes the node; the lengths of its parameters are those of `buffers`."""
    batches, heads, queries, width = node.query.sizes
    _, key_heads, keys, value_width = node.value.sizes
    names = list(dict.fromkeys((*(v.buffer for v in node.operands), *node.writes())))

    def operand(view: View) -> Operand:
        return Operand(names.index(view.buffer), view.strides, view.offset)

    kernel = AttentionKernel(
        "attention",
        node.origin,
        tuple(
            Parameter(
                f"p{k}",
                node.query.dtype,
                name in node.reads(),
                name in node.writes(),
                buffers[name].length if name in buffers else None,
            )
            for k, name in enumerate(names)
        ),
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
    operations = 2 * weights * (_int(width) + _int(value_width))
    picoseconds = round(operations * PICOSECONDS_PER_OPERATION + weights * PICOSECONDS_PER_WEIGHT) * keys
    work = picoseconds if picoseconds.constant is None else picoseconds.constant / 1000
    return KernelStep(kernel, tuple(names), batches * heads * kernel.blocks, work)


def query_block(queries: Expr) -> int:
    """How many queries make a block: wide ones do more with each key that is loaded, narrow ones fill up better."""
    known = queries.constant
    if known is None:
        return LANES * WIDEST

    def cost(vectors: int) -> float:
        return -(-known // (LANES * vectors)) * (vectors + 0.4)

    return LANES * min(range(WIDEST, 0, -1), key=cost)


def _int(size: Expr) -> int:
    assert size.constant is not None
    return size.constant
