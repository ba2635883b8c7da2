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
from typing import Any

import torch
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.loops.own_ops import attention
from ingot.torch_private import aten

_STRIDED = {
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
}  # fmt: skip
# of contiguous tensors
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
        found = _softmax_input(node)
        if found is not None:
            _Match(graph, node, *found).replace()


def _softmax_input(node: Node) -> tuple[Node, bool] | None:
    """(x, whether a row of -inf gives zeros) where the node is softmax(x, -1) of nothing else's
    use."""
    if node.target is aten._safe_softmax.default and _is_last(node, node.args[1]):
        x = _node(node.args[0])
        return (x, True) if len(x.users) == 1 else None
    weights, total = _quotient(node)
    if not (_is(weights, aten.exp.default, 2) and _is(total, aten.sum.dim_IntList, 1)):
        return None
    shifted = _node(_node(weights).args[0])
    if (
        _node(total).args[0] is not weights
        or not _keeps_last(_node(total))
        or not _is(shifted, aten.sub.Tensor, 1)
    ):
        return None
    x, largest = _node(shifted.args[0]), shifted.args[1]
    if (
        not _is(largest, aten.amax.default, 1)
        or _node(largest).args[0] is not x
        or not _keeps_last(_node(largest))
    ):
        return None
    return (x, False) if len(x.users) == 2 and not shifted.kwargs else None


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


def _keeps_last(node: Node) -> bool:
    """Whether a reduction is over the last dimension alone, and keeps it."""
    dims = node.args[1] if len(node.args) > 1 else None
    one = (
        isinstance(dims, (list, tuple))
        and len(dims) == 1
        and _is_last(_node(node.args[0]), dims[0])
    )
    return one and len(node.args) == 3 and node.args[2] is True and not node.kwargs


def _value(node: Node) -> FakeTensor:
    return node.meta["val"]


