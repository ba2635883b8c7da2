"""What relations between sizes come to: each in its simplest form, and none that follows from the
others.

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


class _Fact(NamedTuple):
    """`terms relation constant`: the terms have no constant among them and no common factor;
    relation: ==, != or >=."""

    terms: Expr
    relation: str
    constant: int
    guard: ShapeGuard

    def shown(self) -> ShapeGuard:
        """As a person would write it: as it was asked, if that was simple."""
        sides = self.guard.left, self.guard.right
        plain = [e for e in sides if isinstance(e, Symbol) or e.constant is not None]
        if len(plain) == 2 and (as_asked := _facts(self.guard)) and as_asked[:3] == self[:3]:
            return self.guard
        positive = _sum((c, m) for c, m in self.terms.terms if c > 0)
        negative = _sum((-c, m) for c, m in self.terms.terms if c < 0)
        relation, constant = self.relation, self.constant
        if relation != ">=":
            left, right = (positive, negative) if positive is not ZERO else (negative, ZERO)
            constant = constant if positive is not ZERO else -constant
            return ShapeGuard(left, relation, right + constant, self.guard.where)
        if constant == 1 and negative is not ZERO:
            return ShapeGuard(negative, "<", positive, self.guard.where)
        lower, upper = max(constant, 0), max(-constant, 0)
        return ShapeGuard(negative + lower, "<=", positive + upper, self.guard.where)


def reduced(guards: Sequence[ShapeGuard]) -> list[ShapeGuard]:
    """Relations that hold for the same sizes as `guards` do, of symbols within their bounds."""
    facts = [
        part for guard in guards if (fact := _facts(guard)) is not None for part in _parts(fact)
    ]
    divided = {
        (f.terms.left, f.terms.right) for f in facts if isinstance(f.terms, Mod) and _is(f, "==", 0)
    }
    facts = [f for f in (_without_quotient(f, divided) for f in facts) if f is not None]
    facts = _tightest(facts, divided)
    return [fact.shown() for fact in _independent(facts)]


def _is(fact: _Fact, relation: str, constant: int) -> bool:
    return fact.relation == relation and fact.constant == constant


def _facts(guard: ShapeGuard) -> _Fact | None:
    """A guard's fact; None where it always holds."""
    left, relation, right, _ = guard
    if relation in ("==", "!="):
        return _fact(left - right, relation, guard)
    return _fact(right - left - (relation == "<"), ">=", guard)


