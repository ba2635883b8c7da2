"""Numbers of formulas that are arguments of the call: no value of theirs is compiled for, and all is eager's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.tracked import Tracked

X = torch.linspace(-3, 3, 32).reshape(8, 4)
NUMBERS = (0.5, 0.25, -1.5, 3.0, 1e-3)

PROGRAMS: dict[str, Any] = {
    "leaky_relu": lambda x, s: F.leaky_relu(x, s),
    "leaky_relu, named": lambda x, s: F.leaky_relu(x, negative_slope=s, inplace=False),
    "elu": lambda x, s: F.elu(x * 50, s),
    "softplus": lambda x, s: F.softplus(x * 30, beta=s),
    "addmm": lambda x, s: torch.addmm(x[:4], x[:4], x[4:], alpha=s, beta=-s),
    "a bias of addmm": lambda x, s: torch.addmm(x[0], x, x[4:], beta=s),
    "addmm, a method": lambda x, s: x[:4].addmm(x[:4], x[4:], alpha=s),
    "baddbmm": lambda x, s: torch.baddbmm(x[None, :4], x[None, :4], x[None, 4:], alpha=s, beta=1.0),
    "attention": lambda x, s: F.scaled_dot_product_attention(x[None, None], x[None, None] * 2, x[None, None], scale=s),
    "normalize": lambda x, s: F.normalize(x, eps=s),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_and_its_gradient_for_all_numbers(name: str) -> None:
    program = PROGRAMS[name]
    compiled = ingot.compile(program, fullgraph=True)
    for s in NUMBERS:
        found: list[tuple[Tensor, ...]] = []
        for f in (compiled, program):
            x = X.clone().requires_grad_()
            result = f(x, s)
            found.append((result.detach(), *torch.autograd.grad(result.cos().sum(), x)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert len(Compiler.of(compiled).compilations) == 1


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"attention"}))  # eager's own kernel makes something of NaN
def test_numbers_that_are_not_finite_or_zero(name: str) -> None:
    tracked = Tracked(PROGRAMS[name])
    with torch.no_grad():
        for s in (0.5, math.nan, math.inf, 0.0, -0.0, 0.25):
            tracked(X, s)
        assert tracked(X, 0.75) == 0


def test_a_bias_that_does_not_count() -> None:
    tracked = Tracked(lambda x, y, s: torch.addmm(y, x, x, beta=s))
    x, y = X[:4], torch.full((4, 4), math.nan)
    assert [tracked(x, y, s) for s in (0.5, 0.25, 0.0, 2.0)] == [1, 0, 1, 0]


def test_halves_that_round_in_between_are_compiled_for() -> None:
    tracked = Tracked(lambda x, s: F.elu(x, s))
    assert [tracked(X.half(), s) for s in (0.5, 0.25, 0.5)] == [1, 1, 0]


def test_temperatures_of_samples() -> None:
    compiled = ingot.compile(lambda x, s: F.gumbel_softmax(x, tau=s))
    for s in (0.5, 1.0, 2.0):
        torch.testing.assert_close(compiled(X, s).sum(-1), torch.ones(8))
    assert len(Compiler.of(compiled).compilations) == 1
