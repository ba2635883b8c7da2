"""Sums as gradients are made of: of matrix products, and of what was written at places with something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import run_fake

aten = torch.ops.aten
Node = torch.fx.Node

_FULL_PRECISION = (torch.float32, torch.float64)  # halves would be rounded at other places


def accumulate(graph: AtenGraph) -> None:
    """What is added up in memory of its own is added where the rest of the sum lies."""
    for node in list(graph.graph.nodes):
        if _is_sum(node) and not any(_is_sum(user) and len(node.users) == 1 for user in node.users):
            _join_products(graph, node)
    for node in list(graph.graph.nodes):
        if _is_sum(node):
            _write_into(graph, node)


def _is_sum(node: Node) -> bool:
    """Whether a node is the sum of two tensors of its own sizes and type."""
    if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(a, Node) for a in node.args):
        return False
    values = [n.meta["val"] for n in (node, *node.all_input_nodes)]
    return values[0].dtype in _FULL_PRECISION and all(
        v.dtype is values[0].dtype and list(map(str, v.shape)) == list(map(str, values[0].shape)) for v in values
    )


# -- products ----------------------------------------------------------------------------------------------------------


def _join_products(graph: AtenGraph, root: Node) -> None:
    """a @ b + c @ d as [a c] @ [b; d], where that moves less memory: the gradient of a weight that is used at each step
    of a recurrence."""
    terms = list(_terms(root))
    products = [t for t in terms if t.target is aten.mm.default and len(t.users) == 1]
    if len(products) < 2 or not _worth_joining(products):
        return
    with graph.graph.inserting_before(root):
        left = _joined(graph, [p.args[0] for p in products], 1, root)
        right = _joined(graph, [p.args[1] for p in products], 0, root)
        total = _call(graph, aten.mm.default, (left, right), root)
        for term in terms:
            if term not in products:
                total = _call(graph, aten.add.Tensor, (total, term), root)
    root.replace_all_uses_with(total)
    _erase_sum(graph, root, products)


def _terms(node: Node) -> Iterator[Node]:
    """What a sum, and the sums that nobody else reads in it, add up, in order."""
    stack: list[Any] = [node]
    while stack:
        term = stack.pop()
        if term is node or (_is_sum(term) and len(term.users) == 1):
            stack += reversed(term.args)
        else:
            yield term


def _worth_joining(products: list[Node]) -> bool:
    """Whether the factors are smaller than the results that would be added."""
    rows, columns = products[0].meta["val"].shape
    inner = sum(p.args[0].meta["val"].shape[1] for p in products)  # type: ignore[union-attr]
    known = all(isinstance(n, int) for n in (rows, columns, inner))
    return known and 2 * inner * (rows + columns) <= len(products) * rows * columns


def _joined(graph: AtenGraph, parts: list[Any], dim: int, root: Node) -> Node:
    """The matrices side by side, or one above the other; transposes are left to the end."""
    if all(p.target is aten.t.default for p in parts):
        whole = _joined(graph, [p.args[0] for p in parts], 1 - dim, root)
        return _call(graph, aten.t.default, (whole,), root)
    return _call(graph, aten.cat.default, (parts, dim), root)


def _erase_sum(graph: AtenGraph, root: Node, products: list[Node]) -> None:
    """Remove a sum that nobody reads any more, the sums in it and its products."""
    stack = [root]
    while stack:
        node = stack.pop()
        if not node.users and (node is root or _is_sum(node) or node in products):
            stack += node.all_input_nodes
            graph.graph.erase_node(node)


# -- places ------------------------------------------------------------------------------------------------------------


def _write_into(graph: AtenGraph, node: Node) -> None:
    """x + zeros.index_put(places, values, accumulate=True) as x.index_put(...): the gradient of an embedding whose
    weight is used elsewhere too."""
    for k in (0, 1):
        written, other = node.args[k], node.args[1 - k]
        assert isinstance(written, Node)
        if written.target is not aten.index_put.default or len(written.users) > 1 or written is other:
            continue
        start, *rest = written.args
        if _is_zero(start) and rest[-1] is True:
            with graph.graph.inserting_before(node):
                total = _call(graph, aten.index_put.default, (other, *rest), node)
            total.meta.update({key: value for key, value in written.meta.items() if key == "may_raise"})
            node.replace_all_uses_with(total)
            graph.graph.erase_node(node)
            graph.graph.erase_node(written)
            return


def _is_zero(node: Any) -> bool:
    return node.target is aten.zeros.default or (node.target is aten.full.default and node.args[1] == 0)


def _call(graph: AtenGraph, op: Any, args: Any, like: Node) -> Node:
    node = graph.graph.call_function(op, args)
    node.meta["val"] = run_fake(op, torch.fx.map_arg(args, lambda n: n.meta["val"]), {})
    node.meta["where"] = like.meta.get("where", "")
    return node
