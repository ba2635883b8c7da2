"""docs/suites.md from files of results: tables in Markdown, a plot in SVG beside it.

All figures are of the rows of `listed.decided`, whatever a file has besides. A row that has no
figures of Ingot, or that was taken off the list, counts as slower; one that the machine lacked a
package for, or that was not run yet, is named and not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.page_text import markdown
from benchmarks.suites import listed, plot, results
from benchmarks.suites.causes import cause
from benchmarks.suites.models import Model
from benchmarks.suites.results import Line

INTRODUCTION = """\
# Models of three suites

Ingot beside eager and torch.compile on {models} models of three suites: programs of the kinds that
TorchBench has, written for this benchmark or of torchvision; architectures of timm; architectures
of transformers. All have random weights; dropout and stochastic depth are 0. A *row* is a model in
one direction (inference, or a forward and a backward of training), one type (bfloat16 or float16
autocast, or float32 with TF32 where eager uses it), one batch (1, or one that fills the card) and
one mode. *Default* compares the default modes; *replayed* is `mode="reduce-overhead"` on both
sides. The list of rows, [rows.txt](../benchmarks/suites/rows.txt), is older than any measurement.

```
python -m benchmarks.suites --results suites.jsonl      # as much as 560 s allow; again goes on
python -m benchmarks.suites --page suites.jsonl         # writes this page
```

`--shard 1/4` and `--suite timm` choose models, `--only` some by name, `--retry` those that had a
problem; `--list` prints what is left. About {cores:,.0f} core-seconds are estimated for all {rows}
rows, and about {measuring} s of measuring for each row: {hours:.1f} hours on 12 processes.

Three peers take turns in one process, for about a second, while all other processes are stopped;
the figures are medians of these rounds. A ratio is how many times as fast Ingot is, so more is
better. *Slower* is a row whose speed is below {slower} of the better of eager and torch.compile; a
row without figures of Ingot is slower, and so is one that was taken off the list.

A result is right if it is as near to a more precise eager as eager is: to float32 where there is
autocast, to float64 where there is not, TF32 off in both, up to {factor} times eager's own
departure or {floor} eps. For training these are the loss and all gradients
([judged.py](../benchmarks/suites/judged.py)).
"""

MEASURING = 2  # seconds of a row, in which all others are stopped
Lines = Mapping[str, Line]


def write(lines: Lines, path: Path) -> None:
    """The page, and its plot beside it where there is anything to show."""
    decided = listed.decided()
    measured = {name: lines[name] for name in decided if name in lines}
    text = [introduction(), *standing(measured, decided)]
    figures = {name: line for name, line in measured.items() if not line.get("skipped")}
    if figures:
        for section in SECTIONS:
            text += section(figures)
        text += drawn(figures, path)
    text += removed_rows(decided, lines) + models()
    path.write_text("\n".join(text).rstrip() + "\n", "utf-8")


def introduction() -> str:
    from benchmarks.suites import judged

    rows, cores = listed.all_rows(), 0.0
    for row in rows:
        cores += listed.MODELS[f"{row.suite}/{row.model}"].seconds
    return INTRODUCTION.format(
        models=len(listed.MODELS),
        rows=len(rows),
        cores=cores,
        measuring=MEASURING,
        hours=(cores / 12 + MEASURING * len(rows)) / 3600,
        slower=results.SLOWER,
        factor=judged.FACTOR,
        floor=judged.FLOOR,
    )


# -- what there is ---------------------------------------------------------------------------------


def standing(measured: Lines, decided: Sequence[str]) -> list[str]:
    """What is measured, of what, and with what."""
    if not measured:
        return ["**Nothing has been measured yet.**", ""]
    text = []
    if len(measured) < len(decided):
        text += [f"**Not whole.** {len(measured)} of {len(decided)} rows have been run.", ""]
    codes = sorted({str(line["code"]) for line in measured.values()})
    mixed = "**Not of one version.** " if len(codes) > 1 else ""
    text += [f"{mixed}The content of ingot/ is {', '.join(codes)}.", ""]
    machines: dict[str, int] = {}
    for line in measured.values():
        if about := line.get("about"):
            words = [about["device"], *(f"{k} {v}" for k, v in about.items() if k != "device")]
            said = ", ".join(words)
            machines[said] = machines.get(said, 0) + 1
    for said, count in machines.items():
        text += [f"{count} rows: {said}.", ""]
    spent = sum(line["wall"] for line in measured.values())
    text += [f"All together took {spent / 3600:.1f} hours, of many processes at a time.", ""]
    return text


def removed(decided: Iterable[str]) -> list[str]:
    """Rows that were decided and are not in the list any more."""
    there = {row.name for row in listed.all_rows()}
    return [name for name in decided if name not in there]


def removed_rows(decided: Sequence[str], lines: Lines) -> list[str]:
    gone = removed(decided)
    if not gone:
        return []
    return ["## Removed", "", "These count as slower:", "", *(f"- {name}" for name in gone), ""]


# -- speed -----------------------------------------------------------------------------------------

GROUPS = {
    "inference, batch 1": ("inference", False),
    "inference, filled card": ("inference", True),
    "training, batch 1": ("training", False),
    "training, filled card": ("training", True),
}
MODES = {"default": "default", "reduce-overhead": "replayed"}
DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def mean(lines: Iterable[Line], other: str) -> str:
    """The geometric mean of Ingot's speed over that of a peer, of the rows that have both."""
    found = []
    for line in lines:
        if (ratio := results.over(line, other)) is not None:
            found.append(ratio)
    value = results.geometric_mean(found)
    return "–" if value is None else f"{value:.2f}"


