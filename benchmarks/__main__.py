"""`python -m benchmarks`: measure, print a table, and write JSON and a plot where asked."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import show
from benchmarks.compilers import PEERS
from benchmarks.runner import Row, Settings, measure_workload
from benchmarks.workloads import WORKLOADS
from ingot.explain.cli import console, positive, progress


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--compilers",
        type=lambda text: names(text, PEERS, "compiler"),
        default=[name for name in PEERS if name != "reduce-overhead"],
        help=f"some of {','.join(PEERS)} (default: all but reduce-overhead)",
    )
    parser.add_argument(
        "--only",
        type=lambda text: names(text, WORKLOADS, "workload"),
        default=list(WORKLOADS),
        metavar="NAMES",
        help=f"some of {','.join(WORKLOADS)}",
    )
    parser.add_argument(
        "--rounds", type=positive, default=30, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument(
        "--first-calls", type=int, default=5, help="fresh processes per first call (%(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=900,
        help="seconds that a process may take (%(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the speeds there (needs matplotlib)"
    )
    arguments = parser.parse_args(argv)
    if arguments.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs the package matplotlib, which is not installed")
    return arguments


def names(text: str, known: Mapping[str, Any], what: str) -> list[str]:
    """The comma-separated names, all of them known."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(
            f"no {what} {', '.join(unknown) or repr(text)}; there are {', '.join(known)}"
        )
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Measure what is asked for. An interrupt or SIGTERM ends it early, and what was measured until
    then is kept."""
    arguments = parse(argv)
    output = console()
    chosen = (
        arguments.device,
        arguments.compilers,
        arguments.rounds,
        arguments.first_calls,
        float(arguments.timeout),
    )
    settings = Settings(*chosen)
    rows: list[Row] = []
    status = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with progress(output) as bar:
            processes = len(arguments.only) * (len(arguments.compilers) * arguments.first_calls + 1)
            task = bar.add_task("", total=processes)

            def step(what: str) -> None:
                bar.update(task, description=what, advance=1)
                if not output.is_terminal:
                    print(what, file=sys.stderr)

            for name in arguments.only:
                rows += measure_workload(name, settings, step)
                if arguments.json:
                    show.write_json(rows, settings, arguments.json)
    except KeyboardInterrupt:
        print("benchmarks: interrupted; what was measured until then follows", file=sys.stderr)
        status = 130
    if rows:
        output.print(show.table(rows, settings))
    if rows and arguments.plot:
        show.plot(rows, arguments.plot)
    return status


if __name__ == "__main__":
    sys.exit(main())
