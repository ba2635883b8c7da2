"""Common subexpressions: equal calls on equal arguments are made once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.loops.side_effects import has_effect


def share_common_subexpressions(graph: AtenGraph) -> None:
    """Replace each node by the first one that computes the same. Ops with an effect are all
    different, as are those that bind symbols."""
    first: dict[Any, Node] = {}
    for node in list(graph.graph.nodes):
        if not repeats_itself(node):
            continue
        known = first.setdefault(call_key(node), node)
        if known is not node:
            graph.replace(node, known)


def repeats_itself(node: Node) -> bool:
    """Whether it is a call that gives the same whenever its arguments are."""
    if node.op != "call_function" or "binds" in node.meta:
        return False
    return not has_effect(node.target)


def call_key(node: Node, stands_for: Mapping[Any, Node] = MappingProxyType({})) -> Any:
    """Equal for calls that compute the same, where some nodes are known to have the values of
    others."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: stands_for.get(n, n))
    return node.target, _key(args), _key(kwargs)


def _key(value: Any) -> Any:
    """Equal for arguments that mean the same to an op; 1, 1.0 and True, and 0.0 and -0.0, do
    not."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    if isinstance(value, torch.SymInt):
        return torch.SymInt, str(value)
    return value
