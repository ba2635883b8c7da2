"""`tolist()` of a few integers that tensors from outside hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ingot
from tests.compiled import compilations
from tests.oracle import assert_same


def positions(x: Tensor, grid: Tensor) -> Tensor:
    """As vision towers number the patches of images."""
    found = []
    for count, height, width in grid.tolist():
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        blocks = height // 2, 2, width // 2, 2
        rows, columns = (t.reshape(blocks).transpose(1, 2).flatten() for t in (rows, columns))
        found.append(torch.stack([rows, columns], dim=-1).repeat(count, 1))
    return torch.cat(found) + x


def by_products(x: Tensor, grid: Tensor) -> list[Tensor]:
    return [part.abs() for part in x.split((grid.prod(-1) // 4).tolist())]


def by_lengths(x: Tensor, grid: Tensor) -> list[Tensor]:
    ends = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(
        dim=0, dtype=torch.int32
    )
    ends = F.pad(ends, (1, 0), value=0)
    return [part.abs() for part in x.split((ends[1:] - ends[:-1]).tolist())]


def by_windows(x: Tensor, grid: Tensor) -> list[Tensor]:
    ends = [0]
    for _, height, width in grid.tolist():
        index = F.pad(
            torch.arange(height * width).reshape(height, width),
            (0, width % 4, 0, height % 4),
            value=-100,
        )
        counts = (index.reshape(-1, 4, index.shape[1] // 4, 4) != -100).sum([1, 3]).flatten()
        ends.extend((counts.cumsum(0) + ends[-1]).tolist())
    ends = torch.unique_consecutive(torch.tensor(ends, dtype=torch.int32))
    return [part.abs() for part in x.split((ends[1:] - ends[:-1]).tolist())]


@pytest.mark.parametrize("fn", [positions, by_products, by_lengths, by_windows])
def test_one_graph(fn: Callable[..., Any]) -> None:
    grid = torch.tensor([[1, 4, 6], [2, 4, 4]])
    x = torch.randn({by_products: 14, by_windows: 40}.get(fn, 56), 2)
    compiled = ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(x, grid), fn(x, grid))
    assert len(compilations(compiled)) == 1


def test_integers_that_vary_are_symbols() -> None:
    compiled = ingot.compile(positions, fullgraph=True)
    for sizes in ((4, 6), (8, 10), (6, 8), (12, 4), (10, 10)):
        grid = torch.tensor([[2, *sizes]])
        x = torch.randn(2 * sizes[0] * sizes[1], 2)
        assert_same(compiled(x, grid), positions(x, grid))
    assert len(compilations(compiled)) <= 3


def test_what_is_computed_of_integers_that_vary_breaks_the_graph() -> None:
    compiled = ingot.compile(by_products)
    for sizes in ((4, 6), (8, 10), (6, 8)):
        x, grid = torch.randn(sizes[0] * sizes[1] // 2, 2), torch.tensor([[2, *sizes]])
        assert_same(compiled(x, grid), by_products(x, grid))
    breaks = [c.break_ for c in compilations(compiled) if c.break_ is not None]
    assert compilations(compiled)[0].break_ is None and "tolist" in str(breaks[0])


@pytest.mark.parametrize("fn", [positions, by_products, by_lengths])
def test_a_tensor_that_is_written_between_calls(fn: Callable[..., Any]) -> None:
    """It is the same object, and lies where it lay."""
    compiled = ingot.compile(fn)
    grid = torch.tensor([[1, 4, 6], [2, 4, 4]])
    for turn in range(8):
        if turn % 3 == 2:
            grid[0, 1] += 2
        count = int(grid.prod(-1).sum())
        x = torch.randn(count // 4 if fn is by_products else count, 2)
        assert_same(compiled(x, grid), fn(x, grid))


@pytest.mark.parametrize(
    "write", [lambda t: t.add_(1), lambda t: t[0].mul_(2), lambda t: torch.neg(t, out=t)]
)
@pytest.mark.parametrize("by", [0, 1])
def test_a_tensor_that_the_function_writes_first(write: Callable[[Tensor], Any], by: int) -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        write(t)
        a, b = (t + by).tolist() if by else t.tolist()
        return x * a + b

    x, compiled = torch.randn(3), ingot.compile(fn)
    for _ in range(3):
        mine, eager = torch.tensor([3, 5]), torch.tensor([3, 5])
        assert_same(compiled(x, mine), fn(x, eager))
        assert torch.equal(mine, eager)


def test_a_tensor_that_another_argument_shares_memory_with() -> None:
    def fn(x: Tensor, t: Tensor, part: Tensor) -> Tensor:
        part.add_(1)
        return x * sum(t.tolist())

    x, compiled = torch.randn(3), ingot.compile(fn)
    for _ in range(2):
        t, other = torch.tensor([3, 5]), torch.tensor([3, 5])
        assert_same(compiled(x, t, t[:1]), fn(x, other, other[:1]))


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor(7), torch.tensor([], dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int32),
        torch.arange(24, dtype=torch.int8).view(2, 3, 4), torch.arange(12).view(3, 4).t(),
        torch.arange(100), torch.tensor([True, False]), torch.tensor([1.5, 2.5]),
        torch.tensor([250], dtype=torch.uint8),
    ],
    ids=lambda t: f"{t.dtype}{tuple(t.shape)}",
)  # fmt: skip
def test_lists_are_eagers(t: Tensor) -> None:
    def fn(x: Tensor, t: Tensor) -> Any:
        first, second = t.tolist(), t.tolist()
        return x + 1, first, second, first is second, type(first)

    x, compiled = torch.randn(3), ingot.compile(fn)
    for _ in range(2):
        assert_same(compiled(x, t), fn(x, t))


def test_a_list_is_the_functions_own() -> None:
    def fn(x: Tensor, t: Tensor) -> Any:
        found = t.tolist()
        found.append(9)
        return x * found[0], found

    x, t, compiled = torch.randn(3), torch.tensor([2, 3]), ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(x, t), fn(x, t))
    assert t.tolist() == [2, 3]


def test_gradients() -> None:
    x, grid = torch.randn(56, 2, requires_grad=True), torch.tensor([[1, 4, 6], [2, 4, 4]])
    compiled = ingot.compile(by_lengths, fullgraph=True)
    (found,) = torch.autograd.grad(sum(part.sum() for part in compiled(x, grid)), x)
    (expected,) = torch.autograd.grad(sum(part.sum() for part in by_lengths(x, grid)), x)
    torch.testing.assert_close(found, expected)


def test_random_numbers_in_between_are_not_drawn_twice() -> None:
    def fn(x: Tensor, t: Tensor) -> Any:
        drawn = torch.randint(5, 6, (2,))
        return x + 1, (t * drawn).tolist()

    x, t, compiled = torch.randn(3), torch.tensor([2, 3]), ingot.compile(fn)
    torch.manual_seed(0)
    expected, after = fn(x, t), torch.rand(1)
    torch.manual_seed(0)
    assert_same(compiled(x, t), expected)
    assert torch.equal(torch.rand(1), after)
