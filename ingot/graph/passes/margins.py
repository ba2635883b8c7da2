"""Products on a GPU whose rows do not begin at multiples of 16 bytes: tensor cores take them in
pieces, many times more slowly. Where it pays, they are products of matrices whose rows do, with
zeros at their ends; the result is a part.

That is said in the graph, before it is cut in two, so that what is kept for the backward keeps its
margin, and a gradient is made with it. What is returned must lie as in eager, and would be copied:
lowering computes that in parts, where it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.geometry import has_symbols
from ingot.graph.nodes import add_call, fake_result, is_pointwise_call
from ingot.graph.passes.linear import swaps_dims, transposed
from ingot.loops.aligned_products import ROW, suits
from ingot.loops.target import GPU, Speed
from ingot.torch_private import aten

_OPERANDS: dict[Any, int] = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1}
"""The position of the first matrix among the arguments."""

_RESHAPED = {aten.view.default, aten._unsafe_view.default}


def give_margins(graph: AtenGraph, speed: Speed = GPU.speed) -> None:
    """Widen each product of halves on a GPU of which that makes a faster one."""
    margins = _Margins(graph.graph)
    for node in list(graph.graph.nodes):
        wide = _widened(node, speed)
        if wide is not None:
            margins.widen(node, wide)


class _Wide(NamedTuple):
    """The sizes of a wider product: [..., rows, depth] times [..., depth, columns]."""

    rows: int
    depth: int
    columns: int


def _widened(node: Node, speed: Speed) -> _Wide | None:
    """What the sizes of a product should be; None where it stays as it is."""
    first = _OPERANDS.get(node.target)
    if first is None or node.kwargs:
        return None
    value: FakeTensor = fake_result(node)
    x, y = map(fake_result, node.args[first : first + 2])
    if value.device.type != "cuda" or value.dtype not in (torch.float16, torch.bfloat16):
        return None
    extents = (*value.shape, *x.shape)
    if has_symbols(extents) or 0 in extents:
        return None
    if first and fake_result(node.args[0]).dim() != 1:  # type: ignore[union-attr]
        return None
    unit = ROW // value.dtype.itemsize
    *batch, rows, columns = value.shape
    sizes = _Wide(rows, x.shape[-1], columns)
    inner = {
        "columns",
        "rows" if _is_turned(x) else "depth",
        "depth" if _is_turned(y) else "columns",
    }
    wide = sizes._replace(**{name: -(-getattr(sizes, name) // unit) * unit for name in inner})
    if wide == sizes:
        return None
    in_pieces = not first and not batch and suits(*sizes, x.stride(), y.stride(), value.dtype)
    if in_pieces and _is_returned(node):
        return None
    if _pays(sizes, wide, math.prod(batch), value.itemsize, speed):
        return wide
    return None


def _pays(sizes: _Wide, wide: _Wide, count: int, itemsize: int, speed: Speed) -> bool:
    """Whether `count` products gain more than copies of their operands with margins take."""
    copies = 0.0
    rows, depth, columns = sizes
    if (wide.rows, wide.depth) != (rows, depth):
        copies += speed.launch + 2 * itemsize * count * rows * depth / speed.bytes
    if (wide.depth, wide.columns) != (depth, columns):
        copies += speed.launch + 2 * itemsize * count * depth * columns / speed.bytes
    work = 2 * count * rows * depth * columns
    return work / speed.aligned + copies < work / speed.unaligned


def _is_returned(node: Node) -> bool:
    """Whether the graph returns a value, as it is or with other sizes."""
    for user in node.users:
        if user.op == "output" or (user.target in _RESHAPED and _is_returned(user)):
            return True
    return False


def _is_turned(value: torch.Tensor) -> bool:
    """Whether the elements of a matrix's columns, not of its rows, lie side by side."""
    return value.stride(-2) == 1 and value.shape[-1] != 1


