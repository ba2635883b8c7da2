"""Memory of their own for outputs: no output may alias an input, a constant or another output
unless eager's does."""

from __future__ import annotations

from torch.fx import Node

from ingot.graph import meta
from ingot.graph.aten_graph import AtenGraph, OutputSpec
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.nodes import add_call, fake_result
from ingot.graph.passes.layouts import laid_out
from ingot.sequences import at
from ingot.torch_private import OpOverload, aten


def own_outputs(graph: AtenGraph) -> None:
    """Insert clones where an output, or the new value of an input, is memory of another value or a
    view of it."""
    owners: dict[Node, int] = {}
    outputs: list[Node | None] = []
    copies: dict[int, Node] = {}
    for spec in graph.outputs:
        node = spec.node
        if node is not None and spec.position is None:
            if spec.storage in copies:
                node = copies[spec.storage]
            elif borrowed(node) or _has_other_layout(node, spec):
                node = copies[spec.storage] = _clone(graph, node)
            elif owners.setdefault(node, spec.storage) != spec.storage:
                node = copies[spec.storage] = _clone(graph, node)
        outputs.append(node)
    mutated = set(at(graph.inputs, graph.mutated))
    values = []
    for _, n in graph.mutations:
        values.append(_clone(graph, n) if _reads_through(n, mutated) else n)
    graph.rewire(outputs, values)


def _has_other_layout(node: Node, spec: OutputSpec) -> bool:
    """Whether another layout was chosen for the node than the output has."""
    return "layout" in node.meta and laid_out(node).stride() != tuple(spec.strides)


def borrowed(node: Node) -> bool:
    """Whether the node's memory belongs to an input, a constant or another node."""
    return node.op in ("placeholder", "get_attr") or is_view(node)


def is_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and meta.rule_for(node.target) is meta.native


def _reads_through(node: Node, mutated: set[Node]) -> bool:
    """Whether the value is a view of an input that is itself written: the copies into the inputs
    happen one after the other."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node in mutated


def _clone(graph: AtenGraph, node: Node) -> Node:
    """A clone where its value is at hand, so that layers that are alike stay so."""
    value: FakeTensor = fake_result(node)
    fake = new_fake(value.shape, value, strides=value.stride())
    meta = {"val": fake, "where": node.meta.get("where", "")}
    before = node.next
    if node.op == "placeholder":
        before = min(node.users, default=graph.graph.output_node())
    with graph.graph.inserting_before(before):
        return add_call(graph.graph, aten.clone.default, (node,), meta)
