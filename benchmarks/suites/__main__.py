"""Models of three suites, beside eager and torch.compile, in turns.

    python -m benchmarks.suites --results FILE [--seconds 560] [--shard 1/4] [--only NAME ...]
    python -m benchmarks.suites --page FILE ...

A run measures what the file does not have yet, and appends a line for each row at once: after one
that was ended, the next goes on. Rows compile `--jobs` at a time and are measured one at a time.
`--page` writes docs/suites.md from files of results; `--list` says what there is to measure.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch

from benchmarks.cpu_page import code, say
from benchmarks.suites import listed, page, results
from benchmarks.suites.models import Model, Row
from benchmarks.suites.runner import Queue, Settings, run
from ingot.explain.cli import positive

ROOT = Path(__file__).parents[2]
SUITES = ("torchbench", "timm", "transformers")
CPU_BATCH = 2
"""On a CPU, where the command is tried, a batch has at most so many examples."""


def shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N")
    return int(number), int(count)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suites",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "suites.jsonl")
    parser.add_argument("--page", type=Path, nargs="*", metavar="RESULTS")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "suites.md")
    parser.add_argument("--list", action="store_true", help="print the rows that are left")
    parser.add_argument("--decide", action="store_true", help="add new rows to the committed list")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument(
        "--jobs",
        type=positive,
        default=max(1, (os.cpu_count() or 1) * 3 // 4) if cuda else 1,
        help="rows that compile at a time (%(default)s)",
    )
    parser.add_argument(
        "--seconds", type=positive, default=560, help="when the run ends (%(default)s)"
    )
    parser.add_argument(
        "--limit", type=positive, default=300, help="seconds of one row (%(default)s)"
    )
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--suite", choices=SUITES)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models, or whole rows")
    parser.add_argument("--again", action="store_true", help="measure what is there once more")
    parser.add_argument("--retry", action="store_true", help="what had a problem once more")
    parser.add_argument("--code", default=code(), help="what results are said to be of")
    parser.add_argument("--no-pause", action="store_true", help="do not stop others to measure")
    return parser.parse_args(argv)


def chosen(options: argparse.Namespace) -> Queue:
    """The models with the rows that are asked for and not there yet."""
    there = {} if options.again else results.load([options.results])
    number, count = options.shard
    queue: Queue = []
    for place, model in enumerate(listed.in_order(list(listed.MODELS.values()))):
        if options.suite not in (None, model.suite) or place % count != number - 1:
            continue
        rows = []
        for row in listed.rows(model):
            line = there.get(on_device(row, options.device).name)
            again = line is None or (options.retry and results.problem(line))
            if again and is_named(row, model, options.only):
                rows.append(on_device(row, options.device))
        if rows:
            queue.append((model, rows))
    return queue


def is_named(row: Row, model: Model, names: list[str] | None) -> bool:
    known = (row.name, model.name, f"{model.suite}/{model.name}")
    return names is None or any(name in known for name in names)


def on_device(row: Row, device: str) -> Row:
    """The row as that device runs it."""
    if device != "cpu" or row.batch <= CPU_BATCH:
        return row
    fields = vars(row) | {"batch": CPU_BATCH}
    return Row(**fields)


def settings(options: argparse.Namespace) -> Settings:
    capacity = 1 << 40
    if options.device != "cpu":
        total = torch.cuda.get_device_properties(options.device).total_memory
        capacity = int(0.95 * total) - options.jobs * (1 << 30)
    return Settings(
        device=options.device,
        results=options.results,
        jobs=options.jobs,
        seconds=options.seconds,
        limit=options.limit,
        capacity=capacity,
        code=options.code,
        pause=not options.no_pause,
    )


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.decide:
        say(f"{listed.decide()} new rows in {listed.DECIDED}")
        return 0
    if options.page is not None:
        page.write(results.load(options.page), options.out)
        return 0
    queue = chosen(options)
    if options.list:
        for _, rows in queue:
            print(*(row.name for row in rows), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(queue, settings(options), say)
    except KeyboardInterrupt:
        say("interrupted; what was measured until then is in the file")
        return 130
    left = 0
    for _, rows in chosen(options):
        left += len(rows)
    say(f"{left} rows are left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
