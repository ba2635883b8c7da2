"""How much of `transformers`' models is captured, beside torch.compile: `python -m
benchmarks.models [--only NAMES]`.

It needs the package `transformers` (and scipy, for Mask2Former's loss), which Ingot does not depend
on. In an environment beside the project's own:

    python -m venv models
    models/bin/pip install torch==2.13.0
    models/bin/pip install transformers scipy llvmlite==0.50.0 rich
    PYTHONPATH=. models/bin/python -m benchmarks.models

in a checkout whose extension is built for that Python (`make lint` does so). Each model runs in a
process of its own with weights drawn at random: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.model_zoo import MODELS

HEADINGS = (
    "model",
    "equal",
    "compiled",
    "graphs",
    "graphs, torch",
    "ops",
    "ops, torch",
    "ATen",
    "ATen, torch",
    "ATen, eager",
    "ratio",
    "again",
    "breaks",
)


def measure(name: str, timeout: float) -> dict[str, Any]:
    """What one process found about one model."""
    with tempfile.TemporaryDirectory(prefix="ingot-models-") as folder:
        output, errors = Path(folder, "found.json"), Path(folder, "errors.txt")
        command = [sys.executable, "-m", "benchmarks.model_worker", name, str(output)]
        caches = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "INGOT_CACHE_DIR"), folder)
        environment = os.environ | {"HF_HUB_OFFLINE": "1"} | caches
        with errors.open("w") as sink:
            try:
                status = subprocess.run(
                    command, stdout=sink, stderr=sink, timeout=timeout, env=environment
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
        found: dict[str, Any] = (
            json.loads(output.read_text()) if output.exists() else {"model": name}
        )
        if status != 0:
            cause = f"no result after {timeout:.0f} s" if status is None else f"status {status}"
            if status is not None and status < 0:
                cause = signal.Signals(-status).name
            lines = errors.read_text(errors="replace").strip().splitlines()
            found["problem"] = f"{cause}: {lines[-1][:160] if lines else 'no output'}"
        return found


def row(found: dict[str, Any]) -> list[str]:
    """The cells of one model."""
    ours, theirs = found.get("ingot", {}), found.get("torch", {})
    problems = [p for p in (found.get("problem"), ours.get("problem"), theirs.get("problem")) if p]
    cells = [found["model"], ours.get("difference") or "-", found.get("compiled", "-")]
    for what in ("graphs", "nodes", "aten"):
        cells += [str(ours.get(what, "-")), str(theirs.get(what, "-"))]
    cells += [str(found.get("eager", "-")), f"{ratio(found):.3f}", str(ours.get("again", "-"))]
    return [*cells, "; ".join([*problems, *ours.get("breaks", ())])]


def ratio(found: dict[str, Any]) -> float:
    """Ops in Ingot's graphs over those in torch.compile's, the lesser of the two ways of
    counting."""
    ours, theirs = found.get("ingot", {}), found.get("torch", {})
    return min(
        (ours.get(what, 0) / theirs[what] if theirs.get(what) else 0.0)
        for what in ("nodes", "aten")
    )


def passes(found: dict[str, Any]) -> bool:
    """Whether a model is captured as well as torch.compile captures it, with eager's result."""
    ours, theirs = found.get("ingot", {}), found.get("torch", {})
    results = (ours.get("difference") or "WRONG", found.get("compiled", "WRONG"))
    right = not any(text.startswith("WRONG") or ":" in text for text in results)
    sound = right and not ours.get("problem") and ours.get("again") == 0
    return sound and 0 < ours["graphs"] <= theirs.get("graphs", 0) and ratio(found) >= 0.99


PAGE = """# Models of `transformers`

How much of each model's forward is captured, beside `torch.compile` on the same machine: tiny
configurations, random weights, no gradients, default settings (caches are made and returned).
Written by

    python -m benchmarks.models --markdown > docs/models.md

with torch {torch} and transformers {transformers}; `benchmarks/models.py` says how to install what
it needs.

- *equal*: the captured graphs, run op by op, beside eager, for two calls with different values: bit
  for bit, or the largest error. torch.compile's row of Mamba differs in the same way: compiled, the
  model takes another algorithm.
- *compiled*: the same for Ingot's own backend.
- *graphs*: how many graphs the call became.
- *ops*: calls of torch in these graphs. *ATen*: the ATen ops that they run. Eager runs more where a
  model checks its inputs, and fewer where it keeps a cache: compiled, models skip both.
- *ratio*: Ingot's ops over torch.compile's, the lesser of the two ways of counting.
- *again*: graphs that two more calls made, an unchanged one and one with other values.
- *breaks*: the reasons for those of Ingot's graph breaks.

{table}

{verdict}
"""


def page(found: Sequence[dict[str, Any]]) -> str:
    """docs/models.md."""
    versions = {package: version(package) for package in ("torch", "transformers")}
    return PAGE.format(table=markdown([row(f) for f in found]), verdict=verdict(found), **versions)


def verdict(found: Sequence[dict[str, Any]]) -> str:
    passed = f"{sum(map(passes, found))} of {len(found)} models"
    return (
        f"{passed}: eager's result, no more graphs than torch.compile, at least 99% of its ops in "
        "them, and nothing\n"
        "compiled by later calls of the same shapes."
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def plain(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in (HEADINGS, *rows)) for i in range(len(HEADINGS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in (HEADINGS, *rows))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--markdown", action="store_true", help="print docs/models.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds that a model may take (%(default)s)"
    )
    arguments = parser.parse_args(argv)
    names = [name.strip() for name in arguments.only.split(",")] if arguments.only else list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    found = []
    for name in names:
        found.append(measure(name, arguments.timeout))
        print("  ".join(row(found[-1])), file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    if arguments.markdown:
        print(page(found), end="")
    else:
        print(plain([row(f) for f in found]), verdict(found), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
