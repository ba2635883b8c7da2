"""Contractions among the nests: their canonical loops, and which pointwise nodes finish them (their epilogues)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.loops.expr import Expr, Symbol, integer
from ingot.loops.ir import Access, Contraction, Node, Pointwise
from ingot.schedule.nests import fresh_loops, laid_over, merge_neighbours, refine

ZERO, ONE = integer(0), integer(1)


def canonical_contraction(node: Contraction) -> Contraction:
    """The node without batch, row and outer reduced loops of one iteration, and with neighbours merged."""
    left, right, index = node.left.index, node.right.index, node.index
    substitution: dict[Symbol, Expr] = {}

    def merged(loops: Sequence[Symbol], expressions: Sequence[Expr]) -> tuple[Symbol, ...]:
        kept = [s for s in loops if s.extent is not ONE]
        substitution.update((s, ZERO) for s in loops if s.extent is ONE)
        return tuple(merge_neighbours(kept, expressions, substitution))

    batch = merged(node.batch, [left, right, index])
    rows = merged(node.rows, [left, index])
    reduced = merged(node.reduced, [left, right]) or fresh_loops("k", [ONE])
    substitution.update((s, ZERO) for s in node.columns if s.extent is ONE)

    def put(access: Access) -> Access:
        return replace(access, index=access.index.substitute(substitution))

    return replace(
        node, batch=batch, rows=rows, reduced=reduced, left=put(node.left), right=put(node.right),
        index=index.substitute(substitution),
    )  # fmt: skip


def laid_over_contraction(node: Node, members: Sequence[Node]) -> Pointwise | None:
    """`node` over the loops of the contraction that `members` begins with, if it may be computed on finished tiles.

    It may when it goes over the same elements, touches what the members write only at its own point, overwrites nothing
    that the contraction reads, and its memory lies along the columns.
    """
    contraction = members[0]
    assert isinstance(contraction, Contraction)
    if not isinstance(node, Pointwise) or node.mode != "store":
        return None
    if any(i.op == "indirect" for i in node.body.instructions):
        return None
    loops = [s for s in contraction.loops if s.extent is not ONE]
    extents = [s.extent for s in loops]
    if refine([s.extent for s in node.loops if s.extent is not ONE], extents) != extents:
        return None
    laid = laid_over(node, loops, ())
    assert isinstance(laid, Pointwise)
    if laid.target in contraction.reads():
        return None
    column = contraction.columns[0]
    accesses = [(i.attrs[0], i.attrs[1]) for i in laid.body.loads]
    if any(not _lies_along(e, column) for _, e in [*accesses, (laid.target, laid.index)]):
        return None
    for m in members:
        assert isinstance(m, (Contraction, Pointwise))
        read = [] if isinstance(m, Contraction) else [(i.attrs[0], i.attrs[1]) for i in m.body.loads]
        meets = [*((e, m.index) for name, e in [*accesses, (laid.target, laid.index)] if name == m.target)]
        meets += [(e, laid.index) for name, e in read if name == laid.target]
        if any(a != b for a, b in meets):
            return None
    return laid


def _lies_along(e: Expr, column: Symbol) -> bool:
    """Whether neighbouring columns are adjacent in memory, or one element."""
    linear = e.linear((column,))
    return linear is not None and linear[1].get(column, ZERO) in (ZERO, ONE)
