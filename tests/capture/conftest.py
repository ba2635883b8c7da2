"""Fixtures of the tests of capture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
