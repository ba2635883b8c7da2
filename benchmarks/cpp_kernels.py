"""The small functions by way of C++ and by way of LLVM, in one run: `python -m
benchmarks.cpp_kernels [NAME ...]`.

Prints how many times as long the C++ code takes, with the compiler that INGOT_CXX names, and the
seconds of the first calls. Exits with 1 where a function takes more than 1.3 times as long.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import ingot
from examples.functions import FUNCTIONS
from ingot.explain import measure
from ingot.explain.cli import positive

MOST = 1.3
REPEATED = 1 << 10
"""Elements up to which a call is made so many times in a row."""


class Found(NamedTuple):
    """Seconds of a call by way of C++, of LLVM, of eager, and of the first calls of the former."""

    cpp: float
    llvm: float
    eager: float
    first_cpp: float
    first_llvm: float

    @property
    def ratio(self) -> float:
        return self.cpp / self.llvm


def measured(name: str, rounds: int) -> Found:
    """One of the small functions, all peers in turns."""
    function, args = FUNCTIONS[name].make()
    ingot.reset()
    peers = {"eager": function}
    firsts = {}
    for emit in ("llvm", "cpp"):
        peers[emit] = ingot.compile(function, options={"emit": emit})
        start = time.perf_counter()
        peers[emit](*args)
        firsts[emit] = time.perf_counter() - start
    times = REPEATED if args[0].numel() < REPEATED else 1
    calls = {key: _repeated(peer, args, times) for key, peer in peers.items()}
    taken = measure.interleave(calls, rounds, torch.device("cpu"))
    medians = {}
    for key in calls:
        medians[key] = statistics.median(taken[key].tolist()) / times
    cpp, llvm = firsts["cpp"], firsts["llvm"]
    return Found(medians["cpp"], medians["llvm"], medians["eager"], cpp, llvm)


def _repeated(call: Callable[..., Any], args: tuple[Any, ...], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call(*args)

    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpp_kernels", description=__doc__.splitlines()[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FUNCTIONS)}")
    parser.add_argument("--rounds", type=positive, default=30, help="of calls (%(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{'':20} {'eager us':>10} {'LLVM us':>10} {'C++ us':>10} {'C++/LLVM':>9}  first call")
    torch.set_num_threads(1)  # threads that wait for each other would blur the ratio
    slow = False
    with torch.no_grad():
        for name in arguments.names or FUNCTIONS:
            found = measured(name, arguments.rounds)
            times = (found.eager, found.llvm, found.cpp)
            columns = " ".join([f"{seconds * 1e6:10.1f}" for seconds in times])
            firsts = f"{found.first_cpp:.2f} s, LLVM {found.first_llvm:.2f} s"
            print(f"{name:20} {columns} {found.ratio:9.2f}  {firsts}", flush=True)
            slow |= found.ratio > MOST
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
