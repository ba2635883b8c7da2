"""Branches and loops of small bodies: `python -m benchmarks.control_flow [--rounds 9] [NAME ...]`.

Eager here is the program in plain Python, which asks tensors for their values; torch.cond and its
kin in eager are compiled by torch. The figures are the seconds of the first call, the median of a
call's microseconds, and that of the ratios to Ingot's. The exit status is 1 where torch.compile
takes less than twice Ingot's time; where it fails, there is nothing to compare.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch._higher_order_ops import cond, scan, while_loop

import ingot
from ingot.explain.cli import console, positive
from ingot.explain.measure import batch_seconds, repetitions

LEAST = 2.0
CPU = torch.device("cpu")


def by_python(predicate: Any, taken: Any, other: Any, operands: Any) -> Any:
    return taken(*operands) if predicate else other(*operands)


def looped(condition: Any, body: Any, state: Any) -> Any:
    while condition(*state):
        state = body(*state)
    return state


def scanned(body: Any, state: Any, xs: Tensor) -> Any:
    rows = []
    for x in xs:
        state, row = body(state, x)
        rows.append(row)
    return state, torch.stack(rows)


def branch(x: Tensor) -> Any:
    return cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + 1, (x,))


def count(x: Tensor) -> Any:
    zero = x.new_zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 100, lambda i, x: (i + 1, x * 0.99 + 0.1), (zero, x))[1]


def until(x: Tensor) -> Any:
    return while_loop(lambda x: x.sum() < 1e6, lambda x: (x * 1.1 + 0.1,), (x.abs(),))[0]


def recurrent(x: Tensor) -> Any:
    def cell(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h * 0.9 + x)
        return h, h * 2

    return scan(cell, torch.zeros(16), x)[1]


def in_python(function: FunctionType) -> Callable[[Tensor], Any]:
    """The same function with other forms in the place of torch's."""
    forms = {"cond": by_python, "while_loop": looped, "scan": scanned}
    return FunctionType(function.__code__, {**function.__globals__, **forms})


CASES: dict[str, tuple[FunctionType, tuple[int, ...]]] = {
    "cond": (branch, (64, 16)),
    "while_loop, 100 turns": (count, (64, 16)),
    "while_loop, until a value": (until, (64, 16)),
    "scan, 64 rows": (recurrent, (64, 16)),
    "scan, 256 rows": (recurrent, (256, 16)),
}


def measure(name: str, rounds: int, table: Table) -> bool:
    """Adds the rows of a case; whether torch.compile takes at least twice Ingot's time."""
    function, size = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(size)
    torch._dynamo.reset()
    peers: dict[str, Callable[[], Any]] = {
        "eager": partial(in_python(function), x),
        "torch.compile": partial(torch.compile(function, fullgraph=True), x),
        "Ingot": partial(ingot.compile(function, fullgraph=True), x),
    }
    firsts, times = {}, dict[str, list[float]]()
    expected = peers["eager"]()
    for peer, call in list(peers.items()):
        start = time.perf_counter()
        try:
            result = call()
        except Exception as error:
            if peer != "torch.compile":
                raise
            table.add_row(name, peer, type(error).__name__)
            del peers[peer]
            continue
        firsts[peer], times[peer] = time.perf_counter() - start, []
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    for _ in range(rounds):
        for peer, call in peers.items():
            times[peer].append(batch_seconds(call, repetitions(call, CPU), CPU))
    ratios = {}
    for peer in peers:
        ratios[peer] = statistics.median(a / b for a, b in zip(times[peer], times["Ingot"]))
        microseconds = f"{statistics.median(times[peer]) * 1e6:.1f}"
        table.add_row(name, peer, f"{firsts[peer]:.2f}", microseconds, f"{ratios[peer]:.2f}")
    return ratios.get("torch.compile", LEAST) >= LEAST


@torch.no_grad()
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_flow")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=9)
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in CASES:
            parser.error(f"no case is called {name!r}")
    table = Table("program", "compiler", "first call, s", "us", "x Ingot")
    ahead = True
    for name in options.names or CASES:
        ahead &= measure(name, options.rounds, table)
    console().print(table)
    return 0 if ahead else 1


if __name__ == "__main__":
    sys.exit(main())
