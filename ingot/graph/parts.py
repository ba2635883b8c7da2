"""Parts of a program that have nothing to do with one another and are alike: the updates of a
model's parameters are. One of each kind is traced, and the graph says for which inputs and outputs
it holds as well."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from ingot.graph.ambient import SWITCHES, preserved
from ingot.graph.aten_graph import AtenGraph, Copy, OutputSpec, copied
from ingot.graph.aten_tracer import AtenTracer
from ingot.graph.call_keys import extend_key
from ingot.graph.differentiation import differentiates
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, look_of, storage_key
from ingot.graph.passes import run_passes
from ingot.graph.repeats import is_torchs
from ingot.graph.tracing import flat, trace, values_of
from ingot.loops.side_effects import has_effect
from ingot.torch_private import set_grad_enabled

FEWEST = 4  # parts for one that is traced: there is something to be won
# bytes of an input that parts may have in common: reading it once for several of them saves no time
SMALL = 64


def trace_alike(
    gm: torch.fx.GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    frozen: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> AtenGraph:
    """What `trace` gives, with `copies` where the program has parts that are alike."""
    shapes = context.shapes
    kinds = (
        None
        if frozen or context.draws or shapes.hints or shapes.unbacked.roots
        else _kinds(gm, fakes)
    )
    found = _traced(kinds, gm, fakes, context) if kinds is not None else None
    return trace(gm, fakes, context, frozen) if found is None else found


# -- which parts there are -------------------------------------------------------------------------


@dataclass
class _Part:
    """Calls in their order; the inputs that they read, by their position, and the outputs that they
    make."""

    calls: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def _kinds(gm: torch.fx.GraphModule, fakes: Sequence[Any]) -> list[list[_Part]] | None:
    """The parts, by what they have in common; None where they are few, or where it is not known
    what a call does."""
    nodes = list(gm.graph.nodes)
    if differentiates(gm) or any(
        type(fake) is not FakeTensor or fake.is_inference() for fake in fakes
    ):
        return None
    outputs = list(flat(nodes[-1].args[0]))
    if any(not isinstance(n, Node) or not n.op.startswith("call_") for n in outputs):
        return None
    placeholders = {node: k for k, node in enumerate(n for n in nodes if n.op == "placeholder")}
    sets = _Sets()
    memory = Counter(map(storage_key, fakes))
    for node, fake in zip(placeholders, fakes):
        key = storage_key(fake)
        if memory[key] > 1 or fake._version or fake.numel() * fake.element_size() > SMALL:
            sets.join(node, key)
    for node in nodes[len(placeholders) : -1]:
        if node.op not in ("call_function", "call_method", "get_attr"):
            return None
        if node.op != "get_attr" and not is_torchs(node.target):
            return None
        if node.target in SWITCHES and node.target is not set_grad_enabled:
            return None  # what comes behind it depends on it, though it reads nothing of it
        if node.target is not set_grad_enabled:
            sets.join(node, node, *[n for n in node.all_input_nodes if n in sets])
    parts: dict[Any, _Part] = defaultdict(_Part)
    for node in nodes[len(placeholders) : -1]:
        if node in sets:
            parts[sets.root(node)].calls.append(node)
    if len(parts) < FEWEST:
        return None
    for k, node in enumerate(outputs):
        parts[sets.root(node)].outputs.append(k)
    return _by_key(list(parts.values()), nodes, placeholders, fakes, outputs)


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


def _by_key(
    parts: list[_Part],
    nodes: list[Node],
    placeholders: dict[Node, int],
    fakes: Sequence[Any],
    outputs: list[Node],
) -> list[list[_Part]] | None:
    kinds: dict[Any, list[_Part]] = defaultdict(list)
    readers = Counter(
        n for part in parts for n in {i for c in part.calls for i in c.all_input_nodes}
    )
    mode = {}  # how many changes of mode come before a node
    changes = 0
    for node in nodes:
        changes += node.target is set_grad_enabled
        mode[node] = changes
    for part in parts:
        key = _key(part, placeholders, readers, mode, fakes, outputs)
        if key is None:
            return None
        kinds[key].append(part)
    return list(kinds.values()) if len(kinds) * FEWEST <= len(parts) else None


def _key(
    part: _Part,
    placeholders: dict[Node, int],
    readers: Mapping[Node, int],
    mode: Mapping[Node, int],
    fakes: Sequence[Any],
    outputs: list[Node],
) -> Any:
    """What tells a part from those that are not alike; None where that cannot be said.
    `part.inputs` become those that no other part reads, in the order of their first use."""
    numbers: dict[Node, int] = {}
    storages: dict[int, int] = {}
    key: list[Any] = []
    for node in part.calls:
        found: list[Node] = []
        key += (node.op, node.target, mode[node], len(node.args))
        if not node.meta.keys() <= _SAID or not extend_key(node.args, key, found):
            return None
        if node.kwargs and not extend_key(
            [x for pair in node.kwargs.items() for x in pair], key, found
        ):
            return None
        for n in found:
            if n in placeholders and n not in numbers:
                fake = fakes[placeholders[n]]
                own = readers[n] == 1
                place = (
                    storages.setdefault(storage_key(fake), len(storages))
                    if own
                    else placeholders[n]
                )
                key += (own, place, look_of(fake), fake.requires_grad, fake.is_inference())
                if own:
                    part.inputs.append(placeholders[n])
                numbers[n] = len(numbers)
            key.append(numbers[n])  # of a call: it comes before
        numbers[node] = len(numbers)
    return *key, *[numbers[outputs[k]] for k in part.outputs]


_SAID = frozenset(("where", "val"))


# -- tracing them ----------------------------------------------------------------------------------


def _traced(
    kinds: list[list[_Part]], gm: torch.fx.GraphModule, fakes: Sequence[Any], context: FakeContext
) -> AtenGraph | None:
    """The graph of the first part of each kind; None where one is not for itself after all."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    returned = list(flat(next(iter(reversed(gm.graph.nodes))).args[0]))
    whole = torch.fx.Graph()
    inputs = [whole.placeholder(node.name) for node in placeholders]
    for node, fake in zip(inputs, fakes):
        node.meta.update(val=fake, where="")
    joined = _Joined(whole, inputs, len(returned))
    order = {node: k for k, node in enumerate(gm.graph.nodes)}
    modes = [node for node in order if node.target is set_grad_enabled]
    for first, *others in kinds:
        read = {n for node in first.calls for n in node.all_input_nodes}
        places = sorted(order[n] for n in read if n.op == "placeholder")  # which come first
        nodes = sorted({*first.calls, *read, *modes}, key=order.__getitem__)
        part = _traced_part(
            gm, nodes, [fakes[k] for k in places], [returned[k] for k in first.outputs], context
        )
        if not _is_apart(part, {k for k, place in enumerate(places) if place in first.inputs}):
            return None
        joined.add(part, places, first, others)
    return joined.finish(context)


