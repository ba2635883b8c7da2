"""Loop nests: putting nodes into a canonical form, and laying several of them over the same outer
loops.

A nest is a node's iteration space as a row-major sequence of loops. Loops of one iteration vanish,
loops are ordered by the layout of what is written, and neighbours that every index walks as one are
merged. Splitting a loop again is always legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeGuard, TypeVar

from ingot.loops.expr import (
    Expr,
    Symbol,
    integer,
    known_less,
    known_less_equal,
    loop_symbol,
    product,
)
from ingot.loops.ir import Body, Instruction, Node, Pointwise, Reduction, Scan
from ingot.loops.spaces import extents_of, points_of

Compute = Pointwise | Reduction
ONE = integer(1)
ZERO = integer(0)
# neighbouring elements of the rows that a scatter writes: a few cache lines
COLUMNS_OF_A_BLOCK = 64
ALIKE = 1 << 12  # nests whose form is kept: a program has many that are alike
SHARED_POINTS = 1 << 16  # of a scatter, from which on it is worth more threads


def index_expressions(node: Compute) -> list[Expr]:
    """Every index expression of a node, the store's included."""
    indices = [node.index]
    for i in node.body.instructions:
        if i.op == "load":
            indices.append(i.attrs[1])
        elif i.op == "index":
            indices.append(i.attrs[0])
    return indices


def inner_loops(node: Compute) -> tuple[Symbol, ...]:
    """The loops a node reduces over: none for a pointwise node."""
    if isinstance(node, Reduction):
        return node.reduced
    return ()


def is_plain_reduction(node: Node) -> TypeGuard[Reduction]:
    """Whether a node reduces without telling of each step."""
    return isinstance(node, Reduction) and not isinstance(node, Scan)


def iterated(loops: Iterable[Symbol]) -> list[Symbol]:
    """The loops of more than one iteration, or of a number that is not known."""
    return [s for s in loops if s.extent is not ONE]


def all_loops(node: Compute) -> tuple[Symbol, ...]:
    return node.loops + inner_loops(node)


