"""The simplest shape guards that say the same: none that follows from the others.

What torch and capture ask while a program is traced says the same in several ways: a view of rows
of 8 asks whether 8*(n//8) is n, and whether n//8 is 0. A guard is checked at each call and read by
users, so what is left is what a person would write: n%8 == 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ingot.graph.shape_guards import LARGEST, ShapeGuard
from ingot.loops.expr import (
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    integer,
    known_equal,
    known_less_equal,
    mod,
    size_symbol,
)
from ingot.sequences import present


class _Fact(NamedTuple):
    """`terms relation constant`: the terms have no constant among them and no common factor;
    relation: ==, != or >=."""

    terms: Expr
    relation: str
    constant: int
    guard: ShapeGuard

    def shown(self) -> ShapeGuard:
        """As a person would write it: as it was asked, if that was simple."""
        if _is_plain(self.guard.left) and _is_plain(self.guard.right):
            as_asked = _fact_of(self.guard)
            if as_asked is not None and as_asked[:3] == self[:3]:
                return self.guard
        positive, negative = _positive_terms(self.terms), _positive_terms(-self.terms)
        relation, constant, where = self.relation, self.constant, self.guard.where
        if relation != ">=":
            if positive is ZERO:
                return ShapeGuard(negative, relation, ZERO - constant, where)
            return ShapeGuard(positive, relation, negative + constant, where)
        if constant == 1 and negative is not ZERO:
            return ShapeGuard(negative, "<", positive, where)
        return ShapeGuard(negative + max(constant, 0), "<=", positive + max(-constant, 0), where)


def reduced(guards: Sequence[ShapeGuard]) -> list[ShapeGuard]:
    """Relations that hold for the same sizes as `guards` do, of symbols within their bounds."""
    facts: list[_Fact] = []
    for guard in guards:
        fact = _fact_of(guard)
        if fact is not None:
            facts += _without_equal_quotient(fact)
    divided: set[tuple[Expr, Expr]] = set()
    for fact in facts:
        if isinstance(fact.terms, Mod) and fact.relation == "==" and fact.constant == 0:
            divided.add((fact.terms.left, fact.terms.right))
    bounds = present(_without_quotient(fact, divided) for fact in facts)
    return [fact.shown() for fact in _independent(_tightest(bounds, divided))]


def _is_plain(e: Expr) -> bool:
    return isinstance(e, Symbol) or e.constant is not None


def _fact_of(guard: ShapeGuard) -> _Fact | None:
    """A guard's fact; None where it always holds."""
    left, relation, right, _ = guard
    if relation in ("==", "!="):
        return _fact(left - right, relation, guard)
    return _fact(right - left - (relation == "<"), ">=", guard)


