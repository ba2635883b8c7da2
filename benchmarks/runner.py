"""Runs the measuring processes and gathers their findings as rows."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compilers import PEERS
from benchmarks.workloads import ALL
from ingot.explain.measure import ratio_interval

CACHES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "INGOT_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
)


@dataclass
class Row:
    """One (workload, compiler) pair. Times are in seconds; `problem` says why figures are missing.

    A ratio is the other compiler's median over this one's, above 1 where this one is faster: (low,
    middle, high).
    """

    workload: str
    compiler: str
    first_calls: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    over_eager: tuple[float, float, float] | None = None
    over_inductor: tuple[float, float, float] | None = None
    error: float | None = None
    graphs: int | None = None
    peak_bytes: int | None = None
    problem: str = ""

    @property
    def first_call(self) -> float | None:
        return statistics.median(self.first_calls) if self.first_calls else None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


@dataclass(frozen=True)
class Settings:
    device: str
    compilers: Sequence[str]
    rounds: int
    first_calls: int
    timeout: float


def measure_workload(name: str, settings: Settings, step: Callable[[str], object]) -> list[Row]:
    """A row per compiler. `step` is told what begins, once per process."""
    rows = {compiler: Row(name, compiler) for compiler in settings.compilers}
    with tempfile.TemporaryDirectory(prefix="ingot-benchmark-") as folder:
        for row in rows.values():
            measure_first_calls(row, settings, Path(folder), step)
        able = [row.compiler for row in rows.values() if not row.problem]
        if able:
            # of the peer whose compilation would otherwise be waited for again
            caches = Path(folder, "inductor-0")
            found = take_turns(name, able, settings, caches, step)
            for compiler in able:
                take(rows[compiler], found[compiler])
    for row in rows.values():
        row.over_eager, row.over_inductor = ratio(rows, "eager", row), ratio(rows, "inductor", row)
    return list(rows.values())


def take_turns(
    name: str, able: list[str], settings: Settings, caches: Path, step: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """What one process found of each peer. If the process has died, peers run alone for a round,
    and those that can take turns without those that cannot."""
    step(f"{name}: taking turns")
    found = run_worker("peers", name, able, settings, caches)
    if "problem" not in found:
        return found
    step(f"{name}: {found['problem']}; each alone")
    alone = {
        c: run_worker("peers", name, [c], replace(settings, rounds=1), caches)
        for c in able
        if len(able) > 1
    }
    problems = {c: one.get("problem") or one[c].get("problem", "") for c, one in alone.items()}
    well = [c for c in able if not problems.get(c, found["problem"])]
    lost = {c: {"problem": problems.get(c) or found["problem"]} for c in able}
    return (
        lost
        if len(well) in (0, len(able))
        else lost | take_turns(name, well, settings, caches, step)
    )


def measure_first_calls(
    row: Row, settings: Settings, folder: Path, step: Callable[[str], object]
) -> None:
    """The pair's first calls, each in a fresh process with empty caches; stops at the first
    problem."""
    row.problem = PEERS[row.compiler].missing(ALL[row.workload], settings.device)
    for turn in range(settings.first_calls):
        step(f"{row.workload}: first call of {row.compiler}")
        if not row.problem:
            caches = folder / f"{row.compiler}-{turn}"
            found = run_worker("first", row.workload, [row.compiler], settings, caches)
            row.problem = found.get("problem", "")
            row.first_calls += [found["seconds"]] if "seconds" in found else []


def take(row: Row, found: dict[str, Any]) -> None:
    row.problem = found.get("problem", "")
    row.seconds = found.get("seconds", [])
    row.error, row.graphs, row.peak_bytes = (
        found.get(what) for what in ("error", "graphs", "peak_bytes")
    )


def ratio(rows: dict[str, Row], other: str, row: Row) -> tuple[float, float, float] | None:
    """How many times faster than `other` this row is, with the 90% interval; None where one of them
    has no times."""
    if other not in rows or not rows[other].seconds or not row.seconds:
        return None
    return ratio_interval(np.array(rows[other].seconds), np.array(row.seconds))


def run_worker(
    mode: str, workload: str, compilers: list[str], settings: Settings, caches: Path
) -> dict[str, Any]:
    """What one worker process found; a crash or a timeout is found as {"problem": ...}."""
    caches.mkdir(exist_ok=True)
    output = caches / f"{mode}.json"
    environment = os.environ | {variable: str(caches / variable) for variable in CACHES}
    environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.worker",
        str(output),
        mode,
        workload,
        settings.device,
    ]
    command += [",".join(compilers), str(settings.rounds)]
    errors = caches / f"{mode}.txt"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, env=environment, start_new_session=True
        )
        try:
            status = process.wait(settings.timeout)
        except subprocess.TimeoutExpired:
            return {"problem": f"no result after {settings.timeout:.0f} s"}
        finally:
            end(process)
    if output.exists():
        found = json.loads(output.read_text())
        output.unlink()
        return found
    lines = errors.read_text(errors="replace").strip().splitlines()
    cause = signal.Signals(-status).name if status < 0 else f"status {status}"
    return {"problem": f"process ended with {cause}: {lines[-1][:160] if lines else 'no output'}"}


def end(process: subprocess.Popen[bytes]) -> None:
    """End a worker that still runs, and the compile workers it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
