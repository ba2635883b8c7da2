"""Bodies without a factor, and with powers of 2, give what they gave before."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ingot.loops.factors import with_powers_of_two, without_factor
from ingot.loops.ir import Body, BodyBuilder, Instruction
from ingot.loops.ops import OPS

F32 = torch.float32
Build = Callable[[BodyBuilder, int, int], int]

X = np.linspace(-3, 3, 7, dtype=np.float32)
MASK = np.arange(7) % 3 > 0


def body_of(build: Build) -> Body:
    """A body of two scalars: the number x and whether it is masked."""
    builder = BodyBuilder()
    x = builder.append(Instruction("scalar", (), F32, ("x",)))
    mask = builder.append(Instruction("scalar", (), torch.bool, ("mask",)))
    return builder.body(build(builder, x, mask))


def evaluated(body: Body) -> np.ndarray:
    values: list[np.ndarray] = []
    for i in body.instructions:
        if i.op == "scalar":
            values.append({"x": X, "mask": MASK}[i.attrs[0]])
        elif i.op == "constant":
            values.append(np.float32(i.attrs[0]))
        else:
            values.append(OPS[i.op].reference(*(values[k] for k in i.args)))
    return np.asarray(values[body.results[0]])


def times(b: BodyBuilder, x: int, number: float) -> int:
    return b.emit("mul", (x, b.constant(number, F32)), F32)


def where(b: BodyBuilder, mask: int, x: int, other: int) -> int:
    return b.emit("where", (mask, x, other), F32)


def number(b: BodyBuilder, value: float) -> int:
    return b.constant(value, F32)


FACTORS: dict[str, tuple[Build, float]] = {
    "behind": (lambda b, x, m: times(b, x, 0.125), 0.125),
    "before": (lambda b, x, m: b.emit("mul", (number(b, 3.0), x), F32), 3.0),
    "masked": (lambda b, x, m: where(b, m, times(b, x, 0.5), number(b, -math.inf)), 0.5),
    "zeros": (lambda b, x, m: where(b, m, number(b, 0.0), times(b, x, 0.5)), 0.5),
    "both": (lambda b, x, m: where(b, m, times(b, x, 0.5), times(b, X2(b, x), 0.5)), 0.5),
    "two factors": (lambda b, x, m: where(b, m, times(b, x, 0.5), times(b, x, 0.25)), 1.0),
    "one without": (lambda b, x, m: where(b, m, times(b, x, 0.5), x), 1.0),
    "a number": (lambda b, x, m: where(b, m, times(b, x, 0.5), number(b, 2.0)), 1.0),
    "constants": (lambda b, x, m: where(b, m, number(b, 0.0), number(b, -math.inf)), 1.0),
    "negative": (lambda b, x, m: times(b, x, -2.0), 1.0),
    "zero": (lambda b, x, m: times(b, x, 0.0), 1.0),
    "nan": (lambda b, x, m: times(b, x, math.nan), 1.0),
    "large": (lambda b, x, m: times(b, x, 1e30), 1.0),
    "none": (lambda b, x, m: b.emit("add", (x, number(b, 1.0)), F32), 1.0),
}


def X2(b: BodyBuilder, x: int) -> int:
    return b.emit("add", (x, x), F32)


@pytest.mark.parametrize("name", FACTORS)
def test_without_factor(name: str) -> None:
    build, expected = FACTORS[name]
    body = body_of(build)
    without, factor = without_factor(body)
    assert factor == expected
    if factor == 1:
        assert without is body
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluated(without) * np.float32(factor), evaluated(body))


EXPONENTS: dict[str, Build] = {
    "scaled": lambda b, x, m: b.emit("sub", (times(b, x, 0.125), number(b, 2.0)), F32),
    "masked": lambda b, x, m: b.emit(
        "sub", (where(b, m, times(b, x, 0.125), number(b, -math.inf)), X2(b, x)), F32
    ),
    "sum": lambda b, x, m: b.emit("add", (times(b, x, 0.125), x), F32),
    "plain": lambda b, x, m: x,
    "product": lambda b, x, m: b.emit("mul", (x, x), F32),
    "masked by zero": lambda b, x, m: where(b, m, x, number(b, 0.0)),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_with_powers_of_two(name: str) -> None:
    body = body_of(lambda b, x, m: b.emit("exp", (EXPONENTS[name](b, x, m),), F32))
    powers = with_powers_of_two(body)
    ops = [i.op for i in powers.instructions]
    assert "exp" not in ops and ops.count("exp2") == 1
    assert ops.count("mul") <= 2
    np.testing.assert_allclose(evaluated(powers), evaluated(body), rtol=2e-6)


def test_values_that_are_used_twice_are_looked_at_once() -> None:
    """Else a chain of 60 would take 2 ** 60 steps."""
    builder = BodyBuilder()
    x = builder.append(Instruction("scalar", (), F32, ("x",)))
    mask = builder.append(Instruction("scalar", (), torch.bool, ("mask",)))
    added, chosen = x, times(builder, x, 0.5)
    for _ in range(60):
        added = builder.emit("add", (added, added), F32)
        chosen = where(builder, mask, chosen, chosen)
    powers = with_powers_of_two(builder.body(builder.emit("exp", (added,), F32)))
    assert [i.op for i in powers.instructions].count("add") == 60
    assert without_factor(builder.body(chosen))[1] == 0.5


def test_exponentials_of_other_dtypes_stay() -> None:
    builder = BodyBuilder()
    x = builder.append(Instruction("scalar", (), torch.float64, ("x",)))
    body = builder.body(builder.emit("exp", (x,), torch.float64))
    assert with_powers_of_two(body) == body
