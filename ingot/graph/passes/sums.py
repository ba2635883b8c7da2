"""Sums of what was written at places with something else: written into the rest of the sum."""

from __future__ import annotations

from typing import Any

import torch

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import run_fake

aten = torch.ops.aten
Node = torch.fx.Node

_FULL_PRECISION = (torch.float32, torch.float64)  # halves would be rounded at other places


def write_into_sums(graph: AtenGraph) -> None:
    """What is added up in memory of its own is added where the rest of the sum lies."""
    for node in list(graph.graph.nodes):
        if _is_sum(node):
            _write_into(graph, node)


def _is_sum(node: Node) -> bool:
    """Whether a node is the sum of two tensors of its own sizes and type."""
    if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(a, Node) for a in node.args):
        return False
    values = [n.meta["val"] for n in (node, *node.all_input_nodes)]
    return values[0].dtype in _FULL_PRECISION and all(
        v.dtype is values[0].dtype and list(map(str, v.shape)) == list(map(str, values[0].shape)) for v in values
    )


def _write_into(graph: AtenGraph, node: Node) -> None:
    """x + zeros.index_put(places, values, accumulate=True) as x.index_put(...): the gradient of an embedding whose
    weight is used elsewhere too."""
    for k in (0, 1):
        written, other = node.args[k], node.args[1 - k]
        assert isinstance(written, Node)
        if written.target is not aten.index_put.default or len(written.users) > 1 or written is other:
            continue
        start, *rest = written.args
        if _is_zero(start) and rest[-1] is True:
            with graph.graph.inserting_before(node):
                total = _call(graph, aten.index_put.default, (other, *rest), node)
            total.meta.update({key: value for key, value in written.meta.items() if key == "may_raise"})
            node.replace_all_uses_with(total)
            graph.graph.erase_node(node)
            graph.graph.erase_node(written)
            return


def _is_zero(node: Any) -> bool:
    return node.target is aten.zeros.default or (node.target is aten.full.default and node.args[1] == 0)


def _call(graph: AtenGraph, op: Any, args: Any, like: Node) -> Node:
    node = graph.graph.call_function(op, args)
    node.meta["val"] = run_fake(op, torch.fx.map_arg(args, lambda n: n.meta["val"]), {})
    node.meta["where"] = like.meta.get("where", "")
    return node
