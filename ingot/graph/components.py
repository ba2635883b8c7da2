"""Alike components: subgraphs of a captured graph that share no value, such as the updates of a
model's parameters.

A captured graph goes in, an ATen graph comes out. One component of each kind is traced, and the
graph says for which inputs and outputs it holds as well (`AtenGraph.copies`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch.fx import GraphModule, Node

from ingot.graph.ambient import SWITCHES, preserved
from ingot.graph.aten_graph import AtenGraph, Copy, OutputSpec, copied
from ingot.graph.aten_tracer import AtenTracer
from ingot.graph.call_keys import extend_key
from ingot.graph.differentiation import differentiates
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, look_of, storage_key
from ingot.graph.nodes import order_of, placeholders_of
from ingot.graph.passes import run_passes
from ingot.graph.repeats import is_torchs
from ingot.graph.tracing import flat, trace, values_of
from ingot.loops.side_effects import has_effect
from ingot.sequences import at
from ingot.torch_private import set_grad_enabled

FEWEST = 4
"""Components for one that is traced: with fewer there is little to be won."""
SMALL = 64
"""Bytes of an input that components may share: reading it once for several saves no time."""


def trace_alike(
    gm: GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    frozen: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> AtenGraph:
    """What `trace` gives, with `copies` where the program has components that are alike."""
    shapes = context.shapes
    if not (frozen or context.draws or shapes.hints or shapes.unbacked.roots):
        kinds = _kinds(gm, fakes)
        aten_graph = None
        if kinds is not None:
            aten_graph = _traced(kinds, gm, fakes, context)
        if aten_graph is not None:
            return aten_graph
    return trace(gm, fakes, context, frozen)


# -- finding components ----------------------------------------------------------------------------


@dataclass
class _Component:
    """Calls in their order; the inputs that only they read, by their position; and the outputs that
    they make."""

    calls: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    @property
    def read(self) -> set[Node]:
        """The nodes that the calls read."""
        return set(chain.from_iterable(node.all_input_nodes for node in self.calls))


def _kinds(gm: GraphModule, fakes: Sequence[Any]) -> list[list[_Component]] | None:
    """The components, by what they have in common; None where they are few, or where it is not
    known what a call does."""
    if differentiates(gm) or not all(map(_is_plain, fakes)):
        return None
    nodes = list(gm.graph.nodes)
    outputs = list(flat(nodes[-1].args[0]))
    placeholders = placeholders_of(gm.graph)
    calls = nodes[len(placeholders) : -1]
    if not all(map(_is_call, outputs)) or not all(map(_is_understood, calls)):
        return None
    sets = _Sets()
    sharers = Counter(map(storage_key, fakes))
    for node, fake in zip(placeholders, fakes):
        key = storage_key(fake)
        is_small = fake.numel() * fake.element_size() <= SMALL
        if sharers[key] > 1 or fake._version or not is_small:
            sets.join(node, key)
    for node in calls:
        if node.target is not set_grad_enabled:
            sets.join(node, *filter(sets.__contains__, node.all_input_nodes))
    components: dict[Any, _Component] = defaultdict(_Component)
    for node in calls:
        if node in sets:
            components[sets.root(node)].calls.append(node)
    if len(components) < FEWEST:
        return None
    for k, node in enumerate(outputs):
        components[sets.root(node)].outputs.append(k)
    return _Keys(nodes, fakes, outputs).kinds(list(components.values()))


def _is_plain(fake: Any) -> bool:
    return type(fake) is FakeTensor and not fake.is_inference()


def _is_call(output: Any) -> bool:
    return isinstance(output, Node) and output.op.startswith("call_")


def _is_understood(node: Node) -> bool:
    """Whether it is known what a node does, which is nothing to nodes that do not read it."""
    if node.op == "get_attr":
        return True
    if node.op not in ("call_function", "call_method") or not is_torchs(node.target):
        return False
    return node.target not in SWITCHES or node.target is set_grad_enabled


class _Sets:
    """Disjoint sets of what is joined."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def __contains__(self, member: Any) -> bool:
        return member in self._parent

    def root(self, member: Any) -> Any:
        parent = self._parent
        while (above := parent.setdefault(member, member)) is not member:
            parent[member] = parent[above]
            member = above
        return member

    def join(self, *members: Any) -> None:
        first = self.root(members[0])
        for member in members[1:]:
            self._parent[self.root(member)] = first


_UNDERSTOOD_META = frozenset(("where", "module", "val"))


