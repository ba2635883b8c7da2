"""Models on a CPU in company: `python -m benchmarks.company [MODEL ...] [--peers eager ingot]`.

Processes that run the same model at the same time, and one beside a loop that keeps a core busy.
Each figure is the median time of a call; those in company are given as multiples of the time alone,
of which as many processes as there are on the cores would take their number, if these were shared
fairly. All processes stay: they wait for their turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.compilers import PEERS
from benchmarks.workloads import WORKLOADS, Made, Workload, make_gpt2
from ingot.explain.cli import positive


def make_token(device: str) -> Made:
    """GPT-2 124M over one token: what a step of generation multiplies."""
    model, (tokens,) = make_gpt2(device)
    return model, (tokens[:1, :1],)


MODELS = {
    "bert": WORKLOADS["bert"],
    "convnext": WORKLOADS["convnext"],
    "gpt2_token": Workload("gpt2_token", make_token),
}
BUSY = "while True: pass"


class Worker:
    """A process that runs a model for as long as it is told to."""

    def __init__(self, model: str, peer: str) -> None:
        command = [sys.executable, "-m", "benchmarks.company", "--worker", model, peer]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def told(self, seconds: float) -> None:
        assert self.child.stdin is not None
        print(seconds, file=self.child.stdin, flush=True)

    def answer(self) -> Any:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError("a worker has ended")
        return json.loads(line)


def work(model: str, peer: str) -> None:
    """What a worker does: it prepares the model, and then runs it whenever a number of seconds
    comes, and prints its median time of a call."""
    out, sys.stdout = sys.stdout, sys.stderr  # compilers print what they like
    workload = MODELS[model]
    with torch.no_grad():
        call = PEERS[peer].prepare(workload, *workload.make("cpu"))
        for _ in range(3):
            call()
        print(json.dumps("ready"), file=out, flush=True)
        for line in sys.stdin:
            end, times = time.perf_counter() + float(line), []
            while (start := time.perf_counter()) < end:
                call()
                times.append(time.perf_counter() - start)
            print(json.dumps(statistics.median(times)), file=out, flush=True)


@dataclass
class Row:
    """Seconds of a call alone; with so many processes at once, and beside a busy loop, each round's
    multiple of that."""

    model: str
    peer: str
    alone: float
    together: dict[int, list[float]]
    beside: list[float]


def measured(model: str, peer: str, counts: Sequence[int], seconds: float, rounds: int) -> Row:
    workers = [Worker(model, peer) for _ in range(max(counts))]
    try:
        for worker in workers:
            worker.answer()
        return _rounds(workers, model, peer, counts, seconds, rounds)
    finally:
        for worker in workers:
            worker.child.kill()
            worker.child.wait()


def _rounds(
    workers: Sequence[Worker],
    model: str,
    peer: str,
    counts: Sequence[int],
    seconds: float,
    rounds: int,
) -> Row:
    alone: list[float] = []
    together: dict[int, list[float]] = {count: [] for count in counts}
    beside: list[float] = []
    for _ in range(rounds):
        (one,) = _at_once(workers[:1], seconds)
        alone.append(one)
        for count in counts:
            times = _at_once(workers[:count], seconds)
            together[count].append(statistics.median(times) / one)
        busy = subprocess.Popen([sys.executable, "-c", BUSY])
        try:
            (time_beside,) = _at_once(workers[:1], seconds)
        finally:
            busy.kill()
            busy.wait()
        beside.append(time_beside / one)
    return Row(model, peer, statistics.median(alone), together, beside)


def _at_once(workers: Sequence[Worker], seconds: float) -> list[float]:
    for worker in workers:
        worker.told(seconds)
    return [worker.answer() for worker in workers]


def table(rows: Sequence[Row], counts: Sequence[int]) -> Table:
    shown = Table(title=f"In company, {os.cpu_count()} cores, torch {torch.__version__}")
    for heading in ("model", "peer"):
        shown.add_column(heading, no_wrap=True)
    headings = ["alone, ms", *(f"{count} at once" for count in counts), "beside a busy loop"]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{row.alone * 1e3:.2f}"]
        for multiples in (*row.together.values(), row.beside):
            low, high = min(multiples), max(multiples)
            cells.append(f"{statistics.median(multiples):.2f} ({low:.2f}-{high:.2f})")
        shown.add_row(row.model, row.peer, *cells)
    return shown


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.company", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], help="all if none is named")
    parser.add_argument("--peers", nargs="*", choices=[*PEERS], default=["eager", "ingot"])
    parser.add_argument("--processes", nargs="*", type=positive, default=[2, 4])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure (%(default)s)")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "PEER"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker:
        work(*given.worker)
        return 0
    rows = []
    for model in given.models or MODELS:
        for peer in given.peers:
            rows.append(measured(model, peer, given.processes, given.seconds, given.rounds))
    Console(width=120).print(table(rows, given.processes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
