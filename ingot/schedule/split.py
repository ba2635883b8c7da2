"""Long reductions and products to few results, in two steps: parts that threads share, and the
reduction of the parts.

How many parts there are depends on sizes alone, so that the result does not depend on the number of
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import torch

from ingot.loops.expr import ONE, Expr, Symbol, as_expr, loop_symbol
from ingot.loops.ir import (
    Body,
    BodyBuilder,
    Buffer,
    Contraction,
    Instruction,
    LoopGraph,
    Node,
    Reduction,
)
from ingot.loops.spaces import address_of, contiguous_strides, extents_of, points_of
from ingot.loops.target import CPU, Target
from ingot.schedule.contraction import choose_blocks
from ingot.schedule.epilogue import canonical_contraction
from ingot.schedule.nests import canonical, is_plain_reduction

FEW_BLOCKS = 8  # of a product: fewer leave threads without work, or with unequal work
LONG_PRODUCT = 1 << 21  # multiply-adds from which on that matters
SHORTEST_PART = 256  # steps of one part's sums, at least


def split_reductions(
    nodes: Sequence[Node], graph: LoopGraph, target: Target = CPU
) -> tuple[list[Node], LoopGraph]:
    """The nodes with long reductions split, and the graph with the buffers of their parts."""
    graph = replace(graph, buffers=dict(graph.buffers))
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Contraction) and node.weights is None:
            result += _split_product(node, graph)
        elif is_plain_reduction(node):
            result += _split(node, graph, target)
        else:
            result.append(node)
    return result, graph


def _split(node: Reduction, graph: LoopGraph, target: Target) -> Iterator[Node]:
    nest = canonical(node)
    parts = 1
    if isinstance(nest, Reduction):
        parts = _parts(nest, target)
    if parts == 1:
        yield node
        return
    assert isinstance(nest, Reduction)
    loop = _longest(nest.reduced)
    extent = loop.extent.constant or 0
    length = -(-extent // parts)
    part, rest = loop_symbol("part", parts), loop_symbol("rest", length)
    whole = part * length + rest
    body = nest.body.substitute({loop: whole})
    if extent % parts:
        body = _guarded(body, whole, extent, nest)
    if _reduces_columns(nest):
        loops = (part, *nest.loops)
    else:
        loops = (*nest.loops, part)
    device = graph.buffers[node.target].device
    buffer, index, load = _memory_of_parts(node.target, node.dtype, loops, device)
    graph.buffers[buffer.name] = buffer
    yield Reduction(
        f"{node.name}_parts",
        node.origin,
        loops,
        _in_place_of(loop, rest, nest.reduced),
        node.kind,
        body,
        buffer.name,
        index,
        node.dtype,
    )
    yield replace(nest, reduced=(part,), body=load)


def _memory_of_parts(
    target: str, dtype: torch.dtype, loops: Sequence[Symbol], device: torch.device
) -> tuple[Buffer, Expr, Body]:
    """The buffer of the parts of `target`, a part's place in it, and the body that loads it."""
    sizes = tuple(extents_of(loops))
    strides = contiguous_strides(sizes)
    buffer = Buffer(f"{target}_parts", dtype, sizes, strides, device=device)
    index = address_of(loops, strides)
    load = Instruction("load", (), dtype, (buffer.name, index))
    return buffer, index, Body((load,), (0,))


def _in_place_of(old: Symbol, new: Symbol, loops: Sequence[Symbol]) -> tuple[Symbol, ...]:
    return tuple([new if loop is old else loop for loop in loops])


