"""docs/suites.md from files of results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.suites.results import Line


def write(lines: Mapping[str, Line], path: Path) -> None:
    raise NotImplementedError
