"""docs/cpu.md from measured figures: tables in Markdown, plots in SVG beside them where matplotlib
is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import show
from benchmarks.micro import is_slower
from benchmarks.runner import Row
from benchmarks.show import TITLES
from ingot.explain.cli import milliseconds
from ingot.explain.measure import ratio_interval

# What is aimed at, as times eager's speed.
AIMS = {
    "gpt": 2.0, "gpt2": 1.8, "vit": 1.8, "beit": 1.8, "resnet50": 1.6, "mobilenet_v2": 4.0,
    "convnext": 1.8, "bert": 1.8, "segformer": 1.9, "transformer_encoder": 1.0, "unet": 1.0,
    "recommender": 1.0,
}  # fmt: skip

Found = dict[str, dict[str, Any]]
Rows = dict[str, dict[str, Row]]

INTRODUCTION = """\
# Speed on a CPU

How fast PyTorch programs run by themselves (*eager*), compiled by Ingot, and by other compilers:
torch.compile, JAX (where the same function is written for it), ONNX Runtime and OpenVINO. The
command that measured all of it and wrote this page is

    python -m benchmarks.cpu_page

A ratio is how many times as fast as eager, so 2.00 means half of eager's time, and more is better.
Behind it, in parentheses, is the interval in which it lies with 90% certainty. Peers take turns in
one process, in another order each round, and each figure comes from the medians of these rounds.
*Slower* is said only where the whole interval lies below 0.97.

ONNX Runtime and OpenVINO run the graph that `torch.onnx.export` makes of the same model, in which
the weights of modules are constants. Ingot makes them constants only when it is told to, by
`options={"freeze": True}`: that is the column *Ingot, freeze*.
"""

FUNCTIONS = """\
## Small functions

Those of [examples/functions.py](../examples/functions.py), in float32: eager runs each as a string
of kernels, a compiler as one.
"""

MODELS = """\
## Models

Inference in float32 with random weights, on the inputs of one call each. How they are made is in
[benchmarks/workloads.py](../benchmarks/workloads.py) and
[benchmarks/nets.py](../benchmarks/nets.py).
"""

COLUMNS_OF_MODELS = """\
*aim*: the speed that Ingot is to have without freeze. *graphs*: in how many graphs Ingot /
torch.compile captured the model. *error*: how far Ingot's results are from float64 (relative L2
distance, mean of five draws of the inputs), over how far eager's are.
"""

KERNELS = """\
## Single kernels

Functions that a compiler makes one kernel of, over types, sizes and layouts:
[benchmarks/micro_cases.py](../benchmarks/micro_cases.py), measured by `python -m benchmarks.micro`.
"""

FIRST_CALL = """\
## First call

