"""Random Python programs compiled and in eager: the same results, aliasing, mutation, output and
errors.

`python -m tests.test_random_python COUNT [FIRST] [--backend ingot]` runs more of them in a process
apart, so that a crash is the failure of one program; prints how many were equal, how much of their
tensor work was in graphs, why the rest was not, and the seed and the reason of each failure.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import logging
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import ingot
from ingot.collection import paused_collection
from ingot.compiler import Compiler
from tests.matching import Matcher, Mismatch
from tests.oracle import ignore_warnings
from tests.random_python import RandomPython, random_python

TOLERANCE = {"eager": 0.0, "ingot": 2e-4}
HANGS = 120.0  # seconds

# The calls of a check: which arguments, and whether the program's own state is put back before. The
# second is the first again and should compile nothing; the third must not, as numbers that were
# seen to vary within a call have settled.
CALLS = [(False, True), (False, True), (False, True), (False, False), (True, True), (False, True)]


class Outcome:
    """What a call did: its result or error, what it printed, and what it left behind."""

    def __init__(
        self, module: types.ModuleType, function: Any, other: bool, within: Any = None
    ) -> None:
        self.args, self.kwargs = module.arguments(other)
        self.error: BaseException | None = None
        self.result: Any = None
        out = io.StringIO()
        with contextlib.redirect_stdout(out), within or contextlib.nullcontext():
            try:
                self.result = function(*self.args, **self.kwargs)
            except Exception as error:
                self.error = error
        self.printed = out.getvalue()
        own = {n: v for n, v in vars(module).items() if not n.startswith("__") and n not in PLAIN}
        self.left = {
            n: v
            for n, v in own.items()
            if not isinstance(v, types.ModuleType) or isinstance(v, torch.nn.Module)
        }
        self.left |= {
            n: {k: x for k, x in vars(v).items() if k[0] != "_"}
            for n, v in own.items()
            if isinstance(v, type)
        }


PLAIN = {"arguments", "reset", "describe"}


def compare(actual: Outcome, expected: Outcome, tolerance: float) -> None:
    matcher = Matcher(tolerance)
    # of generators that are compared by running them
    with contextlib.redirect_stdout(io.StringIO()):
        _compare(matcher, actual, expected)


def _compare(matcher: Matcher, actual: Outcome, expected: Outcome) -> None:
    if type(actual.error).__qualname__ != type(expected.error).__qualname__:
        raise Mismatch(f"raises {actual.error!r}, in eager {expected.error!r}")
    for name in ("printed", "error", "args", "kwargs", "result", "left"):
        matcher.match(getattr(actual, name), getattr(expected, name), name)


class Counting(TorchFunctionMode):
    """Counts the calls that give tensors: what a graph would have as its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(first, torch.Tensor) and getattr(function, "__name__", "") != "__get__":
            self.calls += 1
        return result


@dataclass
class Report:
    """What a check found. `in_graphs` of `operations` tensor operations of the first call ran in
    graphs; `settled`: an equal call compiled nothing; `restless` is why the third equal call
    did."""

    seed: int
    failure: str = ""
    operations: int = 0
    in_graphs: int = 0
    compilations: int = 0
    settled: bool = True
    restless: str = ""
    skips: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def captured(self) -> bool:
        """Whether the tensor work was in graphs: nothing was left to eager."""
        return not self.skips


class Graphs:
    """A backend that runs graphs as they are and counts the operations that run in them."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        calls = [
            n
            for n in gm.graph.nodes
            if n.op.startswith("call") and isinstance(n.meta.get("val"), torch.Tensor)
        ]
        count = len(calls) + sum(
            isinstance(n.meta.get("val"), (tuple, list)) for n in gm.graph.nodes
        )
        forward = gm.forward

        def run(*inputs: Any) -> Any:
            self.ran += count
            return forward(*inputs)

        return run


def check(program: RandomPython, backend: str = "eager") -> Report:
    """Runs the calls of CALLS compiled and in eager. Raises Mismatch at the first difference.

    No garbage is collected meanwhile: an error holds the frames that it came through, and these
    hold the error, so what it closes would depend on when it comes.
    """
    report, start = Report(program.seed), time.perf_counter()
    ours, eager = program.load(), program.load()
    graphs = Graphs()
    compiled = ingot.compile(ours.program, backend=graphs if backend == "eager" else backend)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    with torch.no_grad(), warnings.catch_warnings(), no_log(), paused_collection():
        ignore_warnings()
        for number, (other, reset) in enumerate(CALLS):
            if reset:
                ours.reset()
                eager.reset()
            before = len(compiler.compilations)
            expected = Outcome(eager, eager.program, other)
            actual = Outcome(ours, compiled, other)
            new = compiler.compilations[before:]
            try:
                bugs = [
                    c.skipped.reason
                    for c in new
                    if c.skipped and c.skipped.reason.startswith("internal error")
                ]
                if bugs:
                    raise Mismatch(bugs[0])
                compare(actual, expected, TOLERANCE[backend])
                report.settled &= number != 1 or not new
                if number == 2 and new:
                    report.restless = f"compiles again: {new[0].recompiled or 'another place'}"
            except Mismatch as error:
                raise Mismatch(f"call {number}: {error}") from None
            if number == 0:
                report.in_graphs = graphs.ran
    counting = Counting()
    with torch.no_grad():
        eager.reset()
        Outcome(eager, eager.program, False, counting)
    report.operations = counting.calls
    report.compilations = len(compiler.compilations)
    report.skips = [c.skipped.reason for c in compiler.compilations if c.skipped is not None]
    report.seconds = time.perf_counter() - start
    return report


@contextlib.contextmanager
def no_log() -> Any:
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 150, 3))
def test_random_python(first: int) -> None:
    for seed in range(first, first + 10):
        assert check(random_python(seed)).restless == "", seed


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_random_python_compiled(seed: int) -> None:
    check(random_python(seed), "ingot")


FAILING = """
import torch
FINALLY = []
def yielding(v):
    try:
        yield v
    finally:
        FINALLY.append('closed')
