"""Arithmetic of polynomials with integer coefficients, as dictionaries from monomials to these.

A monomial is a product of atoms: a tuple in canonical order in which powers repeat, () for 1. What
goes in is canonical, and so is what comes out, but that terms may stand in any order and have the
coefficient 0.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

T = TypeVar("T")  # the type of atoms, which have an `order`: their text, then their age


def _order_of(atom: Any) -> tuple[str, int]:
    return atom.order


def graded_order(item: tuple[tuple[Any, ...], int]) -> tuple[bool, int, list[tuple[str, int]]]:
    """What the terms (monomial, coefficient) are sorted by: the constant is last, and before it
    stand those of most factors first."""
    monomial = item[0]
    return not monomial, -len(monomial), [atom.order for atom in monomial]


# -- monomials -------------------------------------------------------------------------------------


def divide(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...] | None:
    """a / b where that is a monomial, else None."""
    if not b:
        return a
    left = list(a)
    for atom in b:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def common_factor(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    """The largest monomial that divides both."""
    left = list(b)
    shared = []
    for atom in a:
        if atom in left:
            left.remove(atom)
            shared.append(atom)
    return tuple(shared)


def without(monomial: tuple[T, ...], atom: T) -> tuple[T, ...]:
    """The monomial with one occurrence of an atom taken out."""
    position = monomial.index(atom)
    return monomial[:position] + monomial[position + 1 :]


# -- polynomials -----------------------------------------------------------------------------------


def add(a: dict[tuple[T, ...], int], b: dict[tuple[T, ...], int]) -> dict[tuple[T, ...], int]:
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total.get(monomial, 0) + coefficient
    return total


def multiply(a: dict[tuple[T, ...], int], b: dict[tuple[T, ...], int]) -> dict[tuple[T, ...], int]:
    total: dict[tuple[T, ...], int] = {}
    for left, c in a.items():
        for right, d in b.items():
            monomial = left or right
            if left and right:
                monomial = tuple(sorted(left + right, key=_order_of))
            total[monomial] = total.get(monomial, 0) + c * d
    return total


def slope(a: dict[tuple[T, ...], int], atom: T) -> dict[tuple[T, ...], int]:
    """What an atom is multiplied by, of terms in which it occurs once."""
    terms = []
    for item in a.items():
        if item[0].count(atom) == 1:
            terms.append(item)
    result = {}
    for monomial, coefficient in terms:
        result[without(monomial, atom)] = coefficient
    return result


def divide_by_term(
    a: dict[tuple[T, ...], int], divisor: tuple[T, ...], size: int
) -> tuple[dict[tuple[T, ...], int], dict[tuple[T, ...], int]]:
    """(q, r) with a = q * (size * divisor) + r. The constant of r is in 0 .. size - 1 where the
    divisor is a number; other terms are divided where that leaves no rest."""
    quotient: dict[tuple[T, ...], int] = {}
    rest: dict[tuple[T, ...], int] = {}
    for monomial, coefficient in a.items():
        left = divide(monomial, divisor)
        if left is None or (coefficient % size and monomial):
            rest[monomial] = coefficient
            continue
        whole, remainder = divmod(coefficient, size)
        if whole:
            quotient[left] = whole
        if remainder:
            rest[monomial] = remainder
    return quotient, rest


def common_divisors(
    a: dict[tuple[T, ...], int], monomial: tuple[T, ...], size: int
) -> list[tuple[int, tuple[T, ...]]]:
    """The terms but 1, as (coefficient, monomial), that `size * monomial` has in common with some
    term of `a`, the largest first."""
    divisors: dict[tuple[int, tuple[T, ...]], None] = {}
    for other, coefficient in a.items():
        if other:
            shared = math.gcd(size, coefficient), common_factor(monomial, other)
            if shared != (1, ()):
                divisors[shared] = None
    return sorted(divisors, key=lambda term: (len(term[1]), term[0]), reverse=True)
