"""Sums of rows of which all elements but one are zero: the gradient of a loss by classes, summed
for the softmax's."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.torch_private import aten

_VIEWS = {aten.view.default, aten.unsqueeze.default, aten.expand.default}


def sum_one_hot(graph: AtenGraph) -> None:
    """sum(where(arange(n) == i, x, 0), dim, keepdim=True), for i and x of size 1 along dim, is x
    where i is one of 0, ..., n - 1, and else 0. The condition may ask more that does not vary along
    dim, and what is summed be of a wider type."""
    for node in list(graph.graph.nodes):
        found = _match(node) if node.target is aten.sum.dim_IntList else None
        if found is not None:
            _replace(graph.graph, node, *found)


def _match(node: Node) -> tuple[Node, int, list[Node], Node, Node] | None:
    """(i, n, what else is asked, x, the zero) of such a sum."""
    chosen: Any = node.args[0]
    dims: Any = node.args[1]
    same = chosen.meta["val"].dtype == node.meta["val"].dtype
    if chosen.target is aten._to_copy.default and chosen.kwargs.get("dtype") is not None:
        chosen = chosen.args[0]
    if (
        not same
        or chosen.target is not aten.where.self
        or len(dims) != 1
        or len(node.args) < 3
        or not node.args[2]
    ):
        return None
    condition, x, otherwise = chosen.args
    rank = chosen.meta["val"].dim()
    if rank == 0:  # which may be summed along a dimension all the same
        return None
    dim = dims[0] % rank - rank
    hit, *more = condition.args if condition.target is aten.logical_and.default else (condition,)
    if hit.target is not aten.eq.Tensor or not _is_zero(otherwise):
        return None
    classes, index = hit.args
    count = _counted(classes, dim)
    exact = {value.meta["val"].dtype for value in hit.args} == {torch.int64}  # nothing is rounded
    if (
        count is None
        or not exact
        or not all(_is_one_along(value, dim) for value in (index, x, *more))
    ):
        return None
    sizes = geometry.broadcast(*(value.meta["val"].shape for value in (index, x, otherwise, *more)))
    return (
        (index, count, more, x, otherwise)
        if tuple(sizes) == tuple(node.meta["val"].shape)
        else None
    )


def _counted(node: Node, dim: int) -> int | None:
    """n, if a node is 0, ..., n - 1 along a dimension."""
    value: torch.Tensor = node.meta["val"]
    while node.target in _VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    if node.target is not aten.arange.default:
        return None
    count = node.args[0]
    if not isinstance(count, int) or not all(isinstance(size, int) for size in value.shape):
        return None
    fits = value.dim() >= -dim and value.shape[dim] == value.numel() == count
    return count if fits else None


def _is_one_along(node: Node, dim: int) -> bool:
    value: torch.Tensor = node.meta["val"]
    known = all(isinstance(size, int) for size in value.shape)
    return known and (value.dim() < -dim or value.shape[dim] == 1)


def _is_zero(node: Any) -> bool:
    return node.target in (aten.scalar_tensor.default, aten.full.default) and node.args[-1] == 0


def _replace(
    graph: torch.fx.Graph,
    node: Node,
    index: Node,
    count: int,
    more: list[Node],
    x: Node,
    otherwise: Node,
) -> None:
    def call(op: Any, *args: Any) -> Node:
        made = graph.call_function(op, args)
        sizes = geometry.broadcast(
            *(arg.meta["val"].shape for arg in args if isinstance(arg, Node))
        )
        dtype = x.meta["val"].dtype if op is aten.where.self else torch.bool
        meta = torch.empty(sizes, dtype=dtype, device="meta")
        made.meta.update(val=FakeTensor(meta, node.meta["val"].device), where=node.meta["where"])
        return made

    with graph.inserting_before(node):
        holds = call(aten.ge.Scalar, index, 0)
        for asked in (call(aten.lt.Scalar, index, count), *more):
            holds = call(aten.logical_and.default, holds, asked)
        result = call(aten.where.self, holds, x, otherwise)
        if x.meta["val"].dtype != node.meta["val"].dtype:
            result = graph.call_function(
                aten._to_copy.default, (result,), {"dtype": node.meta["val"].dtype}
            )
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
