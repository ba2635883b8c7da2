"""Linear layers: a product with a transposed weight, and the views around it, as one `aten.linear`
of the weight itself."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.nodes import add_call, fake_result, only_user
from ingot.torch_private import aten


def recognize_linear(graph: AtenGraph) -> None:
    """mm(x, t(w)) and addmm(b, x, t(w)), with the views that flatten x and unflatten the result,
    become linear(x, w, b)."""
    for node in list(graph.graph.nodes):
        if _batched(graph, node):
            continue
        match = _match(node)
        if match is None:
            continue
        x, weight, bias = match
        replaced = node
        flattened = _unflattened(x)
        if flattened is not None:
            unflattened = _unflattening_user(node, flattened)
            if unflattened is not None:
                x, replaced = flattened, unflattened
        with graph.graph.inserting_before(node):
            args = (x, weight) if bias is None else (x, weight, bias)
            where = node.meta["where"] or replaced.meta["where"]
            linear = add_call(graph.graph, aten.linear.default, args, replaced.meta, where=where)
        graph.replace(replaced, linear)
        if replaced is not node:
            graph.graph.erase_node(node)


def _match(node: Node) -> tuple[Node, Node, Any] | None:
    """(x, weight, bias or None) of a product with a transposed matrix that `linear` computes
    alike."""
    if node.target is aten.mm.default:
        x, right, bias = node.args[0], node.args[1], None
    elif node.target is aten.addmm.default and not node.kwargs:
        bias, x, right = node.args[:3]
        if fake_result(bias).dim() != 1:  # type: ignore[union-attr]
            return None
    else:
        return None
    weight = transposed(right)
    return None if weight is None else (x, weight, bias)  # type: ignore[return-value]


def _batched(graph: AtenGraph, node: Node) -> bool:
    """bmm(x, expand(t(w))) (+ b) becomes linear(x, w, b): eager's linear layer over rows that are
    not contiguous. Whether it was that."""
    if node.target is not aten.bmm.default:
        return False
    x, right = node.args
    repeats = right.target is aten.expand.default and fake_result(right.args[0]).dim() == 2  # type: ignore[union-attr]
    weight = transposed(right.args[0]) if repeats else None  # type: ignore[union-attr]
    value = fake_result(x)  # type: ignore[union-attr]
    if weight is None or not (str(value.shape[0]) == "1" or geometry.surely_contiguous(value)):
        return False  # the rows of several batches are no matrix
    replaced, args = node, [x, weight]
    user = only_user(node)
    if user is not None and user.target is aten.add.Tensor and not user.kwargs:
        first, bias = user.args
        if first is node and _is_bias(bias, fake_result(node)):
            replaced, args = user, [*args, bias]
    with graph.graph.inserting_before(replaced):
        linear = add_call(graph.graph, aten.linear.default, tuple(args), replaced.meta)
    replaced.replace_all_uses_with(linear)
    for old in dict.fromkeys((replaced, node)):
        graph.graph.erase_node(old)
    return True


def _is_bias(node: Any, result: Any) -> bool:
    if not isinstance(node, Node):
        return False
    bias = fake_result(node)
    if bias.dim() != 1 or bias.dtype != result.dtype:
        return False
    return str(bias.shape[0]) == str(result.shape[-1])


def swaps_dims(node: Any, rank: int, first: int, second: int) -> bool:
    """Whether a node swaps two dimensions of a tensor of this rank."""
    if node.target is aten.t.default:
        return rank == 2
    if node.target is aten.transpose.int:
        return {dim % rank for dim in node.args[1:]} == {first, second}
    order = list(range(rank))
    order[first], order[second] = second, first
    return node.target is aten.permute.default and [dim % rank for dim in node.args[1]] == order


def transposed(node: Any) -> Node | None:
    """The matrix that a node is the transpose of."""
    if swaps_dims(node, 2, 0, 1) and fake_result(node.args[0]).dim() == 2:
        return node.args[0]
    return None


def _unflattened(x: Node) -> Node | None:
    """What x is a view(-1, features) of, if it is one of a contiguous tensor."""
    if x.target is not aten.view.default:
        return None
    source = x.args[0]
    assert isinstance(source, Node)
    value: FakeTensor = fake_result(source)
    keeps = value.dim() > 2 and str(value.shape[-1]) == str(fake_result(x).shape[-1])
    if keeps and geometry.surely_contiguous(value):
        return source
    return None


def _unflattening_user(node: Node, source: Node) -> Node | None:
    """The only user of the product, if it gives it the leading sizes of `source` again."""
    user = only_user(node)
    if user is None or user.target is not aten.view.default:
        return None
    lead, value = fake_result(source).shape[:-1], fake_result(user)
    if list(map(str, value.shape[:-1])) == list(map(str, lead)):
        return user
    return None
