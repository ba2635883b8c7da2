"""Sums of matrix products as one product. The gradient of a weight that is used at every step of a
recurrence is such a sum."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.geometry import at_hand, has_symbols
from ingot.graph.nodes import fake_result, only_user, order_of
from ingot.graph.passes.linear import transposed
from ingot.graph.passes.sums import is_sum_of_tensors
from ingot.sequences import at
from ingot.torch_private import aten


def join_products(graph: AtenGraph) -> None:
    """t(a) @ x + t(b) @ y + ... becomes t(s) @ cat(x, y, ...) with s = cat(a, b, ...). That is done
    where it moves less memory than adding the products does. The sums of the rows of a, b, ...,
    where they are added as well, become those of s."""
    stacks = _Stacks(graph)
    sums = [node for node in graph.graph.nodes if _is_sum(node) and not _is_term(node)]
    for node in sums:
        _join_products(stacks, node)
    for node in sums:
        _join_rows(stacks, node)


def _join_products(stacks: _Stacks, node: Node) -> None:
    products: dict[Node, tuple[Node, Node]] = {}
    for term in _terms(node):
        operands = _product(term)
        if operands is not None:
            products[term] = operands
    total: Node | None = None
    for group in _groups(products, stacks.order):
        lefts, rights = zip(*at(products, group))
        left = stacks.of(lefts)
        # behind `left`, whose operands may be computed from earlier terms
        right = stacks.of(rights, left)
        turned = stacks.call(left, aten.t.default, (left,), fake_result(left).meta.t())
        args: tuple[Node, ...] = turned, right
        op = aten.mm.default
        if total is not None:
            op, args = aten.addmm.default, (total, *args)
        total = stacks.call(max(args), op, args, _like(node))
    _replace(stacks, node, set(products), total)


def _join_rows(stacks: _Stacks, node: Node) -> None:
    terms: dict[Node, Node] = {}  # by the matrix whose rows they sum
    for term in _terms(node):
        matrix = _summed_rows(term)
        if matrix is not None:
            terms[matrix] = term
    total: Node | None = None
    replaced: set[Node] = set()
    for matrices, stack in list(stacks.nodes.items()):
        if terms.keys() >= set(matrices) and len(set(matrices)) == len(matrices):
            added = stacks.call(stack, aten.sum.dim_IntList, (stack, [0]), _like(node))
            if total is not None:
                added = stacks.call(max(total, added), aten.add.Tensor, (total, added), _like(node))
            total = added
            replaced.update(map(terms.pop, matrices))
    _replace(stacks, node, replaced, total)


def _groups(products: dict[Node, tuple[Node, Node]], order: dict[Node, int]) -> list[list[Node]]:
    """The terms to be joined: as many as make stacks no larger than two products; those that are
    complete first come first. Within a group the right operands are in the graph's order."""
    if len(products) < 2:
        return []  # nothing to join
    operands = next(iter(products.values()))
    height, width = (at_hand(fake_result(operand).shape[1]) for operand in operands)
    if height == 0 or width == 0:
        return []
    groups: list[list[Node]] = []
    rows, most = 0, 2 * height * width // (height + width)
    for term in sorted(products, key=lambda term: order[products[term][1]]):
        count = at_hand(fake_result(products[term][0]).shape[0])
        if not groups or rows + count > most:
            groups.append([])
            rows = 0
        groups[-1].append(term)
        rows += count
    if len(groups) == len(products):
        return []

    def completed(group: list[Node]) -> int:
        return max(order[left] for left, _ in at(products, group))

    return sorted(groups, key=completed)


class _Stacks:
    """Matrices below each other in `graph`, each such stack made once."""

    def __init__(self, graph: AtenGraph) -> None:
        self.graph = graph.graph
        self.nodes: dict[tuple[Node, ...], Node] = {}
        self.order = order_of(graph.graph)
        self._inputs = graph.inputs

    def of(self, matrices: tuple[Node, ...], *others: Node) -> Node:
        """The stack of some matrices; a new one is placed behind these and the `others`."""
        if len(matrices) == 1:
            self.nodes[matrices] = matrices[0]
        if matrices not in self.nodes:
            last = max(*matrices, *self._inputs, *others)
            values = list(map(fake_result, matrices))
            shape = (sum(v.shape[0] for v in values), values[0].shape[1])
            meta = torch.empty(shape, dtype=values[0].dtype, device="meta")
            self.nodes[matrices] = self.call(last, aten.cat.default, (list(matrices),), meta)
        return self.nodes[matrices]

    def call(self, after: Node, op: Any, args: tuple[Any, ...], meta: torch.Tensor) -> Node:
        with self.graph.inserting_after(after):
            node = self.graph.call_function(op, args)
        device = fake_result(node.all_input_nodes[0]).device
        node.meta.update(val=FakeTensor(meta, device), where=after.meta.get("where", ""))
        return node


def _like(node: Node) -> torch.Tensor:
    value = fake_result(node)
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _replace(stacks: _Stacks, node: Node, replaced: set[Node], total: Node | None) -> None:
    """Replace some terms of the sum `node` by their total."""
    if total is None:
        return
    after = node
    for term in _terms(node):
        if term not in replaced:
            after = total = stacks.call(after, aten.add.Tensor, (total, term), _like(node))
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)


# -- sums and their terms --------------------------------------------------------------------------


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors that lie as it does, one row after the other."""
    if not is_sum_of_tensors(node) or has_symbols(fake_result(node).shape):
        return False
    return all(fake_result(n).is_contiguous() for n in (node, *node.args))


def _is_term(node: Node) -> bool:
    """Whether all that happens to a value is that something else is added to it, once."""
    user = only_user(node)
    return user is not None and _is_sum(user) and user.args[0] is not user.args[1]


def _terms(node: Node) -> list[Node]:
    """The terms of a tree of sums, in order."""
    terms: list[Node] = []
    stack: list[Any] = [*reversed(node.args)]
    while stack:
        term = stack.pop()
        if _is_sum(term) and _is_term(term):
            stack += reversed(term.args)
        else:
            terms.append(term)
    return terms


def _product(node: Node) -> tuple[Node, Node] | None:
    """(a, x) of t(a) @ x that is added to something, and used for nothing else."""
    if node.target is not aten.mm.default or not _is_term(node):
        return None
    left: Any = transposed(node.args[0])
    return None if left is None else (left, node.args[1])  # type: ignore[return-value]


def _summed_rows(node: Node) -> Node | None:
    """The matrix whose rows a vector is the sum of, that is added to something and used for nothing
    else."""
    if not _is_term(node) or fake_result(node).dim() != 1:
        return None
    total: Any = node
    if node.target is aten.view.default:
        total = node.args[0]
    if total.target is not aten.sum.dim_IntList or total.kwargs or len(total.users) > 1:
        return None
    if list(total.args[1]) != [0]:
        return None
    if fake_result(total.args[0]).dim() == 2:
        return total.args[0]
    return None
