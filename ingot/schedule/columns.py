"""Sums over rows of what a kernel computes row by row. The gradients of a norm's weight and bias
are such sums, and that of the bias that was added before. A block of threads takes a run of rows
one after the other and keeps a sum for each column, so that what the rows are made of is read once;
a second kernel, as of any sum in parts, adds up those of the runs.

How long the runs are depends on sizes alone, and each is summed in order. Measured on an H200,
backward of a layer norm, us: 16384 x 768 of float32 and bfloat16 with three sums 62 instead of 56 +
27 + 10, 16384 x 4096 of bfloat16 with two 108 instead of 97 + 78 (with twice as many threads 112,
and 125 instead of 108 for RMS norm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.loops.expr import Expr, Symbol, loop_symbol
from ingot.loops.ir import Buffer, Node, Pointwise, Reduction
from ingot.loops.spaces import points_of, row_major
from ingot.schedule.blocks import rows_of_run
from ingot.schedule.nests import (
    Compute,
    index_expressions,
    is_plain_reduction,
    merge_neighbours,
    renamed,
)

SHORTEST_RUN = 8  # rows, fewer of which make as many sums as there is to be saved
MOST_SUMS = 4  # of one kernel: a register for each of a thread's columns


def summed_rows(members: Sequence[Node], buffers: Mapping[str, Buffer]) -> tuple[Expr, Expr] | None:
    """(rows, columns) of nodes all of which are sums of columns, cut into parts (`split`), else
    None."""
    shapes = set()
    for m in members:
        shapes.add(_rows_and_columns(m, buffers))
    if len(shapes) == 1:
        return shapes.pop()
    return None


def _rows_and_columns(node: Node, buffers: Mapping[str, Buffer]) -> tuple[Expr, Expr] | None:
    if not is_plain_reduction(node) or node.kind != "sum" or len(node.reduced) != 1:
        return None
    if not node.loops or not node.target.endswith("_parts") or node.body.lookups:
        return None
    result = node.body.instructions[node.body.results[0]].dtype
    if not node.dtype.is_floating_point or result != node.dtype:
        return None
    part, *columns = node.loops
    if part.extent != buffers[node.target].sizes[0]:
        return None
    width = points_of(columns)
    if node.index != row_major(columns, part * width) or _row(node) is None:
        return None
    return part.extent * node.reduced[0].extent, width


def _row(node: Reduction) -> tuple[Symbol, dict[Symbol, Expr]] | None:
    """The loop over rows of which a node sums parts, and what its loops over parts and within them
    become. None where the body does not walk through both as one."""
    substitution: dict[Symbol, Expr] = {}
    loops = [node.loops[0], node.reduced[0]]
    merged = merge_neighbours(loops, index_expressions(node)[1:], substitution)
    if len(merged) == 1:
        return (merged[0], substitution)
    return None


def in_runs(node: Reduction, length: int) -> Pointwise:
    """What is summed, over the rows and columns, and which run's sums it is added to."""
    merged = _row(node)
    assert merged is not None
    (row, substitution), columns = merged, node.loops[1:]
    index = row_major(columns, row // length * points_of(columns))
    body = node.body.substitute(substitution)
    return Pointwise(node.name, node.origin, (row, *columns), body, node.target, index, "total")


def is_total(node: Node) -> bool:
    return isinstance(node, Pointwise) and node.mode == "total"


def length_of_runs(width: Expr, rows: Expr, threads: int) -> int:
    """How many of `rows` rows of `width` columns a block takes: as many as leave blocks enough for
    `threads` threads. 0 if none is good."""
    columns, count = width.constant, rows.constant
    blocks = None
    if columns is not None:
        blocks = rows_of_run(columns)
    if blocks is None or count is None:
        return 0
    most = threads // (32 * blocks.warps)
    even = []
    for runs in range(most // 2 + 1, most + 1):
        if count % (runs * blocks.points) == 0:
            even.append(runs)
    length = 0
    if even:
        length = count // even[-1]
    if length >= SHORTEST_RUN:
        return length
    return 0


def along_rows(
    outer: Sequence[Symbol],
    members: Sequence[Compute],
    inner: Sequence[tuple[Symbol, ...]],
    width: Expr,
) -> bool:
    """Whether members laid over rows have no inner loops or the same ones: over columns, which lie
    side by side."""
    if len({*inner, ()}) != 2:
        return False
    for m, loops in zip(members, inner):
        if not loops:
            continue
        if points_of(loops) != width:
            return False
        for index in index_expressions(m):
            linear = index.linear([outer[-1], loops[-1]])
            if linear is not None and len(linear[1]) == 2 and linear[1][loops[-1]].constant != 1:
                return False
    return True


def with_parts(members: Sequence[Node], sizes: Mapping[str, int]) -> list[Node]:
    """The nodes that add up the parts, of which there are as many as `sizes` says for each
    buffer."""
    result = list(members)
    for k, node in enumerate(members):
        if isinstance(node, Reduction) and not node.reads().isdisjoint(sizes):
            (name,), (old,) = node.reads() & sizes.keys(), node.reduced
            part = loop_symbol(old.name, sizes[name])
            result[k] = renamed(node, {old: part}, node.loops, (part,))
    return result


def adds_up_parts(node: Node, names: set[str]) -> bool:
    """Whether a node does nothing with these buffers, or adds up what one of them has in parts."""
    if node.reads().isdisjoint(names):
        return True
    return isinstance(node, Reduction) and len(node.reduced) == 1 and len(node.reads()) == 1