How long a program waits for its first result, compilation and all: seconds in a fresh process that
has imported torch, with empty caches. For Ingot, whose own import is counted, it is the median of
five processes; for torch.compile it is one.
"""


def write(figures: Found, pieces: Sequence[str], code: str, page: Path) -> None:
    """The page of these pieces' figures, with whatever is missing said first. Figures of other
    pieces are left out."""
    there = {piece: figures[piece] for piece in pieces if piece in figures}
    parts: dict[str, Rows] = {}
    for piece, found in there.items():
        rows = parts.setdefault(piece.split("/")[0], {})
        for row in map(row_of, found["rows"]):
            rows.setdefault(row.workload, {})[row.compiler] = row
    text = [INTRODUCTION, *warnings(there, pieces, code), *conditions(there)]
    for part, section in SECTIONS.items():
        if part in parts:
            text += section(parts[part])
            text += plotted(parts[part], page.parent / f"cpu-{part}.svg") if part in PLOTTED else []
    page.write_text("\n".join(text).rstrip() + "\n")


def row_of(found: dict[str, Any]) -> Row:
    """A row as it was written; JSON makes lists of tuples."""
    return Row(
        **{
            key: tuple(value) if key.startswith("over_") and value else value
            for key, value in found.items()
        }
    )


def warnings(there: Found, pieces: Sequence[str], code: str) -> list[str]:
    """What keeps the page from being whole: nothing where it is."""
    said = []
    missing = [piece for piece in pieces if piece not in there]
    other = [
        piece
        for piece, found in there.items()
        if found["code"] != code or code in ("changed", "unknown")
    ]
    if missing:
        said.append(f"**Not whole.** Not measured: {', '.join(missing)}.\n")
    if other:
        said.append(
            "**Not of one version.** Measured with other code than this page's: "
            f"{', '.join(other)}.\n"
        )
    return said


def conditions(there: Found) -> list[str]:
    """The machines and versions, once where they are the same for all."""
    lines: dict[str, list[str]] = {}
    for piece, found in there.items():
        about = found["about"]
        versions = ", ".join(
            f"{name} {version}" for name, version in about["versions"].items() if version
        )
        line = f"{about['machine']}, {about['threads']} threads; "
        line += f"Python {about['python']}, {versions}; "
        line += f"the content of ingot/ is {found['code']}."
        lines.setdefault(line, []).append(piece)
    if len(lines) == 1:
        return [*lines, ""]
    return [text for line, of in lines.items() for text in (f"{', '.join(of)}: {line}", "")]


def markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table; all columns but the first to the right."""
    marks = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, marks, *lines)] + [""]


def seconds(row: Row | None) -> str:
    return "–" if row is None or row.median is None else milliseconds(row.median)


def ratio(row: Row | None) -> str:
    return "–" if row is None or row.over_eager is None else show.ratio_text(row.over_eager)


def problems(rows: Rows, but: Iterable[str] = ()) -> list[str]:
    """Why figures are missing, one line per reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, peers in rows.items():
        for row in peers.values():
            if row.problem and row.compiler not in but:
                reasons.setdefault(
                    (TITLES.get(row.compiler, row.compiler), row.problem), []
                ).append(name)
    said = [
        f"- {peer}, {', '.join(names)}: {problem}" for (peer, problem), names in reasons.items()
    ]
    return [*said, ""] if said else []


def over(mine: Row, other: Row) -> tuple[float, float, float] | None:
    """How many times faster `mine` is than `other`, which ran in the same rounds."""
    if not mine.seconds or not other.seconds:
        return None
    import numpy as np

    return ratio_interval(np.array(other.seconds), np.array(mine.seconds))


def best_other(peers: dict[str, Row]) -> tuple[str, tuple[float, float, float]] | None:
    """The fastest peer that is not Ingot, and Ingot's speed over it."""
    others = [
        row
        for row in peers.values()
        if not row.compiler.startswith("ingot") and row.median is not None
    ]
    if "ingot" not in peers or not others:
        return None
    best = min(others, key=lambda row: row.median or 0.0)
    found = over(peers["ingot"], best)
    return (TITLES[best.compiler], found) if found else None


def functions(rows: Rows) -> list[str]:
    """The small functions, with the best of the other peers for each."""
    shown = [
        name for name in TITLES if name != "eager" and any(name in peers for peers in rows.values())
    ]
    lines = []
    for name, peers in rows.items():
        best = best_other(peers)
        verdict = (
            "–"
            if best is None
            else f"{show.ratio_text(best[1])} {best[0]}{', slower' * is_slower(best[1])}"
        )
        lines.append(
            [
                name,
                seconds(peers.get("eager")),
                *(ratio(peers.get(peer)) for peer in shown),
                verdict,
            ]
        )
    mean = show.geometric_mean(
        peers["ingot"].over_inductor for peers in rows.values() if "ingot" in peers
    )
    headings = [
        "function",
        "eager, ms",
        *(TITLES[name] for name in shown),
        "Ingot over the best other",
    ]
    text = [FUNCTIONS, *markdown(headings, lines)]
    text += [f"Over torch.compile, in geometric mean: {mean:.2f}.", ""] if mean else []
    return text + problems(rows, but=("ingot-freeze",))


