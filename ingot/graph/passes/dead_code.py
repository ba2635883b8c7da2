"""Dead code: values that no output or mutation depends on. Ops that draw random numbers stay, for they move the
generator, and ops that may raise an error."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.schemas import is_random


def remove_dead_code(graph: AtenGraph) -> None:
    """Remove unused nodes, and constants that nothing reads; placeholders stay."""
    for node in reversed(graph.graph.nodes):
        if node.users or node.op in ("placeholder", "output") or _must_run(node):
            continue
        if node.op == "get_attr":
            graph.constants.pop(node.target, None)
        graph.graph.erase_node(node)


def _must_run(node: torch.fx.Node) -> bool:
    return node.meta.get("may_raise", False) or (isinstance(node.target, OpOverload) and is_random(node.target))
