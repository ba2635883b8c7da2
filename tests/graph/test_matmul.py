"""`torch.matmul` and attention in Python, as they are run where sizes are symbols: the same
operations as eager's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ingot
from ingot.compiler import Compiler
from ingot.graph.matmul import matmul

VIEWS = {"expand", "view", "_unsafe_view", "squeeze", "unsqueeze", "transpose", "t", "permute"}
MATRICES = [(2, 3, 5, 8), (3, 4, 2, 7), (4, 1, 6, 3), (5, 2, 1, 9)]


class Calls(TorchDispatchMode):
    """The operations that are called, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if op.overloadpacket.__name__ not in VIEWS:
            self.found.append((op, result.shape, result.stride()))
        return result


def operand(rng: random.Random, batch: list[int], matrix: list[int]) -> Tensor:
    rank = rng.randint(1, 4)
    sizes = (
        [n if rng.random() < 0.7 else 1 for n in batch][4 - rank :] + matrix
        if rank > 1
        else [*matrix[-1:]]
    )
    order = (
        rng.sample(range(len(sizes)), len(sizes)) if rng.random() < 0.4 else [*range(len(sizes))]
    )
    t = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])
    return t.requires_grad_(rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(300))
def test_the_same_products_as_eager(seed: int) -> None:
    rng = random.Random(seed)
    rows, inner, columns = (rng.choice([1, 2, 3, 4]) for _ in range(3))
    batch = [rng.choice([1, 2, 3]) for _ in range(2)]
    left, right = operand(rng, batch, [rows, inner]), operand(rng, batch, [columns, inner])
    right = right.mT if right.dim() > 1 else right
    with torch.no_grad(), Calls() as calls:
        found = matmul(left, right)
    with torch.no_grad(), Calls() as expected_calls:
        expected = torch.matmul(left, right)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    # eager folds these, seeing a mode
    if not (left.dim() == right.dim() == 3 and left.shape[0] != right.shape[0]):
        assert calls.found == expected_calls.found


PROGRAMS: dict[str, Callable[..., Tensor]] = {
    "a batch": lambda x: x @ x.mT,
    "rows": lambda x: torch.matmul(x, x[0, 0].mT),
    "a vector": lambda x: x.matmul(x[0, 0, 0]),
    "a vector first": lambda x: x[0, 0, 0] @ x.mT,
    "a matrix first": lambda x: x[0, 0] @ x.mT,
    "a batch of one": lambda x: x @ x[:1].mT,
    "causal attention": lambda x: F.scaled_dot_product_attention(
        x[0], x[1], x[1], is_causal=True, scale=0.2
    ),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        x[0], x[0], x[1], x[0] @ x[0].mT, scale=-0.2
    ),
    "attention where": lambda x: F.scaled_dot_product_attention(
        x[0], x[0], x[1], x[0] @ x[1].mT > 0, scale=0.2
    ),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_vary(name: str, requires_grad: bool) -> None:
    f = PROGRAMS[name]
    compiled = ingot.compile(f, dynamic=True, fullgraph=True)
    for shape in MATRICES:
        x = torch.randn(shape, requires_grad=requires_grad)
        found, expected = compiled(x), f(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert all(
            a == e for n, a, e in zip(expected.shape, found.stride(), expected.stride()) if n > 1
        )
        if requires_grad:
            tangent = torch.randn_like(expected)
            (a,), (e,) = (torch.autograd.grad(result, x, tangent) for result in (found, expected))
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5, equal_nan=True)
    compiler = Compiler.of(compiled)
    # where sizes of 1 decide what is copied
    assert compiler is not None and len(compiler.compilations) <= 3
    assert not any(text.startswith("all sizes") for text in compiler.compilations[0].fixed_sizes)


def test_a_vector_within_autocast() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ y

    compiled = ingot.compile(function, dynamic=True, fullgraph=True)
    for n in (3, 5):
        x, y = torch.randn(n, 2, 4), torch.randn(4)
        torch.testing.assert_close(compiled(x, y), function(x, y), rtol=2e-2, atol=2e-2)
