"""Single kernels beside eager and torch.compile: `python -m benchmarks.micro [SET or CASE ...]`.

The compilers take turns in one process. A row is *slower* than eager where the whole 90% interval
of the ratio of medians lies below 0.97. A result further from float64 than docs/limits.md allows is
called wrong, whatever its speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from benchmarks import accuracy, show
from benchmarks.compilers import PEERS
from benchmarks.micro_cases import CASES, SETS
from benchmarks.runner import Row, Settings, ratio
from benchmarks.worker import last_line
from benchmarks.workloads import Workload
from ingot.explain import measure
from ingot.explain.cli import console, milliseconds, positive

NOT_SLOWER = 0.97
"""The whole interval of a ratio must lie below this for "slower" to be said."""


def measure_case(workload: Workload, compilers: Sequence[str], rounds: int) -> list[Row]:
    """A row per compiler. A result that is further from float64 than it may be is a problem."""
    torch._dynamo.reset()
    function, args = workload.make("cpu")
    rows = {name: Row(workload.name, name) for name in compilers}
    calls: dict[str, Callable[[], Any]] = {}
    for name, row in rows.items():
        try:
            call = PEERS[name].prepare(workload, function, args)
            call()
            calls[name] = call
        except Exception as problem:
            row.problem = last_line(problem)
    for name, error in accuracy.errors(function, args, calls).items():
        rows[name].error = error
    eps = accuracy.epsilon(function(*args))
    for row in rows.values():
        eager = rows["eager"].error if "eager" in rows else None
        if not accuracy.as_good(row.error, eager, eps):
            row.problem = f"wrong: {row.error:.1e} from float64, eager {eager:.1e}"
    for name, seconds in measure.interleave(calls, rounds, torch.device("cpu")).items():
        rows[name].seconds = seconds.tolist()
    for row in rows.values():
        row.over_eager, row.over_inductor = ratio(rows, "eager", row), ratio(rows, "inductor", row)
    return list(rows.values())


def verdict(rows: Iterable[Row]) -> str:
    """What is to be said of Ingot among the rows of one case: nothing where all is well."""
    (ours,) = (row for row in rows if row.compiler == "ingot")
    return ours.problem or ("slower" if is_slower(ours.over_eager) else "")


def is_slower(ratio: tuple[float, float, float] | None) -> bool:
    return ratio is not None and ratio[2] < NOT_SLOWER


def table(rows: Sequence[Row]) -> Table:
    """A line per case: medians, and how often Ingot's time fits into eager's and into
    torch.compile's."""
    result = Table(title=f"One kernel each, medians in ms; {show.device_name('cpu')}")
    result.add_column("case", no_wrap=True)
    for heading in ("eager", "torch.compile", "ingot", "x eager", "x torch.compile"):
        result.add_column(heading, justify="right")
    result.add_column("")
    for name in dict.fromkeys(row.workload for row in rows):
        result.add_row(escape(name), *cells([row for row in rows if row.workload == name]))
    ours = [row for row in rows if row.compiler == "ingot"]
    means = (
        show.geometric_mean(r.over_eager for r in ours),
        show.geometric_mean(r.over_inductor for r in ours),
    )
    slower = sum(is_slower(row.over_eager) for row in ours)
    result.add_row(
        "geometric mean", "", "", "", *(f"{m:.2f}" if m else "-" for m in means), f"{slower} slower"
    )
    return result


def cells(rows: Sequence[Row]) -> list[str]:
    """The cells of one case behind its name."""
    by_name = {row.compiler: row for row in rows}
    medians = [
        by_name[name].median if name in by_name else None for name in ("eager", "inductor", "ingot")
    ]
    ratios = [by_name["ingot"].over_eager, by_name["ingot"].over_inductor]
    shown = ["-" if m is None else milliseconds(m) for m in medians]
    return [*shown, *("-" if r is None else show.ratio_text(r) for r in ratios), verdict(rows)]


def chosen(names: Sequence[str]) -> list[str]:
    """The cases of the sets and cases named; all for none."""
    found: list[str] = []
    for name in names or SETS:
        if name not in SETS and name not in CASES:
            raise SystemExit(f"no set or case {name!r}; sets are {', '.join(SETS)}")
        found += SETS.get(name, [name])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "names", nargs="*", help=f"sets ({', '.join(SETS)}) or cases; all of them if none is named"
    )
    parser.add_argument("--compilers", default="eager,inductor,ingot", help="%(default)s")
    parser.add_argument(
        "--rounds", type=positive, default=100, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    rows: list[Row] = []
    compilers = arguments.compilers.split(",")
    settings = Settings("cpu", compilers, arguments.rounds, 0, 0)
    with torch.no_grad():
        for name in chosen(arguments.names):
            rows += measure_case(CASES[name], compilers, arguments.rounds)
            print(
                name,
                *cells([row for row in rows if row.workload == name]),
                sep=" | ",
                file=sys.stderr,
            )
            if arguments.json:
                show.write_json(rows, settings, arguments.json)
    console().print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
