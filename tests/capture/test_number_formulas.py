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
CLASSES = torch.tensor([0, 3, 1, -100, 2, 2, 0, 1])
SHARES: dict[str, Any] = {
    "dropout": lambda x, s: F.dropout(x, s),
    "dropout in training": lambda x, s: F.dropout(x.t().sin(), p=s, training=True, inplace=False),
    "a mask that is drawn": lambda x, s: x * torch.empty(8, 4).bernoulli_(s),
    "cross_entropy": lambda x, s: F.cross_entropy(x, CLASSES, label_smoothing=s),
    "cross_entropy, summed": lambda x, s: F.cross_entropy(x, CLASSES, label_smoothing=s, reduction="sum"),
    "cross_entropy of each": lambda x, s: F.cross_entropy(x, CLASSES, reduction="none", label_smoothing=s),
    "cross_entropy of one": lambda x, s: F.cross_entropy(x[0], CLASSES[0], label_smoothing=s),
    "huber_loss": lambda x, s: F.huber_loss(x, x.detach().flip(0), delta=s),
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(x, x.detach().flip(0), reduction="none", beta=s),
    "linspace": lambda x, s: x * torch.linspace(0, s, 4),
    "linspace the other way": lambda x, s: x * torch.linspace(end=-1.0, start=s, steps=x.shape[1]),
}
"""Of numbers between 0 and 1."""


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


@pytest.mark.parametrize("name", SHARES)
def test_one_program_and_its_gradient_for_all_shares(name: str) -> None:
    program = SHARES[name]
    compiled = ingot.compile(program, fullgraph=True)
    for s in (0.5, 0.25, 0.75, 1e-3):
        found: list[tuple[Tensor, ...]] = []
        for f in (compiled, program):
            x = X.clone().requires_grad_()
            torch.manual_seed(0)
            result = f(x, s)
            (gradient,) = torch.autograd.grad(result.cos().sum(), x)
            found.append((result.detach(), gradient, torch.rand(3)))
            assert result.stride() == program(X, 0.5).stride()
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert len(Compiler.of(compiled).compilations) == 1


@pytest.mark.parametrize("name", SHARES)
def test_shares_at_the_ends(name: str) -> None:
    def seeded(x: Tensor, s: float) -> Any:
        return SHARES[name](x, s)

    compiled = ingot.compile(seeded)
    for s in (0.5, *([0.0] if name != "huber_loss" else []), 1.0, 0.25, 1.0):
        found = []
        for f in (compiled, seeded):
            torch.manual_seed(0)
            found.append((f(X, s), torch.rand(3)))
        torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("name", ["dropout", "huber_loss", "a mask that is drawn"])
def test_numbers_that_eager_refuses(name: str) -> None:
    compiled = ingot.compile(SHARES[name])
    compiled(X, 0.5)
    for f in (compiled, SHARES[name]):
        with pytest.raises((ValueError, RuntimeError)):
            f(X, -1.5)


def test_dropout_without_training_and_written_in_place() -> None:
    tracked = Tracked(lambda x, s: (F.dropout(x, s, training=False), F.dropout(x * 1, s, False, True)))
    assert [tracked(X, s) for s in (0.5, 0.25)] == [1, 1]
    tracked = Tracked(lambda x, s: F.dropout(x, s, training=False) * 2)
    assert [tracked(X, s) for s in (0.5, 0.25, 0.75)] == [1, 0, 0]
    x = torch.ones(3)
    assert ingot.compile(lambda x, s: F.dropout(x, s, training=False))(x, 0.5) is x


def test_a_module_whose_dropout_changes() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    compiled = ingot.compile(layer)
    for p in (0.5, 0.25, 0.75, 0.125):
        layer[1].p = p
        found = []
        for f in (compiled, layer):
            torch.manual_seed(0)
            found.append(f(X))
        torch.testing.assert_close(*found)
    assert len(Compiler.of(compiled).compilations) == 2


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
