"""`python -m benchmarks.dynamic`: what sizes that vary cost, beside torch.compile.

How many entries each model makes of random (batch, length) pairs in 1 to 512, lengths of 0 and 1
among them, and whether each call is right: the same values, and the same strides where a size is
above 1. The compilations in training with sizes that vary. How much longer a model's program for
symbolic sizes takes than one for the sizes of the call: both are called in turns, at some of the
pairs. How much longer a first call takes with dynamic=True than with dynamic=False, each a fresh
compilation, in turns. What a call costs with 64 entries beside one (as `python -m
benchmarks.dispatch --only entries`). A training step of an LSTM cell that is written out, compiled
for any batch, beside eager on a CPU and beside cuDNN's cell, `torch.nn.LSTMCell`, on a GPU.

With `--device cuda` models are timed there ("time" and "cell"); the rest is the same on any device.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import ingot
from benchmarks.dispatch import entries_table, kept, measure_entries
from ingot.compiler import Compiler
from ingot.explain.cli import positive
from ingot.explain.measure import ratio_interval, synchronize

ENTRIES_LIMIT, FIRST_CALL_LIMIT, TRAINING_LIMIT = 3, 1.3, 2
SLOWER_LIMITS = {"cpu": 1.15, "cuda": 1.1}
CELL_LIMITS = {"cpu": 1 / 2, "cuda": 1.3}
"""Of the time of the cell that is written out, over that of eager and of cuDNN's."""
CELLS = {
    "cpu": [(8, 32, 64), (16, 32, 128), (64, 64, 64)],
    "cuda": [(64, 256, 256), (64, 512, 512), (256, 512, 512)],
}
"""(batch, width of the input, width of the state)."""
LARGEST = 512
MOST_WORK = 512 * 128  # rows of the pairs at which kernels are timed
PARTS = ["pairs", "training", "time", "first call", "entries", "cell"]
CPU = torch.device("cpu")
USUAL = 24, 100  # the pair of first calls
WIDTH = 32

CELL_TITLE = (
    "A step of an LSTM cell that is written out, forward and backward, compiled for any batch"
)

Pair = tuple[int, int]
Compile = Callable[..., Callable[..., Any]]


class Transformer(nn.Module):
    """An embedding and a transformer's layer, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(64, WIDTH), nn.LayerNorm(WIDTH)
        self.projections, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        wide = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), *wide)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        x = self.embedding(tokens)
        parts = self.projections(self.norm(x)).split(WIDTH, -1)
        q, k, v = (p.view(batch, length, 2, WIDTH // 2).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(x)


class Rows(nn.Module):
    """Reductions and what is done to each element, along both sizes that vary."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.softmax(x * 2 + x.mean(0), -1)
        return F.layer_norm(torch.cat([x, x.sin()], -1), (2 * x.shape[-1],)) + x.shape[1]