def speeds(lines: Sequence[Line]) -> list[str]:
    """Cells of some rows: how many, their geometric means, and how many are slower."""
    slow = sum(map(results.is_slower, lines))
    return [
        str(len(lines)),
        mean(lines, "torch.compile"),
        mean(lines, "eager"),
        f"{slow} ({slow / len(lines):.1%})",
    ]


HEADINGS = ["", "rows", "x torch.compile", "x eager", "slower"]


def means(figures: Lines) -> list[str]:
    cells = []
    for mode, called in MODES.items():
        for title, (direction, full) in GROUPS.items():
            for dtype in DTYPES:
                wanted = (mode, direction, full, dtype)
                some = [line for line in figures.values() if kind(line) == wanted]
                if some:
                    cells.append([f"{called}: {title}, {dtype}", *speeds(some)])
        some = [line for line in figures.values() if line["mode"] == mode]
        if some:
            cells.append([f"**{called}, all**", *speeds(some)])
    by_suite = []
    for suite in plot.COLOURS:
        some = [line for line in figures.values() if line["suite"] == suite]
        if some:
            by_suite.append([suite, *speeds(some)])
    head = ["## Speed", "", "Geometric means of Ingot's speed, in the same mode on both sides.", ""]
    return [*head, *markdown(HEADINGS, cells), *markdown(HEADINGS, by_suite)]


def kind(line: Line) -> tuple[str, str, bool, str]:
    return line["mode"], line["direction"], line["full"], line["dtype"]


def slower(figures: Lines) -> list[str]:
    """Every row where Ingot is slower, with its cause."""
    cells = []
    for name, line in figures.items():
        if results.is_slower(line):
            why = results.problem(line) or cause(name)
            cells.append(
                [name, ratio(line, results.best(line)), ratio(line, "eager"),
                 ratio(line, "torch.compile"), why]
            )  # fmt: skip
    gone = removed(listed.decided())
    count, of = len(cells) + len(gone), len(figures) + len(gone)
    names = {name.split()[0] for name, *_ in cells}
    text = [
        "## Where Ingot is slower", "",
        f"{count} of {of} rows ({count / of:.1%}), of {len(names)} models.", "",
    ]  # fmt: skip
    if cells:
        headings = ["row", "x the better", "x eager", "x torch.compile", "cause"]
        text += markdown(headings, sorted(cells))
    return text


def ratio(line: Line, other: str | None) -> str:
    if other is None or results.over(line, other) is None:
        return "–"
    return "{1:.2f} ({0:.2f}-{2:.2f})".format(*results.interval(line, other))


# -- results, memory, first calls, graphs ----------------------------------------------------------


def right(figures: Lines) -> list[str]:
    cells, judged_rows, theirs = [], 0, 0
    for name, line in figures.items():
        mine = line.get("peers", {}).get("Ingot", {})
        theirs += line.get("peers", {}).get("torch.compile", {}).get("right") is False
        if "right" not in mine:
            continue
        judged_rows += 1
        if not mine["right"]:
            errors = [departures(line, peer) for peer in ("Ingot", "eager", "torch.compile")]
            cells.append([name, *errors, str(len(mine["lost"]))])
    text = [
        "## Results", "",
        f"{judged_rows - len(cells)} of {judged_rows} rows have right results; of torch.compile's, "
        f"{theirs} are not.", "",
    ]  # fmt: skip
    if cells:
        headings = ["row", "departs by", "eager", "torch.compile", "gradients lost"]
        text += markdown(headings, cells)
    return text


def departures(line: Line, peer: str) -> str:
    found = line["peers"].get(peer, {}).get("departures")
    return f"{statistics.fmean(found):.1e}" if found else "–"


def quotient(line: Line, field: str, peer: str, other: str) -> float | None:
    """A peer's figure over another's."""
    peers = line.get("peers", {})
    a, b = peers.get(peer, {}).get(field), peers.get(other, {}).get(field)
    return a / b if a and b and min(a, b) > 0 else None


