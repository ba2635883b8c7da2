"""The forms of a kernel: in which blocks it is computed, and whether 32 bits hold its indices.

Each launch takes the first form whose conditions hold for its sizes. Where all sizes are known
there is one form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingot.loops.expr import Expr, FloorDiv, Max, Min, Mod, Symbol, integer, maximum
from ingot.loops.spaces import extents_of, points_of
from ingot.schedule.blocks import (
    Blocks,
    Condition,
    blocks_for_some_sizes,
    choose_blocks,
    inner_size,
)
from ingot.schedule.kernel import Kernel, Stage

SHORT = 2**31


@dataclass(frozen=True)
class Form:
    """A way to compute a kernel: in these blocks, with index arithmetic in 32 bits if `short`.

    It is for sizes of which each of the `conditions` holds: an expression is not greater than a
    number.
    """

    blocks: Blocks
    short: bool
    conditions: tuple[Condition, ...] = ()


def forms_of(kernel: Kernel) -> list[Form]:
    """The forms of a kernel, the one without conditions last.

    Index arithmetic is in 32 bits where that is ever right.
    """
    blocks = choose_blocks(kernel)
    if kernel.members:  # of known sizes, as is what they have in common
        return [Form(blocks, all(form.short for m in kernel.members for form in forms_of(m)))]
    some = blocks_for_some_sizes(kernel)
    slack = max(b.slack for b in (blocks, *(b for b, _ in some)))
    short = fits_short(kernel, slack)
    limit = None
    if not short:
        limit = _short_limit(kernel, slack)
    if limit is None or limit.constant is not None:
        return [*(Form(b, short, conditions) for b, conditions in some), Form(blocks, short)]
    fits = limit, SHORT - 1
    forms = []
    for b, conditions in some:
        forms.append(Form(b, True, (*conditions, fits)))
    return [*forms, Form(blocks, True, (fits,)), Form(blocks, False)]


def general_form(kernel: Kernel, forms: Sequence[Form] = ()) -> Form:
    """The form for sizes of all kinds, but for those that need 64 bits where launches ask that. It
    is one of the kernel's `forms`, which need not be given."""
    blocks = choose_blocks(kernel)
    return next(form for form in forms or forms_of(kernel) if form.blocks == blocks)


# -- 32 bits ---------------------------------------------------------------------------------------


def fits_short(kernel: Kernel, slack: int) -> bool:
    """Whether 32 bits are enough for all index arithmetic.

    Blocks go beyond the end by less than `slack`.
    """
    counts = [points_of(kernel.loops), *map(inner_size, kernel.stages)]
    for expr in (*(p.length for p in kernel.parameters), *counts):
        if expr is None or expr.constant is None or expr.constant + slack >= SHORT:
            return False
    return all(map(_is_short, _all_indices(kernel)))


def _all_indices(kernel: Kernel) -> Iterable[Expr]:
    """What a kernel computes of indices: where its product's operands are, and all that bodies
    read."""
    stages, product = list(kernel.stages), kernel.product
    if product is not None:
        yield product.left.index
        yield product.right.index
        bodies = [*product.prologues]
        if product.weights is not None:
            for access in product.weights.accesses:
                yield access.index
            bodies.append(product.weights.body)
        for body in filter(None, bodies):
            stages.append(Stage((), body))
    for stage in stages:
        yield from _indices(stage)


def _indices(stage: Stage) -> Iterable[Expr]:
    for store in stage.stores:
        yield store.index
    for i in stage.body.instructions:
        if i.op in ("load", "index"):
            yield i.attrs[-1]
        elif i.op == "indirect":
            yield i.attrs[1]


def _is_short(e: Expr) -> bool:
    """Whether an expression and its terms are less than 2**31 in magnitude."""
    total = 0
    for coefficient, atoms in e.terms:
        size = abs(coefficient)
        for atom in atoms:
            low, high = atom.bounds
            if low is None or high is None:
                return False
            if isinstance(atom, (FloorDiv, Mod, Max, Min)) and not (
                _is_short(atom.left) and _is_short(atom.right)
            ):
                return False
            size *= max(abs(low), abs(high))
        total += size
    return total < SHORT


def _short_limit(kernel: Kernel, slack: int) -> Expr | None:
    """What must be less than 2**31 for 32 bits to be enough; None where that is not known.

    It is the largest of what is compared, divided, or an index. Sums and products may overflow on
    the way to a result that fits.
    """
    counts = [points_of(kernel.loops), *map(inner_size, kernel.stages)]
    needed: list[Expr] = []
    for count in (*(p.length for p in kernel.parameters), *counts):
        if count is None:
            return None
        needed.append(count + slack)
    expressions = extents_of(kernel.loops)
    for stage in kernel.stages:
        expressions += extents_of(stage.loops)
    if kernel.product is not None:
        expressions += extents_of(kernel.product.reduced)
    for e in (*expressions, *_all_indices(kernel)):
        size = _magnitude(e, needed)
        if size is None:
            return None
        needed.append(size)
    return functools.reduce(maximum, needed)


def _magnitude(e: Expr, needed: list[Expr]) -> Expr | None:
    """A bound of an expression's magnitude, over sizes.

    Bounds of its operations' operands are added to `needed`.
    """
    total = integer(0)
    for coefficient, atoms in e.terms:
        size = integer(abs(coefficient))
        for atom in atoms:
            factor = _atom_magnitude(atom, needed)
            if factor is None:
                return None
            size = size * factor
        total = total + size
    return total


def _atom_magnitude(atom: Expr, needed: list[Expr]) -> Expr | None:
    if isinstance(atom, Symbol):
        if atom.kind != "size":
            return _magnitude(atom.extent, needed)
        if atom.lower >= 0:
            return atom
        return None
    assert isinstance(atom, (FloorDiv, Mod, Max, Min))
    left, right = _magnitude(atom.left, needed), _magnitude(atom.right, needed)
    if left is None or right is None:
        return None
    needed += [left, right]
    if isinstance(atom, (Max, Min)):
        return left + right
    least = atom.right.bounds[0]
    if least is None or least < 1:
        return None
    if isinstance(atom, FloorDiv):
        return left
    return right
