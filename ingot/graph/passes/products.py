"""Sums of matrix products as one product: the gradient of a weight that is used at every step of a
recurrence is a sum over the steps."""

from __future__ import annotations

from typing import Any

import torch

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.geometry import at_hand
from ingot.graph.passes.linear import transposed
from ingot.torch_private import aten

Node = torch.fx.Node

_DTYPES = (torch.float32, torch.float64)  # others would round each product


def join_products(graph: AtenGraph) -> None:
    """t(a) @ x + t(b) @ y + ... becomes t(s) @ cat(x, y, ...) with s = cat(a, b, ...), where that
    moves less memory than adding the products does. The sums of the rows of a, b, ..., where they
    are added as well, become those of s.
    """
    stacks = _Stacks(graph)
    sums = [node for node in graph.graph.nodes if _is_sum(node) and not _is_term(node)]
    for node in sums:
        _join_products(stacks, node)
    for node in sums:
        _join_rows(stacks, node)


def _join_products(stacks: _Stacks, node: Node) -> None:
    products = {term: found for term in _terms(node) if (found := _product(term)) is not None}
    total: Node | None = None
    for group in _groups(products, stacks.order):
        left = stacks.of(tuple(products[term][0] for term in group))
        # no sooner: it may be of what there was
        right = stacks.of(tuple(products[term][1] for term in group), left)
        turned = stacks.call(left, aten.t.default, (left,), left.meta["val"].meta.t())
        op, given = (aten.mm.default, ()) if total is None else (aten.addmm.default, (total,))
        total = stacks.call(max(turned, right, *given), op, (*given, turned, right), _like(node))
    _replace(stacks, node, set(products), total)


def _join_rows(stacks: _Stacks, node: Node) -> None:
    rows = {found: term for term in _terms(node) if (found := _summed_rows(term)) is not None}
    total: Node | None = None
    gone: set[Node] = set()
    for parts, stack in list(stacks.made.items()):
        if all(part in rows for part in parts) and len(set(parts)) == len(parts):
            added = stacks.call(stack, aten.sum.dim_IntList, (stack, [0]), _like(node))
            if total is not None:
                added = stacks.call(max(total, added), aten.add.Tensor, (total, added), _like(node))
            total = added
            gone.update(rows.pop(part) for part in parts)
    _replace(stacks, node, gone, total)


def _groups(products: dict[Node, tuple[Node, Node]], order: dict[Node, int]) -> list[list[Node]]:
    """The terms to be joined: as many as make stacks no larger than two products; those that are
    complete first come first. Within a group the right operands are in the graph's order."""
    if len(products) < 2:
        return []  # nothing to join
    height, width = (
        at_hand(operand.meta["val"].shape[1]) for operand in next(iter(products.values()))
    )
    if height == 0 or width == 0:
        return []
    groups: list[list[Node]] = [[]]
    rows = 0
    for term in sorted(products, key=lambda term: order[products[term][1]]):
        count = at_hand(products[term][0].meta["val"].shape[0])
        if rows + count > 2 * height * width // (height + width):
            groups.append([])
            rows = 0
        groups[-1].append(term)
        rows += count
    groups = [group for group in groups if group]
    if len(groups) == len(products):
        return []
    return sorted(groups, key=lambda g: max(order[products[term][0]] for term in g))


class _Stacks:
    """Matrices below each other in `graph`, each such stack made once."""

    def __init__(self, graph: AtenGraph) -> None:
        self.graph = graph.graph
        self.made: dict[tuple[Node, ...], Node] = {}
        self.order = {node: k for k, node in enumerate(graph.graph.nodes)}
        self._inputs = graph.inputs

    def of(self, parts: tuple[Node, ...], *others: Node) -> Node:
        """The stack of the parts; a new one is made when these and the `others` are there."""
        if len(parts) == 1:
            self.made[parts] = parts[0]
        if parts not in self.made:
            last = max(*parts, *self._inputs, *others)
            values = [part.meta["val"] for part in parts]
            shape = (sum(v.shape[0] for v in values), values[0].shape[1])
            meta = torch.empty(shape, dtype=values[0].dtype, device="meta")
            self.made[parts] = self.call(last, aten.cat.default, (list(parts),), meta)
        return self.made[parts]

    def call(self, after: Node, op: Any, args: tuple[Any, ...], meta: torch.Tensor) -> Node:
        with self.graph.inserting_after(after):
            node = self.graph.call_function(op, args)
        device = node.all_input_nodes[0].meta["val"].device
        node.meta.update(val=FakeTensor(meta, device), where=after.meta.get("where", ""))
        return node


def _like(node: Node) -> torch.Tensor:
    value = node.meta["val"]
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _replace(stacks: _Stacks, node: Node, gone: set[Node], total: Node | None) -> None:
    """Replace the terms that are `gone` of the sum `node` by what they come to."""
    if total is None:
        return
    after = node
    for term in _terms(node):
        if term not in gone:
            after = total = stacks.call(after, aten.add.Tensor, (total, term), _like(node))
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)


# -- what there is ---------------------------------------------------------------------------------


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors that lie as it does, one row after the other."""
    if (
        node.target is not aten.add.Tensor
        or node.kwargs
        or not all(isinstance(a, Node) for a in node.args)
    ):
        return False
    mine = node.meta["val"]
    values = [a.meta["val"] for a in node.args]
    fixed = all(isinstance(n, int) for n in mine.shape)
    return (
        fixed
        and mine.dtype in _DTYPES
        and all(
            v.dtype == mine.dtype and v.shape == mine.shape and v.is_contiguous()
            for v in (mine, *values)
        )
    )


def _is_term(node: Node) -> bool:
    """Whether all that happens to a value is that something else is added to it, once."""
    if len(node.users) != 1:
        return False
    (user,) = node.users
    return _is_sum(user) and user.args[0] is not user.args[1]


def _terms(node: Node) -> list[Node]:
    """What a tree of sums adds up, in order."""
    found: list[Node] = []
    stack: list[Any] = [*reversed(node.args)]
    while stack:
        term = stack.pop()
        if _is_sum(term) and _is_term(term):
            stack += reversed(term.args)
        else:
            found.append(term)
    return found


def _product(node: Node) -> tuple[Node, Node] | None:
    """(a, x) of t(a) @ x that is added to something, and used for nothing else."""
    if node.target is not aten.mm.default or not _is_term(node):
        return None
    left: Any = transposed(node.args[0])
    return None if left is None else (left, node.args[1])  # type: ignore[return-value]


def _summed_rows(node: Node) -> Node | None:
    """The matrix whose rows a vector is the sum of, that is added to something and used for nothing
    else."""
    if not _is_term(node) or node.meta["val"].dim() != 1:
        return None
    total: Any = node.args[0] if node.target is aten.view.default else node
    if (
        total.target is not aten.sum.dim_IntList
        or total.kwargs
        or len(total.users) > 1
        or list(total.args[1]) != [0]
    ):
        return None
    return total.args[0] if total.args[0].meta["val"].dim() == 2 else None
