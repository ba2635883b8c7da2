"""What is addressed from the beginning of a tensor's memory: where the tensor lies in it, and how
much there is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_same, outcome

BASE = torch.arange(40.0)


def assert_calls(function: Callable[..., Any], *calls: torch.Tensor) -> Any:
    """Every call as in eager, errors by their type; the compiled function."""
    compiled = ingot.compile(function)
    for x in calls:
        expected, actual = outcome(function, x), outcome(compiled, x)
        assert type(actual.raised) is type(expected.raised)
        assert_same(actual._replace(raised=None), expected._replace(raised=None))
    return compiled


def test_windows_on_an_argument_that_lies_elsewhere() -> None:
    assert_calls(
        lambda x: x.as_strided((3,), (1,), 1) + 0,
        BASE[2:10],
        BASE[4:12],
        BASE[:8],
        BASE[2:10].clone(),
    )


def test_windows_on_an_argument_of_other_sizes() -> None:
    assert_calls(
        lambda x: x.contiguous().as_strided((3,), (1,), 1) * 2,
        BASE[2:10],
        BASE[4:14],
        BASE[6:18],
        BASE[:9],
    )


def test_where_a_view_of_an_argument_lies() -> None:
    assert_calls(lambda x: (x[1:].storage_offset(), x + 1), BASE[2:10], BASE[4:12], BASE[3:12])


def test_windows_beyond_the_memory() -> None:
    assert_calls(
        lambda x: x.as_strided((11, 2), (1, 1)) + 0,
        *(torch.arange(float(n)) for n in (12, 14, 16, 5)),
    )
    assert_calls(lambda x: x.as_strided((20,), (1,)) + 0, BASE[:8], BASE[:8].clone())


@pytest.mark.parametrize("is_used", [True, False])
def test_windows_beyond_what_the_function_made(is_used: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        window = torch.vstack([x, x]).as_strided((11, 2), (1, 1))
        return window + 1 if is_used else x

    assert_calls(function, *(torch.arange(float(n)).view(1, n) for n in (12, 14, 16, 5)))


def test_copies_of_more_memory() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(x).as_strided((8,), (1,), 0) + 1

    assert_calls(function, BASE[:4], BASE[:20].clone()[:4], BASE[:4].clone())


def test_other_functions_do_not_ask() -> None:
    compiled = assert_calls(
        lambda x: x[1:] * 2, BASE[2:10], BASE[4:12], BASE[:8], BASE[2:10].clone()
    )
    assert len(Compiler.of(compiled).compilations) == 1  # type: ignore[union-attr]
