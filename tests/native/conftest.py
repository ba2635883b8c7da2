"""Fixtures of the tests of the native core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingot.native import _native


@pytest.fixture(params=["native", "python"])
def allocation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to allocate."""
    _native._force_slow_allocation(request.param == "python")
    yield request.param
    _native._force_slow_allocation(False)
