"""Relations between sizes in their simplest form: the same sizes fulfil them, and none follows from
the others."""

from __future__ import annotations

import itertools
import operator
import random

import pytest

from ingot.graph.relations import reduced
from ingot.graph.shape_guards import ShapeGuard
from ingot.loops.expr import Expr, as_expr, maximum, minimum, size_symbol

A, B = size_symbol("a", 1), size_symbol("b", 1)
RELATIONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}


def guard(left: Expr | int, relation: str, right: Expr | int) -> ShapeGuard:
    return ShapeGuard(as_expr(left), relation, as_expr(right), "")


def holds(guards: list[ShapeGuard], a: int, b: int) -> bool:
    values = {A: a, B: b}
    try:
        return all(
            RELATIONS[g.relation](g.left.evaluate(values), g.right.evaluate(values)) for g in guards
        )
    except ZeroDivisionError:
        return False


def random_expression(rng: random.Random, depth: int = 3) -> Expr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([A, B, as_expr(rng.randint(-3, 9))])
    left, right = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    divisor: Expr = right if (right.bounds[0] or 0) > 0 else as_expr(rng.randint(1, 6))
    form = rng.choice("+-*/%/Mm")
    if form in "/%":
        return left // divisor if form == "/" else left % divisor
    if form in "Mm":
        return maximum(left, right) if form == "M" else minimum(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}[form]


def random_guards(rng: random.Random) -> list[ShapeGuard]:
    """That some pair of sizes fulfils, as the sizes of a call do."""
    sizes, guards = {A: rng.randint(1, 9), B: rng.randint(1, 9)}, []
    for _ in range(rng.randint(1, 6)):
        left, right = random_expression(rng), random_expression(rng, rng.randint(0, 2))
        if rng.random() < 0.3:
            n = rng.choice([as_expr(rng.randint(1, 5)), A, 2 * B])
            left, right = n * (left // n), left
        true = [
            r
            for r, decide in RELATIONS.items()
            if decide(left.evaluate(sizes), right.evaluate(sizes))
        ]
        guards += [guard(left, rng.choice(true), right)] if true else []
    return guards


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_the_same_sizes_fulfil_them(first: int) -> None:
    fewer = 0
    for seed in range(first, first + 100):
        guards = random_guards(random.Random(seed))
        found = reduced(guards)
        fewer += len(found) < len(guards)
        for a, b in itertools.product((*range(1, 11), 13, 30), repeat=2):
            assert holds(guards, a, b) == holds(found, a, b), (
                seed,
                a,
                b,
                [*map(str, guards)],
                [*map(str, found)],
            )
        assert len(reduced(found)) <= len(found) <= 2 * len(guards)
    assert fewer > 10


@pytest.mark.parametrize(
    ("guards", "expected"),
    [
        ([guard(8 * (A * B // 8), "==", A * B), guard(A * B // 8, "!=", 0)], ["(a*b)%8 == 0"]),
        ([guard(4, "<", A), guard(4, "<=", A), guard(A - 4, "!=", 0)], ["4 < a"]),
        ([guard(2, "<=", A - 3), guard(2, "<=", A)], ["5 <= a"]),
        ([guard(0, "<=", B - A), guard(A, "<", B), guard(B - A, "!=", 0)], ["a < b"]),
        ([guard((A + 3) // 4, "==", 2)], ["5 <= a", "a <= 8"]),
        ([guard((A + 3) // 4, "==", 2), guard(8, "<=", A)], ["a == 8"]),
        ([guard(2 * A * (B // 2), "==", A * B), guard(B % 2, "==", 0)], ["b%2 == 0"]),
        ([guard(0, "<", A % 3), guard(A % 3, "<=", 1)], ["a%3 == 1"]),
        ([guard((A + 2) // 3, "<=", A), guard(2 * (A // 2), "<=", A), guard(A, "!=", 0)], []),
        ([guard(A // 2, "<=", 1 << 62)], []),
        ([guard(A, "==", B), guard(A, "!=", 1), guard(A, "!=", 1)], ["a == b", "a != 1"]),
        ([guard(A * B, "!=", 7)], ["a*b != 7"]),
    ],
)
def test_the_simplest_form(guards: list[ShapeGuard], expected: list[str]) -> None:
    assert [str(g) for g in reduced(guards)] == expected


def test_the_line_stays() -> None:
    (found,) = reduced([ShapeGuard(2 * (A // 2), "==", A, "user.py:3")])
    assert str(found) == "a%2 == 0" and found.where == "user.py:3"
