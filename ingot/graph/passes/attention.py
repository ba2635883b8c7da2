"""Attention written out: two batched products with a scaled, masked softmax between them become one
`ingot.attention`.

What is recognized is the structure, from the softmax outwards, with whatever reshapes and copies
`matmul`, `einsum` or the program put between. Nothing of it may be used elsewhere: probabilities
that are returned, say, are computed as they are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.nodes import add_call, fake_result, only_user
from ingot.graph.passes.linear import swaps_dims
from ingot.loops.own_ops import attention
from ingot.torch_private import aten

_STRIDED = {
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
    aten.permute.default, aten.transpose.int,
}  # fmt: skip
# where the argument and the result are contiguous
_REORDERS_NOTHING = {aten.view.default, aten._unsafe_view.default, aten.clone.default}
_SCALES: dict[Any, Callable[[float], float]] = {
    aten.mul.Tensor: lambda number: number,
    aten.mul.Scalar: lambda number: number,
    aten.div.Tensor: lambda number: 1 / number,
    aten.div.Scalar: lambda number: 1 / number,
}
_THROUGH = {
    *_SCALES,
    *_STRIDED,
    *_REORDERS_NOTHING,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
}
_NUMBERS = {aten.full.default: 1, aten.scalar_tensor.default: 0}  # the position of the number


def recognize_attention(graph: AtenGraph) -> None:
    """Replace each written-out attention in float32, of sizes that are known."""
    for node in list(graph.graph.nodes):
        softmax = softmax_input(node)
        if softmax is not None:
            _Match(graph, node, *softmax).replace()


def softmax_input(node: Node) -> tuple[Node, bool] | None:
    """(x, whether a row of -inf gives zeros) where the node is softmax(x, -1) of nothing else's
    use."""
    if node.target is aten._safe_softmax.default and _is_last(node, node.args[1]):
        x = _node(node.args[0])
        if len(x.users) == 1:
            return (x, True)
        return None
    weights, total = _quotient(node)
    if not (_is(weights, aten.exp.default, 2) and _is(total, aten.sum.dim_IntList, 1)):
        return None
    shifted = _node(_node(weights).args[0])
    if _node(total).args[0] is not weights or not keeps_last(_node(total)):
        return None
    if not _is(shifted, aten.sub.Tensor, 1) or shifted.kwargs:
        return None
    x, largest = _node(shifted.args[0]), shifted.args[1]
    if not _is(largest, aten.amax.default, 1) or not keeps_last(_node(largest)):
        return None
    if _node(largest).args[0] is not x or len(x.users) != 2:
        return None
    return x, False


def _quotient(node: Node) -> tuple[Any, Any]:
    """(a, b) where the node is a / b or a times b's reciprocal, else Nones."""
    if node.target is aten.div.Tensor:
        return node.args[0], node.args[1]
    if node.target is aten.mul.Tensor and _is(node.args[1], aten.reciprocal.default, 1):
        return node.args[0], _node(node.args[1]).args[0]
    return None, None


def _node(value: Any) -> Node:
    assert isinstance(value, Node)
    return value


def _is(value: Any, target: Any, users: int) -> bool:
    return isinstance(value, Node) and value.target is target and len(value.users) == users


def _is_last(node: Node, dim: Any) -> bool:
    return dim in (-1, _value(node).dim() - 1)


def keeps_last(node: Node) -> bool:
    """Whether a reduction is over the last dimension alone, and keeps it."""
    if len(node.args) != 3 or node.args[2] is not True or node.kwargs:
        return False
    dims = node.args[1]
    if not isinstance(dims, (list, tuple)) or len(dims) != 1:
        return False
    return _is_last(_node(node.args[0]), dims[0])


def _value(node: Node) -> FakeTensor:
    return fake_result(node)


def _plain(node: Any, rank: int | None = None) -> bool:
    """Whether a node is a float32 tensor of static sizes on a CPU, of this rank."""
    value = None
    if isinstance(node, Node):
        value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or value.dtype is not torch.float32:
        return False
    if value.device.type != "cpu" or rank is not None and value.dim() != rank:
        return False
    return geometry.is_static(value) and 0 not in value.shape


class _Fill(NamedTuple):
    """A number that replaces scores: where a condition holds, or, `inverted`, where it does not."""

    condition: Node
    number: float
    inverted: bool = False


@dataclass
class _Mask:
    """What is added to scores, or replaces them: the leading sizes of these, and their rows."""

    node: Node
    rank: int
    split: tuple[int, ...]
    rows: int
    fill: _Fill | None = None


