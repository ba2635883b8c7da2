"""Sums of what was written at places with something else: written into the rest of the sum. Sums
over the rows of what was joined: of each piece."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fake_ops import run_fake
from ingot.graph.nodes import fake_result
from ingot.torch_private import aten

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_FULL_PRECISION = (torch.float32, torch.float64)  # halves would be rounded at other places


def write_into_sums(graph: AtenGraph) -> None:
    """What is added up in memory of its own is added where the rest of the sum lies."""
    for node in list(graph.graph.nodes):
        if is_sum_of_tensors(node):
            _write_into(graph, node)


def is_sum_of_tensors(node: Node) -> bool:
    """Whether a node is the sum of two tensors of its own sizes and type, in full precision."""
    if node.target is not aten.add.Tensor or node.kwargs:
        return False
    if not all(isinstance(a, Node) for a in node.args):
        return False
    value = fake_result(node)
    if value.dtype not in _FULL_PRECISION:
        return False
    sizes = list(map(str, value.shape))
    for other in map(fake_result, node.all_input_nodes):
        if other.dtype is not value.dtype or list(map(str, other.shape)) != sizes:
            return False
    return True


def _write_into(graph: AtenGraph, node: Node) -> None:
    """x + zeros.index_put(places, values, accumulate=True) as x.index_put(...): the gradient of an
    embedding whose weight is used elsewhere too."""
    for k in (0, 1):
        written, other = node.args[k], node.args[1 - k]
        assert isinstance(written, Node)
        if written.target is not aten.index_put.default or written is other:
            continue
        if len(written.users) > 1:
            continue
        start, *rest = written.args
        if _is_zero(start) and rest[-1] is True:
            with graph.graph.inserting_before(node):
                total = _call(graph, aten.index_put.default, (other, *rest), node)
            if "may_raise" in written.meta:
                total.meta["may_raise"] = written.meta["may_raise"]
            graph.replace(node, total)
            graph.graph.erase_node(written)
            return


def sum_pieces(graph: AtenGraph) -> None:
    """On a GPU, the sum over the rows of joined columns becomes the joined sums of the pieces. The
    kernels that read the pieces can compute these: the gradient of the bias of a projection that
    makes queries, keys and values."""
    for node in list(graph.graph.nodes):
        if node.target is aten.sum.dim_IntList and fake_result(node).device.type == "cuda":
            _sum_pieces(graph, node)


def _sum_pieces(graph: AtenGraph, node: Node) -> None:
    joined: Any = node.args[0]
    dims: Any = node.args[1]
    rank = fake_result(joined).ndim
    if rank < 2 or not isinstance(dims, (list, tuple)):
        return
    if sorted(d % rank for d in dims) != list(range(rank - 1)):
        return  # of one dimension, none means all
    while joined.target is aten.view.default and _last(joined) == _last(joined.args[0]):
        joined = joined.args[0]
    whole = fake_result(joined)
    if joined.target is not aten.cat.default or whole.ndim < 2 or whole.dtype not in _FLOATS:
        return
    pieces, *dim = joined.args
    if not dim or dim[0] % whole.ndim != whole.ndim - 1:
        return
    if not all(_is_alike(fake_result(piece), whole) for piece in pieces):
        return
    with graph.graph.inserting_before(node):
        over = list(range(whole.ndim - 1))
        sums = []
        for p in pieces:
            sums.append(_call(graph, aten.sum.dim_IntList, (p, over), node, node.kwargs))
        total = _call(graph, aten.cat.default, (sums, 0), node)
        if fake_result(total).ndim != fake_result(node).ndim:
            total = _call(graph, aten.view.default, (total, list(fake_result(node).shape)), node)
    graph.replace(node, total)


def _last(node: Node) -> Any:
    return fake_result(node).shape[-1]


def _is_alike(piece: Any, whole: Any) -> bool:
    # empty pieces may have one dimension
    return piece.dtype is whole.dtype and piece.ndim == whole.ndim


def _is_zero(node: Any) -> bool:
    if node.target is aten.full.default:
        return bool(node.args[1] == 0)
    return node.target is aten.zeros.default


def _call(graph: AtenGraph, op: Any, args: Any, like: Node, kwargs: Any = None) -> Node:
    kwargs = dict(kwargs or {})
    node = graph.graph.call_function(op, args, kwargs)
    node.meta["val"] = run_fake(op, torch.fx.map_arg(args, fake_result), kwargs)
    node.meta["where"] = like.meta.get("where", "")
    return node
