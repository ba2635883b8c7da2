"""When parameters are gathered, and their gradients reduced: while a graph computes with others.

A gather that follows from inputs alone begins right behind the wait for the one before it, so that
two are under way. A reduction ends where the next one is put together. FSDP has the same order, in
which all ranks have to begin them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.aten_tracer import AGAIN, BEHIND, ONCE
from ingot.graph.nodes import is_pointwise_call, order_of, reached_from
from ingot.graph.passes.ownership import is_view
from ingot.loops.side_effects import acts, communicates, has_effect
from ingot.torch_private import aten, collectives

_JOINS = frozenset((aten.cat.default, aten._to_copy.default, aten.clone.default))


def gather_early(graph: AtenGraph) -> None:
    """Moves what begins to gather shards right behind the wait for the shards before."""
    gathers = []
    for node in graph.graph.nodes:
        is_of_shards = node.meta.get("region") in (AGAIN, ONCE)
        if is_of_shards and _is(node, "all_gather_into_tensor") and _is_of_inputs(node):
            gathers.append(node)
    for before, node in zip([None, *gathers], gathers):
        _begin_behind(graph, None if before is None else _wait_for(before), node)


def _is(node: Node, name: str) -> bool:
    packet = getattr(collectives, name, None)
    return getattr(node.target, "overloadpacket", None) is packet


def _is_joined(node: Node) -> bool:
    """Whether a node does nothing but lay elements elsewhere, in another type perhaps."""
    return is_view(node) or node.target in _JOINS


def _prepared(node: Node) -> Iterator[Node]:
    """What is done to shards before they are gathered."""
    for given in node.all_input_nodes:
        if given.op != "placeholder":
            yield given
            yield from _prepared(given)


def _is_of_inputs(node: Node) -> bool:
    return all(map(_is_joined, _prepared(node)))


def _wait_for(node: Node) -> Node | None:
    for user in node.users:
        if _is(user, "wait_tensor"):
            return user
    return None


def _begin_behind(graph: AtenGraph, place: Node | None, node: Node) -> None:
    """Moves a gather up to a wait, or to the graph's beginning; but no further than what acts
    otherwise, and what another collective waits for."""
    places = order_of(graph.graph)
    stop = place
    for other in graph.graph.nodes:
        if other is node:
            break
        is_behind = stop is None or places[other] > places[stop]
        if is_behind and (other.op == "placeholder" or _keeps_its_place(other)):
            stop = other
    if stop is None or places[stop] >= places[node]:
        return
    moved = {node}
    for prepared in _prepared(node):
        if places[prepared] > places[stop]:
            moved.add(prepared)
    for one in sorted(moved, key=places.__getitem__, reverse=True):
        stop.append(one)


def _keeps_its_place(node: Node) -> bool:
    """Whether a gather may not move past a node."""
    if node.op != "call_function" or not has_effect(node.target):
        return False
    if _is(node, "wait_tensor") or _is_reduced(node):
        return False
    return acts(node.target)


# -- reductions ------------------------------------------------------------------------------------


def reduce_late(graph: AtenGraph) -> None:
    """Moves the waits for reduced gradients, and what is made of these, to where the next ones are
    put together, or to the end."""
    reductions = []
    for node in graph.graph.nodes:
        if _is_reduced(node):
            reductions.append(node)
    place = next(iter(reversed(graph.graph.nodes)))
    for node in reversed(reductions):
        _end_before(graph, place, node)
        place = _first_of(node)


def _is_reduced(node: Node) -> bool:
    """Whether it reduces gradients that are returned."""
    is_behind = node.meta.get("region") == BEHIND
    return is_behind and _is(node, "reduce_scatter_tensor") and _ends(node)


def _first_of(reduction: Node) -> Node:
    """Where the gradients of a reduction are put together."""
    node = reduction.all_input_nodes[0]
    while _is_joined(node) and node.target is not aten.cat.default:
        node = node.all_input_nodes[0]
    return node


def _ends(node: Node) -> bool:
    """Whether all that is made of a reduction is returned, with little done to it."""
    made = reached_from([node]) - {node}
    for one in made:
        is_little = _is_joined(one) or is_pointwise_call(one) or _is(one, "wait_tensor")
        if not is_little or not made.issuperset(set(one.all_input_nodes) - {node}):
            return False
    return bool(made)


def _end_before(graph: AtenGraph, place: Node, node: Node) -> None:
    """Moves all that is made of a reduction to a place, unless something acts in between."""
    places = order_of(graph.graph)
    for other in graph.graph.nodes:
        is_between = places[node] < places[other] < places[place]
        if is_between and has_effect(other.target) and not communicates(other.target):
            return
    for one in sorted(reached_from([node]) - {node}, key=places.__getitem__):
        place.prepend(one)