class _Match:
    """One softmax, and the operations around it that attention consists of."""

    def __init__(self, graph: AtenGraph, softmax: Node, scores: Node, zero_rows: bool) -> None:
        self.graph, self.softmax, self.scores, self.zero_rows = graph, softmax, scores, zero_rows
        self.scale = 1.0
        self.masks: list[_Mask] = []

    def replace(self) -> None:
        product = self.second_product()
        if product is None or not self.first_product(self.scores):
            return
        operands = [self.query, self.key, _node(product.args[1])]
        if not all(_plain(n, 3) for n in operands):
            return
        if not self.rows_agree(_value(_node(product.args[0])).shape):
            return
        with self.graph.graph.inserting_before(product):
            arguments = self.arguments(operands)
            batch, heads, queries = _value(arguments[0]).shape[:3]
            width = _value(arguments[2]).shape[3]
            last, heads_last = self.result(product, (batch, heads, queries, width))
            sizes: tuple[int, ...] = batch * heads, queries, width
            if heads_last:
                sizes = batch, queries, heads, width
            args = (*arguments, self.scale, self.replaces, self.zero_rows, heads_last)
            meta = {"val": _float_fake(sizes), "where": product.meta["where"]}
            node = add_call(self.graph.graph, attention, args, meta)
        last.replace_all_uses_with(node)
        self.graph.graph.erase_node(last)

    def rows_agree(self, weights: Any) -> bool:
        """Whether a row of the softmax, of the mask and of both products is the same. There must be
        more than one, as nothing shares the keys that are loaded for one."""
        count, queries, keys = *_value(self.query).shape[:2], _value(self.key).shape[2]
        for mask in self.masks:
            if (math.prod(mask.split), mask.rows) != (count, queries):
                return False
        if queries <= 1 or _value(self.scores).shape[-1] != keys:
            return False
        return bool(weights == (count, queries, keys))

    # -- what follows the softmax ------------------------------------------------------------------

    def second_product(self) -> Node | None:
        """The batched product that the probabilities go into, reshaped at most."""
        node = self.softmax
        while _plain(node):
            user = only_user(node)
            if user is None:
                return None
            if user.target is aten.bmm.default and user.args[1] is not node:
                if geometry.surely_contiguous(_value(node)):
                    return user
                return None
            if not _keeps_order(user):
                return None
            node = user
        return None

    def result(self, product: Node, shape: tuple[int, ...]) -> tuple[Node, bool]:
        """(the node that the attention stands for, whether its heads lie side by side). The node is
        the product, or the copy that lays its result out so, where that is its only use."""
        split = only_user(product)
        turned = split and only_user(split)
        copy = turned and only_user(turned)
        if split is None or turned is None or copy is None:
            return product, False
        if split.target is not aten.view.default or tuple(_value(split).shape) != shape:
            return product, False
        if not swaps_dims(turned, 4, 1, 2) or copy.target is not aten.clone.default:
            return product, False
        if not geometry.surely_contiguous(_value(copy)):
            return product, False
        return copy, True

    # -- what precedes it --------------------------------------------------------------------------

    def first_product(self, node: Node) -> bool:
        """Walk from the softmax's input to the product it is made of; sets query, key (as in the
        product), scale and mask."""
        while True:
            if not _plain(node):
                return False
            if node is not self.scores and len(node.users) != 1:
                return False
            if node.target is aten.bmm.default:
                self.query, self.key = map(_node, node.args)
                return True
            if node.target is aten.baddbmm.default:
                return self.added_product(node)
            number = None
            if node.target in _SCALES:
                number = self.number(node.args[1])
            if number is not None:
                if number == 0 or not math.isfinite(number):
                    return False
                self.scale *= _SCALES[node.target](number)
                node = _node(node.args[0])
            elif node.target in _STRIDED | _REORDERS_NOTHING:
                if not _keeps_order(node) or not geometry.surely_contiguous(_value(node)):
                    return False
                node = _node(node.args[0])
            else:
                source = self.unmasked(node)
                if source is None:
                    return False
                node = source

    def added_product(self, node: Node) -> bool:
        """baddbmm(mask, query, key)."""
        added, self.query, self.key = map(_node, node.args)
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        if beta not in (0, 1) or not isinstance(alpha, (int, float)):
            return False
        if alpha == 0 or not math.isfinite(alpha):
            return False
        if beta == 1 and not self.take_mask(_Mask(added, 3, *_leading(node)), node):
            return False
        self.scale *= alpha
        return True

    def unmasked(self, node: Node) -> Node | None:
        """The scores before a mask, which is taken in."""
        if _value(node).dim() < 3:
            return None
        if node.target is aten.add.Tensor and not node.kwargs and len(node.args) == 2:
            for scores, added in (node.args, node.args[::-1]):
                if isinstance(added, Node) and _comes_from_product(scores):
                    return self.with_mask(scores, node, added, None)
        replaced = self.fill_of(node)
        if replaced is None:
            return None
        scores, fill = replaced
        if math.isnan(fill.number) or _value(fill.condition).dtype is not torch.bool:
            return None
        return self.with_mask(scores, node, fill.condition, fill)

    def with_mask(self, scores: Any, node: Node, mask: Node, fill: _Fill | None) -> Node | None:
        """The scores, if the mask that makes `node` of them can be had."""
        if _value(scores).shape != _value(node).shape:
            return None
        rank = _value(node).dim()
        if self.take_mask(_Mask(mask, rank, *_leading(node), fill), node):
            return scores
        return None

    def fill_of(self, node: Node) -> tuple[Node, _Fill] | None:
        """(scores, their fill) where a node replaces some scores by a number."""
        inverted = False
        if node.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            scores, condition, filler = node.args
        elif node.target is aten.where.self:
            condition, filler, scores = node.args
            if _comes_from_product(filler):
                scores, filler, inverted = filler, scores, True
        else:
            return None
        number = filler
        if node.target is not aten.masked_fill.Scalar:
            number = self.number(filler)
        if not isinstance(scores, Node) or not isinstance(condition, Node):
            return None
        if not isinstance(number, (int, float)):
            return None
        return scores, _Fill(condition, float(number), inverted)

    def take_mask(self, mask: _Mask, node: Node) -> bool:
        """Whether a mask at `node` can be had: on scores that are scaled before, and of a known
        shape. Several are added; one that replaces scores must be the only one."""
        value: Any = mask.node.meta.get("val")
        if not isinstance(value, FakeTensor) or not geometry.is_static(value):
            return False
        if self.scale != 1.0 or mask.rank not in (3, 4):
            return False
        if self.masks and (self.replaces or mask.fill is not None):
            return False
        if mask.fill is None and not _plain(mask.node):
            return False
        if value.dim() > mask.rank or value.dim() == 0 or value.shape[-1] != _value(node).shape[-1]:
            return False
        self.masks.append(mask)
        return True

    def number(self, value: Any) -> float | None:
        """A number, also one in a tensor that is known to hold it."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        if not isinstance(value, Node):
            return None
        if value.op == "get_attr":
            tensor = _value(value)
            if tensor.dim() != 0 or tensor.is_complex():
                return None
            return self.graph.constants[str(value.target)].item()
        if value.target not in _NUMBERS or _value(value).dim() != 0:
            return None
        number = value.args[_NUMBERS[value.target]]
        if isinstance(number, (int, float)):
            return number
        return None

    # -- the arguments -----------------------------------------------------------------------------

    @property
    def replaces(self) -> bool:
        return any(mask.fill is not None for mask in self.masks)

    def arguments(self, operands: list[Node]) -> tuple[Node, Node, Node, Node | None]:
        """Query, key, value of four dimensions, before they were copied together; and the mask."""
        sources = list(map(self.heads_of, operands))
        split: Any = self.split_of(operands, sources)
        heads = []
        for operand, (source, scale) in zip(operands, sources):
            if source is None or tuple(_value(source).shape[:2]) != split:
                source, scale = self.view(operand, (*split, *_value(operand).shape[1:])), 1.0
            heads.append(source)
            self.scale *= scale
        query, key, value = heads[0], self.emit(aten.transpose.int, heads[1], -1, -2), heads[2]
        count = _value(operands[0]).shape[0]
        total = None
        for mask in self.masks:
            if mask.fill is None:
                added = mask.node
            else:
                added = self.filled(mask.fill)
            if mask.rank == 3 and _value(added).dim() == 3 and _value(added).shape[0] == count:
                added = self.view(added, (*split, *_value(added).shape[1:]))
            if total is None:
                total = added
            else:
                total = self.computed(aten.add.Tensor, total, added)
        return query, *self.unrepeated(key, value), total

    def split_of(
        self, operands: list[Node], sources: list[tuple[Node | None, float]]
    ) -> tuple[int, ...]:
        """(batch, heads): those of a mask, else those of a source."""
        for mask in self.masks:
            if mask.rank == 4:
                return mask.split
        for source, _ in sources:
            if source is not None:
                return tuple(_value(source).shape[:2])
        return _value(operands[0]).shape[0], 1

    def heads_of(self, node: Node) -> tuple[Node | None, float]:
        """The (batch, head, row, column) tensor that a (batch * head, row, column) one is a copy
        of, times a number."""
        view, scale = self.unscaled(node)
        if view.target is not aten.view.default:
            return None, 1.0
        source, inner = self.unscaled(_node(view.args[0]))
        scale *= inner
        shape = list(_value(source).shape)
        rows, columns = _value(node).shape[1:]
        for dim in reversed(range(len(shape))):
            if len(shape) > 4 and shape[dim] == 1:
                source = self.emit(aten.squeeze.dim, source, dim)
                shape.pop(dim)
        if not _plain(source, 4) or shape[2:] != [rows, columns]:
            return None, 1.0
        return source, scale

    def unscaled(self, node: Node) -> tuple[Node, float]:
        """(x, number) with the node x * number, or a copy of it."""
        scale = 1.0
        while True:
            number = None
            if node.target in _SCALES:
                number = self.number(node.args[1])
            if number and math.isfinite(number):
                scale *= _SCALES[node.target](number)
            elif node.target is not aten.clone.default and not _expands_nothing(node):
                return node, scale
            node = _node(node.args[0])

    def unrepeated(self, key: Node, value: Node) -> tuple[Node, Node]:
        """Key and value before each of their heads was repeated for several of the query's."""
        keys, values = self.shared_heads(key), self.shared_heads(value)
        if keys is None or values is None or _value(keys).shape[1] != _value(values).shape[1]:
            return key, value
        return keys, values

    def shared_heads(self, node: Node) -> Node | None:
        turned = 0
        while node.target is aten.transpose.int and swaps_dims(node, 4, 2, 3):
            node, turned = _node(node.args[0]), turned + 1
        if turned % 2 or node.target is not aten.view.default:
            return None
        copied = _node(node.args[0])
        repeated = copied
        if copied.target is aten.clone.default:
            repeated = _node(copied.args[0])
        if repeated.target is not aten.expand.default:
            return None
        source, shape = _node(repeated.args[0]), list(_value(repeated).shape)
        before = list(_value(source).shape)
        if len(shape) != 5 or len(before) != 5 or before != [*shape[:2], 1, *shape[3:]]:
            return None
        if list(_value(node).shape) != [shape[0], shape[1] * shape[2], *shape[3:]]:
            return None
        return self.emit(aten.squeeze.dim, source, 2)

    def filled(self, fill: _Fill) -> Node:
        """A mask that holds what replaces scores, and NaN where they stay."""
        stays, put = self.constant(math.nan), self.constant(fill.number)
        if fill.inverted:
            put, stays = stays, put
        return self.computed(aten.where.self, fill.condition, put, stays)

    def computed(self, op: Any, *args: Node) -> Node:
        """A node with the op's result, of the arguments' common shape."""
        shape = geometry.broadcast(*(_value(arg).shape for arg in args))
        meta = {"val": _float_fake(shape), "where": self.softmax.meta["where"]}
        return add_call(self.graph.graph, op, args, meta)

    def constant(self, number: float) -> Node:
        name = f"number_{len(self.graph.constants)}"
        while name in self.graph.constants:
            name += "_"
        self.graph.constants[name] = torch.tensor(number, dtype=torch.float32)
        node = self.graph.graph.create_node("get_attr", name, name=name)
        node.meta.update(val=_float_fake(()), where=self.softmax.meta["where"])
        return node

    def view(self, node: Node, sizes: tuple[int, ...]) -> Node:
        return self.emit(aten.view.default, node, list(sizes))

    def emit(self, op: Any, node: Node, *args: Any) -> Node:
        """A view of `node`."""
        value = _value(node)
        fake = FakeTensor(op(value.meta, *args), value.device)
        meta = {"val": fake, "where": node.meta.get("where", "")}
        return add_call(self.graph.graph, op, (node, *args), meta)


