"""What a backward computes of one number, ahead of it: the gradients of a loss.

A backward is linear in its tangents. Where a part of it depends on a single tangent, of one
element, that part can be computed with 1 in the tangent's place before the tangent is known: in the
forward, beside what it is made of. The backward multiplies by the tangent. This is done where the
forward then keeps no more than it would, and writes no more for the backward alone: it writes the
scores' gradient where it wrote their softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.passes.ownership import is_view
from ingot.torch_private import OpOverload, aten

_WIDE = (torch.float32, torch.float64)  # of halves, what a tangent scales would not stay in range
LEAST = 1 << 14  # elements of a result that is worth it


def parts_of(whole: AtenGraph, tangent: Node) -> list[Node]:
    """The large values that depend on `tangent` by nothing but operations that are linear in it,
    and that something else reads or the graph returns, in order. None where others are views of
    them."""
    value = tangent.meta["val"]
    if value.dtype not in _WIDE or value.dim():
        return []
    linear, reached = {tangent}, {tangent}
    for node in whole.graph.nodes:
        of_tangent = reached.intersection(node.all_input_nodes)
        if of_tangent:
            reached.add(node)
            if of_tangent <= linear and node.op == "call_function" and _is_linear(node, linear):
                linear.add(node)
    found = []
    for node in whole.graph.nodes:
        if (
            node in linear
            and node is not tangent
            and any(user not in linear for user in node.users)
        ):
            if any(not isinstance(size, int) for size in node.meta["val"].shape):
                return []
            if math.prod(node.meta["val"].shape) >= LEAST:
                found.append(node)
    return found


def compute_ahead(whole: AtenGraph, tangent: Node, parts: Sequence[Node]) -> list[Node]:
    """Makes each of `parts` the product of the tangent and of what it would be if that were 1.
    Returns the latter."""
    graph, needed = whole.graph, _behind(tangent, parts)
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        one = graph.call_function(
            aten.scalar_tensor.default,
            (1.0,),
            {
                "dtype": tangent.meta["val"].dtype,
                "layout": torch.strided,
                "device": tangent.meta["val"].device,
            },
        )
    one.meta.update(val=tangent.meta["val"], where="")
    ahead: dict[Node, Node] = {tangent: one}
    for node in list(graph.nodes):
        if node in needed:
            with graph.inserting_before(node):
                ahead[node] = graph.node_copy(node, lambda n: ahead.get(n, n))
    for part in parts:
        readers = [user for user in part.users if user not in needed]
        with graph.inserting_before(part):
            scaled = _scaled(graph, ahead[part], tangent)
        for reader in readers:
            reader.replace_input_with(part, scaled)
    for node in reversed([node for node in graph.nodes if node in needed]):
        if not node.users:
            graph.erase_node(node)
    return [ahead[part] for part in parts]


def _scaled(graph: Graph, value: Node, tangent: Node) -> Node:
    """What is 0 stays so, whatever the tangent: rows that a loss leaves out."""
    product = graph.call_function(aten.mul.Tensor, (value, tangent))
    product.meta.update(value.meta)
    fake = value.meta["val"]
    is_zero = graph.call_function(aten.eq.Scalar, (value, 0))
    is_zero.meta.update(value.meta, val=FakeTensor(fake.meta.to(torch.bool), fake.device))
    chosen = graph.call_function(aten.where.self, (is_zero, value, product))
    chosen.meta.update(value.meta)
    return chosen


def _behind(tangent: Node, parts: Sequence[Node]) -> set[Node]:
    """What depends on the tangent, of all that the parts are made of."""
    reached = {tangent}
    graph: Graph = tangent.graph
    for node in graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    found: set[Node] = set()
    stack = list(parts)
    while stack:
        node = stack.pop()
        if node in reached and node is not tangent and node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


# -- what is linear --------------------------------------------------------------------------------


def _is_linear(node: Node, linear: Container[Node]) -> bool:
    """Whether a node is linear in those of its arguments that are `linear`, with 0 where these are
    0."""
    value = node.meta["val"]
    if (
        not isinstance(node.target, OpOverload)
        or not isinstance(value, torch.Tensor)
        or value.dtype not in _WIDE
    ):
        return False
    if is_view(node) or node.target in _BY_FIRST:
        return node.args[0] in linear and not any(
            n in linear for n in node.all_input_nodes if n is not node.args[0]
        )
    rule = _RULES.get(node.target)
    return rule is not None and rule(node.args, linear)


def _is_zero(argument: Any) -> bool:
    if not isinstance(argument, Node):
        return argument == 0
    values: dict[Any, int] = {aten.scalar_tensor.default: 0, aten.full.default: 1}
    place = values.get(argument.target)
    return place is not None and bool(argument.args[place] == 0)


def _product(args: Sequence[Any], linear: Container[Node]) -> bool:
    return (args[0] in linear) != (args[1] in linear)


def _quotient(args: Sequence[Any], linear: Container[Node]) -> bool:
    return args[0] in linear and args[1] not in linear


def _sum(args: Sequence[Any], linear: Container[Node]) -> bool:
    return args[0] in linear and args[1] in linear


def _choice(args: Sequence[Any], linear: Container[Node]) -> bool:
    return args[0] not in linear and all(a in linear or _is_zero(a) for a in args[1:])


_BY_FIRST = {
    aten.neg.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.clone.default,
    aten._to_copy.default,
}

_RULES: dict[OpOverload, Callable[[Sequence[Any], Container[Node]], bool]] = {
    aten.mul.Tensor: _product,
    aten.div.Tensor: _quotient,
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _sum,
    aten.where.self: _choice,
}
