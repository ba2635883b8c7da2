"""Attention writes its results where a copy would put them: in their pieces of a concatenation, as
the gradients of one projection's queries, keys and values are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ingot.loops.expr import ZERO, Expr, as_expr, product
from ingot.loops.ir import Attention, AttentionBackward, Buffer, LoopGraph, Node, Pointwise, View
from ingot.schedule.dependencies import readers_and_writers


class _Copy(NamedTuple):
    """A node that does no more than copy a buffer, and for each of its loops, those with the
    farthest steps first, how many there are, and how far apart they lie in the source and in the
    target."""

    node: Pointwise
    loops: tuple[tuple[int, int, int], ...]
    first: int


def placed(nodes: Sequence[Node], graph: LoopGraph) -> list[Node]:
    """The nodes, without copies of attention's results that nothing else reads."""
    if not any(isinstance(node, (Attention, AttentionBackward)) for node in nodes):
        return list(nodes)
    found = {node.name: node for node in nodes}
    shown = graph.required
    readers, writers = readers_and_writers(nodes)
    for position, node in enumerate(nodes):
        if not isinstance(node, (Attention, AttentionBackward)):
            continue
        for name, view in [(name, v) for name, v in vars(node).items() if isinstance(v, View)]:
            if (
                view.buffer not in node.writes()
                or view.buffer in shown
                or len(readers[view.buffer]) != 1
            ):
                continue
            copy = _copy(nodes[readers[view.buffer][0]])
            moved = None if copy is None else _moved(view, copy, graph)
            if copy is None or moved is None or any(at <= position for at in readers[moved.buffer]):
                continue
            if _is_written_once(
                graph.buffers[moved.buffer], [nodes[at] for at in writers[moved.buffer]]
            ):
                node = replace(node, **{name: moved})  # type: ignore[arg-type]
                found[node.name] = node
                del found[copy.node.name]
    return list(found.values())


def _copy(node: Node) -> _Copy | None:
    if not isinstance(node, Pointwise) or node.scatters or len(node.body.instructions) != 1:
        return None
    (load,) = node.body.instructions
    if load.op != "load" or load.args:
        return None
    read, written = (index.linear(node.loops) for index in (load.attrs[1], node.index))
    if read is None or written is None or read[0] is not ZERO or written[0].constant is None:
        return None
    loops = []
    for symbol in node.loops:
        numbers = _numbers(
            symbol.extent, *(found[1].get(symbol, ZERO) for found in (read, written))
        )
        if numbers is None:
            return None
        loops.append((numbers[0], numbers[1], numbers[2]))
    return _Copy(node, tuple(sorted(loops, key=lambda loop: -loop[1])), written[0].constant)


def _numbers(*expressions: Expr) -> list[int] | None:
    numbers = [e.constant for e in expressions if e.constant is not None]
    return numbers if len(numbers) == len(expressions) else None


def _moved(view: View, copy: _Copy, graph: LoopGraph) -> View | None:
    """The view in the copy's target, if the copy takes the view's whole buffer in the order of its
    memory."""
    after = 1
    for extent, apart, _ in reversed(copy.loops):
        if apart != after:
            return None
        after = apart * extent
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
        number = next(
            (
                k
                for k, (extent, apart, _) in enumerate(copy.loops)
                if apart <= step < apart * extent
            ),
            None,
        )
        if number is None or step % copy.loops[number][1]:
            return None
        _, apart, there = copy.loops[number]
        filled[number] += (size - 1) * (step // apart)
        strides.append(as_expr(there * (step // apart)))
    if any(count > extent for count, (extent, _, _) in zip(filled, copy.loops)):
        return None  # a dimension goes on in the next loop
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
        points += product(symbol.extent for symbol in writer.loops).constant or 0
    return buffer.role == "temporary" and points == buffer.length.constant
