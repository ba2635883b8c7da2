"""Half precision: every bit pattern through every function, and chains, against eager's rounding.

A result may differ from eager's bit for bit only where it is the exact one rounded, or where the
exact one lies so near the middle of two halves that a last bit of float32 decides. (gelu is left
out: of its tail eager has few digits.)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from tests.codegen.sweep_math import UNARY

HALVES = (torch.bfloat16, torch.float16)
FUNCTIONS = UNARY | {
    f.__name__: f for f in (F.silu, F.mish, F.elu, F.selu, F.hardswish, F.softsign)
}
EXACT: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "scaled": lambda x, y: x * 0.3, "shifted": lambda x, y: x + 1.7,
    "sum": lambda x, y: torch.add(x, y, alpha=0.3), "relu": lambda x, y: x.relu(),
    "where": lambda x, y: torch.where(x > y, x, y * 2), "square": lambda x, y: x * x,
    "clamp": lambda x, y: x.clamp(-3, 3), "round": lambda x, y: (x * 4).round() / 4,
    "through float": lambda x, y: (x.float() * y).to(x),
}  # fmt: skip
CURVED = "exp sigmoid tanh sin cos log1p sqrt rsqrt expm1 atan softplus asinh silu erfc".split()


def differs(found: Tensor, eager: Tensor) -> Tensor:
    """Where two tensors of halves differ in a bit, NaN being NaN."""
    same = (found.view(torch.int16) == eager.view(torch.int16)) | (found.isnan() & eager.isnan())
    return ~same


def unexplained(found: Tensor, eager: Tensor, exact: Tensor) -> Tensor:
    """Where a result differs from eager's, and neither the exact value nor a tie says why."""
    # two units of float32's last place
    near = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 22)
    tie = (exact - (found.double() + eager.double()) / 2).abs() <= near
    return differs(found, eager) & (found != exact.to(found.dtype)) & ~tie


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_half(name: str, dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    function = FUNCTIONS[name]
    with torch.no_grad():
        found = ingot.compile(lambda x: function(x))(x)
        wrong = unexplained(found, function(x), function(x.double()))
    assert not wrong.any(), (x[wrong][:5], found[wrong][:5], function(x)[wrong][:5])


def test_floats_are_rounded_to_brain_floats() -> None:
    """Every upper half of a float, with lower ones around a tie: subnormal numbers, infinities and
    NaN included."""
    upper, lower = (
        torch.arange(-(2**15), 2**15),
        torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]),
    )
    x = (upper[:, None] * 2**16 + lower).to(torch.int32).view(torch.float32)
    with torch.no_grad():
        for part in (x, x[:, :3].contiguous(), x[:8190, 0].contiguous()):
            found = ingot.compile(lambda x: x.to(torch.bfloat16))(part)
            assert not differs(found, part.to(torch.bfloat16)).any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_signs_of_halves_change_without_rounding(dtype: torch.dtype) -> None:
    """Every bit pattern, NaN with its payload."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x, other = bits.view(dtype), bits.flip(0).view(dtype)
    with torch.no_grad():
        found = ingot.compile(lambda x, y: (-x, x.abs(), torch.copysign(x, y), -x.abs() + y))(
            x, other
        )
    expected = [bits ^ -0x8000, bits & 0x7FFF, bits & 0x7FFF | other.view(torch.int16) & -0x8000]
    assert all(torch.equal(value.view(torch.int16), want) for value, want in zip(found, expected))
    assert not differs(found[3], -x.abs() + other).any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_chains_round_where_eager_does(seed: int, dtype: torch.dtype) -> None:
    chooser, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    x, y = (torch.randn(4096, generator=generator).mul(2).to(dtype) for _ in range(2))
    names = [chooser.choice(list(EXACT) if k % 2 else [*EXACT, *CURVED]) for k in range(8)]

    def chain(x: Tensor, y: Tensor) -> list[Tensor]:
        steps: list[Any] = [x]
        for name in names:
            steps.append(EXACT[name](steps[-1], y) if name in EXACT else FUNCTIONS[name](steps[-1]))
        return steps[1:]

    with torch.no_grad():
        found, eager = ingot.compile(chain)(x, y), chain(x, y)
        last = ingot.compile(lambda x, y: chain(x, y)[-1])(x, y)
        # whether what lies between is returned makes no difference
        assert not differs(last, found[-1]).any(), names
        lost = torch.zeros(len(x), dtype=torch.bool)
        for name, before, ours, theirs in zip(names, [x, *eager], found, eager):
            exact = theirs.double() if name in EXACT else FUNCTIONS[name](before.double())
            assert not (unexplained(ours, theirs, exact) & ~lost).any(), (name, names)
            lost |= differs(ours, theirs)
    assert lost.float().mean() < 0.05, names
