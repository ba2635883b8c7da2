"""What tests of artifacts share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingot


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Any]:
    """Exports a call, and loads the file."""

    def through_a_file(fn: Any, args: Any, kwargs: Any = None, **options: Any) -> Any:
        path = tmp_path / "it.ingot"
        ingot.export(fn, args, kwargs, path=path, **options)
        return ingot.load(path)

    return through_a_file
