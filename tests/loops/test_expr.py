"""The index algebra against brute force: every simplification must keep the value for all admitted
symbol values.

`check_expr.py` has the properties and runs thousands of cases of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from ingot.loops.expr import (
    Expr,
    as_expr,
    floor_div,
    integer,
    known_equal,
    known_less,
    known_less_equal,
    loop_symbol,
    maximum,
    minimum,
    mod,
    product,
    size_symbol,
    value_symbol,
)
from ingot.loops.spaces import contiguous_strides
from tests.loops.check_expr import PROPERTIES, check

s0, s1 = size_symbol("s0", 2), size_symbol("s1", 2)
i, j = loop_symbol("i", s0), loop_symbol("j", s1)


def test_interning_and_constants() -> None:
    assert i * 2 + j is j + i + i
    assert integer(3) is as_expr(3)
    assert (i - i).constant == 0 and (i + 1).constant is None
    assert (i == 3) is False


def test_unflatten_of_flatten_disappears() -> None:
    flat = i * s1 + j
    assert flat // s1 is i and flat % s1 is j
    wide = i * (s1 + 1) + j
    assert wide // (s1 + 1) is i and wide % (s1 + 1) is j


def test_split_heads_disappears() -> None:
    row, head, lane = loop_symbol("r", 128), loop_symbol("h", 12), loop_symbol("d", 64)
    flat = row * 768 + head * 64 + lane
    assert flat // 768 is row
    assert flat % 768 // 64 is head
    assert flat % 64 is lane
    assert flat // 64 % 12 is head
    assert flat // 128 is row * 6 + head // 2


def test_flatten_of_unflatten_disappears() -> None:
    x = loop_symbol("x", 768)
    assert 64 * (x // 64) + x % 64 is x
    assert 64 * (x // 64) + 8 * ((x % 64) // 8) + x % 8 is x
    n = loop_symbol("n", s0 * s1)
    assert (n // s1) * s1 + n % s1 is n


def test_linear() -> None:
    offset, coefficients = (3 * i * s1 + 2 * j + s0).linear([i, j])  # type: ignore[misc]
    assert offset is s0 and coefficients == {i: 3 * s1, j: integer(2)}
    assert (i // 2).linear([i]) is None
    assert (i * j).linear([i, j]) is None
    assert (j // 2 + i).linear([i]) == (j // 2, {i: integer(1)})


def test_proofs() -> None:
    assert known_less(i * s1 + j, s0 * s1)
    assert known_less_equal(0, s0 * s1 - s1)
    assert not known_less(i, s1)
    assert known_equal(s0 * (s1 + 1), s0 + s1 * s0)
    assert known_less(value_symbol("v", s0), s0)


def test_extremes() -> None:
    assert maximum(s0, 1) is s0
    assert minimum(i, s0) is i
    assert str(maximum(s0, s1)) == "max(s0, s1)"


def test_contiguous_strides() -> None:
    assert [str(s) for s in contiguous_strides((s0, s1, 3))] == ["3*s1", "3", "1"]
    assert [s.constant for s in contiguous_strides((2, 0, 3))] == [3, 3, 1]
    assert product([2, s0, 3]) is 6 * s0


def test_division_by_zero_and_negatives() -> None:
    with pytest.raises(ZeroDivisionError):
        integer(1) // 0
    assert (i // -1) is -i
    assert (integer(-7) // 2).constant == -4 and (integer(-7) % 2).constant == 1


def _random_expr(rng: random.Random, symbols: list[Expr], depth: int) -> tuple[Expr, str]:
    """An expression built by the algebra and the same one as unsimplified Python text."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.3:
            value = rng.randint(-3, 12)
            return integer(value), f"({value})"
        symbol = rng.choice(symbols)
        return symbol, f"({symbol})"
    left, left_text = _random_expr(rng, symbols, depth - 1)
    kind = rng.choice("++-**////%%%<>")
    if kind in "/%":
        if rng.random() < 0.3:
            divisor: Expr = rng.choice([s0, s1, s0 * s1, 2 * s1])
        else:
            divisor = integer(rng.choice([1, 2, 3, 4, 6, 8, 12]))
        built = floor_div(left, divisor) if kind == "/" else mod(left, divisor)
        return built, f"({left_text} {'//' if kind == '/' else '%'} ({divisor}))"
    right, right_text = _random_expr(rng, symbols, depth - 1)
    if kind == "<":
        return minimum(left, right), f"min({left_text}, {right_text})"
    if kind == ">":
        return maximum(left, right), f"max({left_text}, {right_text})"
    built = {"+": left + right, "-": left - right, "*": left * right}[kind]
    return built, f"({left_text} {kind} {right_text})"


def test_fuzz_against_brute_force() -> None:
    rng = random.Random(7)
    k = loop_symbol("k", 6)
    symbols: list[Expr] = [i, j, k, s0, s1, i * s1 + j, 6 * i + k, 2 * k]
    points = [
        {"s0": a, "s1": b, "i": c, "j": d, "k": e}
        for a, b in [(2, 2), (2, 5), (3, 4), (7, 2)]
        for c, d, e in itertools.product(range(a), range(b), range(6))
    ]
    for _ in range(1500):
        built, text = _random_expr(rng, symbols, 4)
        reference = eval("lambda s0, s1, i, j, k: " + text)
        printed = eval(f"lambda s0, s1, i, j, k: {built}")
        low, high = built.bounds
        for point in rng.sample(points, 12):
            expected = reference(**point)
            values = {s: point[s.name] for s in built.symbols}
            assert built.evaluate(values) == expected, (text, str(built), point)
            assert printed(**point) == expected, (text, str(built), point)
            assert (low is None or low <= expected) and (high is None or expected <= high), (
                text,
                str(built),
                point,
            )
            replaced = built.substitute({s0: point["s0"], s1: point["s1"]})
            assert replaced.evaluate({s: point[s.name] for s in replaced.symbols}) == expected, (
                text,
                str(built),
            )


def test_fuzz_proofs() -> None:
    rng = random.Random(11)
    symbols: list[Expr] = [i, j, s0, s1, i * s1, i * s1 + j, loop_symbol("k", 6)]
    proved = 0
    for _ in range(800):
        a, _ = _random_expr(rng, symbols, 2)
        b, _ = _random_expr(rng, symbols, 2)
        if not known_less_equal(a, b):
            continue
        proved += 1
        for n, m in [(2, 2), (2, 5), (6, 3)]:
            for c, d, e in itertools.product(range(n), range(m), range(6)):
                point = {"s0": n, "s1": m, "i": c, "j": d, "k": e}
                assert a.evaluate({s: point[s.name] for s in a.symbols}) <= b.evaluate(
                    {s: point[s.name] for s in b.symbols}
                ), (str(a), str(b), point)
    assert proved > 50


@pytest.mark.parametrize("property_", PROPERTIES)
def test_properties(property_: Callable[[random.Random], None]) -> None:
    for seed in range(60):
        check(property_, seed)


def test_division_by_a_sum() -> None:
    assert (s1 * s1 + 8 * s1) // (s1 + 8) is s1 and (s1 * s1 + 8 * s1) % (s1 + 8) is integer(0)
    assert (i * j * s0 + i * j + s0 + 1) // (s0 + 1) is i * j + 1
