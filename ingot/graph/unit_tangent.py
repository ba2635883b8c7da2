"""The part of a backward that depends on one number, a loss's tangent, computed in the forward.

A joint graph and its tangent go in; the values come out that the forward is to save. A backward is
linear in its tangents. A part of it that depends on a single tangent, of one element, can be
computed with 1 in the tangent's place before the tangent is known: in the forward, beside what it
is computed from. The backward multiplies by the tangent. This is done where the forward then saves
no more than it would, and writes no more for the backward alone: it writes the scores' gradient
where it wrote their softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.geometry import has_symbols
from ingot.graph.nodes import add_call, ancestors, fake_result, placeholders_of, reached_from
from ingot.graph.passes.ownership import is_view
from ingot.sequences import at
from ingot.torch_private import OpOverload, aten

_WIDE = (torch.float32, torch.float64)  # halves that a tangent scales would not stay in range
LEAST = 1 << 14  # elements of a result that is worth it


def linear_values(whole: AtenGraph, tangent: Node) -> list[Node]:
    """The large values that are linear in `tangent`, and that something else reads or the graph
    returns, in order. None where sizes are symbols."""
    value = fake_result(tangent)
    if value.dtype not in _WIDE or value.dim():
        return []
    linear = _linear_in(whole, tangent)
    large = []
    for node in whole.graph.nodes:
        if node is tangent or node not in linear or linear.issuperset(node.users):
            continue
        shape = fake_result(node).shape
        if has_symbols(shape):
            return []
        if math.prod(shape) >= LEAST:
            large.append(node)
    return large


def _linear_in(whole: AtenGraph, tangent: Node) -> set[Node]:
    """The nodes that are linear in `tangent`, with all between."""
    linear, reached = {tangent}, {tangent}
    for node in whole.graph.nodes:
        of_tangent = reached.intersection(node.all_input_nodes)
        if of_tangent:
            reached.add(node)
            if of_tangent <= linear and node.op == "call_function" and _is_linear(node, linear):
                linear.add(node)
    return linear


def compute_ahead(whole: AtenGraph, tangent: Node, values: Sequence[Node]) -> list[Node]:
    """Makes each of `values` the product of the tangent and of what it would be if that were 1.
    Returns the latter."""
    graph = whole.graph
    needed = reached_from([tangent]) & ancestors(values) - {tangent}
    ahead: dict[Node, Node] = {tangent: _one(graph, tangent)}
    for node in list(graph.nodes):
        if node in needed:
            with graph.inserting_before(node):
                ahead[node] = graph.node_copy(node, lambda n: ahead.get(n, n))
    for value in values:
        readers = []
        for user in value.users:
            if user not in needed:
                readers.append(user)
        with graph.inserting_before(value):
            scaled = _scaled(graph, ahead[value], tangent)
        for reader in readers:
            reader.replace_input_with(value, scaled)
    for node in reversed(graph.nodes):
        if node in needed and not node.users:
            graph.erase_node(node)
    return at(ahead, values)


def _one(graph: Graph, tangent: Node) -> Node:
    """A new node with the value 1, like the tangent."""
    value: torch.Tensor = fake_result(tangent)
    kind: dict[str, Any] = {"dtype": value.dtype, "layout": torch.strided, "device": value.device}
    with graph.inserting_after(placeholders_of(graph)[-1]):
        one = graph.call_function(aten.scalar_tensor.default, (1.0,), kind)
    one.meta.update(val=value, where="")
    return one


def _scaled(graph: Graph, value: Node, tangent: Node) -> Node:
    """The product with the tangent, and 0 where the value is 0, whatever the tangent: rows that a
    loss leaves out."""
    product = add_call(graph, aten.mul.Tensor, (value, tangent), value.meta)
    fake = fake_result(value)
    mask = FakeTensor(fake.meta.to(torch.bool), fake.device)
    is_zero = add_call(graph, aten.eq.Scalar, (value, 0), value.meta, val=mask)
    return add_call(graph, aten.where.self, (is_zero, value, product), value.meta)


# -- what is linear --------------------------------------------------------------------------------


def _is_linear(node: Node, linear: Container[Node]) -> bool:
    """Whether a node is linear in those of its arguments that are `linear`, with 0 where these are
    0."""
    value = fake_result(node)
    if not isinstance(node.target, OpOverload) or not isinstance(value, torch.Tensor):
        return False
    if value.dtype not in _WIDE:
        return False
    if is_view(node) or node.target in _BY_FIRST:
        return [a for a in node.all_input_nodes if a in linear] == [node.args[0]]
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
