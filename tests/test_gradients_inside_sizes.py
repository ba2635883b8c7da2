"""Gradients that are taken inside a compiled function whose sizes vary: eager's, in few
compilations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler

SHAPES = [(5, 8), (3, 6), (7, 8), (2, 2), (1, 4), (4, 1), (9, 3)]
WIDE = [(5, 8), (3, 6), (7, 9), (2, 12)]


def leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def one_step(x: Tensor, scale: Tensor) -> Tensor:
    x = leaf(x)
    (g,) = torch.autograd.grad((x.tanh() * scale).pow(2).sum(), x)
    return x.detach() - 0.1 * g


def several_steps(x: Tensor, scale: Tensor) -> Tensor:
    for _ in range(3):
        x = leaf(x)
        (g,) = torch.autograd.grad((x * scale).logsumexp(-1).sum(), x)
        x = x - 0.1 * g
    return x.detach()


def penalty(x: Tensor, scale: Tensor) -> Tensor:
    x = leaf(x)
    (g,) = torch.autograd.grad((x * scale).sigmoid().sum(), x, create_graph=True)
    return (g.norm(2, dim=1) - 1).pow(2).mean()


def inner_step(x: Tensor, scale: Tensor) -> Tensor:
    (g,) = torch.autograd.grad((x * scale).pow(2).mean(), scale, create_graph=True)
    return (x * (scale - 0.1 * g)).pow(2).mean()


def backward(x: Tensor, scale: Tensor) -> Tensor:
    loss = (x.sin() * scale).mean()
    loss.backward()
    return loss.detach()


def broadcast_rows(x: Tensor, scale: Tensor) -> Tensor:
    row, column = leaf(torch.ones(x.shape[1])), leaf(x[:, :1])
    rows, columns = torch.autograd.grad(
        (x * row + column.exp() * x * scale.detach()).sum(), (row, column)
    )
    return rows + columns


def softmax_of_products(x: Tensor, scale: Tensor) -> Tensor:
    x = leaf(x)
    (g,) = torch.autograd.grad((F.softmax(x @ x.t(), -1) @ x).sum(), x)
    return g


def losses(x: Tensor, scale: Tensor) -> Tensor:
    x = leaf(x)
    labels = torch.zeros(x.shape[0], dtype=torch.int64)
    (g,) = torch.autograd.grad(F.cross_entropy(F.layer_norm(x, x.shape[-1:]), labels), x)
    return g


def windows(x: Tensor, scale: Tensor) -> Tensor:
    x = leaf(x)
    y = F.avg_pool1d(F.pad(x[:, None], (1, 1)), 3, 1).squeeze(1)
    (g,) = torch.autograd.grad((torch.cat([y, x.cumsum(0)]) ** 2).sum(), x)
    return g.t()


def by_function(x: Tensor, scale: Tensor) -> Tensor:
    return torch.func.grad(lambda z: (z * scale).tanh().sum())(x)


PROGRAMS: list[Callable[[Tensor, Tensor], Tensor]] = [
    one_step, several_steps, penalty, inner_step, backward, broadcast_rows, softmax_of_products,
    losses, windows,
    by_function,
]  # fmt: skip


def run(f: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> list[Tensor | None]:
    """The result, and what becomes of the gradient of a parameter."""
    scale = torch.tensor([0.7], requires_grad=True)
    result = f(x, scale)
    if result.requires_grad:
        result.backward(torch.ones_like(result))
    return [result.detach(), scale.grad]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_sizes_that_vary(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = ingot.compile(program, dynamic=True, fullgraph=True)
    for shape in SHAPES:
        x = torch.randn(shape)
        for found, expected in zip(run(compiled, x), run(program, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) <= 3  # sizes of 1 apart
    assert not any(text.startswith("all sizes") for text in compiler.compilations[0].fixed_sizes)


@pytest.mark.parametrize("program", [one_step, penalty, backward], ids=lambda f: f.__name__)
def test_sizes_that_are_seen_to_vary(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = ingot.compile(program, fullgraph=True)
    for shape in WIDE:
        x = torch.randn(shape)
        for found, expected in zip(run(compiled, x), run(program, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2


def test_gradients_accumulate_over_batches_that_vary() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    twin = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    twin.load_state_dict(model.state_dict())

    def step(model: torch.nn.Module, x: Tensor) -> Tensor:
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss.detach()

    compiled = ingot.compile(lambda x: step(model, x), dynamic=True, fullgraph=True)
    for rows in (4, 7, 2, 3, 9):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), step(twin, x))
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    compiler = Compiler.of(compiled)
    # without a gradient yet, and with one
    assert compiler is not None and len(compiler.compilations) == 2
