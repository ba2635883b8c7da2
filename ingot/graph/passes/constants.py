"""Constant folding: values that depend on nothing but constants of the graph are computed once,
during compilation."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.meta import tensors_in
from ingot.graph.nodes import fake_result
from ingot.graph.passes.cse import call_key
from ingot.loops.side_effects import has_effect
from ingot.torch_private import OpOverload

_LARGEST = 1 << 12  # elements: a larger result is cheaper to compute than to keep


def fold_constants(graph: AtenGraph) -> None:
    """Run calls whose tensor arguments are all constants, if the result is small: equal ones
    once."""
    _share_equal_scalars(graph)
    known: dict[Any, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not _foldable(node):
            continue
        key = call_key(node)
        if key in known:
            graph.replace(node, known[key])
            continue
        arguments = node.args, node.kwargs
        args, kwargs = torch.fx.map_arg(arguments, lambda n: graph.constants[str(n.target)])
        try:
            value = node.target(*args, **kwargs)
        except (RuntimeError, IndexError):
            continue  # it is the program's error, at each call
        name = f"folded_{node.name}"
        with graph.graph.inserting_before(node):
            folded = graph.graph.create_node("get_attr", name, name=name)
        folded.meta.update(node.meta)
        graph.constants[name] = value.clone(memory_format=torch.preserve_format)
        graph.replace(node, folded)
        known[key] = folded


def _share_equal_scalars(graph: AtenGraph) -> None:
    """One constant for those of rank 0 that are equal."""
    known: dict[Any, Node] = {}
    for node in list(graph.graph.nodes):
        value = None
        if node.op == "get_attr":
            value = graph.constants.get(str(node.target))
        if value is None or value.dim() or value.device.type != "cpu":
            continue
        first = known.setdefault((value.dtype, repr(value.item())), node)
        if first is not node:
            graph.replace(node, first)
            del graph.constants[str(node.target)]


def _foldable(node: Node) -> bool:
    if {source.op for source in node.all_input_nodes} != {"get_attr"}:
        return False
    if node.target is operator.getitem or "binds" in node.meta:
        return False
    if not isinstance(node.target, OpOverload) or has_effect(node.target) or node.target.is_view:
        return False
    value = fake_result(node)
    if not isinstance(value, torch.Tensor) or len(tensors_in(value)) != 1:
        return False
    return value.numel() <= _LARGEST
