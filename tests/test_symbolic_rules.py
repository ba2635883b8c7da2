"""Ops that once had no rule for sizes that are symbols: few entries, eager's results, gradients and
layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler

MATRICES = [(4, 6), (7, 3), (5, 9), (2, 2), (12, 11)]
IMAGES = [(2, 8, 3, 4), (3, 4, 5, 6), (4, 12, 2, 7)]
EVEN_IMAGES = [(2, 3, 4, 6), (4, 2, 8, 10), (3, 5, 6, 4)]
QUERIES = [(2, 5, 8), (3, 7, 8), (4, 9, 8), (3, 6, 8)]

CASES: dict[str, tuple[Callable[[Tensor], Any], Sequence[Any]]] = {
    "cummax": (lambda x: torch.cummax(x, 0), MATRICES),
    "cummin of a transposed matrix": (lambda x: torch.cummin(x.t(), 1), MATRICES),
    "logsigmoid": (F.logsigmoid, MATRICES),
    "logsigmoid of a transposed matrix": (lambda x: F.logsigmoid(x.t()), MATRICES),
    "a quarter": (lambda x: torch.rot90(x, 1, (0, 1)), MATRICES),
    "half": (lambda x: x.rot90(2), MATRICES),
    "three quarters": (lambda x: torch.rot90(x.t(), 3, (0, 1)), MATRICES),
    "all round": (lambda x: torch.rot90(x.t(), 4, (1, 0)), MATRICES),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGES),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), EVEN_IMAGES),
    "rsub": (lambda x: torch.rsub(x, x.sum(0), alpha=2), MATRICES),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), MATRICES),
    "attention without heads": (lambda x: F.scaled_dot_product_attention(x, x, x), QUERIES),
    "attention in float64": (
        lambda x: F.scaled_dot_product_attention(x.double(), x.double(), x.double()),
        QUERIES,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_vary(name: str) -> None:
    f, shapes = CASES[name]
    compiled = ingot.compile(f, dynamic=True, fullgraph=True)
    for shape in shapes:
        x = torch.randn(shape, requires_grad=True)
        found, expected = ([t] if isinstance(t := g(x), Tensor) else [*t] for g in (compiled, f))
        tangent = torch.randn_like(expected[0])
        for results in (found, expected):
            results += torch.autograd.grad(results[0], x, tangent)
        for a, e in zip(found, expected, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
            assert a.stride() == e.stride()
    compiler = Compiler.of(compiled)
    assert compiler is not None
    (made,) = compiler.compilations
    assert made.captured.guards.symbols


def test_a_width_of_attention_is_compiled_for_and_nothing_else() -> None:
    f, _ = CASES["attention without heads"]
    compiled = ingot.compile(f, dynamic=True, fullgraph=True)
    for shape in [(2, 5, 8), (3, 7, 16), (4, 9, 16), (5, 9, 8)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-5)
    compiler = Compiler.of(compiled)
    # where eager's kernel takes it, no width is compiled for
    kept = 1 if torch.__version__ >= "2.14" else 2
    assert compiler is not None and len(compiler.compilations) == kept


def test_channels_that_cannot_be_shuffled() -> None:
    compiled = ingot.compile(lambda x: F.pixel_shuffle(x, 2), dynamic=True)
    with pytest.raises(RuntimeError, match="divisible"):
        compiled(torch.randn(2, 6, 3, 4))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_gradients_of_a_batch_of_one_that_lies_in_columns_lie_as_in_eager(
    biased: bool, trained: bool
) -> None:
    """Where eager has a product for each matrix they are in row-major order, and where it has one
    they lie as it does.
    """

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x.mT, weight, bias if biased else None)

    compiled = ingot.compile(f, dynamic=True, fullgraph=True)
    for count in (2, 5, 1):
        shapes = (count, 6, 7), (3, 6), (3,)
        x, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
        wanted = [t.requires_grad_() for t in ((x, weight) if trained else (x,))]
        results = compiled(x, weight, bias), f(x, weight, bias)
        found, expected = (torch.autograd.grad(y, wanted, torch.ones_like(y)) for y in results)
        torch.testing.assert_close(found, expected)
        assert found[0].stride()[1:] == expected[0].stride()[1:]


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matrices": lambda a, b: a @ b,
    "a part of a matrix": lambda a, b: a[:, : b.shape[0]] @ b,
    "matrices in columns": lambda a, b: b.t() @ a.t(),
    "linear": lambda a, b: F.linear(a, b.t()),
    "addmm": lambda a, b: torch.addmm(b[0], a, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_products_of_sizes_that_may_be_1(name: str) -> None:
    """How matrices lie decides how their gradients do; whether a size is 1 does not."""
    f = PRODUCTS[name]
    compiled = ingot.compile(f, fullgraph=True)
    sizes = [
        (4, 6, 5),
        (7, 6, 5),
        (7, 8, 5),
        (3, 5, 9),
        (1, 4, 3),
        (4, 1, 3),
        (5, 5, 1),
        (1, 1, 4),
        (6, 1, 1),
    ]
    for rows, inner, columns in sizes:
        wide = inner + 2 if name == "a part of a matrix" else inner
        a, b = (
            torch.randn(shape, dtype=torch.float64).requires_grad_()
            for shape in ((rows, wide), (inner, columns))
        )
        results = compiled(a, b), f(a, b)
        found, expected = (torch.autograd.grad(y.sin().sum(), (a, b)) for y in results)
        torch.testing.assert_close((results[0], *found), (results[1], *expected))
        for own, eager in zip((results[0], *found), (results[1], *expected)):
            steps = [
                [step for step, size in zip(t.stride(), t.shape) if size > 1] for t in (own, eager)
            ]
            assert steps[0] == steps[1]
    assert len(Compiler.of(compiled).compilations) <= 4


@pytest.mark.parametrize("wanted", [0, 1])
def test_the_gradient_of_one_matrix_of_a_product(wanted: int) -> None:
    compiled = ingot.compile(lambda a, b: a @ b, dynamic=True, fullgraph=True)
    for rows, inner in ((4, 6), (7, 5), (1, 3), (3, 1)):
        matrices = torch.randn(rows, inner), torch.randn(inner, 2)
        matrices[wanted].requires_grad_()
        results = compiled(*matrices), matrices[0] @ matrices[1]
        found = [torch.autograd.grad(y.sin().sum(), matrices[wanted]) for y in results]
        torch.testing.assert_close(*found)
    (made,) = Compiler.of(compiled).compilations
    assert made.fixed_sizes == []


HISTOGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "counts": lambda x: torch.histc(x, 4, 0, 4) + 1,
    "of integers": lambda x: torch.histc(x.int().float(), bins=5, min=0, max=4),
    "of the range of the data": lambda x: x.histc(),
    "of a matrix": lambda x: torch.histc(x[:, None] * x, 3, max=9).cumsum(0),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histograms_of_sizes_that_vary(name: str) -> None:
    f = HISTOGRAMS[name]
    compiled = ingot.compile(f, fullgraph=True)
    for size in (3, 4, 7, 5, 40, 2):
        x = torch.rand(size) * 4
        assert torch.equal(compiled(x), f(x))
    assert len(Compiler.of(compiled).compilations) <= 2  # type: ignore[union-attr]


def test_histograms_without_bins() -> None:
    compiled = ingot.compile(lambda x, n: torch.histc(x, n))
    for bins in (3, 4, 0, 5, -1):
        if bins > 0:
            assert compiled(torch.rand(5), bins).shape == (bins,)
        else:
            with pytest.raises(RuntimeError, match="bins must be > 0"):
                compiled(torch.rand(5), bins)
