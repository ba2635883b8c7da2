"""The rows as a table, as JSON and as a plot."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from benchmarks.runner import Row, Settings
from ingot.explain.cli import milliseconds, package_version
from ingot.explain.report import size_text

Ratio = tuple[float, float, float]

TITLES = {
    "eager": "eager", "inductor": "torch.compile", "ingot": "Ingot",
    "ingot-freeze": "Ingot, freeze", "jax": "JAX",
    "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO",
}  # fmt: skip


def table(rows: Sequence[Row], settings: Settings) -> Table:
    """A line per row, a section per workload; what could not be measured is said below.

    Ratios above 1 mean faster; their 90% interval is in parentheses.
    """
    title = f"Medians of {settings.rounds} interleaved rounds on {device_name(settings.device)}"
    problems = "\n".join(
        f"{row.workload}, {row.compiler}: {row.problem}" for row in rows if row.problem
    )
    result = Table(title=title, caption=escape(problems), caption_justify="left")
    for heading in ("workload", "compiler"):
        result.add_column(heading, no_wrap=True)
    for heading in (
        "first call s",
        "median ms",
        "x eager",
        "x torch.compile",
        "graphs",
        "error",
        "peak",
    ):
        result.add_column(heading, justify="right")
    for position, row in enumerate(rows):
        last = position + 1 == len(rows) or rows[position + 1].workload != row.workload
        first = position == 0 or rows[position - 1].workload != row.workload
        result.add_row(row.workload if first else "", row.compiler, *cells(row), end_section=last)
    for name in dict.fromkeys(row.compiler for row in rows):
        mine = [row for row in rows if row.compiler == name]
        means = (
            geometric_mean(row.over_eager for row in mine),
            geometric_mean(row.over_inductor for row in mine),
        )
        result.add_row(
            "geometric mean", name, "", "", *(f"{m:.2f}" if m else "" for m in means), "", "", ""
        )
    return result


def cells(row: Row) -> list[str]:
    """A row's figures as text; a dash for each that is not known."""
    shown: list[tuple[Any, Callable[[Any], str]]] = [
        (row.first_call, "{:.2f}".format),
        (row.median, milliseconds),
        (row.over_eager, ratio_text),
        (row.over_inductor, ratio_text),
        (row.graphs, str),
        (row.error, "{:.1e}".format),
        (row.peak_bytes, size_text),
    ]
    return ["-" if figure is None else text(figure) for figure, text in shown]


def ratio_text(ratio: Ratio) -> str:
    return f"{ratio[1]:.2f} ({ratio[0]:.2f}-{ratio[2]:.2f})"


def geometric_mean(ratios: Iterable[Ratio | None]) -> float | None:
    logs = [math.log(ratio[1]) for ratio in ratios if ratio]
    return math.exp(sum(logs) / len(logs)) if logs else None


def device_name(device: str) -> str:
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def write_json(rows: Sequence[Row], settings: Settings, path: Path) -> None:
    """All rows with the settings, the machine and the versions they were measured with."""
    versions = {
        name: package_version(name)
        for name in ("ingot", "torch", "llvmlite", "jax", "transformers")
    }
    about = {
        "device": device_name(settings.device),
        "python": platform.python_version(),
        "command": sys.argv[1:],
    }
    content = {
        "about": {**about, "versions": versions},
        "settings": asdict(settings),
        "rows": list(map(asdict, rows)),
    }
    path.write_text(json.dumps(content, indent=1, default=float) + "\n")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars from eager's speed up or down to that of each compiler, per workload, with 90%
    intervals. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    pyplot.rcParams["svg.fonttype"] = "none"  # text as text: small, and searched as such
    compilers = [name for name in dict.fromkeys(row.compiler for row in rows) if name != "eager"]
    workloads = list(dict.fromkeys(row.workload for row in rows))
    figure, axes = pyplot.subplots(
        figsize=(min(max(7, 1.1 * len(workloads)), 14), 4.5), layout="constrained"
    )
    width = 0.8 / max(len(compilers), 1)
    for number, compiler in enumerate(compilers):
        ratios = {
            row.workload: row.over_eager
            for row in rows
            if row.compiler == compiler and row.over_eager
        }
        places = [
            workloads.index(name) + (number - (len(compilers) - 1) / 2) * width for name in ratios
        ]
        below = [middle - low for low, middle, _ in ratios.values()]
        above = [high - middle for _, middle, high in ratios.values()]
        middles = [middle for _, middle, _ in ratios.values()]
        heights, error = [middle - 1 for middle in middles], {"elinewidth": 0.6, "capsize": 1}
        label = TITLES.get(compiler, compiler)
        axes.bar(places, heights, width, bottom=1, yerr=[below, above], error_kw=error, label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(yscale="log", ylabel="times eager's speed", xticks=range(len(workloads)))
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_axisbelow(True)
    axes.grid(axis="y", linewidth=0.4)
    axes.margins(x=0.01)
    axes.set_xticklabels(workloads, rotation=30 if len(workloads) < 20 else 90, ha="right")
    figure.legend(loc="outside upper center", ncols=min(4, max(1, len(compilers))))
    figure.savefig(path, dpi=150)
