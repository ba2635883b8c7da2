"""Random programs of custom autograd Functions, views and modules with hooks on their backward."""

from __future__ import annotations

import pytest

from tests.random_functions import problem


@pytest.mark.parametrize("seed", range(40))
def test_eager_is_the_oracle(seed: int) -> None:
    assert problem(seed) == ""
