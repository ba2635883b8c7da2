"""Products of each step of a sequence with one matrix as one product of the whole sequence. What a
recurrence does with its inputs need not wait for the steps before."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.nodes import add_call, fake_result, is_returned
from ingot.torch_private import aten

MOST_ROWS = 512
"""Of a step: products of more rows are as fast by themselves, and need not be alive all at once."""


class _Sequence(NamedTuple):
    """What the products of one sequence have in common: `x`, the matrix, and what is added (None:
    nothing). Each multiplies what it selects of `x` along `dim`."""

    x: Node
    dim: int
    matrix: Node
    bias: Node | None


def join_steps(graph: AtenGraph) -> None:
    """x[0] @ w + b, x[1] @ w + b, ... for all of a contiguous x become steps of x @ w + b. So do
    the products of x[:, 0], x[:, 1], ..."""
    sequences: dict[_Sequence, dict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))
    for node in graph.graph.nodes:
        step = _step(node)
        if step is not None:
            sequence, place = step
            sequences[sequence][place].append(node)
    for sequence, steps in sequences.items():
        if len(steps) > 1 and len(steps) == fake_result(sequence.x).shape[sequence.dim]:
            _join(graph, sequence, steps)


def _step(node: Node) -> tuple[_Sequence, int] | None:
    """The sequence that a product is a step of, and its place there."""
    if node.kwargs or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    left: Any
    *bias, left, matrix = node.args
    if left.target is not aten.select.int or any(fake_result(b).dim() != 1 for b in bias):  # type: ignore[union-attr]
        return None
    x, dim, place = left.args
    value = fake_result(x)
    sizes = [*value.shape, *fake_result(matrix).shape]  # type: ignore[union-attr]
    if geometry.has_symbols(sizes) or value.dim() != 3 or dim % 3 == 2:
        return None
    if fake_result(left).shape[0] > MOST_ROWS or value.numel() == 0:
        return None
    if not geometry.surely_contiguous(value) or is_returned(node):
        return None
    return _Sequence(x, dim % 3, matrix, *(bias or [None])), place % value.shape[dim]  # type: ignore[arg-type]


def _join(graph: AtenGraph, sequence: _Sequence, steps: dict[int, list[Node]]) -> None:
    first = min(nodes[0] for nodes in steps.values())
    x, value = sequence.x, fake_result(sequence.x)
    (a, b, width), columns = value.shape, fake_result(sequence.matrix).shape[1]

    def call(op: Any, args: tuple[Any, ...], *shape: int) -> Node:
        meta = {"val": new_fake(shape, value), "where": first.meta.get("where", "")}
        return add_call(graph.graph, op, args, meta)

    with graph.graph.inserting_before(first):
        rows = call(aten.view.default, (x, [a * b, width]), a * b, width)
        if sequence.bias is None:
            op, added = aten.mm.default, tuple[Node, ...]()
        else:
            op, added = aten.addmm.default, (sequence.bias,)
        product = call(op, (*added, rows, sequence.matrix), a * b, columns)
        whole = call(aten.view.default, (product, [a, b, columns]), a, b, columns)
    for place, nodes in steps.items():
        for node in nodes:
            view = fake_result(whole).meta.select(sequence.dim, place)
            fake, args = FakeTensor(view, value.device), (whole, sequence.dim, place)
            with graph.graph.inserting_before(node):
                step = add_call(graph.graph, aten.select.int, args, node.meta, val=fake)
            graph.replace(node, step)
