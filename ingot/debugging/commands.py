"""`python -m ingot minimize` and `bisect`."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ingot.debugging import repro
from ingot.debugging.minimizing import SECONDS, Check, describe, minimize
from ingot.debugging.worker import LIMIT, Worker
from ingot.errors import ReproError
from ingot.explain.loading import UserError

MINIMIZE = "write a smaller script that fails in the same way as one of ingot.save_repro's"

BISECT = "say which pass or kernel is at fault for what a script of ingot.save_repro's shows"


def add_debugging(commands: Any) -> None:
    """Adds the commands to the parser's."""
    smaller = commands.add_parser("minimize", help=MINIMIZE, description=MINIMIZE)
    smaller.add_argument("script", metavar="REPRO.py")
    smaller.add_argument(
        "-o", dest="output", metavar="FILE.py", help="where to (default: REPRO_min.py)"
    )
    smaller.add_argument(
        "--seconds", type=float, default=SECONDS, help="when to stop (%(default)s)"
    )
    smaller.add_argument(
        "--limit", type=float, default=LIMIT, help="seconds that a program may take (%(default)s)"
    )
    smaller.add_argument(
        "--here", action="store_true", help="in this process, which a crash or a hang would end"
    )
    smaller.set_defaults(run=run_minimize)
    stage = commands.add_parser("bisect", help=BISECT, description=BISECT)
    stage.add_argument("script", metavar="REPRO.py")
    stage.set_defaults(run=run_bisect)


def run_minimize(arguments: argparse.Namespace, tools: Any) -> int:
    path, start = Path(arguments.script), time.perf_counter()
    output = Path(arguments.output or path.with_name(f"{path.stem}_min.py"))
    check: Any = nullcontext(repro.failure)
    if not arguments.here:
        check = Worker(arguments.limit)
    try:
        with check as found:
            smallest = _minimized(path, found, arguments.seconds)
        repro.write(output, smallest)
    except ReproError as error:
        raise UserError(str(error)) from None
    took = time.perf_counter() - start
    print(f"{output}: {describe(smallest)}, {smallest.shows}, in {took:.1f} s")
    return 0


def _minimized(path: Path, check: Check, seconds: float) -> repro.Repro:
    if isinstance(check, Worker):  # what a script does to its process is done to the child first
        check.of_file(path)
    whole = repro.load(path)
    print(f"{path}: {describe(whole)}")
    return minimize(whole, check, seconds, lambda text: print(f"  {text}"))


def run_bisect(arguments: argparse.Namespace, tools: Any) -> int:
    from ingot.debugging.bisecting import bisect  # with the whole compiler

    try:
        print(bisect(repro.load(arguments.script), lambda text: print(f"  {text}", flush=True)))
    except ReproError as error:
        raise UserError(str(error)) from None
    return 0
