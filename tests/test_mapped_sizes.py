"""torch.vmap and the transforms around it over batches whose sizes vary: eager is the oracle, and
programs are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.nn import functional as F

import ingot
from ingot.compiler import Compiler
from tests.oracle import tensors_in

Make = Callable[[int], tuple[Tensor, ...]]
MATRIX, WINDOW = torch.randn(4, 4), torch.randn(1, 1, 2)
SIZES = (5, 7, 9, 11, 6, 13)


def of_rows(*shape: int) -> Make:
    return lambda size: (torch.randn(size, *shape),)


CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "a sum": (vmap(lambda a: a.sin().sum()), of_rows(3)),
    "of several arguments": (
        vmap(vmap(lambda a, b: a * b, (0, None)), (None, 0)),
        lambda size: (torch.randn(size), torch.randn(size + 1)),
    ),
    "indices": (
        lambda x: vmap(lambda i, a: torch.where(i > 2, a, 0.0))(torch.arange(len(x)), x),
        of_rows(3),
    ),
    "an element of a tensor that is not mapped": (
        lambda x: vmap(lambda i: x[i] * 2)(torch.arange(x.shape[0])), of_rows(3),
    ),
    "a product": (vmap(lambda a: MATRIX @ a), of_rows(4)),
    "a reshape": (vmap(lambda a: a.reshape(-1) * a.shape[0]), of_rows(3, 2)),
    "several results": (vmap(lambda a: (a, torch.ones(2)), out_dims=(1, 0)), of_rows(3)),
    "a result without a batch": (vmap(lambda a: torch.zeros(3)), of_rows(3)),
    "another dimension": (
        vmap(lambda a: a.softmax(0), in_dims=1, out_dims=1), lambda size: (torch.randn(4, size),),
    ),
    "a write": (vmap(lambda a: a.clone().add_(1)), of_rows(4)),
    "gradients of samples": (vmap(grad(lambda a: a.sin() @ a)), of_rows(4)),
    "jacrev": (jacrev(lambda a: a.sin() * 2), of_rows()),
    "jacfwd": (jacfwd(lambda a: a.sin() * 2), of_rows()),
    "hessian": (hessian(lambda a: (a.sin() * a).sum()), of_rows()),
}  # fmt: skip
# Rules of vmap that are written in C++ for known sizes, or a loop over parts of the batch.
FOR_EACH_SIZE: dict[str, tuple[Callable[..., Any], Make]] = {
    "cat": (vmap(lambda a: torch.cat([a, a * 2])), of_rows(3)),
    "layer_norm": (vmap(lambda a: F.layer_norm(a, (4,))), of_rows(2, 4)),
    "conv1d": (vmap(lambda a: F.conv1d(a, WINDOW)), of_rows(2, 1, 8)),
    "chunks": (vmap(lambda a: a.sum(), chunk_size=2), of_rows(4)),
}


def check(function: Callable[..., Any], make: Make) -> int:
    """How many programs are made for all sizes, each of which gives what eager does."""
    compiled = ingot.compile(function, fullgraph=True)
    for size in SIZES:
        args = make(size)
        results = list(tensors_in(compiled(*args)))
        for actual, expected in zip(results, tensors_in(function(*args)), strict=True):
            torch.testing.assert_close(actual, expected)
            assert actual.stride() == expected.stride()
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return len(compiler.compilations)


@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_all_sizes_behind_the_first(name: str) -> None:
    assert check(*CASES[name]) == 2


@pytest.mark.parametrize("name", FOR_EACH_SIZE)
def test_rules_that_ask_for_the_size(name: str) -> None:
    assert check(*FOR_EACH_SIZE[name]) == len(SIZES)


def test_a_rule_that_asks_leaves_other_sizes_symbolic() -> None:
    @ingot.compile(fullgraph=True)
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return vmap(lambda a: torch.cat([a, a]))(x), y.sin()

    for size in SIZES:
        x, y = torch.randn(3, 4), torch.randn(size)
        torch.testing.assert_close(function(x, y), (torch.cat([x, x], 1), y.sin()))
    compiler = Compiler.of(function)
    assert compiler is not None and len(compiler.compilations) == 2
