"""Products of each step of a sequence with one matrix as one product of the whole sequence: what a
recurrence does with its inputs need not wait for the steps before."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import torch

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.torch_private import aten

Node = torch.fx.Node

# of a step: products of more are as fast by themselves, and need not be there all at once
MOST_ROWS = 512


class _Sequence(NamedTuple):
    """What the products of one sequence have in common: `x`, of which each multiplies what it
    selects along `dim`, the matrix, and what is added (None: nothing)."""

    x: Node
    dim: int
    matrix: Node
    bias: Node | None


def join_steps(graph: AtenGraph) -> None:
    """x[0] @ w + b, x[1] @ w + b, ... for all of a contiguous x, and of x[:, 0], x[:, 1], ... as
    well, become steps of x @ w + b."""
    found: dict[_Sequence, dict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))
    for node in graph.graph.nodes:
        if (step := _step(node)) is not None:
            sequence, place = step
            found[sequence][place].append(node)
    for sequence, steps in found.items():
        if len(steps) > 1 and len(steps) == sequence.x.meta["val"].shape[sequence.dim]:
            _join(graph.graph, sequence, steps)


def _step(node: Node) -> tuple[_Sequence, int] | None:
    """The sequence that a product is a step of, and its place there."""
    if node.kwargs or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    left: Any
    *bias, left, matrix = node.args
    if left.target is not aten.select.int or any(b.meta["val"].dim() != 1 for b in bias):  # type: ignore[union-attr]
        return None
    x, dim, place = left.args
    value = x.meta["val"]
    sizes = [*value.shape, *matrix.meta["val"].shape]  # type: ignore[union-attr]
    if not all(isinstance(n, int) for n in sizes) or value.dim() != 3 or dim % 3 == 2:
        return None
    small = left.meta["val"].shape[0] <= MOST_ROWS and value.numel() > 0
    if (
        not small
        or not geometry.surely_contiguous(value)
        or any(user.op == "output" for user in node.users)
    ):
        return None
    return _Sequence(x, dim % 3, matrix, *(bias or [None])), place % value.shape[dim]  # type: ignore[arg-type]


def _join(graph: torch.fx.Graph, sequence: _Sequence, steps: dict[int, list[Node]]) -> None:
    order = {node: k for k, node in enumerate(graph.nodes)}
    first = min((node for nodes in steps.values() for node in nodes), key=order.__getitem__)
    x, value = sequence.x, sequence.x.meta["val"]
    (a, b, width), columns = value.shape, sequence.matrix.meta["val"].shape[1]

    def call(op: Any, args: tuple[Any, ...], *shape: int) -> Node:
        node = graph.call_function(op, args)
        meta = torch.empty(shape, dtype=value.dtype, device="meta")
        node.meta.update(val=FakeTensor(meta, value.device), where=first.meta.get("where", ""))
        return node

    with graph.inserting_before(first):
        rows = call(aten.view.default, (x, [a * b, width]), a * b, width)
        if sequence.bias is None:
            product = call(aten.mm.default, (rows, sequence.matrix), a * b, columns)
        else:
            product = call(
                aten.addmm.default, (sequence.bias, rows, sequence.matrix), a * b, columns
            )
        whole = call(aten.view.default, (product, [a, b, columns]), a, b, columns)
    for place, nodes in steps.items():
        for node in nodes:
            with graph.inserting_before(node):
                part = graph.call_function(aten.select.int, (whole, sequence.dim, place))
            shown = whole.meta["val"].meta.select(sequence.dim, place)
            part.meta.update(node.meta, val=FakeTensor(shown, value.device))
            node.replace_all_uses_with(part)
            graph.erase_node(node)
