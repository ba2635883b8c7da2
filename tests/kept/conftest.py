"""A cache for the tests of what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ingot
from ingot.codegen.store import store_in


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a cache in which there is nothing yet."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    store_in.cache_clear()
    ingot.reset()
    yield tmp_path
    store_in.cache_clear()
    ingot.reset()
