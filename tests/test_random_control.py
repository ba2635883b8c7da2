"""Random programs of branches, loops and scans are what plain Python gives."""

from __future__ import annotations

import pytest

from tests.random_control import trial


@pytest.mark.parametrize("seed", [*range(1000, 1020), 5202, 5224, 5454])
def test_a_program(seed: int) -> None:
    """With gradients where the seed is odd; the first dimension varies where 3 divides it."""
    assert trial(seed) == ""