def _parts(node: Reduction, target: Target) -> int:
    """Into how many parts a reduction is split; 1 where it is not."""
    splitting = target.splitting
    points, length = points_of(node.loops).constant, points_of(node.reduced).constant
    if node.kind.startswith("arg") or points is None or length is None:
        return 1
    independent = points
    if _reduces_columns(node):
        columns = node.loops[-1].extent.constant or 1
        independent = points // columns * -(-columns // splitting.columns)
    if independent >= splitting.few_points or points * length < splitting.long_reduction:
        return 1
    extent = _longest(node.reduced).extent.constant or 0
    each = 1
    if target.has_registers:
        each = independent
    goal = min(
        splitting.most_parts // each, points * length // (splitting.part * each), length, extent
    )
    if goal < 4:
        return 1
    even = []
    for parts in range(goal // 2 + 1, 2 * goal):
        if extent % parts == 0:
            even.append(parts)
    return min(even, key=lambda parts: abs(parts - goal), default=goal)


def _split_product(node: Contraction, graph: LoopGraph) -> Iterator[Node]:
    nest = canonical_contraction(node)
    parts = _parts_of_product(nest, _longest(nest.reduced).extent.constant)
    if parts == 1:
        yield node
        return
    *nodes, buffer = product_in_parts(nest, parts, graph.buffers[node.target].device)
    graph.buffers[buffer.name] = buffer
    yield from nodes


def product_in_parts(
    nest: Contraction, parts: int, device: torch.device
) -> tuple[Contraction, Reduction, Buffer]:
    """A product whose longest reduced loop is cut into equal parts, the sum of these, and the
    buffer in between."""
    loop = _longest(nest.reduced)
    part = loop_symbol("part", parts)
    rest = loop_symbol("rest", (loop.extent.constant or 0) // parts)
    buffer, index, load = _memory_of_parts(nest.target, nest.dtype, (part, *nest.loops), device)
    whole = {loop: part * rest.extent + rest}
    cut = replace(
        nest, name=f"{nest.name}_parts", batch=(part, *nest.batch),
        left=nest.left.substitute(whole), right=nest.right.substitute(whole),
        target=buffer.name, index=index, reduced=_in_place_of(loop, rest, nest.reduced),
    )  # fmt: skip
    total = Reduction(
        nest.name,
        nest.origin,
        nest.loops,
        (part,),
        "sum",
        load,
        nest.target,
        nest.index,
        nest.dtype,
    )
    return cut, total, buffer


def _parts_of_product(node: Contraction, extent: int | None) -> int:
    """Into how many parts, of equal length, the longest loop of a product's sums is split; 1 where
    it is not."""
    batch, rows, columns, length = (
        points_of(loops).constant for loops in (node.batch, node.rows, node.columns, node.reduced)
    )
    if None in (batch, rows, columns, length) or extent is None:
        return 1
    assert batch is not None and rows is not None and columns is not None and length is not None
    height, width = choose_blocks(as_expr(batch), as_expr(rows), as_expr(columns))
    blocks = batch * -(-rows // height) * -(-columns // width)
    if blocks >= FEW_BLOCKS or batch * rows * columns * length < LONG_PRODUCT:
        return 1
    # else the parts are more than what they read
    shortest = max(SHORTEST_PART, rows * columns // (rows + columns))
    goal = min(-(-2 * FEW_BLOCKS // blocks), length // shortest)
    return max((parts for parts in range(1, goal + 1) if extent % parts == 0), default=1)


def _longest(loops: Sequence[Symbol]) -> Symbol:
    return max(loops, key=lambda s: s.extent.constant or 0)


def _reduces_columns(node: Reduction) -> bool:
    """Whether what is reduced is contiguous along the last loop that is kept."""
    if not node.loops:
        return False
    for load in node.body.loads:
        index = load.attrs[1]
        if index.symbols.intersection(node.reduced) and index.step(node.loops[-1]) is ONE:
            return True
    return False


def _guarded(body: Body, whole: Expr, extent: int, node: Reduction) -> Body:
    """The body with its memory touched and its value counted only where `whole` is below
    `extent`."""
    builder = BodyBuilder()
    index = builder.emit("index", (), torch.int64, (whole,))
    inside = builder.emit("lt", (index, builder.constant(extent, torch.int64)), torch.bool)
    positions = builder.copy(body, lambda builder, i: builder.append(builder.under(inside, i)))
    (result,) = body.results
    dtype = body.instructions[result].dtype
    neutral = builder.constant(_neutral(node.kind, dtype), dtype)
    return builder.body(builder.emit("where", (inside, positions[result], neutral), dtype))


def _neutral(kind: str, dtype: torch.dtype) -> bool | int | float:
    if kind in ("max", "min"):
        if dtype is torch.bool:
            return kind == "min"
        if dtype.is_floating_point:
            return -inf if kind == "max" else inf
        if kind == "max":
            return torch.iinfo(dtype).min
        return torch.iinfo(dtype).max
    if dtype is torch.bool:
        return kind in ("prod", "all")
    return int(kind in ("prod", "all"))
