"""The picture in the README: first calls and speed beside eager and torch.compile.

    python -m benchmarks --compilers eager,inductor,ingot --only NAMES --json CPU.json
    python -m benchmarks --compilers eager,inductor,ingot --only NAMES --json GPU.json --device cuda
    python -m benchmarks.picture CPU.json GPU.json --out docs/speed.svg

Each file has the figures of one device, which become a row of two panels. It needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.show import TITLES

COLOURS = {"inductor": "#9aa5b1", "ingot": "#d9480f"}
HEIGHT = 0.38  # of a bar; there are two for each workload


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("figures", nargs="+", type=Path, help="files that --json has written")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    measured = []
    for path in arguments.figures:
        measured.append(json.loads(path.read_text()))
    draw(measured, arguments.out)


def draw(measured: Sequence[dict[str, Any]], path: Path) -> None:
    """A row of panels for each device: seconds of the first call, and times eager's speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ingot", "font.size": 9})
    counts = [len(workloads(device)) for device in measured]
    figure, panels = pyplot.subplots(
        len(measured),
        2,
        figsize=(9, 0.9 + 0.5 * sum(counts)),
        height_ratios=counts,
        squeeze=False,
        layout="constrained",
    )
    for device, (first, speed) in zip(measured, panels):
        names = workloads(device)
        for panel, figure_of in ((first, first_call), (speed, times_eager)):
            for number, compiler in enumerate(COLOURS):
                bars(panel, device, compiler, figure_of, number)
            panel.set_yticks(range(len(names)), names)
            panel.set_ylim(len(names) - 0.4, -0.6)
            panel.spines[["top", "right"]].set_visible(False)
            panel.margins(x=0.12)  # for the figures
        first.set_title(f"first call, seconds: {device['about']['device']}", loc="left", fontsize=9)
        speed.set_title("times eager's speed", loc="left", fontsize=9)
        speed.axvline(1, color="black", linewidth=0.8)
        speed.set_yticklabels([])
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def workloads(device: dict[str, Any]) -> list[str]:
    """The names of what was measured, in order."""
    return list(dict.fromkeys(row["workload"] for row in device["rows"]))


def first_call(row: dict[str, Any]) -> float | None:
    """The median of those that fresh processes took."""
    seconds: list[float] = row["first_calls"]
    return statistics.median(seconds) if seconds else None


def times_eager(row: dict[str, Any]) -> float | None:
    ratio = row["over_eager"]
    return None if ratio is None else ratio[1]


def bars(panel: Any, device: dict[str, Any], compiler: str, figure_of: Any, number: int) -> None:
    """One bar for each workload, with its figure."""
    names = workloads(device)
    for row in device["rows"]:
        figure = figure_of(row)
        if row["compiler"] != compiler or figure is None:
            continue
        place = names.index(row["workload"]) + (number - 0.5) * HEIGHT
        label = None
        if row["workload"] == names[0]:
            label = TITLES[compiler]
        panel.barh(place, figure, HEIGHT, color=COLOURS[compiler], label=label)
        text = f" {figure:.2g}" if figure < 10 else f" {figure:.0f}"
        panel.text(figure, place, text, va="center", fontsize=8)


if __name__ == "__main__":
    main()