def _plain(node: Any, rank: int | None = None) -> bool:
    """Whether a node is a float32 tensor of sizes that are known."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (
        isinstance(value, FakeTensor)
        and value.dtype is torch.float32
        and value.device.type == "cpu"
        and (rank is None or value.dim() == rank)
        and all(isinstance(n, int) and n > 0 for n in value.shape)
        and all(isinstance(n, int) for n in value.stride())
    )


@dataclass
class _Mask:
    node: Node
    rank: int  # of the scores it is combined with
    split: tuple[int, ...]  # their leading sizes
    rows: int
    condition: tuple[Node, float, bool] | None = None  # (where, what is put there, or where not)


class _Match:
    """One softmax, and what is found around it."""

    def __init__(self, graph: AtenGraph, softmax: Node, scores: Node, zero_rows: bool) -> None:
        self.graph, self.softmax, self.scores, self.zero_rows = graph, softmax, scores, zero_rows
        self.scale = 1.0
        self.masks: list[_Mask] = []

    def replace(self) -> None:
        product = self.second_product()
        if product is None or not self.first_product(self.scores):
            return
        operands = [self.query, self.key, _node(product.args[1])]
        if not all(_plain(n, 3) for n in operands) or not self.rows_agree(
            _value(_node(product.args[0])).shape
        ):
            return
        with self.graph.graph.inserting_before(product):
            arguments = self.arguments(operands)
            batch, heads, queries, width = (
                *_value(arguments[0]).shape[:3],
                _value(arguments[2]).shape[3],
            )
            last, heads_last = self.result(product, (batch, heads, queries, width))
            sizes: tuple[int, ...]
            sizes = (
                (batch, queries, heads, width) if heads_last else (batch * heads, queries, width)
            )
            whole = (*arguments, self.scale, self.replaces, self.zero_rows, heads_last)
            made = self.graph.graph.call_function(attention, whole)
        made.meta["val"] = FakeTensor(
            torch.empty(sizes, dtype=torch.float32, device="meta"), torch.device("cpu")
        )
        made.meta["where"] = product.meta["where"]
        last.replace_all_uses_with(made)
        self.graph.graph.erase_node(last)

    def rows_agree(self, weights: Any) -> bool:
        """Whether a row of the softmax, of the mask and of both products is the same; more than one
        of them, as nothing shares the keys that are loaded for one."""
        count, queries, keys = *_value(self.query).shape[:2], _value(self.key).shape[2]
        masked = all((math.prod(mask.split), mask.rows) == (count, queries) for mask in self.masks)
        return (
            masked
            and queries > 1
            and _value(self.scores).shape[-1] == keys
            and weights == (count, queries, keys)
        )

    # -- what follows the softmax ------------------------------------------------------------------

    def second_product(self) -> Node | None:
        """The batched product that the probabilities go into, reshaped at most."""
        node = self.softmax
        while len(node.users) == 1 and _plain(node):
            user = next(iter(node.users))
            if (
                user.target is aten.bmm.default
                and user.args[0] is node
                and user.args[1] is not node
            ):
                return user if geometry.surely_contiguous(_value(node)) else None
            if not _keeps_order(user):
                return None
            node = user
        return None

    def result(self, product: Node, shape: tuple[int, ...]) -> tuple[Node, bool]:
        """(what the attention stands for, whether its heads are to lie side by side): where all
        that is done with the product is to lay it out so, it is made so."""
        chain = [product]
        while len(chain[-1].users) == 1 and len(chain) < 4:
            chain.append(next(iter(chain[-1].users)))
        views = [aten.view.default, None, aten.clone.default]
        if len(chain) < 4 or any(
            t is not None and n.target is not t for n, t in zip(chain[1:], views)
        ):
            return product, False
        split, turned, copied = chain[1:]
        fits = (
            tuple(_value(split).shape) == shape
            and _swaps_heads_and_rows(turned)
            and geometry.surely_contiguous(_value(copied))
        )
        return (copied, True) if fits else (product, False)

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
            number = self.number(node.args[1]) if node.target in _SCALES else None
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
        if (
            beta not in (0, 1)
            or not isinstance(alpha, (int, float))
            or alpha == 0
            or not math.isfinite(alpha)
        ):
            return False
        if beta == 1 and not self.take_mask(_Mask(added, 3, *_leading(node)), node):
            return False
        self.scale *= alpha
        return True

    def unmasked(self, node: Node) -> Node | None:
        """The scores before a mask, which is taken in."""
        rank = _value(node).dim()
        if rank < 3:
            return None
        if node.target is aten.add.Tensor and not node.kwargs and len(node.args) == 2:
            for source, added in (node.args, node.args[::-1]):
                if (
                    isinstance(source, Node)
                    and isinstance(added, Node)
                    and _leads_to_product(source)
                ):
                    alike = _value(source).shape == _value(node).shape
                    return (
                        source
                        if alike and self.take_mask(_Mask(added, rank, *_leading(node)), node)
                        else None
                    )
        scores: Any = None
        condition, number, inverted = None, None, False
        if node.target is aten.masked_fill.Scalar:
            scores, condition, number = node.args
        elif node.target is aten.masked_fill.Tensor:
            scores, condition, number = *node.args[:2], self.number(node.args[2])
        elif node.target is aten.where.self:
            condition, first, second = node.args
            inverted = _leads_to_product(first)
            scores, number = (
                (first, self.number(second)) if inverted else (second, self.number(first))
            )
        if (
            not isinstance(scores, Node)
            or not isinstance(condition, Node)
            or not isinstance(number, (int, float))
        ):
            return None
        if math.isnan(number) or _value(scores).shape != _value(node).shape:
            return None
        if _value(condition).dtype is not torch.bool:
            return None
        mask = _Mask(condition, rank, *_leading(node), (condition, float(number), inverted))
        return scores if self.take_mask(mask, node) else None

    def take_mask(self, mask: _Mask, node: Node) -> bool:
        """Whether a mask at `node` can be had: on scores that are scaled before, and of a known
        shape. Several are added; one that replaces scores must be the only one."""
        value: Any = mask.node.meta.get("val")
        known = isinstance(value, FakeTensor) and all(
            isinstance(n, int) for n in (*value.shape, *value.stride())
        )
        if self.scale != 1.0 or mask.rank not in (3, 4) or not known:
            return False
        if self.masks and (self.replaces or mask.condition is not None):
            return False
        if mask.condition is None and not _plain(mask.node):
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
        if value.op == "get_attr" and _value(value).numel() == 1 and not _value(value).is_complex():
            return (
                self.graph.constants[str(value.target)].item() if _value(value).dim() == 0 else None
            )
        known = (
            value.args[_NUMBERS[value.target]]
            if value.target in _NUMBERS and _value(value).dim() == 0
            else None
        )
        return known if isinstance(known, (int, float)) else None

    # -- the arguments -----------------------------------------------------------------------------

    @property
    def replaces(self) -> bool:
        return any(mask.condition is not None for mask in self.masks)

    def arguments(self, operands: list[Node]) -> tuple[Node, Node, Node, Node | None]:
        """Query, key, value of four dimensions, from where they lay before they were copied
        together; and the mask."""
        found = [self.heads_of(node) for node in operands]
        count = _value(operands[0]).shape[0]
        split: Any = next(
            (tuple(_value(n).shape[:2]) for n, _ in found if n is not None), (count, 1)
        )
        split = next((mask.split for mask in self.masks if mask.rank == 4), split)
        heads = []
        for whole, (own, scale) in zip(operands, found):
            if own is None or tuple(_value(own).shape[:2]) != split:
                own, scale = self.view(whole, (*split, *_value(whole).shape[1:])), 1.0
            heads.append(own)
            self.scale *= scale
        query, key, value = heads[0], self.emit(aten.transpose.int, heads[1], -1, -2), heads[2]
        total = None
        for mask in self.masks:
            added = mask.node if mask.condition is None else self.filled(*mask.condition)
            if mask.rank == 3 and _value(added).dim() == 3 and _value(added).shape[0] == count:
                added = self.view(added, (*split, *_value(added).shape[1:]))
            total = added if total is None else self.computed(aten.add.Tensor, total, added)
        return query, *self.unrepeated(key, value), total

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
        return (
            (source, scale) if _plain(source, 4) and shape[2:] == [rows, columns] else (None, 1.0)
        )

    def unscaled(self, node: Node) -> tuple[Node, float]:
        """(x, number) with the node x * number, or a copy of it."""
        scale = 1.0
        while True:
            number = self.number(node.args[1]) if node.target in _SCALES else None
            if number and math.isfinite(number):
                scale *= _SCALES[node.target](number)
            elif node.target is not aten.clone.default and not _expands_nothing(node):
                return node, scale
            node = _node(node.args[0])

    def unrepeated(self, key: Node, value: Node) -> tuple[Node, Node]:
        """Key and value before each of their heads was repeated for several of the query's."""
        shared = [self.shared_heads(n) for n in (key, value)]
        first, second = shared
        if first is None or second is None or _value(first).shape[1] != _value(second).shape[1]:
            return key, value
        return first, second

    def shared_heads(self, node: Node) -> Node | None:
        turned = 0
        while node.target is aten.transpose.int and {d % 4 for d in node.args[1:]} == {2, 3}:  # type: ignore
            node, turned = _node(node.args[0]), turned + 1
        if turned % 2 or node.target is not aten.view.default:
            return None
        copied = _node(node.args[0])
        repeated = _node(copied.args[0]) if copied.target is aten.clone.default else copied
        if repeated.target is not aten.expand.default:
            return None
        source, shape = _node(repeated.args[0]), list(_value(repeated).shape)
        before = list(_value(source).shape)
        if len(shape) != 5 or len(before) != 5 or before != [*shape[:2], 1, *shape[3:]]:
            return None
        if list(_value(node).shape) != [shape[0], shape[1] * shape[2], *shape[3:]]:
            return None
        return self.emit(aten.squeeze.dim, source, 2)

    def filled(self, condition: Node, number: float, inverted: bool) -> Node:
        """A mask that holds what replaces scores, and NaN where they stay."""
        stays, put = self.constant(math.nan), self.constant(number)
        return self.computed(
            aten.where.self, condition, *((stays, put) if inverted else (put, stays))
        )

    def computed(self, op: Any, *args: Node) -> Node:
        """A node with the op's result, of the arguments' common shape."""
        made = self.graph.graph.call_function(op, args)
        shape = geometry.broadcast(*(_value(arg).shape for arg in args))
        value = FakeTensor(
            torch.empty(shape, dtype=torch.float32, device="meta"), torch.device("cpu")
        )
        made.meta.update(val=value, where=self.softmax.meta["where"])
        return made

    def constant(self, number: float) -> Node:
        name = f"number_{len(self.graph.constants)}"
        while name in self.graph.constants:
            name += "_"
        self.graph.constants[name] = torch.tensor(number, dtype=torch.float32)
        node = self.graph.graph.create_node("get_attr", name, name=name)
        value = FakeTensor(torch.empty((), dtype=torch.float32, device="meta"), torch.device("cpu"))
        node.meta.update(val=value, where=self.softmax.meta["where"])
        return node

    def view(self, node: Node, sizes: tuple[int, ...]) -> Node:
        return self.emit(aten.view.default, node, list(sizes))

    def emit(self, op: Any, node: Node, *args: Any) -> Node:
        """A view of `node`."""
        made = self.graph.graph.call_function(op, (node, *args))
        value = _value(node)
        made.meta.update(
            val=FakeTensor(op(value.meta, *args), value.device), where=node.meta.get("where", "")
        )
        return made