class _Keys:
    """Keys of the components of one graph: those of equal keys are alike."""

    def __init__(self, nodes: list[Node], fakes: Sequence[Any], outputs: list[Node]) -> None:
        self.fakes, self.outputs = fakes, outputs
        self.positions: dict[Node, int] = {}  # of placeholders
        self.mode: dict[Node, int] = {}  # how many changes of mode come before a node
        changes = 0
        for node in nodes:
            if node.op == "placeholder":
                self.positions[node] = len(self.positions)
            changes += node.target is set_grad_enabled
            self.mode[node] = changes
        self.readers: Counter[Node] = Counter()  # components that read a node

    def kinds(self, components: list[_Component]) -> list[list[_Component]] | None:
        """The components by key; None where one has none, or where they are hardly alike."""
        for component in components:
            self.readers.update(component.read)
        kinds: dict[Any, list[_Component]] = defaultdict(list)
        for component in components:
            key = self.key(component)
            if key is None:
                return None
            kinds[key].append(component)
        if len(kinds) * FEWEST <= len(components):
            return list(kinds.values())
        return None

    def key(self, component: _Component) -> Any:
        """What a component does; None where that is not known. Sets `component.inputs`, in the
        order of their first use."""
        numbers: dict[Node, int] = {}
        storages: dict[int, int] = {}
        key: list[Any] = []
        for node in component.calls:
            operands: list[Node] = []
            key += (node.op, node.target, self.mode[node], len(node.args))
            if not node.meta.keys() <= _UNDERSTOOD_META:
                return None
            if not extend_key(node.args, key, operands):
                return None
            for pair in node.kwargs.items():
                if not extend_key(pair, key, operands):
                    return None
            for operand in operands:
                if operand in self.positions and operand not in numbers:
                    key += self.input_key(component, operand, storages)
                    numbers[operand] = len(numbers)
                key.append(numbers[operand])  # that of a call comes before
            numbers[node] = len(numbers)
        return *key, *at(numbers, at(self.outputs, component.outputs))

    def input_key(
        self, component: _Component, node: Node, storages: dict[int, int]
    ) -> tuple[Any, ...]:
        position = self.positions[node]
        fake = self.fakes[position]
        is_exclusive = self.readers[node] == 1
        if is_exclusive:
            component.inputs.append(position)
            place = storages.setdefault(storage_key(fake), len(storages))
        else:
            place = position
        return is_exclusive, place, look_of(fake), fake.requires_grad, fake.is_inference()


# -- tracing them ----------------------------------------------------------------------------------


def _traced(
    kinds: list[list[_Component]],
    gm: GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
) -> AtenGraph | None:
    """The graph of the first component of each kind; None where one is not independent of the
    others after all."""
    order, placeholders = order_of(gm.graph), placeholders_of(gm.graph)
    outputs = list(flat(gm.graph.output_node().args[0]))
    modes = []
    for node in order:
        if node.target is set_grad_enabled:
            modes.append(node)
    joined = _Joined(placeholders, fakes, len(outputs))
    for first, *others in kinds:
        nodes = sorted({*first.calls, *first.read, *modes}, key=order.__getitem__)
        places = []
        for node in nodes:
            if node.op == "placeholder":
                places.append(order[node])
        tracer = AtenTracer(context)
        with preserved(), torch.no_grad(), tracer:
            inputs = tracer.inputs(nodes, at(fakes, places))
            values = values_of(gm, tracer, nodes, inputs)
        traced = tracer.finish(at(values, at(outputs, first.outputs)))
        run_passes(traced)
        if not _is_independent(traced, set(map(places.index, first.inputs))):
            return None
        joined.add(traced, places, first, others)
    return joined.finish(context)


def _is_independent(traced: AtenGraph, exclusive: set[int]) -> bool:
    """Whether a component neither writes what others read, nor has to keep its place among them.
    `exclusive` are the inputs that only it reads."""
    if not traced.mutated <= exclusive:
        return False
    for spec in traced.outputs:
        if spec.node is None or spec.position is not None:
            return False
    for node in traced.graph.nodes:
        if "may_raise" in node.meta or "binds" in node.meta or has_effect(node.target):
            return False
    return True


class _Joined:
    """The graph of several components."""

    def __init__(self, placeholders: list[Node], fakes: Sequence[Any], outputs: int) -> None:
        self.graph = torch.fx.Graph()
        self.inputs = [self.graph.placeholder(node.name) for node in placeholders]
        for node, fake in zip(self.inputs, fakes):
            node.meta.update(val=fake, where="")
        self.outputs = [OutputSpec()] * outputs
        self.mutations: list[tuple[int, Node]] = []
        self.uncounted: set[int] = set()
        self.constants: dict[str, torch.Tensor] = {}
        self.copies: list[list[Copy]] = []
        self.storages: dict[tuple[int, int, int], int] = {}
        self.rewrites: list[str] = []
        self.seconds: Counter[str] = Counter()

    def add(
        self, traced: AtenGraph, places: list[int], first: _Component, others: list[_Component]
    ) -> None:
        """Add the graph of `first`, whose inputs are at these places, and say that `others` are
        like it."""
        values = dict(zip(traced.inputs, at(self.inputs, places)))
        for node in traced.graph.nodes:
            if node.op.startswith("call_"):
                values[node] = copied(self.graph, node, values.__getitem__)
            elif node.op == "get_attr":
                name = f"{node.target}_of_{len(self.copies)}"
                self.constants[name] = traced.constants[node.target]
                values[node] = self.graph.create_node("get_attr", name, name=name)
                values[node].meta.update(node.meta)
        self.mutations += [(places[k], values[node]) for k, node in traced.mutations]
        self.uncounted.update(at(places, traced.uncounted))
        kind = len(self.copies)
        for number, component in enumerate((first, *others)):
            for k, spec in zip(component.outputs, traced.outputs):
                assert spec.node is not None
                key = kind, number, spec.storage
                storage = self.storages.setdefault(key, len(self.storages))
                self.outputs[k] = replace(spec, node=values[spec.node], storage=storage)
        copies = []
        for other in others:
            inputs = dict(zip(first.inputs, other.inputs))
            copies.append(Copy(inputs, dict(zip(first.outputs, other.outputs))))
        self.copies.append(copies)
        self.rewrites += traced.rewrites
        self.seconds.update(traced.seconds)

    def finish(self, context: FakeContext) -> AtenGraph:
        graph = AtenGraph(self.graph, self.outputs, self.mutations, self.constants, context.shapes)
        graph.copies, graph.rewrites, graph.seconds = self.copies, self.rewrites, dict(self.seconds)
        graph.uncounted = frozenset(self.uncounted)
        return graph