def quotients(figures: Lines, field: str, peer: str, other: str) -> str:
    found = [q for line in figures.values() if (q := quotient(line, field, peer, other))]
    value = results.geometric_mean(found)
    return "–" if value is None else f"{value:.2f}"


def costs(figures: Lines) -> list[str]:
    """Peak memory, first calls."""
    cells = []
    for direction in ("inference", "training"):
        some = {n: line for n, line in figures.items() if line["direction"] == direction}
        cold, replayed = {}, {}
        for name, line in some.items():
            if line["mode"] == "reduce-overhead":
                replayed[name] = line
            if line.get("peers", {}).get("Ingot", {}).get("cold"):
                cold[name] = line
        cells.append(
            [direction, quotients(some, "peak", "Ingot", "eager"),
             quotients(some, "peak", "torch.compile", "eager"),
             quotients(replayed, "held", "Ingot", "torch.compile"),
             quotients(some, "first", "torch.compile", "Ingot"),
             median(cold, "Ingot"), median(cold, "torch.compile"), str(len(cold))]
        )  # fmt: skip
    headings = [
        "", "peak, of eager's", "torch.compile's", "held, of torch.compile's",
        "first call, x torch.compile",
        "cold first call s", "torch.compile's", "of rows",
    ]  # fmt: skip
    note = (
        "Geometric means of a call's peak memory, of what is held between replayed calls (the\n"
        "memory of CUDA graphs, which no peak counts), and of first calls. Many rows compile at a\n"
        "time, torch.compile in one process for each, so first calls say how the two compare and\n"
        "not what one takes alone. *Cold* is the first row of a process, imports and all, with\n"
        "empty caches; the medians are of these. Later rows find kernels of the first one."
    )
    return ["## Memory and first calls", "", note, "", *markdown(headings, cells)]


def median(figures: Lines, peer: str) -> str:
    found = []
    for line in figures.values():
        if first := line["peers"].get(peer, {}).get("first"):
            found.append(first)
    return f"{statistics.median(found):.1f}" if found else "–"


def graphs(figures: Lines) -> list[str]:
    """How many graphs, and why graphs broke."""
    counts, reasons, whole = [0, 0], {}, [0, 0]
    for line in figures.values():
        for number, peer in enumerate(("Ingot", "torch.compile")):
            found = line.get("peers", {}).get(peer, {}).get("graphs")
            counts[number] += found is not None
            whole[number] += found == 1
        for reason in line.get("peers", {}).get("Ingot", {}).get("reasons", ()):
            reasons.setdefault(reason, set()).add(f"{line['suite']}/{line['model']}")
    text = [
        "## Graphs", "",
        f"Captured as one graph: {whole[0]} of {counts[0]} rows by Ingot, {whole[1]} of "
        f"{counts[1]} by torch.compile.", "",
    ]  # fmt: skip
    for reason, names in sorted(reasons.items()):
        text.append(f"- {reason}: {', '.join(sorted(names))}")
    return [*text, ""] if reasons else text


def problems(figures: Lines) -> list[str]:
    """Rows without figures, one line per reason; torch.compile's too."""
    found: dict[str, list[str]] = {}
    for name, line in figures.items():
        theirs = line.get("peers", {}).get("torch.compile", {}).get("problem")
        if theirs:
            found.setdefault(f"torch.compile: {theirs}", []).append(name)
        if why := results.problem(line):
            found.setdefault(why, []).append(name)
    if not found:
        return []
    text = ["## Problems", ""]
    for why, names in sorted(found.items()):
        text.append(f"- {why}: {', '.join(names)}")
    return [*text, ""]


SECTIONS = (means, slower, right, costs, graphs, problems)


def drawn(figures: Lines, path: Path) -> list[str]:
    """The plot: bfloat16, filled card, replayed."""
    panels: dict[str, list[plot.Point]] = {}
    for direction in ("inference", "training"):
        points = panels.setdefault(f"{direction}, bfloat16, filled card, replayed", [])
        for line in figures.values():
            mine = results.over(line, "eager")
            compiled = results.over(line, "torch.compile")
            wanted = ("reduce-overhead", direction, True, "bfloat16")
            if kind(line) == wanted and mine and compiled:
                points.append((line["suite"], line["model"], mine / compiled, mine))
    picture = path.with_suffix(".svg")
    picture.write_text(plot.svg(panels), "utf-8")
    return [f"![Each model a point, Ingot's speed over torch.compile's]({picture.name})", ""]


# -- the list --------------------------------------------------------------------------------------


def models() -> list[str]:
    """Every model with its batches."""
    cells = []
    for name, model in listed.MODELS.items():
        cells.append([name, str(model.batch), trained_batch(model), str(len(listed.rows(model)))])
    headings = ["model", "batch that fills the card", "in training", "rows"]
    return ["## The models", "", *markdown(headings, cells)]


def trained_batch(model: Model) -> str:
    return str(model.train) if model.loss else "–"
