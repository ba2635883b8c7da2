"""Measures what docs/cpu.md shows, and writes it: `python -m benchmarks.cpu_page [PART or PIECE
...]`.

The page is made of pieces (`models/vit`, `micro/layouts`, ...), each measured in processes of its
own and kept in a file as soon as it is done. A later call measures only what is missing, or was
measured with other code; `--no-measure` writes the page from what there is. A page that lacks
pieces, or whose pieces are not all of the code at hand, begins with a line that says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import page_text
from benchmarks.compilers import PEERS
from benchmarks.micro_cases import SETS
from benchmarks.runner import Row, Settings, measure_first_calls, measure_workload
from benchmarks.workloads import WORKLOADS
from ingot.explain.cli import package_version, positive

ROOT = Path(__file__).parent.parent
PACKAGES = ("torch", "llvmlite", "jax", "onnxruntime", "openvino", "transformers")
MODELS = [name for name, workload in WORKLOADS.items() if not workload.twin]
# that one is no kernel's
FUNCTIONS = [name for name in WORKLOADS if name not in MODELS and name != "eight_elements"]
FIRST_CALLS = {
    # workload: the fresh processes of each compiler
    **{name: {"ingot": 5, "inductor": 1} for name in ("resnet50", "vit", "gpt2")},
    **{name: {"ingot": 5} for name in ("gpt_12", "gpt_96")},
}
COMPILERS = [name for name in PEERS if name != "reduce-overhead"]


def measure_together(name: str, rounds: int) -> list[Row]:
    """All peers on one workload, taking turns."""
    return measure_workload(name, Settings("cpu", COMPILERS, rounds, 0, 900.0), say)


def measure_micro(name: str, rounds: int) -> list[Row]:
    """One set of the microbenchmarks."""
    with tempfile.TemporaryDirectory(prefix="ingot-benchmark-") as folder:
        output = Path(folder, "micro.json")
        say(f"micro: {name}")
        command = [sys.executable, "-m", "benchmarks.micro", name, "--json", str(output)]
        subprocess.run(
            [*command, "--rounds", str(rounds)], check=True, stdout=subprocess.DEVNULL, timeout=900
        )
        return [page_text.row_of(found) for found in json.loads(output.read_text())["rows"]]


def measure_first(name: str, rounds: int) -> list[Row]:
    """First calls of one workload, each in a fresh process with empty caches."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ingot-benchmark-") as folder:
        for compiler, processes in FIRST_CALLS[name].items():
            rows.append(Row(name, compiler))
            measure_first_calls(
                rows[-1], Settings("cpu", [compiler], 0, processes, 900.0), Path(folder), say
            )
    return rows


PARTS: dict[str, tuple[list[str], Callable[[str, int], list[Row]], int]] = {
    # part: (its pieces, how one is measured, rounds of taking turns)
    "functions": (FUNCTIONS, measure_together, 100),
    "models": (MODELS, measure_together, 30),
    "micro": (list(SETS), measure_micro, 100),
    "first": (list(FIRST_CALLS), measure_first, 0),
}
PIECES = [f"{part}/{name}" for part, (names, _, _) in PARTS.items() for name in names]


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def code() -> str:
    """What is measured: a number for the content of ingot/ as git knows it, or "changed" where
    files differ from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        if subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "ingot"]).returncode:
            return "changed"
        command = [*git, "rev-parse", "--short=12", "HEAD:ingot"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> str:
    """The processor by its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    stripped = {key.strip(): value.strip() for key, value in values.items()}
    widest = next(
        (
            name
            for name in ("avx512f", "avx2", "asimd")
            if name in stripped.get("flags", "").split()
        ),
        "",
    )
    return f"{stripped.get('model name', platform.machine())} {widest}".strip()


def about() -> dict[str, Any]:
    """Where and with what a piece is measured."""
    import torch

    versions = {name: package_version(name) for name in PACKAGES if importlib.util.find_spec(name)}
    threads = torch.get_num_threads()
    return {
        "machine": machine(),
        "threads": threads,
        "python": platform.python_version(),
        "versions": versions,
    }


def chosen(names: list[str]) -> list[str]:
    """The pieces named, by part or by themselves; all for none."""
    found: list[str] = []
    for name in names or PARTS:
        pieces = [piece for piece in PIECES if name in (piece, piece.split("/")[0])]
        if not pieces:
            raise SystemExit(
                f"no part or piece {name!r}; parts are {', '.join(PARTS)}, a piece is {PIECES[0]}"
            )
        found += pieces
    return found


def load(file: Path) -> dict[str, Any]:
    """What the file holds of each piece: "code", "about" and "rows"."""
    return json.loads(file.read_text()) if file.exists() else {}


def measure(piece: str, rounds: int | None) -> dict[str, Any]:
    """What the file is to hold of one piece."""
    part, _, name = piece.partition("/")
    _, function, usual = PARTS[part]
    rows = function(name, rounds or usual)
    return {
        "code": code(),
        "about": about(),
        "rounds": rounds or usual,
        "rows": [asdict(row) for row in rows],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_page", description=__doc__.splitlines()[0]
    )
    parts = ", ".join(PARTS)
    parser.add_argument(
        "names", nargs="*", help=f"parts ({parts}) or pieces to measure; all if none is named"
    )
    parser.add_argument(
        "--no-measure", action="store_true", help="write the page from what was measured before"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure what is named again, though it is there"
    )
    parser.add_argument("--rounds", type=positive, help="rounds of taking turns, of every part")
    parser.add_argument(
        "--figures", type=Path, default=ROOT / "build" / "cpu_page.json", metavar="FILE"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "cpu.md", metavar="FILE")
    arguments = parser.parse_args(argv)
    arguments.figures.parent.mkdir(exist_ok=True)
    figures, failed = load(arguments.figures), False
    for piece in [] if arguments.no_measure else chosen(arguments.names):
        if arguments.again or figures.get(piece, {}).get("code") != code():
            try:
                figures[piece] = measure(piece, arguments.rounds)
            except (subprocess.SubprocessError, OSError, ValueError) as problem:
                say(f"{piece} is not measured: {problem}")
                failed = True
                continue
            arguments.figures.write_text(json.dumps(figures) + "\n")
    page_text.write(figures, PIECES, code(), arguments.page)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
