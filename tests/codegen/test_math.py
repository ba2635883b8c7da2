"""Vector math over the floats' whole range, thinner than `python -m tests.codegen.sweep_math` does it."""

from __future__ import annotations

import time

import pytest
import torch

import ingot
from tests.codegen.sweep_math import BINARY, UNARY, Worst, pairs, single_arguments, sweep, units


@pytest.mark.parametrize("name", UNARY)
def test_functions_are_as_accurate_as_eagers(name: str) -> None:
    found = sweep(UNARY[name], single_arguments(every=65521, start=17, near=40))
    assert found.passes, found
    assert found.is_native


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_are_as_accurate_as_eagers(name: str) -> None:
    found = sweep(BINARY[name], pairs(20_000))
    assert found.passes, found
    assert found.is_native


def test_units_in_the_last_place() -> None:
    exact = torch.tensor([1.0, 1.0, 2.0, 0.0, torch.inf, torch.nan, 1.0, 2.0**128], dtype=torch.float64)
    found = torch.tensor([1.0, 1.0 + 2**-23, 2.0 - 2**-23, 2.0**-149, torch.inf, torch.nan, torch.nan, 3.4028235e38])
    assert units(found, exact).tolist() == [0, 1, 0.5, 1, 0, 0, torch.inf, 1]
    assert str(Worst(1.5, (0.1,))) == "1.5 at 0.1"


@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_what_vanishes_takes_no_longer(name: str) -> None:
    """Some processors take a hundred times as long for a result that underflows; what is masked has many of them."""
    function = getattr(torch, name)
    compiled = ingot.compile(lambda x: function(x) + 1)
    x = torch.randn(1 << 16)
    masked = torch.where(torch.arange(1 << 16) % 3 == 0, -torch.inf if name != "sigmoid" else torch.inf, x)

    def least(x: torch.Tensor) -> float:
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            compiled(x)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    with torch.no_grad():
        torch.testing.assert_close(compiled(masked), function(masked) + 1)
        assert least(masked) < 6 * least(x)
