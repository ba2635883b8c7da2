"""Small tensors that are computed again at each element of what reads them, where that takes a GPU
less than a launch: the scale and the offset of each channel that a batch norm has in inference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.loops.expr import Expr, Symbol, contiguous_strides, product
from ingot.loops.ir import (
    Body,
    BodyBuilder,
    Instruction,
    Library,
    LoopGraph,
    Node,
    Origin,
    Pointwise,
    View,
    Visit,
)
from ingot.loops.target import Target
from ingot.schedule.cost import operations_of
from ingot.schedule.dependencies import readers_and_writers
from ingot.schedule.nests import Compute, Shape, canonical, map_indices

REPEATED = 8  # times that each element is read, at least: of others, one kernel may compute both
MAX_INSTRUCTIONS = 200  # of a body that computes them

Inverse = Callable[[Expr], dict[Symbol, Expr]]


def inlined(nodes: Sequence[Node], graph: LoopGraph, target: Target) -> list[Node]:
    """The nodes, without those of which all elements are computed where they are read."""
    if not target.launch:
        return list(nodes)
    found: list[Node | None] = list(nodes)
    readers, writers = readers_and_writers(nodes)
    shown = {v.buffer for v in graph.outputs if isinstance(v, View)} | graph.checked
    alone: set[int] = set()  # nodes that no kernel before them could compute as well
    inside = defaultdict[int, dict[int, Origin]](dict)  # the nodes that are computed in another

    def is_given(name: str, position: int) -> bool:
        made = writers[name]
        if any(k >= position for k in made):
            return False
        return all(k in alone or isinstance(nodes[k], Library) for k in made)

    for k, node in enumerate(nodes):
        if (
            not isinstance(node, Pointwise)
            or node.scatters
            or any(i.op == "indirect" for i in node.body.instructions)
        ):
            continue
        if len(node.body.instructions) == 1:
            continue  # a copy is made for how it lies
        buffer = graph.buffers[node.target]
        if buffer.role != "temporary" or buffer.on_host or len(writers[node.target]) > 1:
            continue
        if not all(is_given(name, k) for name in node.reads()):
            continue
        alone.add(k)
        own = found[k]
        assert isinstance(own, Pointwise)
        nest = canonical(own)
        assert isinstance(nest, Pointwise)
        inverse = _inverse(nest, buffer.length)
        if node.target in shown or inverse is None:
            continue
        new = _read_everywhere(
            nest, [found[r] for r in readers[node.target]], inverse, target.launch
        )
        if new:
            for r, reader in zip(readers[node.target], new):
                found[r] = reader
                inside[r] |= inside[k] | {k: node.origin}
                for name in nest.reads():
                    if r not in readers[name]:
                        readers[name].append(r)
            found[k] = None
    whole = ((node, [inside[k][at] for at in sorted(inside[k])]) for k, node in enumerate(found))
    return [_told(node, origins) for node, origins in whole if node is not None]


def _told(node: Node, inside: Sequence[Origin]) -> Node:
    """The node, saying what else it computes."""
    if not inside:
        return node
    ops = [op for origin in inside for op in origin.ops]
    return replace(
        node, origin=Origin((*ops, *node.origin.ops), node.origin.where or inside[0].where)
    )


def _inverse(node: Pointwise, length: Expr) -> Inverse | None:
    """From an element's place in what a node writes to the node's loops; None where that is not
    whole and dense."""
    linear = node.index.linear(node.loops)
    extents = [s.extent for s in node.loops]
    steps = contiguous_strides(extents)
    if linear is None or linear[0].constant != 0 or product(extents) != length:
        return None
    if any(linear[1].get(s) != step for s, step in zip(node.loops, steps)):
        return None

    def places(index: Expr) -> dict[Symbol, Expr]:
        whole = [index // step for step in steps]
        return {
            s: at if k == 0 else at % s.extent for k, (s, at) in enumerate(zip(node.loops, whole))
        }

    return places


def _read_everywhere(
    value: Pointwise, readers: Sequence[Node | None], inverse: Inverse, most: int
) -> list[Compute]:
    """The readers, which compute the value themselves; none where that would take longer than a
    launch, or where one has to find it in memory."""
    points = Shape.of(value).total.constant
    result: list[Compute] = []
    added, broadcast = 0.0, False
    for reader in readers:
        if not isinstance(reader, Compute) or points is None:
            return []
        total = Shape.of(reader).total.constant
        if total is None:
            return []
        broadcast = broadcast or total >= REPEATED * points
        if total < REPEATED * points and not (isinstance(reader, Pointwise) and total <= points):
            return []
        body = _computing(reader.body, value, inverse)
        added += total * (operations_of(body) - operations_of(reader.body))
        if added > most or len(body.instructions) > MAX_INSTRUCTIONS:
            return []
        result.append(replace(reader, body=body))
    return result if broadcast else []


def _computing(body: Body, value: Pointwise, inverse: Inverse) -> Body:
    """A body that computes `value` where it read it."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        if i.op != "load" or i.attrs[0] != value.target:
            return builder.append(i)
        substitution = inverse(i.attrs[1])
        own = map_indices(value.body, lambda e: e.substitute(substitution))
        positions = builder.copy(own, _under(i.args))
        return builder.in_place_of(i, positions[own.results[0]])

    return body.rewrite(visit)


def _under(conditions: Sequence[int]) -> Visit:
    """Puts loads under a load's condition, if it has one."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        for condition in conditions:
            i = builder.under(condition, i)
        return builder.append(i)

    return visit
