"""Small tensors whose elements follow from numbers in the program and from sizes: their values are
known in capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near


def quotient_as_size(x: Tensor) -> Any:
    return x.view(2, torch.div(x.shape[1], 8, rounding_mode="trunc"), 8) * 2


def of_literals(x: Tensor) -> Any:
    lengths = torch.tensor([4, 4, 8])
    parts = x.split(lengths.tolist(), 1)
    return (
        parts[2] * 2,
        x.view(2, -1, lengths[:2].prod().item()),
        x[:, : lengths.max()],
        x[:, lengths[0]],
    )


def branches(x: Tensor) -> Any:
    if torch.tensor(3) > 2 and bool(torch.arange(3).sum() == 3):
        x = x + int(torch.ceil(torch.tensor(5 / 2)))
    return x if torch.ones(2).any() else -x


def written(x: Tensor) -> Any:
    n = torch.zeros(3, dtype=torch.int64)
    tail = n[1:]
    n[1] = 2
    n += 1
    tail.mul_(2)
    return x[:, : n[1]], x * n.sum().item(), n, n[: torch.tensor(2)], n[: x.shape[0]]


@pytest.mark.parametrize(
    "program", [quotient_as_size, of_literals, branches, written], ids=lambda f: f.__name__
)
def test_known_values_break_no_graph(program: Callable[..., Any]) -> None:
    x = torch.randn(2, 16)
    assert_near(ingot.compile(program, fullgraph=True)(x), program(x))


def written_by_data(x: Tensor) -> Any:
    n = torch.zeros(3)
    n[1] = x.sum()
    return x * n.sum().item()


def written_through_a_view(x: Tensor) -> Any:
    n = torch.zeros(3)
    n.view(1, 3).copy_(x[:1, :3])
    return x + 1 if n.sum() > 0 else x - 1


def written_as_out(x: Tensor) -> Any:
    n = torch.zeros(())
    torch.sum(x, dim=(0, 1), out=n)
    return x + 1 if n > 0 else x - 1


def size_written(x: Tensor) -> Any:
    n = torch.div(x.shape[1], 8, rounding_mode="trunc")
    n.add_(x.sum().long())
    return x[:, : int(n)]


@pytest.mark.parametrize(
    "program",
    [written_by_data, written_through_a_view, written_as_out, size_written],
    ids=lambda f: f.__name__,
)
def test_what_is_written_by_data_is_not_known(program: Callable[..., Any]) -> None:
    compiled = ingot.compile(program, dynamic=True)
    for sum_ in (3.0, -3.0):
        x = torch.full((2, 16), sum_ / 32)
        assert_near(compiled(x), program(x))


def test_a_quotient_of_a_size_that_varies_is_a_size() -> None:
    def program(x: Tensor) -> Any:
        n = torch.div(x.shape[1], 8, rounding_mode="trunc")
        return x[:, :n] * 2, x.view(2, n, 8).sum(0), n

    compiled = ingot.compile(program, fullgraph=True)
    for size in (16, 24, 32, 40):
        x = torch.randn(2, size)
        assert_near(compiled(x), program(x))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert len(compiler.compilations) == 2


def test_known_beside_what_a_transform_has_wrapped() -> None:
    def program(x: Tensor) -> Any:
        return torch.vmap(lambda row: row * torch.tensor([2.0, 3.0])[1].item() + torch.arange(16))(
            x
        )

    x = torch.randn(2, 16)
    assert_near(ingot.compile(program, fullgraph=True)(x), program(x))
