"""Programs of libraries on torch over ten sizes each, by Ingot and by torch.compile.

    python -m benchmarks.libraries [--only NAMES] [--rounds 9]

It needs the packages that `library_programs.py` names; a program whose package is missing is left
out, and named. In an environment beside the project's own, with torch installed first:

    pip install torchmetrics gpytorch torch_geometric diffusers tensordict torchrl torchdiffeq
    pip install einops kornia transformers lightning llvmlite==0.50.0 rich

Each program and compiler is a process of its own, with one thread. Columns: graphs of the first
call, graph breaks and compilations of all, the largest error against eager in units of float32's
rounding, seconds of the first call, and the time of a round of all ten calls in eager to that
compiled, taken in turns. Gradients are not asked for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.table import Table

from benchmarks.library_programs import PROGRAMS, Program
from benchmarks.model_worker import ingot_breaks, tensors
from ingot.explain.cli import console, positive

EPS = torch.finfo(torch.float32).eps
COMPILERS = ("Ingot", "torch.compile")
COLUMNS = ("graphs", "breaks", "compilations", "error, eps", "first call, s", "x eager")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.libraries")
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--measure", choices=COMPILERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        (name,) = arguments.only
        print(json.dumps(measured(name, arguments.measure, arguments.rounds)))
        return
    table = Table("program", "compiler", *COLUMNS, "breaks at")
    for name in arguments.only:
        package, _ = PROGRAMS[name]
        if importlib.util.find_spec(package) is None:
            print(f"{name}: {package} is not installed", flush=True)
            continue
        for compiler in COMPILERS:
            cells = row(name, compiler, arguments.rounds)
            table.add_row(name, compiler, *cells)
            print(name, compiler, *cells, sep=" | ", flush=True)
    console().print(table)


def row(name: str, compiler: str, rounds: int) -> list[str]:
    """The cells of a program under a compiler, measured in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.libraries", "--only", name]
    done = subprocess.run(
        [*command, "--measure", compiler, "--rounds", str(rounds)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return ["-"] * len(COLUMNS) + [lines[-1][:120]]
    figures = json.loads(done.stdout.splitlines()[-1])
    return [*map(str, figures["cells"]), "; ".join(figures["reasons"])]


def measured(name: str, compiler: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    program = PROGRAMS[name][1]()
    torch.set_grad_enabled(program.with_gradients)
    compiled, counted = (by_ingot if compiler == "Ingot" else by_torch)(program)
    graphs, worst, first = 0, 0.0, 0.0
    for _ in range(3):
        for call in program.calls:
            expected = program.called(program.function, call)
            begin = time.perf_counter()
            result = program.called(compiled, call)
            if not graphs:
                first, graphs = time.perf_counter() - begin, counted()[0]
            worst = max(worst, *errors(result, expected))
    compilations, reasons = counted()
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for is_compiled, function in ((False, program.function), (True, compiled)):
            begin = time.perf_counter()
            for call in program.calls:
                program.called(function, call)
            times[is_compiled].append(time.perf_counter() - begin)
    ratio = statistics.median(times[False]) / statistics.median(times[True])
    cells = [graphs, len(reasons), compilations, f"{worst / EPS:.1f}", f"{first:.2f}"]
    return {"cells": [*cells, f"{ratio:.2f}"], "reasons": reasons}


Counted = Callable[[], tuple[int, list[str]]]
"""Gives how many graphs were compiled so far, and the reasons of the graph breaks."""


def by_ingot(program: Program) -> tuple[Callable[..., Any], Counted]:
    import ingot
    from ingot.compiler import Compiler

    compiled = ingot.compile(program.function)

    def counted() -> tuple[int, list[str]]:
        compiler = Compiler.of(compiled)
        assert compiler is not None
        return len(compiler.compilations), ingot_breaks(compiled)

    return compiled, counted


def by_torch(program: Program) -> tuple[Callable[..., Any], Counted]:
    from torch._dynamo.utils import counters

    def counted() -> tuple[int, list[str]]:
        reasons = [reason.splitlines()[0][:60] for reason in counters["graph_break"]]
        return counters["stats"]["unique_graphs"], reasons

    return torch.compile(program.function), counted


def errors(result: Any, expected: Any) -> Iterator[float]:
    """The distances of each tensor of a result to eager's, relative to the largest element."""
    mine, its = list(tensors(result)), list(tensors(expected))
    assert len(mine) == len(its), "results differ in the number of tensors"
    yield 0.0
    for a, b in zip(mine, its):
        assert a.shape == b.shape and a.dtype == b.dtype, "shapes or dtypes differ"
        if b.numel():
            scale = b.double().abs().max().clamp(min=1e-30)
            yield ((a.double() - b.double()).abs().max() / scale).item()


if __name__ == "__main__":
    main()
