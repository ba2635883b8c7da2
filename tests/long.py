"""Tests that `make test` leaves to `make test-long`: fuzzers, many ranks, other compilers, sweeps that a part stands
for. `pytest -m ""` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

long = pytest.mark.long


def mostly_long(values: Iterable[Any], every: int) -> list[Any]:
    """The values of a sweep: one of so many in `make test`, the others in `make test-long`."""
    return [value if k % every == 0 else pytest.param(value, marks=long) for k, value in enumerate(values)]
