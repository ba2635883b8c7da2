"""Vector math over the floats' whole range, thinner than `python -m tests.codegen.sweep_math` does
it."""

from __future__ import annotations

from collections.abc import Callable

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
    exact = torch.tensor(
        [1.0, 1.0, 2.0, 0.0, torch.inf, torch.nan, 1.0, 2.0**128], dtype=torch.float64
    )
    found = torch.tensor(
        [1.0, 1.0 + 2**-23, 2.0 - 2**-23, 2.0**-149, torch.inf, torch.nan, torch.nan, 3.4028235e38]
    )
    assert units(found, exact).tolist() == [0, 1, 0.5, 1, 0, 0, torch.inf, 1]
    assert str(Worst(1.5, (0.1,))) == "1.5 at 0.1"


@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_what_is_masked_vanishes(name: str) -> None:
    """(How long it takes is in `benchmarks.sweep`.)"""
    function = getattr(torch, name)
    far = torch.inf if name == "sigmoid" else -torch.inf
    masked = torch.where(torch.arange(1 << 10) % 3 == 0, far, torch.randn(1 << 10))
    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(lambda x: function(x) + 1)(masked), function(masked) + 1
        )


def test_huge_angles_are_looked_after_once() -> None:
    """However many sines a kernel takes, and however many copies of each, one function calls the C
    library's."""

    def calls(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
        return (
            ingot.explain(ingot.compile(function))(torch.randn(1000))
            .stage("assembly")
            .count("sinf")
        )

    assert calls(lambda x: x.sin()) == calls(lambda x: x.sin() + (2 * x).sin() * (3 * x).sin()) > 0
