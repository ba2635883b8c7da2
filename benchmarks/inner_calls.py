"""What the Python of a broken step costs: `python -m benchmarks.inner_calls [CASE ...]`.

A program has a graph, a graph break whose instruction calls one of `benchmarks.inner_works`, and a
graph. Eager, Ingot and torch.compile take turns in one process; both compilers run their graphs as
they are, so that nothing but the calls behind the break is compared. The figures are the first
calls, eager's median, and the ratio of each compiler's time to eager's with its 90% interval. The
exit status is 1 where Ingot takes more than twice eager's time.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import ingot
from benchmarks.inner_works import WORKS
from ingot.explain.cli import positive
from ingot.explain.measure import ratio_interval

LIMIT = 2.0
WARM_UP = 40  # calls of each peer behind the first one
PEERS: dict[str, Callable[..., Any]] = {
    "eager": lambda program: program,
    "ingot": lambda program: ingot.compile(program, backend="eager"),
    "torch.compile": lambda program: torch.compile(program, backend="eager"),
}


@dataclass
class Finding:
    """Of a work and a compiler: seconds of the first call, seconds of a call of eager's, and the
    ratio of the compiler's time to that as (low, middle, high)."""

    name: str
    compiler: str
    first: float
    eager: float
    ratio: tuple[float, float, float]


def program_around(work: Callable[[], Any]) -> Callable[[Tensor], Any]:
    """A program that is broken at a call of the work, which no compiler sees through."""
    run = contextvars.copy_context().run

    def program(x: Tensor) -> Any:
        y = x + 1
        result = run(work)
        return result, y * 2

    return program


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, peers: Sequence[str], rounds: int) -> list[Finding]:
    """The peers in turns, each first as often as the others."""
    x = torch.ones(8)
    torch._dynamo.reset()
    calls, firsts = {}, {}
    for peer in peers:
        program = PEERS[peer](program_around(WORKS[name]))
        calls[peer] = lambda program=program: program(x)
        firsts[peer] = seconds(calls[peer])
        assert repr(calls[peer]()) == repr(calls["eager"]()), f"{peer} gives another result"
    for peer in peers:
        for _ in range(WARM_UP):
            calls[peer]()
    taken: dict[str, list[float]] = {peer: [] for peer in peers}
    for turn in range(rounds):
        first = turn % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            taken[peer].append(seconds(calls[peer]))
    eager = np.array(taken["eager"])
    findings = []
    for peer in peers[1:]:
        ratio = ratio_interval(np.array(taken[peer]), eager)
        findings.append(Finding(name, peer, firsts[peer], statistics.median(eager), ratio))
    return findings


def table(findings: Sequence[Finding]) -> Table:
    shown = Table(
        title=f"Behind a graph break, Python {platform.python_version()}, torch {torch.__version__}"
    )
    shown.add_column("what is called", no_wrap=True)
    for heading in ("compiler", "first call, ms", "eager, us", "x eager (90%)", "limit"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for found in findings:
        low, middle, high = found.ratio
        limit = ""
        if found.compiler == "ingot":
            limit = "kept" if middle <= LIMIT else "missed"
        shown.add_row(
            found.name,
            found.compiler,
            f"{found.first * 1e3:.1f}",
            f"{found.eager * 1e6:.1f}",
            f"{middle:.2f} ({low:.2f}-{high:.2f})",
            limit,
        )
    return shown


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inner_calls", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(WORKS)}")
    parser.add_argument(
        "--rounds", type=positive, default=300, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument("--without-peer", action="store_true", help="no torch.compile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    unknown = sorted({*arguments.cases} - {*WORKS})
    if unknown:
        parser.error(f"no case is called {', '.join(unknown)}")
    peers = [peer for peer in PEERS if not (arguments.without_peer and peer == "torch.compile")]
    findings = []
    with torch.no_grad():
        measure("re.sub", peers, 1)  # the first one of all imports the compilers' own modules
        for name in arguments.cases or WORKS:
            findings += measure(name, peers, arguments.rounds)
    Console(width=None if sys.stdout.isatty() else 120).print(table(findings))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(found) for found in findings]))
    missed = [f for f in findings if f.compiler == "ingot" and f.ratio[1] > LIMIT]
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
