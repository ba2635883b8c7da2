"""Which steps matter to a row: every step that a condition allows is within the window."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable

import pytest
import torch

from ingot.loops.expr import Expr, Symbol, loop_symbol
from ingot.loops.ir import Body, BodyBuilder
from ingot.loops.windows import Conditions, Window

ROWS, STEPS = 9, 11
ROW, STEP = loop_symbol("q", ROWS), loop_symbol("k", STEPS)
COMPARISONS = {
    "ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt, "eq": operator.eq,
    "ne": operator.ne,
}  # fmt: skip
Truth = Callable[[int, int], bool]


def window_of(body: Body, softmax: bool, row: Symbol, step: Symbol) -> Window:
    conditions = Conditions(body, softmax, row, step)
    return conditions.window(conditions.all)


def index(b: BodyBuilder, e: Expr) -> int:
    return b.emit("index", (), torch.int64, (e,))


def comparison(b: BodyBuilder, rng: random.Random) -> tuple[int, Truth]:
    """The value, and what it is for a row and a step."""
    name, offset = rng.choice(list(COMPARISONS)), rng.randint(-6, 6)
    sign, compare = rng.choice((1, -1)), COMPARISONS[name]
    forms: list[tuple[int, int, Callable[[int, int], tuple[int, int]]]] = [
        (index(b, ROW), index(b, STEP + offset), lambda q, k: (q, k + offset)),
        (
            b.emit("sub", (index(b, ROW), index(b, STEP)), torch.int64),
            b.constant(offset, torch.int64),
            lambda q, k: (q - k, offset),
        ),
        (index(b, ROW * 2 * sign), index(b, STEP + 0), lambda q, k: (2 * sign * q, k)),
        (index(b, STEP + 0), b.constant(offset, torch.int64), lambda q, k: (k, offset)),
        (index(b, STEP * 2), index(b, ROW), lambda q, k: (2 * k, q)),
    ]
    left, right, values = rng.choice(forms)
    if rng.random() < 0.5:
        left, right = right, left
        return b.emit(name, (left, right), torch.bool), lambda q, k: compare(*values(q, k)[::-1])
    return b.emit(name, (left, right), torch.bool), lambda q, k: compare(*values(q, k))


def condition(b: BodyBuilder, rng: random.Random, depth: int) -> tuple[int, Truth]:
    if not depth or rng.random() < 0.2:
        return comparison(b, rng)
    first, a = condition(b, rng, depth - 1)
    if rng.random() < 0.2:
        return b.emit("logical_not", (first,), torch.bool), lambda q, k: not a(q, k)
    second, c = condition(b, rng, depth - 1)
    if rng.random() < 0.5:
        return b.emit("logical_and", (first, second), torch.bool), lambda q, k: a(q, k) and c(q, k)
    return b.emit("logical_or", (first, second), torch.bool), lambda q, k: a(q, k) or c(q, k)


def scored(b: BodyBuilder, at: int, inverted: bool) -> Body:
    """The score where a condition holds, else -inf; the other way round for `inverted`."""
    score = b.emit("scalar", (), torch.float32, ("product0",))
    nothing = b.constant(-math.inf, torch.float32)
    values = (nothing, score) if inverted else (score, nothing)
    return b.body(b.emit("where", (at, *values), torch.float32))


def within(window: Window, q: int, k: int) -> bool:
    def value(e: Expr) -> int:
        return e.evaluate({ROW: q})

    lower = all(k >= min(map(value, bound)) for bound in window.lower)
    return lower and all(k <= max(map(value, bound)) for bound in window.upper)


@pytest.mark.parametrize("seed", range(300))
def test_windows_leave_nothing_out(seed: int) -> None:
    rng, b = random.Random(seed), BodyBuilder()
    at, truth = condition(b, rng, 3)
    inverted = rng.random() < 0.3
    window = window_of(scored(b, at, inverted), True, ROW, STEP)
    for q in range(ROWS):
        for k in range(STEPS):
            if truth(q, k) is not inverted:
                assert within(window, q, k), (window, q, k)


def seen(window: Window) -> list[int]:
    """How many steps matter to each row."""
    return [sum(within(window, q, k) for k in range(STEPS)) for q in range(ROWS)]


def simple(name: str, left: Expr, right: Expr) -> tuple[BodyBuilder, int]:
    b = BodyBuilder()
    return b, b.emit(name, (index(b, left), index(b, right)), torch.bool)


def test_what_windows_leave_out() -> None:
    b, causal = simple("ge", ROW, STEP)
    assert seen(window_of(scored(b, causal, False), True, ROW, STEP)) == [*range(1, ROWS + 1)]
    b, causal = simple("ge", ROW, STEP)
    near = b.emit("le", (index(b, ROW - STEP), b.constant(2, torch.int64)), torch.bool)
    both = b.emit("logical_and", (causal, near), torch.bool)
    assert seen(window_of(scored(b, both, False), True, ROW, STEP)) == [1, 2, *[3] * 7]
    b, causal = simple("ge", ROW, STEP)
    early = b.emit("lt", (index(b, STEP + 0), b.constant(4, torch.int64)), torch.bool)
    either = b.emit("logical_or", (causal, early), torch.bool)
    assert seen(window_of(scored(b, either, False), True, ROW, STEP)) == [4, 4, 4, 4, *range(5, 10)]


def test_windows_of_gradients() -> None:
    """exp(score - top) * rest is zero where the score is -inf; a sum is not."""
    for op, expected in (("mul", [*range(1, ROWS + 1)]), ("add", [STEPS] * ROWS)):
        b, causal = simple("ge", ROW, STEP)
        body = scored(b, causal, False)
        (score,) = body.results
        top, rest = (b.emit("scalar", (), torch.float32, (name,)) for name in ("top", "rest"))
        below = b.emit("sub", (score, top), torch.float32)
        weight = b.emit("exp", (below,), torch.float32)
        body = b.body(b.emit(op, (weight, rest), torch.float32))
        assert seen(window_of(body, False, ROW, STEP)) == expected


def test_symbols_are_those_of_the_window() -> None:
    b, swapped = simple("ge", ROW, STEP)
    window = window_of(scored(b, swapped, False), True, STEP, ROW)
    (bound,) = window.lower
    symbols: set[Symbol] = {*bound[0].symbols}
    assert symbols == {STEP} and not window.upper
