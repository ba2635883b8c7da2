"""Calls that return their argument unchanged: same dtype, geometry and values to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.functional import same_strides
from ingot.graph.nodes import fake_result
from ingot.graph.passes.ownership import is_view
from ingot.torch_private import ADDRESSING, aten


def _is(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number


def _adds_nothing(node: Node) -> bool:
    """x + 0 turns -0.0 into 0.0 unless the zero is negative (or the dtype has none)."""
    addend = node.args[1]
    if not _is(addend, 0) or fake_result(node).is_complex():
        return False
    if not fake_result(node).is_floating_point():
        return True
    return isinstance(addend, float) and math.copysign(1, addend) < 0


def _subtracts_nothing(node: Node) -> bool:
    """x - 0.0 is x for every x, -0.0 included; x - (-0.0) is not."""
    number: Any = node.args[1]
    return _is(number, 0) and math.copysign(1, number) > 0 and not fake_result(node).is_complex()


def _by_one(node: Node) -> bool:
    return _is(node.args[1], 1) and not fake_result(node).is_complex()


def _keeps_order(node: Node) -> bool:
    """A permutation that leaves each dimension where it is."""
    order: Any = node.args[1]
    return list(order) == list(range(len(order)))


def _always(node: Node) -> bool:
    return True


# op -> whether this call of it returns its first argument; geometry and dtype are checked for all
_CANDIDATES: dict[Any, Callable[[Node], bool]] = {
    aten.mul.Tensor: _by_one,
    aten.div.Tensor: _by_one,
    aten.pow.Tensor_Scalar: _by_one,
    aten.add.Tensor: _adds_nothing,
    aten.sub.Tensor: _subtracts_nothing,
    aten.clone.default: _always,
    aten._to_copy.default: _always,
    aten.view.default: _always,
    aten.expand.default: _always,
    aten.permute.default: _keeps_order,
    aten.slice.Tensor: _always,
    aten.squeeze.dim: _always,
    aten.squeeze.dims: _always,
}
_INVOLUTIONS = {
    aten.t.default,
    aten.transpose.int,
    aten.neg.default,
    aten.logical_not.default,
    aten.bitwise_not.default,
}


def remove_no_ops(graph: AtenGraph) -> None:
    """Replace no-ops by their argument; `own_outputs` restores the copies by which outputs share no
    memory with inputs.

    A copy stays where `as_strided` or its kin count from the beginning of its memory.
    """
    addressed = set()
    for n in graph.graph.nodes:
        if n.target in ADDRESSING:
            addressed.add(_owner(n.args[0]))
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node in addressed:
            continue
        source = _same_value(node)
        if source is not None:
            graph.replace(node, source)


def _owner(node: Any) -> Node:
    """The node whose memory `node` is, itself or through views."""
    while is_view(node):
        node = node.args[0]
    return node


def _same_value(node: Node) -> Node | None:
    source = None
    if node.args:
        source = node.args[0]
    if not isinstance(source, Node):
        return None
    if node.target in _INVOLUTIONS and source.target is node.target:
        if source.args[1:] == node.args[1:]:
            first = source.args[0]
            assert isinstance(first, Node)
            if _same_geometry(fake_result(first), fake_result(node)):
                return first
            return None
    test = _CANDIDATES.get(node.target)
    if test is None or not _same_geometry(fake_result(source), fake_result(node)) or not test(node):
        return None
    return source


def _same_geometry(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.dim() != b.dim() or not all(map(_same_size, a.shape, b.shape)):
        return False
    return same_strides(a, b)


def _same_size(x: Any, y: Any) -> bool:
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    return x is y or str(x) == str(y)
