"""The command line: `python -m ingot`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import io
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ingot.explain.cache_commands import AS_JSON, add_cache
from ingot.explain.loading import Target, UserError, load, run_user_code
from ingot.explain.records import as_plain
from ingot.explain.report import SCHEMA, Report
from ingot.explain.running import run_program
from ingot.explain.screen import NARROWEST, NOTHING, WIDEST, WIDTH, kernels_text, time_lines
from ingot.explain.stages import OF_GRADIENTS, STAGES
from ingot.explain.text import size_text
from ingot.explain.trial import (
    STEPS,
    Comparison,
    Compile,
    Explain,
    Trial,
    take_gradients,
    try_target,
)

EPILOG = """\
FILE.py:make names a function in a file of yours that returns (function or module, arguments) or \
(.., .., keywords).
Exit status: 0 all is well, 1 a result differs, your code raised an error or a file of the cache \
is damaged, 2 a mistake on the command line, 130 interrupted.
"""

WITH_GRADIENTS = "record gradients, and take those of the results"

AS_PAGE = "write all of it, with a timeline beside eager's, as a page for a browser"

RUN = "run your program unchanged, with torch.compile replaced by Ingot"

MOST_TIMES = 12
"""Lines about what each step of a program takes."""


class Tools(NamedTuple):
    """What the commands work with: where to print, `ingot.compile`, `ingot.explain` and
    `ingot.install`. Documents of JSON go to `out`, where nothing else goes beside one."""

    console: Console
    compile: Compile
    explain: Explain
    install: Callable[[], None]
    out: TextIO

    def write(self, document: Any) -> None:
        """A document of JSON, on one line."""
        print(json.dumps(document, allow_nan=False), file=self.out, flush=True)


def main(
    compile: Compile,
    explain: Explain,
    argv: Sequence[str] | None = None,
    *,
    install: Callable[[], None] = lambda: None,
    further: Callable[[Any], None] = lambda commands: None,
) -> int:
    """Run the command line; returns the exit status. Errors of the user's are printed without
    Ingot's frames. `further` adds commands to the parser's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know of no letters but ASCII
            stream.reconfigure(errors="backslashreplace")
    arguments = parser(further).parse_args(argv)
    beside: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if getattr(arguments, "json", False):  # what the user's code prints is no part of the document
        beside = contextlib.redirect_stdout(sys.stderr)
    tools = Tools(console(), compile, explain, install, sys.stdout)
    try:
        with beside:
            status: int = arguments.run(arguments, tools)
        sys.stdout.flush()  # where a reader has left, this is where it is seen
        return status
    except UserError as error:
        print(f"ingot: {error}", file=sys.stderr)
        return 1 if error.__cause__ else 2
    except KeyboardInterrupt:
        print("ingot: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # the reader of our output has left: `| head`
        return 0


def parser(
    further: Callable[[Any], None] = lambda commands: None,
) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m ingot",
        description="Ingot, a just-in-time compiler for PyTorch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=version_text())
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace, Tools], int], what: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=what, description=what)
        sub.add_argument("target", metavar="FILE.py:make")
        sub.add_argument(
            "--device", help="move the module and its arguments there first, such as cpu or cuda:0"
        )
        sub.add_argument("--train", action="store_true", help=WITH_GRADIENTS)
        sub.add_argument("--dynamic", action="store_true", help="sizes are symbols from the start")
        sub.add_argument("--json", action="store_true", help=AS_JSON)
        sub.set_defaults(run=run)
        return sub

    trial = command(
        "try", run_try, "compile your function; compare it with eager: results, times, memory"
    )
    trial.add_argument(
        "--rounds",
        type=positive,
        default=30,
        help="rounds in which the two take turns (%(default)s)",
    )
    trial.add_argument(
        "--compilers",
        type=compilers,
        default=[],
        metavar="NAMES",
        help="others for the same table: backends of torch.compile, such as eager,inductor",
    )
    explain = command(
        "explain", run_explain, "print what Ingot makes of your function, on one screen"
    )
    explain.add_argument("--html", metavar="OUT.html", help=AS_PAGE)
    stages = command(
        "stages", run_stages, "print what each stage of the compiler makes of your function"
    )
    stages.add_argument("--stage", choices=list(STAGES), help="only this one")
    stages.add_argument(
        "--emit", choices=("llvm", "cpp"), default="llvm", help="how kernels are compiled for CPUs"
    )
    run = commands.add_parser("run", help=RUN, description=RUN)
    run.add_argument("-m", dest="is_module", action="store_true", help="TARGET is a module's name")
    run.add_argument("target", metavar="TARGET", help="a file, as FILE.py")
    run.add_argument("rest", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(run=run_run)
    add_cache(commands)
    further(commands)
    return top


def compilers(text: str) -> list[str]:
    """Names between commas. Eager and Ingot are in the table anyway."""
    names = dict.fromkeys(filter(None, map(str.strip, text.split(","))))
    return [name for name in names if name not in ("eager", "ingot")]


def positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def version_text() -> str:
    """Ingot's version and those of what it stands on."""
    packages = ", ".join(f"{name} {package_version(name)}" for name in ("torch", "llvmlite"))
    system = f"Python {platform.python_version()}, {platform.platform()}"
    return f"ingot {package_version('ingot')} ({packages}, {system})"


def package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def loaded(arguments: argparse.Namespace) -> Target:
    """The target that the arguments name, on the device they name."""
    target = load(arguments.target)
    if arguments.device is None:
        return target
    try:
        return target.to(arguments.device)
    except (RuntimeError, AssertionError) as error:
        # torch's two ways to say that there is no such device
        raise UserError(
            f"cannot use the device {arguments.device!r}: {str(error).splitlines()[0]}"
        ) from None


# -- the commands ----------------------------------------------------------------------------------


def peers_of(arguments: argparse.Namespace) -> dict[str, Compile]:
    """The other compilers that the arguments name, by name."""
    if not arguments.compilers:
        return {}
    known, peers = torch.compiler.list_backends(exclude_tags=()), dict[str, Compile]()
    for name in arguments.compilers:
        if name not in known:
            also = ", ".join(sorted({*known, "eager"} - {"ingot"}))
            raise UserError(f"there is no compiler {name!r} here; there are {also}")
        peers[name] = functools.partial(
            torch.compile, backend=name, dynamic=arguments.dynamic or None
        )
    return peers


def compile_of(arguments: argparse.Namespace, tools: Tools, **options: Any) -> Compile:
    """`ingot.compile` with what the arguments ask for."""
    if arguments.dynamic:
        options["dynamic"] = True
    return functools.partial(tools.compile, **options)


def run_try(arguments: argparse.Namespace, tools: Tools) -> int:
    target, peers = loaded(arguments), peers_of(arguments)
    compile = compile_of(arguments, tools)
    with progress(tools.console) as bar:
        task = bar.add_task("eager", total=arguments.rounds + STEPS + len(peers))

        def step(what: str) -> None:
            bar.update(task, description=what, advance=1)

        def call() -> Trial:
            rounds, train = arguments.rounds, arguments.train
            return try_target(target, compile, tools.explain, rounds, step, train, peers)

        try:
            trial = run_user_code(call, "the call")
        except UserError as error:
            if arguments.train or "does not require grad" not in str(error):
                raise
            raise UserError(f"{error}\nto have gradients recorded, add --train") from error
    if arguments.json:
        tools.write(trial.to_dict())
    else:
        print_trial(trial, tools.console, "with" if arguments.train else "without")
    if trial.comparison.problems:
        return 1
    return 0


def run_explain(arguments: argparse.Namespace, tools: Tools) -> int:
    if arguments.html:
        report = write_page(arguments, tools)
    else:
        report = explained(arguments, tools)
    if arguments.json:
        tools.write(report.to_dict())
    elif arguments.html:
        size = size_text(os.path.getsize(arguments.html))
        print(f"{arguments.html}: {size}; open it in a browser")
    else:
        for line in report.text(tools.console.width).splitlines():
            print_line(line, tools.console)
    return 0


def run_stages(arguments: argparse.Namespace, tools: Tools) -> int:
    report = explained(arguments, tools)
    names = list(STAGES)
    if arguments.stage:
        names = [arguments.stage]
    elif not arguments.train:
        names = [name for name in STAGES if name not in OF_GRADIENTS]
    if arguments.json:
        artefacts = []
        for name in names:
            artefacts += report.artefacts(name)
        tools.write({"schema": SCHEMA, "name": report.name, "stages": as_plain(artefacts)})
        return 0
    for name in names:
        print(report.stage(name), end="\n\n")
    return 0


def run_run(arguments: argparse.Namespace, tools: Tools) -> int:
    tools.install()
    return run_program(arguments.target, arguments.is_module, arguments.rest)


def explained(arguments: argparse.Namespace, tools: Tools) -> Report:
    """The report of the target; with `--train` it is called with gradients, and those of its
    results are taken."""
    with torch.set_grad_enabled(arguments.train):
        target = loaded(arguments)
        function, emit = target.function, getattr(arguments, "emit", "llvm")
        if emit != "llvm":
            function = compile_of(arguments, tools, options={"emit": emit})(function)
        elif arguments.train or arguments.dynamic:
            function = compile_of(arguments, tools)(function)

        def call() -> Report:
            if arguments.train:
                take_gradients(function(*target.args, **target.kwargs))
            return tools.explain(function)(*target.args, **target.kwargs)

        return run_user_code(call, "the call")


def write_page(arguments: argparse.Namespace, tools: Tools) -> Report:
    """Writes the page of the target, with the timelines of a call in eager and compiled."""
    with torch.set_grad_enabled(arguments.train):
        target = loaded(arguments)
        beside = target.fresh()
        function = tools.compile(target.function)
        call = caller(target, function, arguments.train)
        eager = caller(beside, beside.function, arguments.train)

        def explain() -> Report:
            call()
            return tools.explain(function)(*target.args, **target.kwargs)

        report = run_user_code(explain, "the call")
        try:
            run_user_code(lambda: report.html(arguments.html, call, eager), "the call")
        except UserError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            reason = error.__cause__.strerror
            raise UserError(f"cannot write {arguments.html}: {reason}") from None
        return report


def caller(target: Target, function: Callable[..., Any], train: bool) -> Callable[[], object]:
    """What calls a function as the target's is called; with gradients, if it is to be trained."""
    tangents: list[torch.Tensor] = []

    def call() -> Any:
        result = function(*target.args, **target.kwargs)
        if train:
            take_gradients(result, tangents)
        return result

    return call


# -- what is printed -------------------------------------------------------------------------------


def console() -> Console:
    """Where output goes: as wide as the terminal, from 60 to 200 columns; 120 where there is
    none."""
    width = WIDTH
    if sys.stdout.isatty():
        width = max(NARROWEST, min(Console().width, WIDEST))
    return Console(highlight=False, width=width)


def progress(console: Console) -> Progress:
    """A bar that leaves nothing behind."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


STYLES = (
    (r"ingot: ", "bold"),
    (r"break at |in eager from ", "yellow"),
    (r" *nothing to compile", "yellow"),
    (r"\w[\w ]*$|backward +kind|   # ", "bold"),
    (r" {10}\S| {2}compiled in|  \.\.\. and", "dim"),
)
"""How lines of a report look that begin so, in a terminal; where NO_COLOR is set, they do not."""


def print_line(line: str, console: Console) -> None:
    """A line of a report, as it stands, in its colour."""
    style = next((style for begin, style in STYLES if re.match(begin, line)), None)
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def milliseconds(seconds: float) -> str:
    """Milliseconds to three digits."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g}"
    return f"{seconds * 1e3:.0f}"


def print_trial(trial: Trial, console: Console, how: str = "without") -> None:
    """The table of one trial, then breaks, problems and the verdict."""
    report, comparison = trial.report, trial.comparison
    console.print(f"{trial.target.spec}, {how} gradients", markup=False, soft_wrap=True)
    console.print(trial_table(trial))
    for line in times_of(report, console.width):
        console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    for item in report.breaks:
        text = str(item) + (f" (hint: {item.hint})" if item.hint else "")
        console.print(text, markup=False, style="yellow")
    for name, peer in trial.peers.items():
        for problem in filter(None, (peer.failure, *getattr(peer.comparison, "problems", ()))):
            console.print(f"{name}: {problem}", markup=False, style="yellow")
    if not report.graphs and not report.breaks:
        console.print(NOTHING, style="yellow")
    for problem in comparison.problems:
        console.print(f"differs from eager: {problem}", markup=False, style="bold red")
    if not comparison.problems:
        console.print(
            f"The result is eager's: a relative error up to {comparison.allowed:.1e} passes."
        )


def trial_table(trial: Trial) -> Table:
    """Eager, Ingot and the peers side by side: times, errors, memory, kernels."""
    report, comparison = trial.report, trial.comparison
    ran = {name: peer for name, peer in trial.peers.items() if not peer.failure}
    table = Table("")
    for heading in ("eager", "ingot", *trial.peers):
        table.add_column(heading, justify="right")
    medians = []
    for seconds in (trial.eager_seconds, trial.ingot_seconds, *[p.seconds for p in ran.values()]):
        medians.append(milliseconds(float(np.median(np.asarray(seconds)))))
    intervals = [trial.speedup, *map(trial.speedup_of, ran.values())]

    def row(label: str, *cells: Any, peers: Iterable[Any] = ()) -> None:
        """`peers` are the cells of those that ran."""
        own = dict(zip(ran, peers))
        table.add_row(label, *cells, *[own.get(name, "") for name in trial.peers])

    row("median call, ms", *medians[:2], peers=medians[2:])
    cells = list(map(speedup_cell, intervals))
    row("speed-up, 90% interval", "", cells[0], peers=cells[1:])
    firsts = [f"{peer.first_call:.3f}" for peer in ran.values()]
    row("first call, s", "", f"{trial.first_call:.3f}", peers=firsts)
    others = [peer.comparison for peer in ran.values() if peer.comparison is not None]
    row(
        "relative error",
        *error_cells(comparison),
        peers=[error_cells(other)[1] for other in others],
    )
    differences = [f"{other.largest_difference:.1e}" for other in others]
    row("largest difference", "", f"{comparison.largest_difference:.1e}", peers=differences)
    planned = ""
    if report.peak_bytes is not None:
        planned = f"{size_text(report.peak_bytes)} (planned)"
    row("peak memory", size_text(trial.eager_peak), planned)
    row("kernels", "", f"{len(report.kernels)}, {report.fused_count} fused")
    for label, text in backward_rows(report):
        row(label, "", text)
    row("graphs, breaks", "", f"{report.graph_count}, {report.break_count}")
    return table


def speedup_cell(interval: tuple[float, float, float]) -> Text:
    """Green where it is faster than eager for sure, red where it is slower."""
    low, middle, high = interval
    style = ""
    if low > 1:
        style = "green"
    elif high < 1:
        style = "red"
    return Text(f"{middle:.2f}x ({low:.2f} to {high:.2f})", style)


def backward_rows(report: Report) -> list[tuple[str, str]]:
    """What the table says of a backward; nothing where there is none."""
    kernels = report.backward_kernels
    if not kernels:
        return []
    saved = sum([value.total_bytes for value in report.saved])
    rows = [("backward", kernels_text(kernels)), ("saved for it", size_text(saved))]
    if report.backward_peak_bytes is not None:
        planned = f"{size_text(report.backward_peak_bytes)} (planned)"
        rows.append(("its peak memory", planned))
    return rows


def times_of(report: Report, width: int) -> list[str]:
    """What took how long, forward and backward."""
    backward = time_lines(report.backward_kernels, MOST_TIMES, width)
    forward = time_lines(report.kernels, MOST_TIMES, width)
    if not backward:
        return forward
    return ["forward", *forward, "backward", *backward]


def error_cells(comparison: Comparison) -> tuple[str, str]:
    """Eager's and Ingot's error, with what it is measured from where that is not float64."""
    if comparison.eager_error is None:
        return "no float64 result", f"{comparison.error:.1e} from eager"
    return f"{comparison.eager_error:.1e}", f"{comparison.error:.1e}"