def models(rows: Rows) -> list[str]:
    """Whole models, with the speed aimed at, the graphs of Ingot and torch.compile, and Ingot's
    error over eager's."""
    shown = [
        name
        for name in TITLES
        if name not in ("eager", "jax") and any(name in peers for peers in rows.values())
    ]
    lines = []
    for name, peers in rows.items():
        ours, eager, theirs = (peers.get(peer) for peer in ("ingot", "eager", "inductor"))
        counts = "/".join(
            "–" if row is None or row.graphs is None else str(row.graphs) for row in (ours, theirs)
        )
        error = (
            f"{ours.error / eager.error:.2f}"
            if ours and eager and ours.error and eager.error
            else "–"
        )
        middle = ours.over_eager if ours else None
        aim = f"{AIMS[name]:.1f}" if name in AIMS else "–"
        met = (
            ""
            if middle is None or name not in AIMS
            else " met"
            if middle[1] >= AIMS[name]
            else " missed"
        )
        cells = [ratio(peers.get(peer)) for peer in shown]
        lines.append([name, seconds(eager), *cells, aim + met, counts, error])
    headings = ["model", "eager, ms", *(TITLES[name] for name in shown), "aim", "graphs", "error"]
    text = [MODELS, *markdown(headings, lines), COLUMNS_OF_MODELS]
    return text + problems(rows, but=("jax",))


def micro(rows: Rows) -> list[str]:
    """Single kernels: eager, torch.compile and Ingot side by side."""
    lines = []
    for name, peers in rows.items():
        ours = peers.get("ingot")
        verdict = (
            "" if ours is None else ours.problem or ("slower" if is_slower(ours.over_eager) else "")
        )
        theirs = (
            "–"
            if ours is None or ours.over_inductor is None
            else show.ratio_text(ours.over_inductor)
        )
        cells = [seconds(peers.get(peer)) for peer in ("eager", "inductor", "ingot")]
        lines.append([name, *cells, ratio(ours), theirs, verdict])
    mine = [peers["ingot"] for peers in rows.values() if "ingot" in peers]
    means = [
        show.geometric_mean(getattr(row, over) for row in mine)
        for over in ("over_eager", "over_inductor")
    ]
    slower = sum(is_slower(row.over_eager) for row in mine)
    headings = [
        "kernel",
        "eager, ms",
        "torch.compile, ms",
        "Ingot, ms",
        "x eager",
        "x torch.compile",
        "",
    ]
    text = [KERNELS, *markdown(headings, lines)]
    shown = " and ".join(
        f"{mean:.2f} x {name}" for mean, name in zip(means, ("eager", "torch.compile")) if mean
    )
    return [*text, f"{len(rows)} kernels, {slower} slower than eager; geometric mean {shown}.", ""]


def first(rows: Rows) -> list[str]:
    """First calls in fresh processes, and how they grow with depth."""
    lines = []
    for name, peers in rows.items():
        figures = [peers[c].first_call if c in peers else None for c in ("ingot", "inductor")]
        lines.append([name, *("–" if figure is None else f"{figure:.2f}" for figure in figures)])
    text = [FIRST_CALL, *markdown(["model", "Ingot, s", "torch.compile, s"], lines)]
    few, many = (
        rows[name]["ingot"].first_call if name in rows else None for name in ("gpt_12", "gpt_96")
    )
    if few and many:
        text += [f"96 layers of the GPT take {many / few:.1f} times as long as 12.", ""]
    return text + problems(rows)


SECTIONS = {"functions": functions, "models": models, "micro": micro, "first": first}
PLOTTED = ("functions", "models", "micro")


def plotted(rows: Rows, file: Path) -> list[str]:
    """Draws the speeds over eager; what the page says of the picture."""
    if not importlib.util.find_spec("matplotlib"):
        return ["(No plot: matplotlib is not installed.)", ""]
    show.plot([row for peers in rows.values() for row in peers.values()], file)
    return [f"![Speed over eager]({file.name})", ""]
