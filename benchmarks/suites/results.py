"""What the file of results says of each row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot.explain.measure import ratio_interval

SLOWER = 0.97
"""A row whose speed is below this share of the best of eager and torch.compile is slower."""

Line = Mapping[str, Any]
"""Of one row: its fields, and "problem" or "peers" (`worker.measured`)."""


def load(paths: Iterable[Path]) -> dict[str, Line]:
    """By the row's name its last line. A line that was cut short by a kill is left out."""
    lines: dict[str, Line] = {}
    for path in paths:
        for text in path.read_text("utf-8").splitlines() if path.exists() else ():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            lines[line["row"]] = line
    return lines


def over(line: Line, other: str) -> tuple[float, float, float] | None:
    """How many times faster Ingot is than that peer, with the 90% interval; None where one of the
    two was not measured."""
    peers = line.get("peers", {})
    theirs = peers.get(other, {}).get("seconds")
    mine = peers.get("Ingot", {}).get("seconds")
    if not mine or not theirs:
        return None
    return ratio_interval(np.array(theirs), np.array(mine))


def over_best(line: Line) -> tuple[float, float, float] | None:
    """How many times faster Ingot is than the faster of eager and torch.compile."""
    ratios = [over(line, other) for other in ("eager", "torch.compile")]
    return min((ratio for ratio in ratios if ratio), key=lambda ratio: ratio[1], default=None)


def is_slower(line: Line) -> bool:
    """Whether the row counts as slower. One that has a problem, of all rows or of Ingot's, does."""
    ratio = over_best(line)
    return ratio is None or ratio[1] < SLOWER


def is_right(line: Line) -> bool:
    return bool(line.get("peers", {}).get("Ingot", {}).get("right"))


def problem(line: Line) -> str:
    """What kept the row, or Ingot, from being measured; "" if nothing did."""
    mine = line.get("peers", {}).get("Ingot", {})
    return str(line.get("problem") or mine.get("problem") or "")


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