class _Substitution:
    """Symbols and what they become; what became of an expression is kept, since many nests are
    alike."""

    __slots__ = ("_results", "_values")

    def __init__(self, values: Mapping[Symbol, Expr]) -> None:
        self._values = values
        self._results: dict[Expr, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        result = self._results.get(e)
        if result is None:
            result = self._results[e] = e.substitute(self._values)
        return result


def renamed(
    node: Compute,
    substitution: Mapping[Symbol, Expr],
    loops: Sequence[Symbol],
    reduced: Sequence[Symbol],
) -> Compute:
    """The node over other loops: each old loop symbol is replaced by its expression in the new
    ones."""
    return _rewritten(node, _Substitution(substitution), loops, reduced)


def _rewritten(
    node: Compute, put: _Substitution, loops: Sequence[Symbol], reduced: Sequence[Symbol]
) -> Compute:
    changes: dict = {
        "loops": tuple(loops),
        "body": node.body.with_indices(put),
        "index": put(node.index),
    }
    if isinstance(node, Reduction):
        changes["reduced"] = tuple(reduced)
    return replace(node, **changes)


def canonical(node: Compute) -> Compute:
    """The node with one-iteration loops dropped, loops in the order of the written layout, and
    neighbours merged.

    A reduction of single elements, or of none, becomes the pointwise node that gives them or its
    neutral element.
    """
    dropped: dict[Symbol, Expr] = {}
    for s in all_loops(node):
        if s.extent is ONE:
            dropped[s] = ZERO
    loops, reduced = iterated(node.loops), iterated(inner_loops(node))
    if dropped:
        node = renamed(node, dropped, loops, reduced)
    if isinstance(node, Reduction) and (
        not reduced or any(s.extent.constant == 0 for s in reduced)
    ):
        node = _without_reducing(node)
        reduced = []
    ordered = isinstance(node, Reduction) and node.kind.startswith("arg")
    put, *merged = _merged(tuple(loops), tuple(reduced), tuple(index_expressions(node)), ordered)
    return _rewritten(node, put, *merged)


@lru_cache(ALIKE)
def _merged(
    loops: tuple[Symbol, ...],
    reduced: tuple[Symbol, ...],
    expressions: tuple[Expr, ...],
    ordered: bool,
) -> tuple[_Substitution, tuple[Symbol, ...], tuple[Symbol, ...]]:
    """The loops of a nest by layout and with neighbours merged. That of the store is the first of
    its index `expressions`; the `reduced` loops keep their order if they are `ordered`."""
    by_layout = _by_layout(loops, expressions)
    if ordered:
        inner = list(reduced)
    else:
        inner = _by_layout(reduced, expressions[1:])
    substitution: dict[Symbol, Expr] = {}
    merged = tuple(merge_neighbours(by_layout, expressions, substitution))
    merged_reduced = tuple(merge_neighbours(inner, expressions, substitution))
    return _Substitution(substitution), merged, merged_reduced


def loop_separates(index: Expr, loop: Symbol) -> bool:
    """Whether points that differ in `loop` never meet at one address.

    With index = step * loop + rest, they do not if 0 <= rest < step. Terms of the rest that are
    multiples of step * extent move by whole spans of the loop and are left out: 8*i + j + 64*k
    separates i, where i and j are below 8.
    """
    linear = index.linear([loop])
    step = None
    if linear is not None:
        step = linear[1].get(loop)
    if linear is None or step is None:
        return False
    rest, span = linear[0], (step * loop.extent).constant
    terms = rest.linear(rest.symbols)
    if terms is not None and span:
        rest = terms[0] + sum(
            (
                symbol * coefficient
                for symbol, coefficient in terms[1].items()
                if coefficient.constant is None or coefficient.constant % span
            ),
            ZERO,
        )
    return known_less_equal(ZERO, rest) and known_less(rest, step)


def in_columns(node: Compute) -> Compute:
    """A scatter of rows that may meet, in blocks of columns, which do not: threads can share
    these."""
    if not isinstance(node, Pointwise) or not node.scatters or len(node.loops) < 2:
        return node
    points, columns = points_of(node.loops).constant, node.loops[-1]
    width, linear = columns.extent.constant, node.index.linear([columns])
    if (
        points is None
        or points < SHARED_POINTS
        or width is None
        or width % COLUMNS_OF_A_BLOCK
        or linear is None
    ):
        return node
    if (
        linear[1].get(columns) != ONE
        or loop_separates(node.index, node.loops[0])
        or not loop_separates(node.index, columns)
    ):
        return node
    block = loop_symbol(f"{columns.name}_block", width // COLUMNS_OF_A_BLOCK)
    column = loop_symbol(f"{columns.name}_column", COLUMNS_OF_A_BLOCK)
    split = {columns: block * COLUMNS_OF_A_BLOCK + column}
    return renamed(node, split, (block, *node.loops[:-1], column), ())


# of an empty extremum eager says nothing: it raises
_NEUTRAL = {"prod": 1, "all": True, "any": False}


def _without_reducing(node: Reduction) -> Pointwise:
    """What a reduction over no loops or over an empty one amounts to."""
    body = node.body
    if node.reduced:
        neutral = Instruction.constant(_NEUTRAL.get(node.kind, 0), node.dtype)
        body = Body((neutral,), (0,))
    elif node.kind.startswith("arg"):  # the element may lie where an index is checked
        zero = Instruction.constant(0, node.dtype)
        body = Body((*body.instructions, zero), (len(body.instructions),))
    elif node.kind == "sum" and node.dtype.is_floating_point:
        # it begins at 0.0: the sum of -0.0 is 0.0
        zero, end = Instruction.constant(0.0, node.dtype), len(body.instructions)
        added = Instruction("add", (*body.results, end), node.dtype)
        body = Body((*body.instructions, zero, added), (end + 1,))
    return Pointwise(node.name, node.origin, node.loops, body, node.target, node.index)


def _by_layout(loops: Sequence[Symbol], expressions: Sequence[Expr]) -> list[Symbol]:
    """Loops ordered by decreasing stride in the first expression that is linear in them all; stable
    otherwise."""
    for e in expressions:
        linear = e.linear(loops)
        if linear is None or len(linear[1]) < len(loops):
            continue
        strides = [linear[1][s].constant for s in loops]
        if any(k is None for k in strides):
            # symbolic strides: the logical order is the layout's in all but odd cases
            return list(loops)
        magnitude = {}
        for s, k in zip(loops, strides):
            if k is not None:
                magnitude[s] = abs(k)
        return sorted(loops, key=lambda s: -magnitude[s])
    return list(loops)


def merge_neighbours(
    loops: Sequence[Symbol], expressions: Iterable[Expr], substitution: dict[Symbol, Expr]
) -> list[Symbol]:
    """Merge adjacent loops that all `expressions` walk as one; adds old symbol -> expression to
    `substitution`.

    Loops a (outer) and b may become one when every expression is linear in both and a's coefficient
    is b's times b's extent.
    """
    merged: list[tuple[Symbol, ...]] = []
    coefficients = []
    for e in expressions:
        coefficients.append(_coefficients(e, loops))
    for s in loops:
        if merged and all(_walks_as_one(c, merged[-1][-1], s) for c in coefficients):
            merged[-1] += (s,)
        else:
            merged.append((s,))
    result = []
    for run in merged:
        if len(run) == 1:
            result.append(run[0])
            continue
        whole = loop_symbol(f"{run[0].name}_{run[-1].name}", points_of(run))
        result.append(whole)
        for s in run[:-1]:
            substitution[s] = ZERO
        substitution[run[-1]] = (
            # the others' share follows from their coefficients being multiples of the last one's
            whole
        )
    return result


def _coefficients(e: Expr, loops: Sequence[Symbol]) -> dict[Symbol, Expr] | None:
    linear = e.linear(loops)
    if linear is None:
        return None
    return linear[1]


def _walks_as_one(coefficients: dict[Symbol, Expr] | None, outer: Symbol, inner: Symbol) -> bool:
    if coefficients is None:
        return False
    return coefficients.get(outer, ZERO) == coefficients.get(inner, ZERO) * inner.extent


# Laying nests over each other
# -----------------------------------------------------------------------------------------


def divide(dividend: Expr, divisor: Expr) -> Expr | None:
    """dividend / divisor where it is exact for all sizes, else None."""
    if divisor.constant == 1:
        return dividend
    if dividend == divisor:
        return ONE
    a, b = dividend.constant, divisor.constant
    if a is not None and b is not None:
        if b > 0 and a % b == 0:
            return integer(a // b)
        return None
    if a == 0 or b == 0:
        return None
    quotient = dividend // divisor
    if quotient * divisor == dividend:
        return quotient
    return None


def refine(first: Sequence[Expr], second: Sequence[Expr]) -> list[Expr] | None:
    """The coarsest common refinement of two row-major factorizations of one space, or None.

    (6, 4) and (3, 8) refine to (3, 2, 4); (6, 4) and (4, 6) do not.
    """
    left, right = list(first), list(second)
    refined: list[Expr] = []
    while left and right:
        a, b = left.pop(), right.pop()
        if a == b:
            refined.append(a)
            continue
        rest = divide(a, b)
        if rest is not None:
            refined.append(b)
            left.append(rest)
            continue
        rest = divide(b, a)
        if rest is None:
            return None
        refined.append(a)
        right.append(rest)
    refined = [e for e in refined if e.constant != 1]
    if any(e.constant != 1 for e in left + right):
        return None
    return refined[::-1]


def split_prefix(extents: Sequence[Expr], numel: Expr) -> tuple[list[Expr], list[Expr]] | None:
    """Split row-major `extents` into (outer, inner) such that the outer ones multiply to `numel`,
    or None."""
    outer: list[Expr] = []
    left = numel
    for k, e in enumerate(extents):
        if left.constant == 1:
            return outer, list(extents[k:])
        rest = divide(left, e)
        if rest is not None:
            outer.append(e)
            left = rest
            continue
        inner = divide(e, left)
        if inner is None:
            return None
        return [*outer, left], [inner, *extents[k + 1 :]]
    if left.constant == 1:
        return (outer, [])
    return None


def distribute(
    loops: Sequence[Symbol], onto: Sequence[Symbol], substitution: dict[Symbol, Expr]
) -> None:
    """Express each of `loops` in the finer loops `onto` (whose extents refine theirs,
    row-major)."""
    fine = list(onto)
    for s in reversed(loops):
        value, stride = ZERO, ONE
        while stride != s.extent:
            f = fine.pop()
            value = value + f * stride
            stride = stride * f.extent
        substitution[s] = value


def walked_as(
    node: Pointwise, own: Expr, other: Expr, loops: Sequence[Symbol], may_differ: bool = False
) -> Pointwise | None:
    """The node over `loops`, in their order, such that its index `own` becomes `other`. None where
    the two are not known to walk through the same elements, each once. Where they
    `may_differ`, a constant number of elements may lie between them."""
    mine, theirs = _steps(own, node.loops), _steps(other, loops)
    if mine is None or theirs is None:
        return None
    distance = (mine[0] - theirs[0]).constant
    if distance is None or (distance != 0 and not may_differ):
        return None
    substitution: dict[Symbol, Expr] = {}
    left = sorted(loops, key=lambda s: theirs[1][s])
    for s in sorted(node.loops, key=lambda s: mine[1][s]):
        step = first = mine[1][s]
        value = ZERO
        while left and theirs[1][left[0]] == step and step < first * (s.extent.constant or 0):
            finer = left.pop(0)
            value = value + finer * (step // first)
            step *= finer.extent.constant or 0
        if step != first * (s.extent.constant or 0):
            return None
        substitution[s] = value
    if left:
        return None
    changed = renamed(node, substitution, loops, ())
    assert isinstance(changed, Pointwise)
    return changed


def _steps(e: Expr, loops: Sequence[Symbol]) -> tuple[Expr, dict[Symbol, int]] | None:
    """(the rest, how far each loop moves) of an index over `loops` of constant extents, all of
    which move forwards."""
    linear = e.linear(loops)
    if linear is None or any(s.extent.constant is None for s in loops):
        return None
    steps = {}
    for s in loops:
        steps[s] = linear[1].get(s, ZERO).constant or 0
    if all(step > 0 for step in steps.values()):
        return (linear[0], steps)
    return None


T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """A node's row-major extents: all of its loops, and how many of them come before the reduced
    ones."""

    loops: tuple[Expr, ...]
    reduced: tuple[Expr, ...]

    @staticmethod
    def of(node: Compute) -> Shape:
        return Shape.of_loops(node.loops, inner_loops(node))

    @staticmethod
    @lru_cache(ALIKE)
    def of_loops(loops: tuple[Symbol, ...], reduced: tuple[Symbol, ...]) -> Shape:
        return Shape(tuple(extents_of(loops)), tuple(extents_of(reduced)))

    @property
    def points(self) -> Expr:
        return product(self.loops)

    @property
    def total(self) -> Expr:
        return product(self.loops + self.reduced)

    def over(self, numel: Expr) -> tuple[list[Expr], list[Expr]] | None:
        """(outer, inner) extents when the node runs under outer loops of `numel` points; None if it
        cannot.

        A reduction needs the outer loops to be its own, so that it is finished within one outer
        point.
        """
        if self.reduced:
            if self.points == numel:
                return (list(self.loops), list(self.reduced))
            return None
        return split_prefix(self.loops, numel)


def fresh_loops(prefix: str, extents: Sequence[Expr]) -> tuple[Symbol, ...]:
    return tuple(loop_symbol(f"{prefix}{k}", e) for k, e in enumerate(extents))


def laid_over(node: Compute, outer: Sequence[Symbol], inner: Sequence[Symbol]) -> Compute:
    """The node over the given outer loops (which refine its own) and inner loops (which refine the
    rest)."""
    outer, inner = tuple(outer), tuple(inner)
    if isinstance(node, Reduction):
        return _rewritten(
            node, _distributed(((node.loops, outer), (node.reduced, inner))), outer, inner
        )
    return _rewritten(node, _distributed(((node.loops, outer + inner),)), outer + inner, ())


@lru_cache(ALIKE)
def _distributed(pairs: tuple[tuple[tuple[Symbol, ...], tuple[Symbol, ...]], ...]) -> _Substitution:
    """Loops in terms of the finer ones beside them."""
    substitution: dict[Symbol, Expr] = {}
    for loops, onto in pairs:
        distribute(loops, onto, substitution)
    return _Substitution(substitution)
