"""Layers that are alike: stretches of a captured graph, one behind the other, that do the same.

Each has inputs of its own, and reads what the one before it made. A captured graph goes in. A graph
with a few of its layers comes out, for the later steps of a compilation to work on; the plan of the
program is made longer in the end (`schedule/layers.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.fx
from torch.fx import GraphModule, Node

from ingot.graph.aten_graph import AtenGraph, copied
from ingot.graph.call_keys import extend_key
from ingot.graph.fakes import FakeTensor, look_of, storage_key
from ingot.graph.nodes import placeholders_of
from ingot.graph.tracing import flat
from ingot.loops.layers import Layers, goes_on_alone, periods
from ingot.sequences import at
from ingot.torch_private import LazyGraphModule

KEPT = 5
"""Layers in the shorter graph. The first and the last may be fused with what is around them, so
that others have to show how one layer follows another."""
FEWEST = 8
"""Layers of a program that is made shorter."""
_UNDERSTOOD_META = frozenset(("where", "module", "val"))


class Shorter(NamedTuple):
    """A captured graph with some of the layers, and the fakes of its inputs."""

    module: GraphModule
    fakes: list[Any]
    layers: Layers


def shorter(gm: GraphModule, fakes: Sequence[Any]) -> Shorter | None:
    """The captured graph with fewer layers. None where it has few or none that are alike."""
    placeholders = placeholders_of(gm.graph)
    calls = list(gm.graph.nodes)[len(placeholders) : -1]
    if len(calls) < FEWEST or not all(map(_is_plain, fakes)):
        return None
    stretch = _Calls(calls, dict(zip(placeholders, fakes))).longest_stretch()
    if stretch is None or stretch.count < FEWEST:
        return None
    rows = stretch.rows()
    if rows is None:
        return None
    own = set[Node]().union(*rows)
    if not stretch.is_closed(own) or stretch.goes_on_alone(own):
        return None
    outputs = list(flat(gm.graph.output_node().args[0]))
    output_rows = stretch.output_rows(outputs)
    if output_rows is None:
        return None
    return _Shortening(placeholders, stretch, rows).made(fakes, outputs, output_rows)


def tells_all(aten: AtenGraph) -> bool:
    """Whether all that a graph does is to compute its outputs, with sizes that are known."""
    return not (aten.mutations or aten.copies or aten.symbols or aten.checks or aten.bindings)


def _is_plain(fake: Any) -> bool:
    return type(fake) is FakeTensor and not fake.is_inference()


@dataclass(frozen=True)
class _Stretch:
    """Calls from `begin`: `count` layers of `length` calls. `operands` are the nodes that each call
    reads, once for each place where it does."""

    calls: Sequence[Node]
    operands: Sequence[Sequence[Node]]
    position: dict[Node, int]
    begin: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.count * self.length

    def layer(self, node: Node) -> int | None:
        """The layer that a call is in, None for others."""
        position = self.position.get(node)
        if position is None or not self.begin <= position < self.end:
            return None
        return (position - self.begin) // self.length

    def rows(self) -> list[tuple[Node, ...]] | None:
        """The placeholders that each layer has its own of, in the order of the layers. None where
        one of them is read in several."""
        following: dict[Node, Node] = {}
        for k in range(self.begin + self.length, self.end):
            for one, other in zip(self.operands[k - self.length], self.operands[k], strict=True):
                if one is not other and one.op == "placeholder":
                    following[one] = other
        rows, followed = [], set(following.values())
        for head in following:
            if head in followed:
                continue
            row = [head]
            while row[-1] in following and len(row) <= self.count:
                row.append(following[row[-1]])
            if len(row) != self.count:
                return None
            rows.append(tuple(row))
        if len(rows) * (self.count - 1) != len(following):  # some go round, or meet
            return None
        return rows

    def is_closed(self, own: set[Node]) -> bool:
        """Whether a layer reads the one before and no other, what follows reads none but the last,
        and only layers read what is their `own`."""
        is_linked = False
        for node, operands in zip(self.calls, self.operands):
            layer = self.layer(node)
            readable = (self.count - 1,) if layer is None else (layer - 1, layer)
            for operand in operands:
                if layer is None and operand in own:
                    return False
                source = self.layer(operand)
                if source is not None and source not in readable:
                    return False
                is_linked |= source is not None and source != layer and layer is not None
        return is_linked

    def goes_on_alone(self, own: set[Node]) -> bool:
        """Whether layers hand on what they change without a look at what is their `own`."""
        middle = self.begin + self.count // 2 * self.length
        reads, reads_own = [], []
        for operands in self.operands[middle : middle + self.length]:
            inside = filter(lambda node: self.layer(node) is not None, operands)
            reads.append([(self.position[node] - self.begin) % self.length for node in inside])
            reads_own.append(not own.isdisjoint(operands))
        return goes_on_alone(reads, reads_own)

    def output_rows(self, outputs: Sequence[Any]) -> list[list[int]] | None:
        """Among the outputs, those that each layer makes one of, in the order of the layers. None
        where some are of layers in another way, but for those that the last one alone makes."""
        by_place: dict[int, list[tuple[int, int]]] = {}
        for k, node in enumerate(outputs):
            if not isinstance(node, Node) or node not in self.position:
                return None
            layer = self.layer(node)
            if layer is not None:
                place = (self.position[node] - self.begin) % self.length
                by_place.setdefault(place, []).append((layer, k))
        rows = []
        for entries in by_place.values():
            layers = [layer for layer, _ in sorted(entries)]
            if layers == list(range(self.count)):
                rows.append([k for _, k in sorted(entries)])
            elif layers != [self.count - 1]:
                return None
        return rows


class _Calls:
    """The calls of a captured graph, by kind: those of one kind differ in their operands alone."""

    def __init__(self, calls: Sequence[Node], fakes: dict[Node, FakeTensor]) -> None:
        self.calls, self.fakes = calls, fakes
        self.position = {node: k for k, node in enumerate(calls)}
        self.operands: list[list[Node]] = []
        self.kinds: list[int] = []
        numbers: dict[Any, int] = {}
        for k, node in enumerate(calls):
            operands: list[Node] = []
            torch.fx.node.map_arg((node.args, node.kwargs), operands.append)
            key: list[Any] = [node.op, node.target, len(node.args)]
            known = node.op != "get_attr" and node.meta.keys() <= _UNDERSTOOD_META
            if not (known and extend_key(chain(node.args, *node.kwargs.items()), key, [])):
                key = [k]  # like no other
            self.kinds.append(numbers.setdefault(tuple(key), len(numbers)))
            self.operands.append(operands)
        self.sharers = Counter(map(storage_key, fakes.values()))

    def longest_stretch(self) -> _Stretch | None:
        """Where most calls are in layers."""
        best: _Stretch | None = None
        for length in periods(self.kinds):
            for begin, end in self._runs(length):
                count = (end - begin) // length + 1
                stretch = self._stretch(begin - length, length, count)
                covered = 0 if best is None else best.length * best.count
                if count > 1 and length * count > covered:
                    best = stretch
        return best

    def _stretch(self, begin: int, length: int, count: int) -> _Stretch:
        return _Stretch(self.calls, self.operands, self.position, begin, length, count)

    def _runs(self, length: int) -> Iterator[tuple[int, int]]:
        """Where calls are like those `length` before them: the longest stretches."""
        begin, following = length, dict[Node, Node]()
        for k in range(length, len(self.calls)):
            if not self._is_like(k - length, k, following):
                if k > begin:
                    yield begin, k
                begin, following = k + 1, {}
        yield begin, len(self.calls)

    def _is_like(self, one: int, other: int, following: dict[Node, Node]) -> bool:
        """Whether two calls do the same. `following` says which placeholder of the other call takes
        the place of one's."""
        if self.kinds[one] != self.kinds[other]:
            return False
        for a, b in zip(self.operands[one], self.operands[other], strict=True):
            if a.op == "placeholder" and b.op == "placeholder":
                if following.setdefault(a, b) is not b or not (a is b or self._are_alike(a, b)):
                    return False
            elif a is not b:
                if a.op == "placeholder" or b.op == "placeholder":
                    return False
                if self.position[b] - self.position[a] != other - one:
                    return False
        return True

    def _are_alike(self, a: Node, b: Node) -> bool:
        """Whether two inputs are alike, and share no memory with others."""
        one, other = self.fakes[a], self.fakes[b]
        for fake in (one, other):
            if self.sharers[storage_key(fake)] > 1 or fake._version:
                return False
        return look_of(one) == look_of(other) and one.requires_grad == other.requires_grad