class Pooled(nn.Module):
    """A mean of what is not padding, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(WIDTH, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.arange(n, device=x.device) for n in x.shape[:2])
        weights = columns < (rows % max(x.shape[1], 1) + 1)[:, None]
        hidden = F.silu(self.hidden(x)) * weights[..., None]
        return self.last(hidden.sum(1) / weights.sum(1, keepdim=True))


def tokens(pair: Pair) -> Tensor:
    return torch.arange(pair[0] * pair[1]).reshape(pair) * 7 % 64


def features(pair: Pair) -> Tensor:
    return torch.randn(*pair, WIDTH, generator=torch.Generator().manual_seed(0))


def matrix(pair: Pair) -> Tensor:
    return torch.randn(pair, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Subject:
    make: Callable[[], nn.Module]
    given: Callable[[Pair], Tensor]


SUBJECTS = {
    "transformer layer": Subject(Transformer, tokens),
    "softmax, cat, layer norm": Subject(Rows, matrix),
    "masked mean, classifier": Subject(Pooled, features),
}


def random_pairs(count: int, most_work: int | None = None) -> list[Pair]:
    """Random pairs; where they may be of any work, lengths of 1 and 0 among them."""
    rng = random.Random(0)
    pairs = (
        [(rng.randint(2, LARGEST), length) for length in (33, 1, 0)] if most_work is None else []
    )
    while len(pairs) < count:
        pair = rng.randint(1, LARGEST), rng.randint(1, LARGEST)
        if most_work is None or 64 < pair[0] * pair[1] <= most_work:
            pairs.append(pair)
    return pairs


def fresh(compile: Compile, model: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
    if compile is torch.compile:
        torch._dynamo.reset()
    return compile(model.forward, dynamic=dynamic)


def entries_of(compiled: Callable[..., Any]) -> int:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return sum(c.skipped is None for c in compiler.compilations)


def outcome(model: Callable[..., Any], given: Tensor) -> Tensor | str:
    try:
        return model(given)
    except Exception as error:
        return type(error).__name__


def agree(actual: Tensor | str, expected: Tensor | str) -> bool:
    if isinstance(actual, str) or isinstance(expected, str):
        return isinstance(actual, str) == isinstance(expected, str)
    strides = [
        (a, e) for size, a, e in zip(expected.shape, actual.stride(), expected.stride()) if size > 1
    ]
    close = torch.allclose(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    return close and (not expected.numel() or all(a == e for a, e in strides))


SMALL_BATCHES = [(1, 20), (1, 1), (1, 0), (0, 9)]


def many_pairs(subject: Subject, count: int) -> tuple[int, int, int, int]:
    """Calls with random pairs: (those that are right, those that eager accepts, entries made,
    entries when batches of 1 and 0 have come as well)."""
    torch.manual_seed(0)
    model = subject.make()
    compiled = ingot.compile(model, dynamic=True)
    right = accepted = entries = 0
    for k, pair in enumerate((*random_pairs(count), *SMALL_BATCHES)):
        entries = entries_of(compiled) if k == count else entries
        expected = outcome(model, subject.given(pair))
        accepted += not isinstance(expected, str)
        right += agree(outcome(compiled, subject.given(pair)), expected)
    return right, accepted, entries, entries_of(compiled)


def seconds(
    call: Callable[[], Any], least: float = 0.01, device: torch.device = CPU
) -> Callable[[], float]:
    """A sampler of the time of a call, of as many calls as take `least` seconds."""
    call()
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    number = max(1, round(least / max(time.perf_counter() - start, 1e-6)))

    def sample() -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(number):
            call()
        synchronize(device)
        return (time.perf_counter() - start) / number

    return sample


def in_turns(samplers: Sequence[Callable[[], float]], rounds: int) -> list[np.ndarray]:
    taken: list[list[float]] = [[] for _ in samplers]
    for turn in range(rounds):
        for k in range(len(samplers)) if turn % 2 == 0 else reversed(range(len(samplers))):
            taken[k].append(samplers[k]())
    return [np.array(t) for t in taken]


def slower(
    subject: Subject, compile: Compile, pairs: Sequence[Pair], rounds: int, device: torch.device
) -> list[tuple[float, float, float]]:
    """For each pair, the time of the program for symbolic sizes over that of the one for these,
    (low, middle, high)."""
    torch.manual_seed(0)
    model = subject.make().to(device)
    dynamic = fresh(compile, model, True)
    dynamic(subject.given(USUAL).to(device))
    found = []
    for pair in pairs:
        given = subject.given(pair).to(device)
        if compile is torch.compile:
            dynamic = fresh(compile, model, True)
            dynamic(subject.given(USUAL).to(device))
            static = torch.compile(subject.make().to(device).forward, dynamic=False)
        else:
            static = fresh(compile, model, False)
        for call in (dynamic, static):
            call(given)
        calls = [functools.partial(call, given) for call in (dynamic, static)]
        times = in_turns([seconds(call, device=device) for call in calls], rounds)
        found.append(ratio_interval(*times))
    return found


def first_calls(
    subject: Subject, compile: Compile, rounds: int
) -> tuple[float, float, tuple[float, float, float]]:
    """Seconds of a first call with dynamic=False and with dynamic=True, and the ratio of these,
    (low, middle, high)."""
    model, given = subject.make(), subject.given(USUAL)

    def sampler(dynamic: bool) -> Callable[[], float]:
        def sample() -> float:
            compiled = fresh(compile, model, dynamic)
            start = time.perf_counter()
            compiled(given)
            return time.perf_counter() - start

        return sample

    samplers = sampler(True), sampler(False)
    in_turns(samplers, 1)  # imports
    dynamic, static = in_turns(samplers, rounds)
    return statistics.median(static), statistics.median(dynamic), ratio_interval(dynamic, static)


def epochs() -> tuple[bool, int]:
    """Two epochs of training whose last batch is smaller: whether the gradients are eager's, and
    the compilations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5))
    compiled, right = ingot.compile(model), True
    for size in (32, 32, 32, 13, 32, 32, 32, 13):
        x, y = torch.randn(size, WIDTH), torch.randint(0, 5, (size,))
        found = []
        for call in (compiled, model):
            model.zero_grad()
            F.cross_entropy(call(x), y).backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        right &= all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found, strict=True)
        )
    return right, entries_of(compiled)


