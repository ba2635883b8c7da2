"""Optimizer steps beside torch's: `python -m benchmarks.optimizers [KIND ...] [--device cuda]
[--peers ...]`.

A step of an optimizer of many parameters is compiled as a function. The peers take turns in one
process: torch's loop over the parameters, its foreach and its fused form, torch.compile, and Ingot
(which compiles the loop). The figures are the median of a step, the ratio of each peer's time to
Ingot's with its 90% interval, Ingot's launches for a step, and its first call in a fresh process
(`--first` is that process).
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

SHAPES = [(256, 64), (256,), (64, 256), (64,), (64, 64), (33, 7, 3)]
KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **how),
    "adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=1e-3, **how),
    "adamw": lambda parameters, **how: torch.optim.AdamW(parameters, lr=1e-3, **how),
}
FORMS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "inductor": {"foreach": True},
    "ingot": {"foreach": False},
}


def parameters_with_gradients(count: int, device: str) -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(SHAPES[k % len(SHAPES)], device=device)) for k in range(count)]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def stepping(kind: str, peer: str, count: int, device: str = "cpu") -> Callable[[], Any]:
    """A step of `count` parameters that have gradients, as a peer runs it."""
    optimizer = KINDS[kind](parameters_with_gradients(count, device), **FORMS[peer])

    def step() -> None:
        optimizer.step()

    if peer == "ingot":
        import ingot

        return ingot.compile(step)
    return torch.compile(step) if peer == "inductor" else step


def seconds(call: Callable[[], Any]) -> float:
    on_gpu = torch.cuda.is_initialized()
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def side_by_side(
    kind: str, peers: Sequence[str], count: int, rounds: int, device: str = "cpu"
) -> dict[str, list[float]]:
    """The seconds of each peer's steps, in turns."""
    calls = {peer: stepping(kind, peer, count, device) for peer in peers}
    for call in calls.values():
        for _ in range(3):  # the first makes the state
            call()
    taken: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(rounds):
        for peer in random.sample(list(peers), len(peers)):
            taken[peer].append(seconds(calls[peer]))
    return taken


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratio of two peers' times, and its 90% interval by resampling the
    rounds."""
    pairs = list(zip(theirs, ours, strict=True))
    chooser = random.Random(0)

    def of(sample: Sequence[tuple[float, float]]) -> float:
        return statistics.median(a for a, _ in sample) / statistics.median(b for _, b in sample)

    drawn = sorted(of(chooser.choices(pairs, k=len(pairs))) for _ in range(200))
    return of(pairs), drawn[10], drawn[-11]


def launches(kind: str, count: int, device: str = "cpu") -> int:
    """Ingot's kernels and library calls for a step after the first."""
    import ingot

    optimizer = KINDS[kind](parameters_with_gradients(count, device), foreach=False)
    optimizer.step()
    return len(ingot.explain(lambda: optimizer.step())().kernels)


def first_calls(kind: str, count: int, times: int, device: str = "cpu") -> list[float]:
    """Seconds of the first call, each in a fresh process with torch imported and the optimizer
    made."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.optimizers",
        kind,
        "--tensors",
        str(count),
        "--first",
    ]
    command += ["--device", device]
    return [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(times)
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", choices=[[], *KINDS], help="all of them if none is named"
    )
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--peers", nargs="*", choices=list(FORMS), default=["loop", "foreach", "fused"]
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first", action="store_true", help="time one first call in this process")
    given = parser.parse_args(argv)
    kinds = given.kinds or list(KINDS)
    if given.first:
        print(seconds(stepping(kinds[0], "ingot", given.tensors, given.device)))
        return 0
    table = Table(
        title=(
            f"a step over {given.tensors} parameters, {given.device}, {torch.get_num_threads()} "
            "threads"
        )
    )
    for title in ("optimizer", "peer", "ms", "its time over Ingot's", "launches", "first call, s"):
        table.add_column(title, justify="left" if title in ("optimizer", "peer") else "right")
    for kind in kinds:
        peers = list(dict.fromkeys([*given.peers, "ingot"]))
        taken = side_by_side(kind, peers, given.tensors, given.rounds, given.device)
        for peer, times in taken.items():
            row = [kind, peer, f"{statistics.median(times) * 1e3:.3f}"]
            if peer == "ingot":
                first = statistics.median(first_calls(kind, given.tensors, 3, given.device))
                row += ["", str(launches(kind, given.tensors, given.device)), f"{first:.2f}"]
            else:
                middle, low, high = ratio(times, taken["ingot"])
                row += [f"{middle:.2f} ({low:.2f} to {high:.2f})", "", ""]
            table.add_row(*row)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
