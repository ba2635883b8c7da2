"""Custom ops, and loops at places that a tensor names, write in place again.

A copy that is made to be written is not made where nobody reads the original afterwards. The
original is a temporary that is not read any more once the call has run, or an input whose final
value is what the calls leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from ingot.loops.expr import Expr
from ingot.loops.ir import Buffer, Library, LoopGraph, Node, Pointwise
from ingot.loops.lowering.values import loops_over
from ingot.loops.spaces import address_of
from ingot.schedule.dependencies import readers_and_writers
from ingot.schedule.reuse import are_alike, renamed
from ingot.sequences import present


def without_copies_to_write(nodes: Sequence[Node], graph: LoopGraph) -> list[Node]:
    """The nodes, without copies of buffers that a custom op may as well write itself, or a loop at
    places that a tensor names."""
    written: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, Library) and node.ordered:
            written |= dict.fromkeys(node.mutates)
        elif _writes_at_places(node):
            written |= dict.fromkeys(node.writes())
    if not written:
        return list(nodes)
    walk = _Copies(nodes, graph)
    for name in written:
        walk.remove(name)
    return present(walk.nodes)


def _writes_at_places(node: Node) -> bool:
    """Whether a node replaces elements that a tensor names, which may be done twice."""
    return isinstance(node, Pointwise) and node.index.is_indirect and node.mode == "store"


_NAME = attrgetter("op")


class _Copies:
    """The nodes, with None for those that were removed, and where each buffer is touched."""

    def __init__(self, nodes: Sequence[Node], graph: LoopGraph) -> None:
        self.nodes: list[Node | None] = list(nodes)
        self.graph = graph
        readers, writers = readers_and_writers(nodes)
        self.touches: dict[str, list[int]] = {}
        for name in readers.keys() | writers.keys():
            self.touches[name] = sorted({*readers[name], *writers[name]})
        self.writers = writers

    def remove(self, copy: str) -> None:
        """Remove the copies to a buffer that calls write, and back, if they are not needed."""
        if copy not in self.touches or not self.graph.is_temporary(copy):
            return
        begin = self.touches[copy][0]
        original = self._copied(begin, copy)
        if original is None:
            return
        touches, call = self.touches[original], self.writers[copy][1]
        if self.graph.is_temporary(original):
            if touches[-1] < call and original not in self.graph.required:
                self._join(original, copy, begin)
                self.remove(copy)  # which may begin as a copy of an input now
            return
        later = bisect_left(touches, call)
        if later == len(touches):
            return
        end = touches[later]
        if self._copied(end, original) != copy or self.writers[copy][-1] > end:
            return
        back = self.nodes[end]
        assert isinstance(back, Pointwise)
        self._join(copy, original, begin)
        self.nodes[end] = None
        if copy in self.graph.required:
            body = back.body.with_buffers(lambda _: original)
            self.nodes[end] = replace(back, target=copy, body=body)

    def _copied(self, position: int, target: str) -> str | None:
        """The buffer that a node copies to `target`, if it does that and no more."""
        node, buffers = self.nodes[position], self.graph.buffers
        if not isinstance(node, Pointwise) or node.target != target or node.scatters:
            return None
        load, *conversions = node.body.instructions
        if load.op != "load" or load.args or not {"to"}.issuperset(map(_NAME, conversions)):
            return None
        source, place = load.attrs
        is_whole = node.index is place and place is _each_element(buffers[target])
        if is_whole and are_alike(buffers[source], buffers[target]):
            return str(source)
        return None

    def _join(self, name: str, other: str, begin: int) -> None:
        """Make one buffer, `other`, of two, without the copy at `begin`."""

        def final(buffer: str) -> str:
            if buffer == name:
                return other
            return buffer

        self.nodes[begin] = None
        for places in (self.touches, self.writers):
            places[other] = sorted({*places.pop(name), *places[other]}.difference((begin,)))
        for position in self.touches[other]:
            node = self.nodes[position]
            if node is not None:
                self.nodes[position] = renamed(node, final)


def _each_element(buffer: Buffer) -> Expr:
    return address_of(loops_over(buffer.sizes), buffer.strides)
