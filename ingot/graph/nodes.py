"""What nodes of an ATen graph say of themselves, and walks from node to node."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.loops.side_effects import has_effect
from ingot.torch_private import OpOverload


def fake_result(node: Node | Any) -> Any:
    """The fake tensor of a node, a tuple of them, or a number."""
    return node.meta["val"]


def results_of(value: Any) -> Sequence[Any]:
    """The results of a call, of which several are a list or tuple."""
    if isinstance(value, (list, tuple)):
        return value
    return [value]


def order_of(graph: Graph) -> dict[Node, int]:
    """The nodes and their positions."""
    return {node: k for k, node in enumerate(graph.nodes)}


def placeholders_of(graph: Graph) -> list[Node]:
    return list(graph.find_nodes(op="placeholder"))


def is_returned(node: Node) -> bool:
    """Whether the graph returns a node's result."""
    return any(user.op == "output" for user in node.users)


def is_pointwise_call(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags


def must_run(node: Node) -> bool:
    """Whether an op is run for more than its result: it has an effect, finds a size, or may
    raise."""
    return node.meta.get("may_raise", False) or "binds" in node.meta or has_effect(node.target)


def only_user(node: Node) -> Node | None:
    """The one node that reads a result; None where there are several, or none."""
    if len(node.users) == 1:
        return next(iter(node.users))
    return None


def add_call(
    graph: Graph, op: Callable[..., Any], args: tuple[Any, ...], meta: Mapping[str, Any], **own: Any
) -> Node:
    """A new node at the graph's place of insertion, with the metadata `meta` but for its `own`."""
    node = graph.call_function(op, args)
    node.meta.update(meta, **own)
    return node


# -- walks -----------------------------------------------------------------------------------------


def reached_from(nodes: Iterable[Node]) -> set[Node]:
    """The nodes, and all that is computed from them."""
    reached = set[Node]()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in reached and node.op != "output":
            reached.add(node)
            stack.extend(node.users)
    return reached


def ancestors(nodes: Iterable[Node], end_at: Container[Node] = ()) -> set[Node]:
    """The nodes, and all that they are computed from, up to the nodes `end_at` (exclusive)."""
    needed = set[Node]()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in needed and node not in end_at:
            needed.add(node)
            stack.extend(inputs_of(node))
    return needed


def inputs_of(node: Node) -> list[Node]:
    """What has to be known to compute a value again: the generator's state too where it draws."""
    state = node.meta.get("state")
    if state is None:
        return node.all_input_nodes
    return [*node.all_input_nodes, state]
