"""Dead code: values that no output or mutation depends on. Ops that have an effect stay, and ops
that may raise an error or bind a symbol."""

from __future__ import annotations

import operator

import torch

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.nodes import must_run
from ingot.torch_private import aten


def remove_dead_code(graph: AtenGraph) -> None:
    """Remove unused nodes, and constants that nothing reads; placeholders stay."""
    for node in reversed(graph.graph.nodes):
        if node.users or node.op in ("placeholder", "output") or must_run(node):
            continue
        if node.op == "get_attr":
            graph.constants.pop(node.target, None)
        graph.graph.erase_node(node)


# Op -> the argument that says whether results other than the one given are wanted: without
# gradients eager's functions of singular values and eigenvalues ask for these alone.
_ON_REQUEST = {
    aten._linalg_svd.default: ("compute_uv", 1),
    aten._linalg_eigh.default: ("compute_v", 0),
}


def ask_for_less(graph: AtenGraph) -> None:
    """Have an op not compute results that nobody reads."""
    for node in graph.graph.nodes:
        name, result = _ON_REQUEST.get(node.target, ("", 0))
        if not name or not _is_only_read(node, result):
            continue
        position = next(k for k, a in enumerate(node.target._schema.arguments) if a.name == name)
        if len(node.args) > position:
            node.args = (*node.args[:position], False, *node.args[position + 1 :])
        else:
            node.kwargs = {**node.kwargs, name: False}


def _is_only_read(node: torch.fx.Node, result: int) -> bool:
    """Whether nothing but one of a node's results is read."""
    for user in node.users:
        if user.target is not operator.getitem or user.args[1] != result:
            return False
    return True
