"""Indexing with a number in a tensor: gathered in the graph, a view in eager; the two are told
apart by nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near
from tests.tracked import Tracked

K = torch.tensor(2), torch.tensor(-1), torch.tensor(0, dtype=torch.int32)


def first(x: Tensor, t: Tensor) -> Any:
    return x[t].sin()


def in_the_middle(x: Tensor, t: Tensor) -> Any:
    return x[:, t] * 2, x[1, :, t] + 1, x[None, t, 1:].cos()


def twice(x: Tensor, t: Tensor) -> Any:
    return x[t, t] * 2, x[t, :, t].exp()


def beside_indices(x: Tensor, t: Tensor) -> Any:
    return x[t, torch.tensor([0, 1, 1])], x[torch.tensor([[0], [2]]), t]


def backtracked(x: Tensor, t: Tensor) -> Any:
    path = [t]
    for step in x.long().abs() % 3:
        path.append(step[0][path[-1]])
    return torch.stack(path)


def written_before(x: Tensor, t: Tensor) -> Any:
    y = x * 2
    y[0] += 1
    return y[t].sin()


@pytest.mark.parametrize(
    "program",
    [first, in_the_middle, twice, beside_indices, backtracked, written_before],
    ids=lambda f: f.__name__,
)
def test_stays_in_the_graph(program: Callable[..., Any]) -> None:
    compiled = ingot.compile(program, fullgraph=True)
    for t in K:
        x, y = (
            torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
            for _ in range(2)
        )
        found, expected = compiled(x, t), program(y, t)
        assert_near(found, expected)
        for given in (found, expected):
            floats = [
                r.sum()
                for r in (given if isinstance(given, tuple) else (given,))
                if r.requires_grad
            ]
            if floats:
                sum(floats).backward()
        assert_near(x.grad, y.grad)


def given_away(x: Tensor, t: Tensor) -> Any:
    return x[t], (x + 1)[:, t]


def given_as_a_view(x: Tensor, t: Tensor) -> Any:
    y = x.exp()
    return y, y[t][1:]


def result_written(x: Tensor, t: Tensor) -> Any:
    y = x * 2
    y[t].add_(1)
    return y


def source_written(x: Tensor, t: Tensor) -> Any:
    y = x * 2
    row = y[:, t]
    y[0].zero_()
    return row + 1


def written_behind_a_break(x: Tensor, t: Tensor) -> Any:
    y = x * 2
    row = y[t]
    if x.sum() > 1e9:
        y = y + 1
    row.mul_(3)
    return y


@pytest.mark.parametrize(
    "program",
    [given_away, given_as_a_view, result_written, source_written, written_behind_a_break],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_where_the_view_shows_it_is_one(program: Callable[..., Any]) -> None:
    tracked = Tracked(program)
    for t in K:
        x = torch.randn(3, 3, 3)
        tracked(x, t)
        results = tracked.compiled(x, t), program(x, t)
        for result in results:
            if isinstance(result, tuple):
                result[-1].fill_(7)
        assert_near(*results)


def test_out_of_range() -> None:
    compiled = ingot.compile(first)
    compiled(torch.randn(3, 3), torch.tensor(1))
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        compiled(torch.randn(3, 3), torch.tensor(5))


def test_a_branch_on_a_size_that_the_data_decide() -> None:
    """The comparison is alive where the graph is broken."""

    def program(x: Tensor) -> Any:
        found = x[x > 0] * 2
        return found.cos() if found.numel() > 1 else found.sin()

    tracked = Tracked(program)
    for x in (torch.tensor([1.0, 2.0, -1.0]), torch.tensor([-1.0, 3.0]), torch.tensor([-1.0])):
        tracked(x)
    assert tracked.skips == []


TABLE = torch.arange(12.0).view(4, 3)
LEARNED = torch.arange(4.0, requires_grad=True)


def of_a_table(x: Tensor, t: Tensor) -> Any:
    row = TABLE[t]
    if (x * row[0]).sum() > 1e9:  # a break
        x = x + 1
    return row, row * x.sum()


def of_an_argument(x: Tensor, t: Tensor) -> Any:
    return x[t], x[1:, t], (x[t] * 2).sum()


def several_indices(x: Tensor, t: Tensor) -> Any:
    return TABLE[t, 1], TABLE[None, t, 1:], x.sin()


def kept_in_a_list(x: Tensor, t: Tensor) -> Any:
    rows = [TABLE[t]]
    rows.append(rows[0] + x.sum())
    return rows


@pytest.mark.parametrize(
    "program",
    [of_a_table, of_an_argument, several_indices, kept_in_a_list],
    ids=lambda f: f.__name__,
)
def test_a_view_of_what_is_outside_is_given_away(program: Callable[..., Any]) -> None:
    """It shares the memory that eager's shares, and no break is needed for that."""
    compiled = ingot.compile(program)
    for t in K:
        x = torch.randn(3, 3, 3)
        for one, other in zip(compiled(x, t), program(x, t), strict=True):
            assert_near(one, other)
            assert (one._base is None) is (other._base is None)
            if other._base is not None:
                assert one.data_ptr() == other.data_ptr() and one._base is other._base
    compiler = Compiler.of(compiled)
    assert compiler is not None
    breaks = [c.break_.why.id for c in compiler.compilations if c.break_ is not None]
    assert "number-in-tensor" not in breaks


def index_written(x: Tensor, t: Tensor) -> Any:
    t = t + 0
    row = TABLE[t]
    t += 1
    return row, t


def recorded(x: Tensor, t: Tensor) -> Any:
    return LEARNED[t], x + 1


def written_later(x: Tensor, t: Tensor) -> Any:
    row = TABLE[t]
    TABLE.mul_(1)
    return row, x + 1


@pytest.mark.parametrize(
    "program", [index_written, recorded, written_later], ids=lambda f: f.__name__
)
def test_where_another_view_would_come_of_it(program: Callable[..., Any]) -> None:
    compiled, t = ingot.compile(program), torch.tensor(1)
    for _ in range(3):
        for one, other in zip(compiled(torch.ones(2), t), program(torch.ones(2), t), strict=True):
            assert_near(one, other)
            assert (one._base is None) is (other._base is None)
            assert one.requires_grad is other.requires_grad


def test_data_that_is_set_behind_the_graph() -> None:
    def program(x: Tensor, t: Tensor, table: Tensor) -> Any:
        row = table[t]
        table.data = table.data + 1
        return row, x + 1

    compiled, results = ingot.compile(program), []
    for run in (compiled, compiled, program):
        table = torch.arange(12.0).view(4, 3)
        results.append((*run(torch.ones(2), torch.tensor(1), table), table))
    for found in results[:2]:
        for one, other in zip(found, results[2], strict=True):
            assert_near(one, other)


def test_an_index_out_of_range_is_raised_before_effects() -> None:
    def program(x: Tensor, t: Tensor, seen: list[int]) -> Any:
        row = TABLE[t]
        seen.append(1)
        return row, x + 1

    compiled = ingot.compile(program)
    for run in (compiled, program):
        seen: list[int] = []
        run(torch.ones(2), torch.tensor(1), seen)
        with pytest.raises(IndexError, match="out of"):
            run(torch.ones(2), torch.tensor(4), seen)
        assert seen == [1]