def _fact(e: Expr, relation: str, guard: ShapeGuard) -> _Fact | None:
    """That of `e relation 0`."""
    e = _without_positive_factors(e)
    if relation != ">=":
        e = _as_remainder(e)
        low, high = e.bounds
        if relation == "!=" and low == 0:  # it is 0 or more
            return _fact(e - 1, ">=", guard)
        if relation == "!=" and high == 0:
            return _fact(-e - 1, ">=", guard)
        if relation == "!=" and (low is not None and low > 0 or high is not None and high < 0):
            return None
    else:
        e = _with_remainders(e)
        if _never_negative(e):
            return None
    constant = next((c for c, monomial in e.terms if not monomial), 0)
    terms = e - constant
    if terms is ZERO:
        return None
    common = math.gcd(*(c for c, _ in terms.terms))
    if relation != ">=":
        if constant % common:
            return None if relation == "!=" else _Fact(terms, relation, -constant, guard)
        if terms.terms[0][0] < 0:
            common = -common
        return _Fact(_divided(terms, common), relation, -constant // common, guard)
    return _Fact(_divided(terms, common), relation, -(constant // common), guard)


def _parts(fact: _Fact) -> Iterator[_Fact]:
    """What a quotient is, as the bounds of what is divided."""
    quotient = fact.terms
    if (
        fact.relation == "=="
        and isinstance(quotient, FloorDiv)
        and (quotient.right.bounds[0] or 0) > 0
    ):
        least = quotient.left - fact.constant * quotient.right
        for bound in (least, quotient.right - 1 - least):
            if (part := _fact(bound, ">=", fact.guard)) is not None:
                yield part
    else:
        yield fact


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
                part = atom.left - atom.right * atom
                for rest, sign in ((e - part, 1), (e + part, -1)):
                    if len(rest.terms) + 1 < len(e.terms) and not any(
                        atom in m for _, m in rest.terms
                    ):
                        return rest + sign * mod(atom.left, atom.right)
    return e


def _never_negative(e: Expr) -> bool:
    """A proof that an expression is 0 or more: quotients by numbers are at most, and nearly, what
    division gives."""
    for _ in range(4):
        if known_less_equal(ZERO, e):
            return True
        quotients = [
            (c, m[0], m[0].right.constant)
            for c, m in e.terms
            if len(m) == 1 and isinstance(m[0], FloorDiv)
        ]
        found = next(((c, q, n) for c, q, n in quotients if n is not None), None)
        if found is None:
            return False
        c, q, n = found
        e = n * (e - c * q) + c * (q.left if c < 0 else q.left - n + 1)
    return False


def _without_quotient(fact: _Fact, divided: set[tuple[Expr, Expr]]) -> _Fact | None:
    """A bound of a//n as one of a; None where it follows from `divided`, the (a, n) without
    remainder."""
    if fact.relation != ">=" or len(fact.terms.terms) != 1:
        return fact
    ((sign, monomial),) = fact.terms.terms
    (quotient,) = monomial if len(monomial) == 1 else (ZERO,)
    if not isinstance(quotient, FloorDiv):
        return fact
    a, n = quotient.left, quotient.right
    low = a.bounds[0]
    if sign == 1 and fact.constant == 1 and (a, n) in divided and low is not None and low > 0:
        return None
    if n.constant is None:
        return fact
    bound = a - fact.constant * n if sign == 1 else (1 - fact.constant) * n - 1 - a
    found = _fact(bound, ">=", fact.guard)
    # all are in 64 bits
    if found is None or -found.constant >= LARGEST and isinstance(-found.terms, Symbol):
        return None
    return _without_quotient(found, divided) if abs(found.constant) <= LARGEST else fact


def _tightest(facts: Sequence[_Fact], divided: set[tuple[Expr, Expr]]) -> list[_Fact]:
    """Of several bounds of the same terms, the tightest; and no inequality that says what a bound
    does."""
    kept: dict[tuple[Expr, str, int], _Fact] = {}
    lowest: dict[Expr, int] = {}

    def low(terms: Expr) -> int | None:
        """The least value that is known of terms."""
        bounds = [b for b in (terms.bounds[0], lowest.get(terms)) if b is not None]
        steps = [n.constant for a, n in divided if a is terms and n.constant is not None]
        if not bounds:
            return None
        return max([max(bounds), *(-(-max(bounds) // n) * n for n in steps)])

    equal = {f.terms: f.constant for f in facts if f.relation == "=="}
    pending = [
        f for f in facts if f.relation != "==" and f.terms not in equal and -f.terms not in equal
    ]
    while True:
        for fact in pending:
            if fact.relation == ">=":
                known = low(fact.terms)
                if known is None or known < fact.constant:
                    lowest[fact.terms] = fact.constant
        raised = []
        for fact in pending:
            if fact.relation == "!=":
                for terms, value in ((fact.terms, fact.constant), (-fact.terms, -fact.constant)):
                    if low(terms) == value:  # above it, then
                        raised.append(_Fact(terms, ">=", value + 1, fact.guard))
        if not raised:
            break
        gone = {f.guard for f in raised}
        pending = [f for f in pending if f.guard not in gone or f.relation != "!="] + raised
    for fact in facts:
        if fact.relation == "==":
            kept.setdefault(fact[:3], fact)
    for fact in pending:
        known, opposite = low(fact.terms), low(-fact.terms)
        if fact.relation == ">=":
            if known is not None and opposite == -known:
                terms, value = (
                    (fact.terms, known) if fact.terms.terms[0][0] > 0 else (-fact.terms, -known)
                )
                kept.setdefault((terms, "==", value), _Fact(terms, "==", value, fact.guard))
            elif lowest.get(fact.terms) == fact.constant:
                kept.setdefault(fact[:3], fact)
        elif (known is None or known < fact.constant) and (
            opposite is None or opposite < -fact.constant
        ):
            kept.setdefault(fact[:3], fact)
    order = {fact.guard: k for k, fact in enumerate(facts)}
    return sorted(kept.values(), key=lambda fact: order[fact.guard])


def _independent(facts: Sequence[_Fact]) -> Iterator[_Fact]:
    """Those that do not follow from what others say of single symbols."""
    ranges: dict[Symbol, list[int | None]] = {}
    for terms, relation, constant, _ in facts:
        symbol = terms if isinstance(terms, Symbol) else -terms
        if isinstance(symbol, Symbol) and relation == ">=":
            lower_upper = ranges.setdefault(symbol, [symbol.lower, symbol.upper])
            lower_upper[0 if symbol is terms else 1] = constant if symbol is terms else -constant
    known = {s: size_symbol(s.name, r[0] or 0, r[1]) for s, r in ranges.items() if r[0] is not None}
    for fact in facts:
        alone = isinstance(fact.terms, Symbol) or isinstance(-fact.terms, Symbol)
        if alone or not known or not _follows(fact, fact.terms.substitute(known)):
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


def _divided(e: Expr, number: int) -> Expr:
    return _sum((c // number, m) for c, m in e.terms)