class _Margins:
    """The margins of a graph's values; each value has one copy of the same sizes."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.copies: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def widen(self, node: Node, wide: _Wide) -> None:
        """Make a product a wider one; what read it reads a part of that."""
        first = _OPERANDS[node.target]
        x, y = node.args[first : first + 2]
        assert isinstance(x, Node) and isinstance(y, Node)
        args = [
            self.matrix(node, x, wide.rows, wide.depth),
            self.matrix(node, y, wide.depth, wide.columns),
        ]
        if first:
            bias = node.args[0]
            assert isinstance(bias, Node)
            if fake_result(bias).shape[0] != 1:
                bias = self.padded(node, bias, (wide.columns,))
            args.insert(0, bias)
        readers, value = list(node.users), fake_result(node)
        node.args = tuple(args)
        node.meta["val"] = new_fake((*value.shape[:-2], wide.rows, wide.columns), value)
        self.read_head(node, node, value, readers)

    def matrix(self, before: Node, x: Node, rows: int, columns: int) -> Node:
        """Matrices with margins, in the order of strides that they had."""
        value: FakeTensor = fake_result(x)
        if tuple(value.shape[-2:]) == (rows, columns):
            return x
        if not _is_turned(value):
            return self.padded(before, x, (*value.shape[:-2], rows, columns))
        inner = _turned_from(x) or self.turned(before, x)
        return self.turned(before, self.padded(before, inner, (*value.shape[:-2], columns, rows)))

    def turned(self, before: Node, x: Node) -> Node:
        meta = fake_result(x).meta.transpose(-2, -1)
        return self.call(before, aten.transpose.int, (x, -2, -1), meta, before)

    def padded(self, before: Node, x: Node, sizes: tuple[int, ...]) -> Node:
        """`x` in memory with zeros at the ends of its dimensions. A computed one is copied at once,
        and its other readers read the copy."""
        key = x, sizes
        if key in self.copies:
            return self.copies[key]
        value: FakeTensor = fake_result(x)
        amounts: list[int] = []
        for wide, size in zip(reversed(sizes), reversed(value.shape)):
            amounts += 0, wide - size
        meta = torch.empty(sizes, dtype=value.dtype, device="meta")
        place, readers, source = before, list[Node](), before
        if is_pointwise_call(x):
            place, source = x.next, x
            readers = []
            for reader in x.users:
                if reader.op != "output":
                    readers.append(reader)
        copy = self.call(place, aten.constant_pad_nd.default, (x, amounts), meta, source)
        self.copies[key] = copy
        self.read_head(copy, x, value, readers)
        return copy

    def read_head(self, wide: Node, node: Node, value: FakeTensor, readers: Sequence[Node]) -> None:
        """Let the readers of `node` read the beginning of each dimension of `wide` instead, which
        is taken to lie as `value` does, in eager."""
        if not readers:
            return
        place, narrow = wide.next, wide
        for dim, size in enumerate(value.shape):
            if fake_result(narrow).shape[dim] != size:
                meta = fake_result(narrow).meta.narrow(dim, 0, size)
                narrow = self.call(place, aten.slice.Tensor, (narrow, dim, 0, size), meta, wide)
        narrow.meta["val"] = value
        for reader in readers:
            reader.replace_input_with(node, narrow)

    def call(
        self, before: Node, op: Any, args: tuple[Any, ...], meta: torch.Tensor, source: Node
    ) -> Node:
        """A call for the sake of `source`."""
        fake = FakeTensor(meta, fake_result(source).device)
        kept = {}
        for key, value in source.meta.items():
            if key in ("where", "region"):
                kept[key] = value
        with self.graph.inserting_before(before):
            return add_call(self.graph, op, args, kept, val=fake)


def _turned_from(node: Node) -> Node | None:
    """What a node is the transpose of, in its last two dimensions."""
    if node.target is not aten.transpose.int:
        return transposed(node)
    x: Any = node.args[0]
    rank = fake_result(x).dim()
    return x if swaps_dims(node, rank, rank - 2, rank - 1) else None