class _Shortening:
    def __init__(
        self, placeholders: Sequence[Node], stretch: _Stretch, rows: Sequence[tuple[Node, ...]]
    ) -> None:
        self.placeholders, self.stretch, self.rows = placeholders, stretch, rows
        self.graph = torch.fx.Graph()
        self.copies: dict[Node, Node] = {}

    def made(
        self, fakes: Sequence[Any], outputs: Sequence[Node], output_rows: Sequence[list[int]]
    ) -> Shorter:
        stretch = self.stretch
        dropped: set[Node] = set()
        for row in self.rows:
            dropped.update(row[KEPT:])
        inputs = []
        for k, node in enumerate(self.placeholders):
            if node not in dropped:
                inputs.append(k)
                self._copy(node)
        kept_end = stretch.begin + KEPT * stretch.length
        for node in (*stretch.calls[:kept_end], *stretch.calls[stretch.end :]):
            self._copy(node)
        dropped_outputs: set[int] = set()
        for entries in output_rows:
            dropped_outputs.update(entries[KEPT:])
        places = [k for k in range(len(outputs)) if k not in dropped_outputs]
        self.graph.output(tuple(map(self._of, at(outputs, places))))
        order = {node: k for k, node in enumerate(self.placeholders)}
        layers = Layers(
            stretch.count - KEPT,
            tuple(inputs),
            tuple([tuple(at(order, row)) for row in self.rows]),
            tuple(places),
            tuple(map(tuple, output_rows)),
        )
        module = LazyGraphModule(torch.nn.Module(), self.graph)
        return Shorter(module, at(fakes, inputs), layers)

    def _copy(self, node: Node) -> None:
        self.copies[node] = copied(self.graph, node, self._of)

    def _of(self, node: Node) -> Node:
        """What a node becomes: of the last layer, the last that is kept."""
        stretch = self.stretch
        if node not in self.copies and stretch.layer(node) == stretch.count - 1:
            back = (stretch.count - KEPT) * stretch.length
            node = stretch.calls[stretch.position[node] - back]
        return self.copies[node]
