"""The verifier of ATen graphs: what every pass may rely on."""

from __future__ import annotations

import operator

from torch.fx import Node

from ingot.errors import CompilerBug
from ingot.graph.aten_graph import AtenGraph
from ingot.loops.functional_ops import FunctionalForm
from ingot.torch_private import OpOverload


def verify(graph: AtenGraph) -> None:
    """Check order, metadata and vocabulary. Raises CompilerBug that names the node and the user's
    line."""
    earlier: set[Node] = set()
    for node in graph.graph.nodes:
        problem = _problem(node, earlier, graph)
        if problem:
            shown, where = node.format_node() or node.name, node.meta.get("where", "")
            raise CompilerBug("graph verifier", problem, shown, where)
        earlier.add(node)


def _problem(node: Node, earlier: set[Node], graph: AtenGraph) -> str:
    if not earlier.issuperset(node.all_input_nodes):
        return "an argument is computed after it is used"
    if node.op == "output":
        return ""
    if "val" not in node.meta or "where" not in node.meta:
        return "no value or place is recorded"
    if node.op == "get_attr" and node.target not in graph.constants:
        return "the constant does not exist"
    if node.op == "call_function" and node.target is not operator.getitem:
        if isinstance(node.target, FunctionalForm):
            return ""
        if not isinstance(node.target, OpOverload):
            return "not an ATen op"
        if node.target._schema.is_mutable:
            return "an op with side effects"
    return ""
