"""An ATen graph with some layers of a program, and how it becomes one with all of them: see
`loops/layers.py`."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph, OutputSpec, copied
from ingot.graph.call_keys import extend_key
from ingot.loops.layers import Copied, Layers, Line, Repeated


def repeated(aten: AtenGraph, layers: Layers) -> Repeated[Node]:
    """How the nodes of a graph become those of its program. Raises `NotAlike` where they do not
    tell that."""
    kinds, names, writes = [], [], []
    numbers: dict[Any, int] = {}
    for node in items_of(aten):
        operands: list[Node] = []
        torch.fx.node.map_arg((node.args, node.kwargs), operands.append)
        key: list[Any] = [node.op, node.target, len(node.args)]
        known = node.op == "call_function"
        if not (known and extend_key(chain(node.args, *node.kwargs.items()), key, [])):
            key = [node]  # like no other
        kinds.append(numbers.setdefault(tuple(key), len(numbers)))
        names.append([*operands, node])
        writes.append([node])
    outputs = [spec.node for spec in aten.outputs]
    result = Repeated(Line(kinds, names, writes, aten.inputs, outputs), layers)
    result.require_own()
    return result


def in_all_layers(aten: AtenGraph, some: Layers) -> AtenGraph:
    """The graph of the program. Its inputs have the fakes of those that they are like."""
    layers = repeated(aten, some)
    graph, copies = torch.fx.Graph(), dict[Copied[Node], Node]()
    lends = []
    for k, which in enumerate(layers.inputs()):
        node = copies[which] = graph.placeholder(which.name.name)
        node.meta = dict(which.name.meta)
        if aten.inputs.index(which.name) in aten.lends:
            lends.append(k)
    nodes = items_of(aten)
    for k, names in layers.items():
        node = nodes[k]
        copies[names[node]] = copied(graph, node, lambda name: copies[names[name]])  # noqa: B023
    storages: dict[tuple[int, int], int] = {}
    specs: list[OutputSpec] = []
    for k, made in layers.outputs():
        spec = aten.outputs[k]
        if made is not None:
            storage = storages.setdefault((spec.storage, made.number), len(storages))
            spec = replace(spec, node=copies[made], storage=storage)
        specs.append(spec)
    longer = AtenGraph(graph, specs, (), aten.constants, aten.shapes)
    longer.lends, longer.rewrites = frozenset(lends), aten.rewrites
    longer.is_backward = aten.is_backward
    return longer


def items_of(aten: AtenGraph) -> list[Node]:
    """The nodes that compute something."""
    return [node for node in aten.graph.nodes if node.op in ("call_function", "get_attr")]