def lstm() -> tuple[bool, int]:
    """An LSTM trained on sequences of varying length: whether all is as in eager, and the
    compilations."""
    torch.manual_seed(0)
    model = nn.LSTM(16, 24, batch_first=True)
    compiled, right = ingot.compile(model), True
    for length in (7, 12, 30, 5, 64, 18, 7):
        x, found = torch.randn(4, length, 16), []
        for call in (compiled, model):
            model.zero_grad()
            output, _ = call(x)
            output.square().mean().backward()
            found.append(
                [
                    output.detach(),
                    *(p.grad.clone() for p in model.parameters() if p.grad is not None),
                ]
            )
        right &= all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found, strict=True)
        )
    return right, entries_of(compiled)


def lstm_cell(
    x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """A step of an LSTM, written out."""
    i, f, g, o = (x @ w + h @ u + b).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def cell_step(
    cell: Callable[..., Any], given: Sequence[Tensor], wanted: Sequence[Tensor]
) -> Callable[[], Any]:
    """Forward and backward, with gradients of `wanted`; the gradients that come in are made
    beforehand."""
    tangents = [torch.ones_like(t) for t in cell(*given)]
    return lambda: torch.autograd.grad(cell(*given), wanted, tangents)


def cells(
    batch: int, width: int, state: int, rounds: int, device: torch.device, peers: dict[str, Compile]
) -> dict[str, np.ndarray]:
    """By name, the times of a step of the cell at this batch, where it was compiled for any, and of
    its peers."""
    torch.manual_seed(0)
    library = nn.LSTMCell(width, state).to(device)
    weights = [
        library.weight_ih.detach().t().contiguous(),
        library.weight_hh.detach().t().contiguous(),
    ]
    parameters = [
        t.requires_grad_() for t in (*weights, (library.bias_ih + library.bias_hh).detach())
    ]

    def inputs(rows: int) -> list[Tensor]:
        return [
            torch.randn(rows, n, device=device, requires_grad=True) for n in (width, state, state)
        ]

    given, calls = inputs(batch), dict[str, Callable[[], Any]]()
    for name in ("eager", *peers):
        call: Any = lstm_cell
        if name in peers:
            torch._dynamo.reset()
            call = peers[name](lstm_cell)
            for rows in (batch + 3, batch + 1):
                cell_step(call, (*inputs(rows), *parameters), parameters)()
        calls[name] = cell_step(call, (*given, *parameters), (*given, *parameters))
    if device.type == "cuda":
        x, h, c = given
        calls["cuDNN's"] = cell_step(
            lambda: library(x, (h, c)), (), (*given, *library.parameters())
        )
    times = in_turns([seconds(call, device=device) for call in calls.values()], rounds)
    return dict(zip(calls, times, strict=True))


def shown(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[1]:.3f} ({ratio[0]:.3f}-{ratio[2]:.3f})"


def main(argv: list[str] | None = None) -> int:
    """Measures and prints; the exit status is 1 where a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dynamic", description=__doc__)
    parser.add_argument(
        "--rounds", type=positive, default=30, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument(
        "--pairs", type=positive, default=40, help="random pairs of sizes (%(default)s)"
    )
    parser.add_argument(
        "--timed", type=positive, default=4, help="of these, how many are timed (%(default)s)"
    )
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument(
        "--device", type=torch.device, default=CPU, help="where models are timed (%(default)s)"
    )
    parser.add_argument("--without-peer", action="store_true", help="Ingot alone")
    arguments = parser.parse_args(argv)
    only, device = arguments.only or PARTS, arguments.device
    console = Console(width=None if sys.stdout.isatty() else 120)
    missed = False
    peers: dict[str, Compile] = {"Ingot": ingot.compile}
    if not arguments.without_peer:
        peers["torch.compile"] = torch.compile
    with torch.no_grad():
        if "pairs" in only:
            title = f"{arguments.pairs} random pairs, and then {SMALL_BATCHES}"
            table = Table(
                "model",
                "right",
                "eager accepts",
                "entries",
                "limit",
                "with small batches",
                title=title,
            )
            for name, subject in SUBJECTS.items():
                right, accepted, entries, more = many_pairs(subject, arguments.pairs)
                calls = arguments.pairs + len(SMALL_BATCHES)
                good = right == calls and entries <= ENTRIES_LIMIT
                missed |= not good
                limit = f"{ENTRIES_LIMIT} {'kept' if good else 'missed'}"
                table.add_row(
                    name, f"{right} of {calls}", str(accepted), str(entries), limit, str(more)
                )
            console.print(table)
    if "training" in only:
        table = Table(
            "training", "right", "compilations", "limit", title="Sizes that vary in training"
        )
        for name, run in (("the last batch is smaller", epochs), ("LSTM of varying length", lstm)):
            is_right, entries = run()
            good = is_right and entries <= TRAINING_LIMIT
            missed |= not good
            table.add_row(
                name,
                str(is_right),
                str(entries),
                f"{TRAINING_LIMIT} {'kept' if good else 'missed'}",
            )
        console.print(table)
    if "cell" in only:
        against = "cuDNN's" if device.type == "cuda" else "eager"
        table = Table(
            "(batch, width, state)",
            "compiled by",
            f"time / {against} (90%)",
            "limit",
            title=CELL_TITLE,
        )
        for sizes in CELLS[device.type]:
            times = cells(*sizes, arguments.rounds, device, peers)
            for name in peers:
                ratio = ratio_interval(times[name], times[against])
                limit = kept(ratio, CELL_LIMITS[device.type] if name == "Ingot" else None)
                missed |= "missed" in limit
                table.add_row(str(sizes), name, shown(ratio), limit)
        console.print(table)
    with torch.no_grad():
        if "time" in only:
            pairs = random_pairs(arguments.timed, MOST_WORK)
            title = "Time of the program for symbolic sizes over that of the one for the call's"
            table = Table(
                "model", "compiled by", *map(str, pairs), "geometric mean", "limit", title=title
            )
            for name, subject in SUBJECTS.items():
                for peer, compile in peers.items():
                    ratios = slower(subject, compile, pairs, arguments.rounds, device)
                    mean = statistics.geometric_mean(r[1] for r in ratios)
                    limit = kept(
                        (mean, mean, mean), SLOWER_LIMITS[device.type] if peer == "Ingot" else None
                    )
                    missed |= "missed" in limit
                    table.add_row(
                        name, peer, *(f"{r[1]:.3f}" for r in ratios), f"{mean:.3f}", limit
                    )
            console.print(table)
        if "first call" in only:
            title = "Seconds of a first call"
            table = Table(
                "model",
                "compiled by",
                "dynamic=False",
                "dynamic=True",
                "ratio (90%)",
                "limit",
                title=title,
            )
            for name, subject in SUBJECTS.items():
                for peer, compile in peers.items():
                    is_ingot = peer == "Ingot"
                    rounds = max(arguments.rounds // 3, 5) if is_ingot else 3
                    static, dynamic, ratio = first_calls(subject, compile, rounds)
                    limit = kept(ratio, FIRST_CALL_LIMIT if is_ingot else None)
                    missed |= "missed" in limit
                    table.add_row(
                        name, peer, f"{static:.3f}", f"{dynamic:.3f}", shown(ratio), limit
                    )
            console.print(table)
        if "entries" in only:
            found = measure_entries(arguments.rounds)
            missed |= any(e.limit is not None and e.ratio[1] > e.limit for e in found)
            console.print(entries_table(found))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
