"""Contractions among the nests: their canonical loops, and which pointwise nodes finish them (their
epilogues)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from ingot.loops.expr import ONE, ZERO, Expr, Symbol, integer, product
from ingot.loops.ir import Contraction, Node, Pointwise
from ingot.loops.spaces import extents_of
from ingot.schedule.nests import (
    distribute,
    fresh_loops,
    iterated,
    laid_over,
    merge_neighbours,
    refine,
    renamed,
    walked_as,
)

# what computes the operands, over a contraction's loops
Prologues = tuple[Pointwise | None, Pointwise | None]


def canonical_contraction(node: Contraction) -> Contraction:
    """The node without batch, row and outer reduced loops of one iteration, and with neighbours
    merged."""
    left, right, index = node.left.index, node.right.index, node.index
    substitution: dict[Symbol, Expr] = {}
    if node.weights is not None:
        return node

    for loop in (*node.loops, *node.reduced):
        if loop.extent is ONE:
            substitution[loop] = ZERO

    def merged(loops: Sequence[Symbol], expressions: Sequence[Expr]) -> tuple[Symbol, ...]:
        return tuple(merge_neighbours(iterated(loops), expressions, substitution))

    batch = merged(node.batch, [left, right, index])
    rows = merged(node.rows, [left, index])
    reduced = merged(node.reduced, [left, right]) or fresh_loops("k", [ONE])
    return replace(
        node, batch=batch, rows=rows, reduced=reduced, left=node.left.substitute(substitution),
        right=node.right.substitute(substitution), index=index.substitute(substitution),
    )  # fmt: skip


def laid_over_contraction(
    node: Node, members: Sequence[Node], along: bool = True
) -> list[Node] | None:
    """`members`, which begin with a contraction, and `node` over its loops, if that may be computed
    on finished tiles.

    It may when it goes over the same elements, touches what the members write only at its own
    point, overwrites nothing that the contraction reads, and, if that is asked for, its memory lies
    `along` the columns. Loops are split where it needs that.
    """
    contraction = _first(members)
    if not isinstance(node, Pointwise) or node.mode != "store" or node.body.lookups:
        return None
    pair = None
    if not along or not _in_order(contraction.index, iterated(contraction.loops)):
        pair = _through_memory(node, members)
    pair = pair or _over_refined(node, members)
    if pair is None:
        return None
    members, laid = pair
    contraction = _first(members)
    if laid.target in contraction.reads():
        return None
    column = contraction.columns[0]
    if along and not all(_lies_along(e, column) for _, e in laid.accesses):
        return None
    if not all(_meet_at_one_point(member, laid) for member in members):
        return None
    return [*members, laid]


def _first(members: Sequence[Node]) -> Contraction:
    contraction = members[0]
    assert isinstance(contraction, Contraction)
    return contraction


def _meet_at_one_point(member: Node, node: Pointwise) -> bool:
    """Whether what one of two nodes over the same loops writes is touched by the other at the
    element of its own point alone. What a contraction writes beside its target has other points."""
    assert isinstance(member, (Contraction, Pointwise))
    for name, e in node.accesses:
        if name in member.writes() and (name != member.target or e != member.index):
            return False
    if isinstance(member, Contraction):
        return True
    loads = [i.attrs for i in member.body.loads]
    return not any(name == node.target and e != node.index for name, e in loads)


def _in_order(e: Expr, loops: Sequence[Symbol]) -> bool:
    """Whether an index walks through memory as its loops are ordered, outermost first, as far as
    that is known."""
    linear = e.linear(loops)
    steps = []
    for s in loops:
        steps.append(None if linear is None else linear[1].get(s, ZERO).constant)
    return all(a is None or b is None or a >= b for a, b in zip(steps, steps[1:]))


def _through_memory(
    node: Pointwise, members: Sequence[Node]
) -> tuple[list[Node], Pointwise] | None:
    """The members, and the node over the contraction's loops as far as what it reads of a member
    says which they are. Loops are split where the node begins another one."""
    positions: dict[str, int] = {}
    for position, member in enumerate(members):
        positions.setdefault(member.writes()[0], position)
    for load in node.body.loads:
        name, own = load.attrs
        if name not in positions:
            continue
        finer = _split(members, _extents_between(own, node.loops, _first(members)))
        if finer is None:
            return None
        writer = finer[positions[name]]
        assert isinstance(writer, (Contraction, Pointwise))
        laid = walked_as(node, own, writer.index, iterated(_first(finer).loops))
        if laid is None:
            return None
        return (finer, laid)
    return None


def _extents_between(own: Expr, loops: Sequence[Symbol], contraction: Contraction) -> list[Expr]:
    """The extents of the contraction's loops, each cut where one of `loops` begins to move through
    the same memory."""
    mine, theirs = own.linear(loops), contraction.index.linear(contraction.loops)
    cuts = []
    if mine is not None:
        cuts = sorted(c.constant for c in mine[1].values() if c.constant)
    all_extents: list[Expr] = []
    for s in contraction.loops:
        left, step = s.extent.constant, None
        if theirs is not None:
            step = theirs[1].get(s, ZERO).constant
        if not left or not step:
            all_extents.append(s.extent)
            continue
        extents: list[Expr] = []
        for cut in cuts:
            inner, rest = divmod(cut, step)
            if rest == 0 and 1 < inner < left and left % inner == 0:
                extents.insert(0, integer(inner))
                left, step = left // inner, cut
        all_extents += [integer(left), *extents]
    return [extent for extent in all_extents if extent is not ONE]


def _over_refined(node: Pointwise, members: Sequence[Node]) -> tuple[list[Node], Pointwise] | None:
    """The members and the node over the coarsest loops that refine those of both, taken in
    order."""
    extents = extents_of(iterated(_first(members).loops))
    refined = refine(extents_of(iterated(node.loops)), extents)
    if refined is None:
        return None
    finer: list[Node] | None = list(members)
    if refined != extents:
        finer = _split(members, refined)
    if finer is None:
        return None
    laid = laid_over(node, iterated(_first(finer).loops), ())
    assert isinstance(laid, Pointwise)
    return finer, laid


def _split(members: Sequence[Node], refined: Sequence[Expr]) -> list[Node] | None:
    """The members over finer loops, of the extents `refined` where they are not one; None if that
    splits columns."""
    contraction = _first(members)
    left, finer = list(refined), dict[Symbol, tuple[Symbol, ...]]()
    substitution: dict[Symbol, Expr] = {}
    for loop in contraction.loops:
        extents: list[Expr] = []
        while product(extents) is not loop.extent:
            extents.append(left.pop(0))
        finer[loop] = (loop,)
        if len(extents) > 1:
            finer[loop] = fresh_loops(f"{loop.name}_", extents)
            distribute([loop], finer[loop], substitution)
    if not substitution.keys().isdisjoint(contraction.columns):
        return None

    def split(loops: Sequence[Symbol]) -> tuple[Symbol, ...]:
        return tuple(chain.from_iterable(map(finer.__getitem__, loops)))

    result: list[Node] = [replace(
        contraction, batch=split(contraction.batch), rows=split(contraction.rows),
        left=contraction.left.substitute(substitution),
        right=contraction.right.substitute(substitution),
        index=contraction.index.substitute(substitution),
    )]  # fmt: skip
    loops = iterated(_first(result).loops)
    for member in members[1:]:
        assert isinstance(member, Pointwise)
        result.append(renamed(member, substitution, loops, ()))
    return result


def _lies_along(e: Expr, column: Symbol) -> bool:
    """Whether neighbouring columns are adjacent in memory, or one element."""
    return e.step(column) in (ZERO, ONE)
