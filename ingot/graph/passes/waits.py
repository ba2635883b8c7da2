"""Waits for collectives: what is read behind a wait is what it gives, and a program waits as late
as it can."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.nodes import order_of
from ingot.graph.passes.ownership import is_view
from ingot.loops.side_effects import acts, communicates
from ingot.torch_private import collectives


def _waits(graph: AtenGraph) -> list[Node]:
    if not hasattr(collectives, "wait_tensor"):  # a torch without torch.distributed
        return []
    found = []
    for node in graph.graph.nodes:
        if node.target is collectives.wait_tensor.default:
            found.append(node)
    return found


def read_what_was_waited_for(graph: AtenGraph) -> None:
    """Has all that reads a collective's result behind the wait for it read what the wait gives.

    That is the same memory. So whatever needs the wait depends on it."""
    for wait in _waits(graph):
        stands_for: dict[Node, Node] = {wait.args[0]: wait}  # type: ignore[dict-item]
        is_behind = False
        for node in list(graph.graph.nodes):
            if node is wait:
                is_behind = True
            elif is_behind:
                _read_instead(graph, node, stands_for)
            elif is_view(node) and node.args[0] in stands_for:
                stands_for[node] = node  # made again behind the wait, where it is read


def _read_instead(graph: AtenGraph, node: Node, stands_for: dict[Node, Node]) -> None:
    for read in node.all_input_nodes:
        if read in stands_for:
            node.replace_input_with(read, _again(graph, node, read, stands_for))


def _again(graph: AtenGraph, reader: Node, read: Node, stands_for: dict[Node, Node]) -> Node:
    """What a reader behind the wait is given for a view from before it."""
    if stands_for[read] is read:

        def parent(node: Any) -> Any:
            return _again(graph, reader, node, stands_for) if node in stands_for else node

        with graph.graph.inserting_before(reader):
            stands_for[read] = graph.graph.node_copy(read, parent)
    return stands_for[read]


def wait_late(graph: AtenGraph) -> None:
    """Moves each wait to what reads it first, but not past what acts and does not communicate."""
    waits = _waits(graph)
    if not waits:
        return
    places, stops = order_of(graph.graph), list(filter(_stops, graph.graph.nodes))
    for wait in waits:
        if wait.users:
            behind = [node for node in (*wait.users, *stops) if places[node] > places[wait]]
            min(behind, key=places.__getitem__).prepend(wait)


def _stops(node: Node) -> bool:
    """Whether all that has begun has to end before a node: others may see that it has."""
    if node.op != "call_function" or not acts(node.target):
        return False
    return not communicates(node.target) or not node.all_input_nodes
