"""Small tensors are computed again at each element of what reads them, if that takes a GPU less
time than a launch. A batch norm's scales and offsets in inference are the case in point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ingot.loops.expr import Expr, Symbol, product
from ingot.loops.ir import (
    Body,
    BodyBuilder,
    Instruction,
    Library,
    LoopGraph,
    Node,
    Origin,
    Pointwise,
    Visit,
)
from ingot.loops.spaces import contiguous_strides, extents_of
from ingot.loops.target import Target
from ingot.schedule.cost import operations_of
from ingot.schedule.dependencies import readers_and_writers
from ingot.schedule.nests import Compute, Shape, canonical

REPEATED = 8  # times that each element is read, at least: of others, one kernel may compute both
MAX_INSTRUCTIONS = 200  # of a body that computes them

Inverse = Callable[[Expr], dict[Symbol, Expr]]


def inlined(nodes: Sequence[Node], graph: LoopGraph, target: Target) -> list[Node]:
    """The nodes, without those of which all elements are computed where they are read."""
    if not target.launch:
        return list(nodes)
    return _Inlining(nodes, graph, target).run()


class _Inlining:
    def __init__(self, nodes: Sequence[Node], graph: LoopGraph, target: Target) -> None:
        self.nodes = nodes
        self.graph = graph
        self.most = target.launch
        self.result: list[Node | None] = list(nodes)
        self.readers, self.writers = readers_and_writers(nodes)
        self.required = graph.required
        # nodes that read what is there before any kernel runs, or what these nodes compute
        self.first: set[int] = set()
        # by node, the origins of those that it computes, by their positions
        self.origins = defaultdict[int, dict[int, Origin]](dict)

    def run(self) -> list[Node]:
        for k, node in enumerate(self.nodes):
            if isinstance(node, Pointwise) and self._is_candidate(k, node):
                self.first.add(k)
                self._inline(k)
        kept = [(k, node) for k, node in enumerate(self.result) if node is not None]
        return [_with_origins(node, self.origins[k]) for k, node in kept]

    def _is_candidate(self, k: int, node: Pointwise) -> bool:
        """Whether a node alone makes a temporary on the device, and no kernel before it could
        compute that as well."""
        if node.scatters or node.body.lookups:
            return False
        if len(node.body.instructions) == 1:
            return False  # a copy is made for how it lies
        buffer = self.graph.buffers[node.target]
        if not buffer.is_temporary or buffer.on_host or len(self.writers[node.target]) > 1:
            return False
        return all(self._is_there(name, k) for name in node.reads())

    def _is_there(self, name: str, k: int) -> bool:
        """Whether no kernel makes a buffer before node number k, but such as could be inlined."""
        return all(
            w < k and (w in self.first or isinstance(self.nodes[w], Library))
            for w in self.writers[name]
        )

    def _inline(self, k: int) -> None:
        """Let all readers of a node compute it, if that is worthwhile."""
        own = self.result[k]
        assert isinstance(own, Pointwise)
        nest = canonical(own)
        assert isinstance(nest, Pointwise)
        inverse = inverse_of(nest, self.graph.buffers[nest.target].length)
        if nest.target in self.required or inverse is None:
            return
        readers = self.readers[nest.target]
        computing = _read_everywhere(nest, [self.result[r] for r in readers], inverse, self.most)
        if not computing:
            return
        for r, reader in zip(readers, computing):
            self.result[r] = reader
            self.origins[r] |= self.origins[k] | {k: self.nodes[k].origin}
            for name in nest.reads():
                if r not in self.readers[name]:
                    self.readers[name].append(r)
        self.result[k] = None


def _with_origins(node: Node, inlined: Mapping[int, Origin]) -> Node:
    """The node, which says what else it computes."""
    if not inlined:
        return node
    first, *others = [inlined[k] for k in sorted(inlined)]
    origin = first.merged(*others, node.origin)
    where = node.origin.where or first.where
    return replace(node, origin=origin._replace(where=where))


def inverse_of(node: Pointwise, length: Expr) -> Inverse | None:
    """From an element's place in what a node writes to the node's loops; None where that is not
    whole and dense."""
    linear = node.index.linear(node.loops)
    extents = extents_of(node.loops)
    steps = contiguous_strides(extents)
    if linear is None or linear[0].constant != 0 or product(extents) != length:
        return None
    if any(linear[1].get(s) != step for s, step in zip(node.loops, steps)):
        return None

    def places(index: Expr) -> dict[Symbol, Expr]:
        indices = {}
        for s, step in zip(node.loops, steps):
            indices[s] = index // step % s.extent
        if steps:
            indices[node.loops[0]] = index // steps[0]  # an index in range needs no remainder
        return indices

    return places


def _read_everywhere(
    value: Pointwise, readers: Sequence[Node | None], inverse: Inverse, most: int
) -> list[Compute]:
    """The readers, which compute the value themselves; none where that would take longer than a
    launch, or where one has to find it in memory."""
    points = Shape.of(value).total.constant
    result: list[Compute] = []
    added, is_broadcast = 0.0, False
    for reader in readers:
        if not isinstance(reader, Compute) or points is None:
            return []
        total = Shape.of(reader).total.constant
        if total is None:
            return []
        if total >= REPEATED * points:
            is_broadcast = True
        elif not isinstance(reader, Pointwise) or total > points:
            return []
        body = computing(reader.body, value, inverse)
        added += total * (operations_of(body) - operations_of(reader.body))
        if added > most or len(body.instructions) > MAX_INSTRUCTIONS:
            return []
        result.append(replace(reader, body=body))
    return result if is_broadcast else []


def computing(body: Body, value: Pointwise, inverse: Inverse) -> Body:
    """A body that computes `value` where it read it."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        if i.op != "load" or i.attrs[0] != value.target:
            return builder.append(i)
        own = value.body.substitute(inverse(i.attrs[1]))
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