def _traced_part(
    gm: torch.fx.GraphModule,
    nodes: Sequence[Node],
    fakes: Sequence[Any],
    outputs: Sequence[Node],
    context: FakeContext,
) -> AtenGraph:
    recorder = AtenTracer(context)
    with preserved(), torch.no_grad(), recorder:
        names = (node.name for node in nodes if node.op == "placeholder")
        values = values_of(
            gm, recorder, nodes, [recorder.input(name, fake) for name, fake in zip(names, fakes)]
        )
    part = recorder.finish([values[node] for node in outputs])
    run_passes(part)
    return part


def _is_apart(part: AtenGraph, own: set[int]) -> bool:
    """Whether a part neither writes what others read, nor has to keep its place among them."""
    if any(spec.node is None or spec.position is not None for spec in part.outputs):
        return False
    if any(position not in own for position, _ in part.mutations):
        return False
    return not any(
        "may_raise" in n.meta or "binds" in n.meta or has_effect(n.target) for n in part.graph.nodes
    )


class _Joined:
    """The graph of several parts."""

    def __init__(self, graph: torch.fx.Graph, inputs: list[Node], outputs: int) -> None:
        self.graph, self.inputs = graph, inputs
        self.outputs = [OutputSpec()] * outputs
        self.mutations: list[tuple[int, Node]] = []
        self.uncounted: set[int] = set()
        self.constants: dict[str, torch.Tensor] = {}
        self.copies: list[list[Copy]] = []
        self.storages: dict[tuple[int, int, int], int] = {}
        self.rewrites: list[str] = []
        self.seconds: Counter[str] = Counter()

    def add(self, part: AtenGraph, places: list[int], first: _Part, others: list[_Part]) -> None:
        """Adds a part whose inputs are at these places, and of which there are others."""
        values = dict(zip(part.inputs, (self.inputs[k] for k in places)))
        for node in part.graph.nodes:
            if node.op.startswith("call_"):
                values[node] = copied(self.graph, node, values.__getitem__)
            elif node.op == "get_attr":
                name = f"{node.target}_of_{len(self.copies)}"
                self.constants[name] = part.constants[node.target]
                values[node] = self.graph.create_node("get_attr", name, name=name)
                values[node].meta.update(node.meta)
        self.mutations += [(places[k], values[node]) for k, node in part.mutations]
        self.uncounted |= {places[k] for k in part.uncounted}
        for copy, one in enumerate([first, *others]):
            for k, spec in zip(one.outputs, part.outputs):
                assert spec.node is not None
                key = len(self.copies), copy, spec.storage
                storage = self.storages.setdefault(key, len(self.storages))
                self.outputs[k] = replace(spec, node=values[spec.node], storage=storage)
        pairs = [(zip(first.inputs, one.inputs), zip(first.outputs, one.outputs)) for one in others]
        self.copies.append([Copy(dict(read), dict(made)) for read, made in pairs])
        self.rewrites += part.rewrites
        self.seconds.update(part.seconds)

    def finish(self, context: FakeContext) -> AtenGraph:
        made = AtenGraph(self.graph, self.outputs, self.mutations, self.constants, context.shapes)
        made.copies, made.rewrites, made.seconds = self.copies, self.rewrites, dict(self.seconds)
        made.uncounted = frozenset(self.uncounted)
        return made