def _leading(node: Node) -> tuple[tuple[int, ...], int]:
    """The leading sizes and the rows of scores."""
    shape = _value(node).shape
    return tuple(shape[:-2]), shape[-2]


def _keeps_order(node: Node) -> bool:
    """Whether a node holds its argument's elements: in their order, or as strides tell (which are
    those of their order again where the result is contiguous)."""
    source = node.args[0]
    if (
        not isinstance(source, Node)
        or not _plain(node)
        or _value(node).numel() != _value(source).numel()
    ):
        return False
    if node.target in _REORDERS_NOTHING:
        return geometry.surely_contiguous(_value(source)) and geometry.surely_contiguous(
            _value(node)
        )
    return node.target in _STRIDED


def _expands_nothing(node: Node) -> bool:
    return (
        node.target is aten.expand.default
        and _value(node).shape == _value(_node(node.args[0])).shape
    )


def _leads_to_product(node: Any) -> bool:
    """Whether a chain of scales, masks and reshapes goes from here up to a batched product."""
    while isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1:
        if node.target in (aten.bmm.default, aten.baddbmm.default):
            return True
        if node.target is aten.where.self:
            return any(map(_leads_to_product, node.args[1:]))
        if node.target is aten.add.Tensor:
            return any(map(_leads_to_product, node.args[:2]))
        if node.target not in _THROUGH:
            return False
        node = node.args[0]
    return False


def _swaps_heads_and_rows(node: Node) -> bool:
    """Whether a node swaps the two inner dimensions of four."""
    args: Any = node.args
    if node.target is aten.transpose.int:
        return {dim % 4 for dim in args[1:]} == {1, 2}
    return node.target is aten.permute.default and [dim % 4 for dim in args[1]] == [0, 2, 1, 3]
