"""Attention writes its results where a copy would put them. The gradients of one projection's
queries, keys and values are written to their pieces of a concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ingot.loops.expr import ZERO, Expr, as_expr
from ingot.loops.ir import (
    Attention,
    AttentionBackward,
    Buffer,
    LoopGraph,
    Node,
    Pointwise,
    View,
    view_fields,
)
from ingot.loops.spaces import points_of
from ingot.schedule.dependencies import readers_and_writers


class _Copy(NamedTuple):
    """A node that does no more than copy a buffer, and its loops, those with the farthest steps
    first. Of each: how many points it has, and how far apart they lie in the source and in the
    target."""

    node: Pointwise
    loops: tuple[tuple[int, int, int], ...]
    first: int


def without_result_copies(nodes: Sequence[Node], graph: LoopGraph) -> list[Node]:
    """The nodes, without copies of attention's results that nothing else reads."""
    if not any(isinstance(node, (Attention, AttentionBackward)) for node in nodes):
        return list(nodes)
    result = {node.name: node for node in nodes}
    required = graph.required
    readers, writers = readers_and_writers(nodes)
    for position, node in enumerate(nodes):
        if not isinstance(node, (Attention, AttentionBackward)):
            continue
        for field, view in view_fields(node).items():
            name = view.buffer
            if name not in node.writes() or name in required or len(readers[name]) != 1:
                continue
            copy = _copy(nodes[readers[name][0]])
            moved = copy and _moved(view, copy, graph)
            if copy is None or moved is None or min(readers[moved.buffer], default=inf) <= position:
                continue
            writing = []
            for at in writers[moved.buffer]:
                writing.append(nodes[at])
            if _is_written_once(graph.buffers[moved.buffer], writing):
                node = replace(node, **{field: moved})  # type: ignore[arg-type]
                result[node.name] = node
                del result[copy.node.name]
    return list(result.values())


def _copy(node: Node) -> _Copy | None:
    if not isinstance(node, Pointwise) or node.scatters or len(node.body.instructions) != 1:
        return None
    (load,) = node.body.instructions
    if load.op != "load" or load.args:
        return None
    read, written = load.attrs[1].linear(node.loops), node.index.linear(node.loops)
    if read is None or written is None or read[0] is not ZERO or written[0].constant is None:
        return None
    loops = []
    for symbol in node.loops:
        steps = read[1].get(symbol, ZERO), written[1].get(symbol, ZERO)
        numbers = _numbers(symbol.extent, *steps)
        if numbers is None:
            return None
        loops.append((numbers[0], numbers[1], numbers[2]))
    return _Copy(node, tuple(sorted(loops, key=lambda loop: -loop[1])), written[0].constant)


def _numbers(*expressions: Expr) -> list[int] | None:
    numbers = []
    for e in expressions:
        if e.constant is not None:
            numbers.append(e.constant)
    if len(numbers) == len(expressions):
        return numbers
    return None


def _moved(view: View, copy: _Copy, graph: LoopGraph) -> View | None:
    """The view in the copy's target, if the copy takes the view's whole buffer in the order of its
    memory."""
    after = 1
    for extent, step, _ in reversed(copy.loops):
        if step != after:
            return None
        after = step * extent
    sizes, steps = _numbers(*view.sizes), _numbers(*view.strides)
    if sizes is None or steps is None or view.offset is not ZERO:
        return None
    if graph.buffers[view.buffer].length.constant != after:
        return None
    strides, filled = [], [1] * len(copy.loops)
    for size, step in zip(sizes, steps):
        if size == 1:
            strides.append(ZERO)
            continue
        for k, (extent, read, written) in enumerate(copy.loops):
            if read <= step < read * extent and step % read == 0:
                strides.append(as_expr(written * (step // read)))
                filled[k] += (size - 1) * (step // read)
                if filled[k] > extent:
                    return None  # a dimension goes on in the next loop
                break
        else:
            return None
    if sizes[-1] != 1 and strides[-1].constant != 1:
        return None
    return replace(
        view, buffer=copy.node.target, strides=tuple(strides), offset=as_expr(copy.first)
    )


def _is_written_once(buffer: Buffer, writers: Sequence[Node]) -> bool:
    """Whether it is a temporary whose elements are each written once: there are as many points as
    elements."""
    points = 0
    for writer in writers:
        if not isinstance(writer, Pointwise) or writer.scatters:
            return False
        points += points_of(writer.loops).constant or 0
    return buffer.is_temporary and points == buffer.length.constant
