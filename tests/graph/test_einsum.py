"""`torch.einsum` of sizes that vary, 1 among them: eager's results, layouts and gradients, in few
compilations."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler

EQUATIONS = [
    "bij,bkj->kib", "ij,jk->ik", "ij,kj->ki", "ij,jk", "bij,bjk->bik", "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd", "btd,dhk->bthk", "i,j->ij", "ij,j->ij", "bij,bkl->bil", "ijk,kjl->li",
    "ij,ij->i", "ij,ij->", "abcd,dcbe->ea",
    "i,i", "bi,bj->jbi",
]  # fmt: skip
DEPEND = {"bqhd,bkhd->bhqk", "ijk,kjl->li", "abcd,dcbe->ea"}
"""Those whose results lie otherwise where one product is summed."""
SIZES = [1, 2, 3, 4, 5]


def operands(equation: str, sizes: dict[str, int], requires_grad: bool) -> list[Tensor]:
    terms = equation.split("->")[0].split(",")
    return [torch.randn([sizes[c] for c in term], requires_grad=requires_grad) for term in terms]


def laid_out_alike(a: Tensor, e: Tensor) -> bool:
    return all(x == y for n, x, y in zip(e.shape, a.stride(), e.stride()) if n > 1)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_sizes_that_vary(equation: str, requires_grad: bool) -> None:
    rng, labels = random.Random(equation), sorted(set(equation) - set(",->"))
    compiled = ingot.compile(
        lambda *args: torch.einsum(equation, *args), dynamic=True, fullgraph=True
    )
    calls = [
        {c: 2 + n for n, c in enumerate(labels)},
        *({c: rng.choice(SIZES) for c in labels} for _ in range(7)),
    ]
    for sizes in calls:
        given = operands(equation, sizes, requires_grad)
        found, expected = compiled(*given), torch.einsum(equation, *given)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert laid_out_alike(found, expected), sizes
        if requires_grad:
            tangent = torch.randn_like(expected)
            gradients = [
                torch.autograd.grad(result, given, tangent) for result in (found, expected)
            ]
            for a, e in zip(*gradients, strict=True):
                torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) <= (
        4 if requires_grad or equation in DEPEND else 1
    )


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (5, 6)]),
        ("ij,jk->ikl", [(3, 4), (4, 6)]),
        ("iij,jk->ik", [(3, 2, 4), (4, 6)]),
        ("ij,j->i", [(3, 4, 2), (4,)]),
    ],
)
def test_errors_are_eagers(equation: str, shapes: list[tuple[int, ...]]) -> None:
    compiled = ingot.compile(lambda *args: torch.einsum(equation, *args), dynamic=True)
    given = [torch.randn(shape) for shape in shapes]
    with pytest.raises(RuntimeError) as expected:
        torch.einsum(equation, *given)
    with pytest.raises(RuntimeError) as found:
        compiled(*given)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("equation", ["bij,bjk->bik", "...ij,...jk->...ik", "bii,bik->bk"])
def test_broadcasts_repeated_labels_and_ellipses(equation: str) -> None:
    compiled = ingot.compile(
        lambda x, y: torch.einsum(equation, x, y), dynamic=True, fullgraph=True
    )
    for batch, other in [(2, 2), (3, 1), (1, 4), (1, 1)]:
        x, y = torch.randn(batch, 3, 3), torch.randn(other, 3, 5)
        torch.testing.assert_close(
            compiled(x, y), torch.einsum(equation, x, y), rtol=1e-4, atol=1e-5
        )


def test_transposed_operands_and_halves() -> None:
    compiled = ingot.compile(
        lambda x, y: torch.einsum("ij,kj->ik", x.t(), y[::2]), dynamic=True, fullgraph=True
    )
    for n, m, k in [(3, 4, 5), (1, 6, 2), (7, 1, 3), (2, 2, 2)]:
        for dtype in (torch.float32, torch.bfloat16):
            x, y = torch.randn(m, n, dtype=dtype), torch.randn(k, m, dtype=dtype)
            found, expected = compiled(x, y), torch.einsum("ij,kj->ik", x.t(), y[::2])
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
            assert laid_out_alike(found, expected)


@pytest.mark.parametrize("equation", ["i,i->", "ij,ij->", "ij,kj->"])
def test_sums_of_all_within_autocast(equation: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.einsum(equation, x, y)

    compiled = ingot.compile(function, dynamic=True, fullgraph=True)
    for n in (3, 5):
        given = operands(equation, {"i": n, "j": 4, "k": 2}, False)
        torch.testing.assert_close(compiled(*given), function(*given), rtol=2e-2, atol=2e-2)
