"""What the file of results says of each row."""

from __future__ import annotations

import json
import math
import statistics
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


def seconds_of(line: Line, peer: str) -> list[float]:
    """Of each round; none where the peer was not measured."""
    found: list[float] = line.get("peers", {}).get(peer, {}).get("seconds", [])
    return found


def over(line: Line, other: str) -> float | None:
    """How many times faster Ingot is than that peer, by the medians; None where one of the two was
    not measured."""
    theirs, mine = seconds_of(line, other), seconds_of(line, "Ingot")
    if not mine or not theirs:
        return None
    return statistics.median(theirs) / statistics.median(mine)


def interval(line: Line, other: str) -> tuple[float, float, float]:
    """`over`, between the ends of its 90% interval."""
    theirs, mine = (np.array(seconds_of(line, peer)) for peer in (other, "Ingot"))
    return ratio_interval(theirs, mine)


def best(line: Line) -> str | None:
    """The faster one of eager and torch.compile, if Ingot and one of them were measured."""
    ratios = {}
    for other in ("eager", "torch.compile"):
        if (ratio := over(line, other)) is not None:
            ratios[other] = ratio
    return min(ratios, key=ratios.__getitem__, default=None)


def is_slower(line: Line) -> bool:
    """Whether the row counts as slower. One that has a problem, of all rows or of Ingot's, does."""
    peer = best(line)
    return peer is None or (over(line, peer) or 0.0) < SLOWER


def is_right(line: Line) -> bool:
    return bool(line.get("peers", {}).get("Ingot", {}).get("right"))


def problem(line: Line) -> str:
    """What kept the row, or Ingot, from being measured; "" if nothing did."""
    mine = line.get("peers", {}).get("Ingot", {})
    return str(line.get("problem") or mine.get("problem") or "")


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
