"""Numbers of formulas that are arguments of the call: no value of theirs is compiled for, and all
is eager's."""

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
    "attention": lambda x, s: F.scaled_dot_product_attention(
        x[None, None], x[None, None] * 2, x[None, None], scale=s
    ),
    "normalize": lambda x, s: F.normalize(x, eps=s),
}
CLASSES = torch.tensor([0, 3, 1, -100, 2, 2, 0, 1])
SHARES: dict[str, Any] = {
    "dropout": lambda x, s: F.dropout(x, s),
    "dropout in training": lambda x, s: F.dropout(x.t().sin(), p=s, training=True, inplace=False),
    "a mask that is drawn": lambda x, s: x * torch.empty(8, 4).bernoulli_(s),
    "cross_entropy": lambda x, s: F.cross_entropy(x, CLASSES, label_smoothing=s),
    "cross_entropy, summed": lambda x, s: F.cross_entropy(
        x, CLASSES, label_smoothing=s, reduction="sum"
    ),
    "cross_entropy of each": lambda x, s: F.cross_entropy(
        x, CLASSES, reduction="none", label_smoothing=s
    ),
    "cross_entropy of one": lambda x, s: F.cross_entropy(x[0], CLASSES[0], label_smoothing=s),
    "huber_loss": lambda x, s: F.huber_loss(x, x.detach().flip(0), delta=s),
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(
        x, x.detach().flip(0), reduction="none", beta=s
    ),
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
            slopes = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
            found.append((result.detach(), *torch.autograd.grad(result, x, slopes)))
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
    tracked = Tracked(
        lambda x, s: (F.dropout(x, s, training=False), F.dropout(x * 1, s, False, True))
    )
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


# eager's own kernel makes something of NaN
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"attention"}))
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


def test_the_gradient_of_elu_at_zero() -> None:
    compiled = ingot.compile(F.elu)
    for alpha in (0.5, 2.0, 0.0, -1.5):
        for f in (F.elu, compiled):
            x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
            f(x, alpha).sum().backward()
            assert x.grad is not None and x.grad[1] == alpha


def test_softplus_by_nothing_and_by_little() -> None:
    compiled = ingot.compile(F.softplus)
    for beta in (0.0, 1e-30, 2.0, 1e-300):
        found = []
        for f in (F.softplus, compiled):
            x = torch.linspace(-1, 1, 5).requires_grad_()
            y = f(x, beta)
            found.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("shape", [(2, 2, 4), (5, 4), (7, 5)])
def test_a_sum_of_products_is_as_large_as_these(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="expand"):
        ingot.compile(lambda x, s: torch.addmm(x, X[:1, :3], X[:3], beta=s))(torch.ones(shape), 0.5)


@pytest.mark.parametrize("f", [F.leaky_relu, F.elu, F.softplus])
def test_numbers_that_the_type_does_not_hold(f: Any) -> None:
    for f_ in (f, ingot.compile(f)):
        with pytest.raises(RuntimeError, match="overflow"):
            f_(X, 1e300)


def test_powers_of_large_and_small_numbers() -> None:
    compiled = ingot.compile(lambda x, s: s**x)
    for s in (2.0, 1e300, 1e-300, 3.5):
        found = []
        for f in (compiled, lambda x, s: s**x):
            x = torch.tensor([0.0, -2.0, 1.0], requires_grad=True)
            found.append(torch.autograd.grad(f(x, s).sum(), x)[0])
        torch.testing.assert_close(*found)


def test_a_remainder_by_a_tensor_has_no_gradient() -> None:
    for f in (lambda x, s: s % x, ingot.compile(lambda x, s: s % x)):
        x = torch.tensor([1.5, 2.0], requires_grad=True)
        with pytest.raises(RuntimeError, match="remainder is not implemented"):
            f(x, 7.0).sum().backward()


@pytest.mark.parametrize("autograd", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda x, s: torch.tensor(s, dtype=torch.float64),
        lambda x, s: torch.tensor([s], dtype=torch.float64),
        lambda x, s: torch.as_tensor(s, dtype=torch.float64),
        lambda x, s: torch.scalar_tensor(s, dtype=torch.float64),
        lambda x, s: torch.full((), s, dtype=torch.float64),
        lambda x, s: x.new_tensor(s),
        lambda x, s: x.new_full((), s),
        lambda x, s: torch.asarray(s, dtype=torch.float64),
        lambda x, s: torch.stack([torch.tensor(s, dtype=torch.float64)])[0],
        lambda x, s: torch.tensor(s, dtype=torch.float64).to(torch.float64),
    ],
)
def test_a_tensor_of_a_number_is_the_callers_to_write(make: Any, autograd: bool) -> None:
    x = X.double().requires_grad_(autograd)
    for f in (lambda x, s: (x * s, make(x, s)), lambda x, s: (x * s, make(x, s).mul_(2))):
        compiled = ingot.compile(f)
        for _ in range(3):
            scaled, made = compiled(x, 3.75)
            expected = f(x, 3.75)[1].clone()
            assert torch.equal(scaled, x * 3.75) and torch.equal(made, expected)
            if not made.requires_grad and made.stride() == torch.empty(made.shape).stride():
                made.fill_(9.0)
