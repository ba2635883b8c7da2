"""A branch on a number that is drawn at random, where every draw takes the same side.

`torch.rand([]) < self.layerdrop` of a rate of 0 never holds. The draw stays in the graph, as it
changes the generator's state."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot.capture.values.held_numbers import is_written
from ingot.graph.python_random import draw

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.tensor import TensorValue

_CONVERTS = frozenset({"to", "float", "double", "clone", "detach", "item"})
_EXACT = frozenset({torch.float32, torch.float64})
"""The types whose draws of [0, 1) are never rounded up to 1."""

_Sides = tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]

_SIDES: dict[str, _Sides] = {
    # what the number has to be against 0 for no draw to hold, and against 1 for each to do so
    "lt": (operator.le, operator.ge),
    "le": (operator.lt, operator.ge),
}
_OPPOSITES = {"ge": "lt", "gt": "le"}
_REFLECTED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def truth_of_draw(session: Session, tensor: TensorValue) -> bool | None:
    """Whether a comparison of a draw from [0, 1) with a number holds, if that is so for every draw;
    else None."""
    node = tensor.fx_node
    name = getattr(node.target, "__name__", node.target)
    if node.op == "placeholder" or name not in _REFLECTED or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if not isinstance(left, fx.Node):
        left, right, name = right, left, _REFLECTED[name]
    if type(right) not in (int, float) or not isinstance(left, fx.Node):
        return None
    nodes = _steps_from_draw(left)
    if not nodes or is_written(session, [node, *nodes]):
        return None
    never, always = _SIDES[_OPPOSITES.get(name, name)]
    if never(right, 0):
        return name in _OPPOSITES
    if always(right, 1):
        return name not in _OPPOSITES
    return None


def _steps_from_draw(node: fx.Node) -> list[fx.Node]:
    """The nodes from a draw of [0, 1) to one that holds the same numbers; none if it does not."""
    nodes = [node]
    while getattr(node.target, "__name__", node.target) in _CONVERTS:
        if len(node.all_input_nodes) != 1 or node.meta["val"].dtype not in _EXACT:
            return []
        (node,) = node.all_input_nodes
        nodes.append(node)
    return nodes if _is_draw(node) else []


def _is_draw(node: fx.Node) -> bool:
    if node.target is torch.rand:
        return "out" not in node.kwargs and node.meta["val"].dtype in _EXACT
    return node.target is draw and node.args[0] == "random"
