"""What each break of a graph costs, as far as it was measured or planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot.explain.text import split_where

Plain = Mapping[str, Any]


def break_costs(report: Plain, timelines: Sequence[Plain]) -> list[dict[str, Any]]:
    """A record for each of the report's breaks, in their order.

    `compile_seconds` are those of the part that follows; `bytes` are what its programs read that
    the part before has written; `seconds` is what passes between their kernels in the timeline of
    Ingot. Each is None where it is not known.
    """
    regions = _regions(report)
    costs = []
    for number, item in enumerate(report["breaks"]):
        before, after = _around(item, regions)
        costs.append(
            {
                "break": number,
                "before": before,
                "after": after,
                "compile_seconds": _compile_seconds(after, regions),
                "bytes": _crossing_bytes(before, after, regions),
                "seconds": _between(before, after, report, timelines),
            }
        )
    return costs


def _regions(report: Plain) -> dict[int, Plain]:
    """The forward of each part of the function, by its number."""
    regions = {}
    for program in report["programs"]:
        if program["kind"] == "forward":
            regions[program["region"]] = program
    return regions


def _around(item: Plain, regions: Mapping[int, Plain]) -> tuple[int | None, int | None]:
    """The parts of the function before and behind a break: by the lines at which they begin."""
    before = after = None
    starts = []
    for number, program in regions.items():
        file, line = split_where(program["where"])
        if file == item["file"]:
            starts.append((line, number))
    for line, number in sorted(starts):
        if line <= item["line"] and number == 0:
            before = number
        elif line < item["line"]:
            before = number
        elif after is None:
            after = number
    return before, after


def _compile_seconds(after: int | None, regions: Mapping[int, Plain]) -> float | None:
    if after is None:
        return None
    return sum(regions[after]["stages"].values())


def _crossing_bytes(
    before: int | None, after: int | None, regions: Mapping[int, Plain]
) -> int | None:
    """What the part behind reads of tensors that are alike some result of the part before."""
    if before is None or after is None:
        return None
    results = [b["value"] for b in regions[before]["buffers"] if b["place"] == "output"]
    total = 0
    for buffer in regions[after]["buffers"]:
        if buffer["place"] == "input" and buffer["value"] in results:
            results.remove(buffer["value"])
            total += buffer["bytes"]
    return total


def _between(
    before: int | None, after: int | None, report: Plain, timelines: Sequence[Plain]
) -> float | None:
    """The seconds from the last kernel of a part to the first of the next one."""
    if before is None or after is None:
        return None
    end = begin = None
    for timeline in timelines:
        if timeline["name"] != "Ingot":
            continue
        for event in timeline["lanes"][0]["events"]:
            if event["program"] is None:
                continue
            program = report["programs"][event["program"]]
            if program["kind"] != "forward":
                continue
            if program["region"] == before:
                end = event["start"] + event["seconds"]
            elif program["region"] == after and begin is None:
                begin = event["start"]
    if end is None or begin is None or begin < end:
        return None
    return begin - end