def program(v, n):
    held = yielding(v)
    next(held)
    {keeps}
    if n:
        raise ValueError(n)
    torch.dot(v, v.float())
def arguments(other):
    return (torch.ones(2).double(), int(other)), {{}}
def reset():
    FINALLY.clear()
"""


@pytest.mark.parametrize("objects", [1, 3, 7, 20, 50, 150, 700])
@pytest.mark.parametrize("keeps", ["", "again = [held]; again.append(again)"])
def test_when_garbage_is_collected_is_no_difference(keeps: str, objects: int) -> None:
    """A generator that an error's traceback or a cycle holds is closed by a collection, in one run
    before the other."""
    before = gc.get_threshold()
    gc.set_threshold(objects, 1, 1)
    try:
        check(RandomPython(0, FAILING.format(keeps=keeps)), "ingot")
    finally:
        gc.set_threshold(*before)


# Long runs
# --------------------------------------------------------------------------------------------------


def report_of_program(program: RandomPython, backend: str) -> Report:
    try:
        return check(program, backend)
    except Mismatch as error:
        return Report(program.seed, str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Report(
            program.seed, f"{type(error).__name__}: {error} at {last.filename}:{last.lineno}"
        )


def work(count: int, first: int, backend: str) -> None:
    """The worker: a line for each program as it begins, and one for what was found."""
    lines = sys.stdout
    for seed in range(first, first + count):
        print(f"begin {seed}", file=lines, flush=True)
        report = report_of_program(random_python(seed), backend)
        print("end " + json.dumps(asdict(report)), file=lines, flush=True)


def run(count: int, first: int, backend: str) -> list[Report]:
    """Reports of `count` programs; a worker that dies or hangs is the failure of the program it was
    at."""
    reports: list[Report] = []
    end = first + count
    while first < end:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.test_random_python", "--work"]
        command += [str(end - first), str(first), "--backend", backend]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as worker:
            reports += _reports(worker)
            failure = f"crash: exit code {worker.wait()}\n{_tail(worker)}"
        first = reports[-1].seed + 1 if reports else first
        if first < end:
            reports.append(Report(first, failure))
            first += 1
    return reports


def _reports(worker: Any) -> list[Report]:
    import threading

    found: list[Report] = []
    alarm = threading.Timer(HANGS, worker.kill)
    alarm.start()
    for line in worker.stdout:
        alarm.cancel()
        alarm = threading.Timer(HANGS, worker.kill)
        alarm.start()
        if line.startswith("end "):
            found.append(Report(**json.loads(line[4:])))
            if found[-1].failure or found[-1].restless:
                print(
                    f"seed {found[-1].seed}: {found[-1].failure or found[-1].restless}", flush=True
                )
    alarm.cancel()
    return found


def _tail(worker: Any) -> str:
    return "\n".join(worker.stderr.read().splitlines()[-12:])


def summary(reports: list[Report]) -> str:
    good = [r for r in reports if not r.failure]
    captured = [r for r in good if r.captured]
    crashes = [r.seed for r in reports if r.failure.startswith("crash")]
    share = sum(r.in_graphs for r in good) / max(1, sum(r.operations for r in good))
    lines = [
        f"{len(reports)} programs: {len(good)} equal to eager, {len(captured)} with nothing left "
        "to eager, "
        f"{len(crashes)} crashes {crashes}, failed: {[r.seed for r in reports if r.failure]}",
        f"{share:.1%} of the tensor operations in graphs; {sum(r.compilations for r in good)} "
        "compilations; "
        f"{sum(not r.settled for r in good)} compiled in the second of three equal calls, "
        f"{sum(bool(r.restless) for r in good)} in the third; "
        f"{sum(r.seconds for r in good):.0f} s",
    ]
    reasons = Counter(reason.partition("\n")[0][:110] for r in good for reason in r.skips)
    lines += [f"{times:6}  {reason}" for reason, times in reasons.most_common(60)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--work", action="store_true")
    options = parser.parse_args()
    if options.work:
        work(options.count, options.first, options.backend)
    else:
        print(summary(run(options.count, options.first, options.backend)))


if __name__ == "__main__":
    main()