def _float_fake(sizes: Any) -> FakeTensor:
    return FakeTensor(torch.empty(sizes, dtype=torch.float32, device="meta"), torch.device("cpu"))


def _leading(node: Node) -> tuple[tuple[int, ...], int]:
    """The leading sizes and the rows of scores."""
    shape = _value(node).shape
    return tuple(shape[:-2]), shape[-2]


def _keeps_order(node: Node) -> bool:
    """Whether a node holds its argument's elements in their order, if the result is contiguous."""
    source = node.args[0]
    if not isinstance(source, Node) or not _plain(node):
        return False
    if _value(node).numel() != _value(source).numel():
        return False
    if node.target in _STRIDED:
        return True
    if node.target not in _REORDERS_NOTHING:
        return False
    return geometry.surely_contiguous(_value(source)) and geometry.surely_contiguous(_value(node))


def _expands_nothing(node: Node) -> bool:
    if node.target is not aten.expand.default:
        return False
    return _value(node).shape == _value(_node(node.args[0])).shape


def _comes_from_product(node: Any) -> bool:
    """Whether it is a batched product, but for scales, masks and reshapes. A hint: the match of the
    whole attention checks it."""
    while isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1:
        if node.target in (aten.bmm.default, aten.baddbmm.default):
            return True
        if node.target is aten.where.self:
            return any(map(_comes_from_product, node.args[1:]))
        if node.target is aten.add.Tensor:
            return any(map(_comes_from_product, node.args[:2]))
        if node.target not in _THROUGH:
            return False
        node = node.args[0]
    return False