def _fact(e: Expr, relation: str, guard: ShapeGuard) -> _Fact | None:
    """That of `e relation 0`."""
    e = _without_positive_factors(e)
    if relation == ">=":
        return _bound(_with_remainders(e), guard)
    e = _as_remainder(e)
    if relation == "!=":
        low, high = e.bounds
        if low == 0:
            return _fact(e - 1, ">=", guard)
        if high == 0:
            return _fact(-e - 1, ">=", guard)
        if low is not None and low > 0 or high is not None and high < 0:
            return None
    terms, constant, common = _separated(e)
    if terms is ZERO:
        return None
    if constant % common:
        if relation == "!=":
            return None
        return _Fact(terms, relation, -constant, guard)
    if terms.terms[0][0] < 0:
        common = -common
    return _Fact(_divided(terms, common), relation, -constant // common, guard)


def _bound(e: Expr, guard: ShapeGuard) -> _Fact | None:
    """That of `e >= 0`."""
    if _never_negative(e):
        return None
    terms, constant, common = _separated(e)
    if terms is ZERO:
        return None
    return _Fact(_divided(terms, common), ">=", -(constant // common), guard)


def _separated(e: Expr) -> tuple[Expr, int, int]:
    """(the terms but for the constant, the constant, their common factor)."""
    constant = next((c for c, monomial in e.terms if not monomial), 0)
    terms = e - constant
    return terms, constant, math.gcd(*(c for c, _ in terms.terms))


def _without_equal_quotient(fact: _Fact) -> list[_Fact]:
    """The fact; of a quotient that equals a number, the bounds of what is divided."""
    quotient = fact.terms
    if fact.relation != "==" or not isinstance(quotient, FloorDiv):
        return [fact]
    if (quotient.right.bounds[0] or 0) <= 0:
        return [fact]
    remainder = quotient.left - fact.constant * quotient.right
    least = _fact(remainder, ">=", fact.guard)
    return present((least, _fact(quotient.right - 1 - remainder, ">=", fact.guard)))


def _without_positive_factors(e: Expr) -> Expr:
    """The expression over the factors that all of its terms have and that are above 0: it has the
    same sign."""
    monomials = [list(monomial) for _, monomial in e.terms]
    if not monomials:
        return e
    for atom in list(monomials[0]):
        low = atom.bounds[0]
        if low is not None and low > 0 and all(atom in monomial for monomial in monomials):
            for monomial in monomials:
                monomial.remove(atom)
    return _sum((c, tuple(m)) for (c, _), m in zip(e.terms, monomials, strict=True))


def _as_remainder(e: Expr) -> Expr:
    """a%n for a - n*(a//n) and n*(a//n) - a: both are 0 in the same cases."""
    for _, monomial in e.terms:
        for atom in monomial:
            if isinstance(atom, FloorDiv) and atom.left - atom.right * atom in (e, -e):
                return mod(atom.left, atom.right)
    return e


def _with_remainders(e: Expr) -> Expr:
    """The expression with a - n*(a//n) written as a%n."""
    for _, monomial in e.terms:
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                remainder = atom.left - atom.right * atom
                for others, sign in ((e - remainder, 1), (e + remainder, -1)):
                    if len(others.terms) + 1 < len(e.terms) and not _has_factor(others, atom):
                        return others + sign * mod(atom.left, atom.right)
    return e


def _has_factor(e: Expr, atom: Expr) -> bool:
    return any(atom in monomial for _, monomial in e.terms)


def _never_negative(e: Expr) -> bool:
    """A proof that an expression is 0 or more: quotients by numbers are at most, and nearly, what
    division gives."""
    for _ in range(4):
        if known_less_equal(ZERO, e):
            return True
        term = _quotient_by_number(e)
        if term is None:
            return False
        c, quotient, n = term
        if c < 0:
            least = quotient.left
        else:
            least = quotient.left - n + 1
        e = n * (e - c * quotient) + c * least
    return False


def _quotient_by_number(e: Expr) -> tuple[int, FloorDiv, int] | None:
    """(c, q, n) of the first term c*q of which q is a quotient by a number n."""
    for c, monomial in e.terms:
        if len(monomial) == 1 and isinstance(monomial[0], FloorDiv):
            quotient = monomial[0]
            if quotient.right.constant is not None:
                return c, quotient, quotient.right.constant
    return None


def _without_quotient(fact: _Fact, divided: set[tuple[Expr, Expr]]) -> _Fact | None:
    """A bound of a//n as one of a; None where it follows from `divided`, the (a, n) without
    remainder."""
    if fact.relation != ">=" or len(fact.terms.terms) != 1:
        return fact
    ((sign, monomial),) = fact.terms.terms
    quotient = monomial[0]
    if len(monomial) > 1 or not isinstance(quotient, FloorDiv):
        return fact
    a, n = quotient.left, quotient.right
    low = a.bounds[0]
    if sign == 1 and fact.constant == 1 and (a, n) in divided and low is not None and low > 0:
        return None
    if n.constant is None:
        return fact
    if sign == 1:
        e = a - fact.constant * n
    else:
        e = (1 - fact.constant) * n - 1 - a
    bound = _fact(e, ">=", fact.guard)
    if bound is None:
        return None
    if -bound.constant >= LARGEST and isinstance(-bound.terms, Symbol):  # all are in 64 bits
        return None
    if abs(bound.constant) <= LARGEST:
        return _without_quotient(bound, divided)
    return fact


def _tightest(facts: Sequence[_Fact], divided: set[tuple[Expr, Expr]]) -> list[_Fact]:
    """Fewer facts that say the same, in the order of `facts`.

    What an equality fixes goes. A `!=` at the least value raises the bound, bounds that meet become
    an equality, and of the rest the tightest of each terms stays, without a `!=` that follows.
    """
    equalities = [fact for fact in facts if fact.relation == "=="]
    equal = {fact.terms for fact in equalities}
    others = []
    for f in facts:
        if f.relation != "==" and not {f.terms, -f.terms} & equal:
            others.append(f)
    lowest = _Lowest(divided)
    others = _with_raised_bounds(others, lowest)
    tightest: dict[tuple[Expr, str, int], _Fact] = {}
    for fact in (*equalities, *present(_beside(fact, lowest) for fact in others)):
        tightest.setdefault(fact[:3], fact)
    order = {fact.guard: k for k, fact in enumerate(facts)}
    return sorted(tightest.values(), key=lambda fact: order[fact.guard])


class _Lowest:
    """The least value that is known of terms, which may be the multiples of a number."""

    def __init__(self, divided: set[tuple[Expr, Expr]]) -> None:
        self._divided = divided
        self._bounds: dict[Expr, int] = {}

    def __call__(self, terms: Expr) -> int | None:
        bounds = present((terms.bounds[0], self._bounds.get(terms)))
        if not bounds:
            return None
        low = max(bounds)
        multiples = [low]
        for left, right in self._divided:
            if left is terms and right.constant is not None:
                multiples.append(-(-low // right.constant) * right.constant)
        return max(multiples)

    def raise_to(self, fact: _Fact) -> None:
        """Take in a fact, where it is a tighter bound."""
        if fact.relation == ">=":
            low = self(fact.terms)
            if low is None or low < fact.constant:
                self._bounds[fact.terms] = fact.constant

    def is_bound(self, fact: _Fact) -> bool:
        """Whether a fact is the tightest bound of its terms."""
        return self._bounds.get(fact.terms) == fact.constant


def _with_raised_bounds(facts: list[_Fact], lowest: _Lowest) -> list[_Fact]:
    """The facts with `terms != low` as `terms >= low + 1`, where `low` is the least value."""
    while True:
        for fact in facts:
            lowest.raise_to(fact)
        raised = []
        for fact in facts:
            if fact.relation == "!=":
                for terms, value in ((fact.terms, fact.constant), (-fact.terms, -fact.constant)):
                    if lowest(terms) == value:
                        raised.append(_Fact(terms, ">=", value + 1, fact.guard))
        if not raised:
            return facts
        guards = {fact.guard for fact in raised}
        facts = [f for f in facts if f.guard not in guards or f.relation != "!="] + raised


def _beside(fact: _Fact, lowest: _Lowest) -> _Fact | None:
    """A fact in the light of all bounds: an equality where two bounds meet, None where it follows
    from them."""
    terms, constant = fact.terms, fact.constant
    low, opposite = lowest(terms), lowest(-terms)
    if fact.relation == ">=":
        if low is not None and opposite == -low:
            if terms.terms[0][0] < 0:
                terms, low = -terms, -low
            return _Fact(terms, "==", low, fact.guard)
        if lowest.is_bound(fact):
            return fact
        return None
    if low is not None and low >= constant or opposite is not None and opposite >= -constant:
        return None
    return fact


def _independent(facts: Sequence[_Fact]) -> Iterator[_Fact]:
    """Those that do not follow from what others say of single symbols."""
    ranges: dict[Symbol, tuple[int | None, int | None]] = {}
    for terms, relation, constant, _ in facts:
        if relation != ">=":
            continue
        opposite = -terms
        if isinstance(terms, Symbol):
            ranges[terms] = constant, ranges.get(terms, terms.bounds)[1]
        elif isinstance(opposite, Symbol):
            ranges[opposite] = ranges.get(opposite, opposite.bounds)[0], -constant
    bounded: dict[Symbol, Symbol] = {}
    for symbol, (low, high) in ranges.items():
        if low is not None:
            bounded[symbol] = size_symbol(symbol.name, low, high)
    for fact in facts:
        alone = isinstance(fact.terms, Symbol) or isinstance(-fact.terms, Symbol)
        if alone or not bounded or not _follows(fact, fact.terms.substitute(bounded)):
            yield fact


def _follows(fact: _Fact, terms: Expr) -> bool:
    if fact.relation == ">=":
        return _never_negative(terms - fact.constant)
    low, high = terms.bounds
    if fact.relation == "!=":
        return low is not None and low > fact.constant or high is not None and high < fact.constant
    return known_equal(terms, integer(fact.constant))


def _sum(terms: Iterator[tuple[int, tuple[Expr, ...]]]) -> Expr:
    total = ZERO
    for coefficient, monomial in terms:
        term = integer(coefficient)
        for atom in monomial:
            term = term * atom
        total = total + term
    return total


def _positive_terms(e: Expr) -> Expr:
    return _sum((c, m) for c, m in e.terms if c > 0)


def _divided(e: Expr, number: int) -> Expr:
    return _sum((c // number, m) for c, m in e.terms)
