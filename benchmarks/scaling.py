"""Models on a CPU with 1, 2, 4 ... threads: `python -m benchmarks.scaling [MODEL ...]`.

Each number of threads is a process of its own, in which the peers take turns. Told are the median
time of a call with each number, and how many times as fast Ingot is as the fastest of the others.
*Slower* is said of a number of threads with which Ingot takes longer than with the one before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compilers import PEERS
from benchmarks.runner import Settings, take_turns
from benchmarks.show import TITLES
from benchmarks.workloads import WORKLOADS
from ingot.explain.cli import positive

MODELS = ("gpt2", "bert", "resnet50", "convnext", "mobilenet_v2")
NOISE = 1.03
"""Times that differ by less are called equal."""

Times = dict[str, float]
"""The median seconds of a call by peer, of those that could run."""


def measured(model: str, threads: int, peers: Sequence[str], settings: Settings) -> Times:
    """With so many threads."""
    able = [peer for peer in peers if not PEERS[peer].missing(WORKLOADS[model], "cpu")]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory(prefix="ingot-scaling-") as folder:
        found = take_turns(model, able, settings, Path(folder, "caches"), lambda _: None)
    times = {}
    for peer, what in found.items():
        if "seconds" in what:
            times[peer] = statistics.median(what["seconds"])
        else:
            print(f"{model}, {threads} threads, {peer}: {what['problem']}", file=sys.stderr)
    return times


def add_rows(table: Table, model: str, by_threads: Mapping[int, Times], peers: list[str]) -> None:
    """A line for each number of threads."""
    before = None
    for threads, times in by_threads.items():
        cells = [f"{times[peer] * 1e3:.2f}" if peer in times else "" for peer in peers]
        others = [seconds for peer, seconds in times.items() if peer != "ingot"]
        ours, remark = times.get("ingot"), ""
        ratio = f"{min(others) / ours:.2f}" if others and ours else ""
        if before and ours and ours > before * NOISE:
            remark = "slower"
        before = ours
        is_last = threads == max(by_threads)
        table.add_row(model, str(threads), *cells, ratio, remark, end_section=is_last)


def main(argv: list[str] | None = None) -> int:
    cores = len(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cores]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], help="all if none is named")
    parser.add_argument("--threads", nargs="+", type=positive, default=counts)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["eager", "inductor"])
    parser.add_argument("--rounds", type=positive, default=20)
    given = parser.parse_args(argv)
    peers = [*given.peers, "ingot"]
    settings = Settings("cpu", peers, given.rounds, 0, 600.0)
    table = Table(title=f"Milliseconds of a call, {cores} cores")
    for heading in ("model", "threads", *map(TITLES.__getitem__, peers), "x the best other", ""):
        table.add_column(heading, justify="right")
    for model in given.models or MODELS:
        found = {}
        for threads in given.threads:
            found[threads] = measured(model, threads, peers, settings)
            print(model, threads, found[threads], file=sys.stderr, flush=True)
        add_rows(table, model, found, peers)
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
