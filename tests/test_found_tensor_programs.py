"""Tensor programs that random ones were reduced to, each of which once did something else compiled
than in eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from tests.oracle import ignore_warnings
from tests.test_random_programs import Outcome, compare


def a_write_to_a_window_that_meets_itself(x: torch.Tensor) -> torch.Tensor:
    window = x[0].contiguous().as_strided((5, 2), (1, 1))
    window += window
    return window


def a_dimension_out_of_range_where_nobody_looks(x: torch.Tensor) -> torch.Tensor:
    x.squeeze(0).amax(1)
    x.sum((0, 0))
    return x + 1


def a_lookup_out_of_range_where_nobody_looks(x: torch.Tensor) -> torch.Tensor:
    F.embedding_bag(torch.tensor([[0, 9]]), x, mode="max")
    return x + 1


def sizes_that_do_not_fit_where_nothing_is_looked_at(x: torch.Tensor) -> torch.Tensor:
    return torch.outer(x[:0].flatten(), x.index_copy(0, torch.arange(8), x).flatten()[:3])


def an_index_out_of_range_after_a_write(x: torch.Tensor) -> torch.Tensor:
    y = x.mean(0)
    y.fill_(2)
    return x.index_select(0, torch.tensor([9])) + y


def a_write_into_nothing(x: torch.Tensor) -> torch.Tensor:
    x[:0, 0].scatter(0, torch.arange(3), 2)
    return x + 1


def a_number_that_does_not_fit(x: torch.Tensor) -> torch.Tensor:
    whole = x.long()
    whole.masked_fill(whole > 0, 2.0)
    whole.masked_fill(whole > 0, float("-inf"))
    return x + 1


def errors_in_order(x: torch.Tensor) -> torch.Tensor:
    x.fill_(3)
    row = torch.tensor([1, 9])
    return x.index_add(0, row, x.index_select(0, row))


FOUND: dict[Callable[..., Any], tuple[torch.Tensor, ...]] = {
    a_write_to_a_window_that_meets_itself: (torch.arange(24.0).reshape(3, 8),),
    a_dimension_out_of_range_where_nobody_looks: (torch.ones(1, 6),),
    a_lookup_out_of_range_where_nobody_looks: (torch.ones(4, 6),),
    sizes_that_do_not_fit_where_nothing_is_looked_at: (torch.ones(1, 6),),
    an_index_out_of_range_after_a_write: (torch.ones(4, 6),),
    a_number_that_does_not_fit: (torch.ones(4, 6),),
    errors_in_order: (torch.ones(4, 6),),
    a_write_into_nothing: (torch.ones(4, 6),),
}


@pytest.mark.parametrize("function", FOUND, ids=lambda f: f.__name__)
def test_found(function: Callable[..., Any]) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        ignore_warnings()
        compiled = ingot.compile(function)
        for _ in range(2):
            arguments = copy.deepcopy((FOUND[function], FOUND[function]))
            compare(Outcome(compiled, arguments[0]), Outcome(function, arguments[1]))


def reads_in_front_of_what_it_wrote(x: torch.Tensor) -> torch.Tensor:
    x[..., 0].zero_()
    return x.as_strided((2,), (1,), 1) + 0


def writes_behind_its_argument(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((2, 4), (3, 1), x.storage_offset() + 9).mul_(2)
    return x + 1


@pytest.mark.parametrize("function", [reads_in_front_of_what_it_wrote, writes_behind_its_argument])
def test_windows_beyond_a_written_argument(function: Callable[..., torch.Tensor]) -> None:
    mine, theirs = torch.arange(27.0).view(9, 3), torch.arange(27.0).view(9, 3)
    compiled = ingot.compile(function)
    for _ in range(2):
        assert torch.equal(compiled(mine[2:6]), function(theirs[2:6]))
        assert torch.equal(mine, theirs)


def test_a_write_through_a_window_on_memory_in_the_arena() -> None:
    def function(x: torch.Tensor) -> Any:
        window = x.contiguous().as_strided((4,), (3,), 1).view(-1)
        window.unsqueeze(0).mul_(0.5)
        gathered = x[::2, torch.arange(7) % 2, 1:]
        gathered = gathered.index_add(0, torch.tensor([0]), gathered[:1])
        return torch.trunc(window).repeat(2), gathered, torch.randint(9, (3,))

    x = 3 * torch.randn(8, 7, 2, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    outcomes = [Outcome(f, (x.clone(),)) for f in (ingot.compile(function), function)]
    for mine, theirs in zip(*(outcome.leaves for outcome in outcomes), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("copied", [False, True])
def test_a_window_in_front_of_an_argument(copied: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (
            torch.as_strided_copy(x, (2, 2), (1, 2), 0)
            if copied
            else x.as_strided((2, 2), (1, 2), 0) * 2
        )

    compiled = ingot.compile(function, fullgraph=True)
    x = torch.arange(20.0)[6:12].view(2, 3)
    assert torch.equal(compiled(x), function(x))


def test_a_search_in_a_row_with_nan() -> None:
    def function(row: torch.Tensor, values: torch.Tensor) -> Any:
        return torch.searchsorted(row, values), torch.searchsorted(row, values, right=True)

    compiled, nan = ingot.compile(function), float("nan")
    row = torch.tensor([-2.0, -1.0, 0.5, nan, 2.0, nan, nan])
    values = torch.tensor([-3.0, -1.0, 0.5, 1.0, 2.0, 9.0, nan])
    for mine, theirs in zip(compiled(row, values), function(row, values), strict=True):
        assert torch.equal(mine, theirs)
