"""Proofs that an index expression is never negative, whatever its symbols are.

A proof that is found is right; that none is found says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingot.loops.expr import Expr

_MOST_STEPS = 8


def is_positive(e: Expr) -> bool:
    """Whether e > 0 by intervals alone."""
    low = e.bounds[0]
    return low is not None and low > 0


def is_nonnegative(e: Expr) -> bool:
    """Prove e >= 0 by intervals, or by intervals of a simpler lower bound.

    Indices are moved to the end of their range where `e` is least, then each size is written as its
    lower bound plus something nonnegative.
    """
    for _ in range(_MOST_STEPS):
        low, high = e.bounds
        if low is not None and low >= 0:
            return True
        if high is not None and high < 0:
            return False
        smaller = _at_least_end(e)
        if smaller is None:
            return _is_nonnegative_in_sizes(e)
        e = smaller
    return False


def is_in_range(e: Expr, extent: Expr) -> bool:
    """Whether 0 <= e < extent."""
    return is_nonnegative(e) and is_nonnegative(extent - e - 1)


def _at_least_end(e: Expr) -> Expr | None:
    """A lower bound of `e` with one index or remainder with a symbolic range eliminated; None if
    there is none left."""
    for _, monomial in e.terms:
        for atom in monomial:
            count = atom.count
            if count is None or (count.constant is not None and len(monomial) == 1):
                continue
            slope = e.slope(atom)
            if atom in slope.symbols:
                continue
            rest = e - slope * atom
            low, high = slope.bounds
            if low is not None and low >= 0:
                return rest
            if high is not None and high <= 0:
                return rest + slope * (count - 1)
    return None


def _is_nonnegative_in_sizes(e: Expr) -> bool:
    atoms = set()
    for _, monomial in e.terms:
        for atom in monomial:
            atoms.add(atom)
    if not atoms <= e.symbols:
        return False
    larger = []
    for s in e.symbols:
        if s.kind == "size" and s.lower > 0 and s.upper is None:
            larger.append(s)
    low = e.substitute({s: s.from_lower() for s in larger}).bounds[0]
    return low is not None and low >= 0
