"""Sums of rows of which all elements but one are zero: the gradient of a loss by classes, summed
for the softmax's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.nodes import add_call, fake_result
from ingot.torch_private import aten

_VIEWS = {aten.view.default, aten.unsqueeze.default, aten.expand.default}


def sum_one_hot(graph: AtenGraph) -> None:
    """sum(where(arange(n) == i, x, 0), dim, keepdim=True) becomes where(0 <= i < n, x, 0), for i
    and x of size 1 along dim. The condition may ask more that does not vary along dim, and what is
    summed be of a wider type."""
    for node in list(graph.graph.nodes):
        match = None
        if node.target is aten.sum.dim_IntList:
            match = _match(node)
        if match is not None:
            _replace(graph, node, match)


@dataclass(frozen=True)
class _Match:
    """What is known of such a sum: i, n, further conditions, x and the zero."""

    index: Node
    count: int
    conditions: list[Node]
    x: Node
    zero: Node


def _match(node: Node) -> _Match | None:
    operand: Any = node.args[0]
    dims: Any = node.args[1]
    if fake_result(operand).dtype != fake_result(node).dtype:
        return None
    if len(dims) != 1 or len(node.args) < 3 or not node.args[2]:
        return None
    if operand.target is aten._to_copy.default and operand.kwargs.get("dtype") is not None:
        operand = operand.args[0]
    if operand.target is not aten.where.self:
        return None
    condition, x, zero = operand.args
    rank = fake_result(operand).dim()
    if rank == 0:  # which may be summed along a dimension all the same
        return None
    dim = dims[0] % rank - rank
    if condition.target is aten.logical_and.default:
        hit, *more = condition.args
    else:
        hit, *more = (condition,)
    if hit.target is not aten.eq.Tensor or not _is_zero(zero):
        return None
    classes, index = hit.args
    count = _counted(classes, dim)
    if count is None or not all(_is_one_along(value, dim) for value in (index, x, *more)):
        return None
    if any(fake_result(value).dtype is not torch.int64 for value in hit.args):  # may be rounded
        return None
    sizes = _broadcast((index, x, zero, *more))
    if sizes != tuple(fake_result(node).shape):
        return None
    return _Match(index, count, more, x, zero)


def _broadcast(nodes: Iterable[Node]) -> tuple[Any, ...]:
    """The common sizes of some nodes."""
    return geometry.broadcast(*(fake_result(node).shape for node in nodes))


def _counted(node: Node, dim: int) -> int | None:
    """n, if a node is 0, ..., n - 1 along a dimension."""
    value: torch.Tensor = fake_result(node)
    while node.target in _VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    if node.target is not aten.arange.default:
        return None
    count = node.args[0]
    if not isinstance(count, int) or geometry.has_symbols(value.shape):
        return None
    fits = value.dim() >= -dim and value.shape[dim] == value.numel() == count
    return count if fits else None


def _is_one_along(node: Node, dim: int) -> bool:
    value: torch.Tensor = fake_result(node)
    known = not geometry.has_symbols(value.shape)
    return known and (value.dim() < -dim or value.shape[dim] == 1)


def _is_zero(node: Any) -> bool:
    return node.target in (aten.scalar_tensor.default, aten.full.default) and node.args[-1] == 0


def _replace(graph: AtenGraph, node: Node, match: _Match) -> None:
    total: FakeTensor = fake_result(node)
    dtype = fake_result(match.x).dtype

    def call(op: Any, *args: Any) -> Node:
        call = add_call(graph.graph, op, args, {"where": node.meta["where"]})
        sizes = _broadcast(call.all_input_nodes)
        call.meta["val"] = new_fake(sizes, total, dtype=torch.bool)
        return call

    with graph.graph.inserting_before(node):
        holds = call(aten.ge.Scalar, match.index, 0)
        for condition in (call(aten.lt.Scalar, match.index, match.count), *match.conditions):
            holds = call(aten.logical_and.default, holds, condition)
        result = call(aten.where.self, holds, match.x, match.zero)
        result.meta["val"] = new_fake(fake_result(result).shape, total, dtype=dtype)
        if dtype != total.dtype:
            result = graph.graph.call_function(
                aten._to_copy.default, (result,), {"dtype": total.dtype}
            )
    result.meta.update(node.meta)
    graph.replace(node, result)
