"""What nodes of an ATen graph say of themselves."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node


def fake_result(node: Node | Any) -> Any:
    """The fake tensor of a node, a tuple of them, or a number."""
    return node.meta["val"]


def order_of(graph: Graph) -> dict[Node, int]:
    """The nodes and their positions."""
    return {node: k for k, node in enumerate(graph.nodes)}


def placeholders_of(graph: Graph) -> list[Node]:
    return list(graph.find_nodes(op="placeholder"))


def is_returned(node: Node) -> bool:
    """Whether the graph returns a node's result."""
    return any(user.op == "output" for user in node.users)
