"""Ops under a default dtype that is set inside mean what they mean there, whatever holds where the
program runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.oracle import assert_same, outcome
from tests.tracked import Tracked

WHOLE = torch.tensor([16777217, 3, 2**53 - 1])
FLAGS = torch.tensor([True, False, True])


@contextlib.contextmanager
def of_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "compared": lambda i, b: (i == 16777217.0, i <= 16777216.5, 16777216.5 < i),
    "arithmetic": lambda i, b: (i * 0.1, i / 3, i**0.5, 2.5 - i, i.clamp(max=2.5), b * 1.5),
    "complex": lambda i, b: (i * 1j, torch.complex(torch.ones(2), torch.ones(2))),
    "functions": lambda i, b: (i.sin(), torch.atan2(i, i), torch.sqrt(b), i.sigmoid()),
    "chosen": lambda i, b: (torch.where(b, i, 1), torch.where(b, 1.5, 2.5), torch.where(b, i, 0.5)),
    "reduced": lambda i, b: ((i + 0.5).amax(), torch.logsumexp(i, 0), i.float().mean()),
    "factories": lambda i, b: (
        torch.ones(2), torch.full((2,), 0.1), torch.arange(0, 1, 0.3), torch.linspace(0, 1, 5),
        torch.eye(2), torch.hann_window(4), torch.logspace(0, 1, 3), torch.empty(2).fill_(0.1),
        torch.tensor([0.1, 2]), torch.scalar_tensor(0.1), torch.zeros(2, dtype=torch.int32),
    ),
    "random": lambda i, b: (torch.rand(3), torch.randn(2), torch.normal(0.0, 1.0, (2,))),
    "of floats": lambda i, b: (i.float() * 0.1, i.half() + 0.1, i.float() / 3),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_ops(name: str, backend: str, dtype: torch.dtype) -> None:
    if name == "complex" and dtype is torch.bfloat16:
        pytest.skip("there is no complex type for it")
    case = CASES[name]

    def fn(i: Tensor, b: Tensor) -> Any:
        with of_dtype(dtype):
            inside = case(i, b)
        return inside, case(i, b)

    compiled = ingot.compile(fn, backend=backend, fullgraph=True)
    found = []
    for function in (fn, compiled, compiled):
        torch.manual_seed(0)
        found.append(outcome(function, WHOLE, FLAGS))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])
    assert torch.get_default_dtype() is torch.float32


def test_gradients() -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        with of_dtype(torch.float64):
            weight = torch.linspace(0, 1, 3) * i
            y = (x * weight).sin() * torch.tensor([0.1, 0.2, 0.3])
        return y.sum() + x.sum()

    tracked = Tracked(fn, fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    i = torch.arange(3)
    assert (tracked(x, i), tracked(x, i)) == (1, 0)
    gradients = []
    for function in (fn, tracked.compiled):
        gradients.append(torch.autograd.grad(function(x, i), x)[0])
    torch.testing.assert_close(*gradients)
    with of_dtype(torch.bfloat16):  # for a backward that is compiled elsewhere
        result = ingot.compile(fn)(x, i)
    assert torch.equal(torch.autograd.grad(result, x)[0], gradients[1])
