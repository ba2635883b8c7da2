"""flex_attention on a GPU, forward and backward: torch.compile and Ingot in turns.

    python -m benchmarks.flex_attention [--rounds 15] [--only NAME ...] [--without-compile]

Inputs are bf16. A row's times are of the device's work; the ratio is torch.compile's time to
Ingot's. Errors are the relative distance of the result, or of the worst gradient, to attention
computed in float64; where that is too large for the memory, rows of fewer heads are compared.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from ingot.explain.cli import console, positive

BATCH, HEADS, LENGTH, WIDTH = 4, 16, 4096, 64
WINDOW = 256
CAP = 20.0
PREFIX = 512
DOCUMENTS = 8
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """The functions of a row, and how many heads share a key's."""

    score: Function | None = None
    mask: Function | None = None
    shared: int = 1
    queries: int = LENGTH
    batch: int = BATCH
    heads: int = HEADS


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def sliding(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k <= WINDOW)


def prefix(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) | (k < PREFIX)


def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return CAP * torch.tanh(score / CAP)


def documents_of(device: str) -> Function:
    number = torch.arange(LENGTH, device=device) // (LENGTH // DOCUMENTS)

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (number[q] == number[k]) & (q >= k)

    return same


def alibi_of(device: str) -> Function:
    slopes = torch.exp2(-(torch.arange(HEADS, device=device) + 1) * 8.0 / HEADS)

    def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + slopes[h] * (k - q)

    return biased


def cases(device: str) -> dict[str, Case]:
    return {
        "causal": Case(mask=causal),
        "sliding window": Case(mask=sliding),
        "documents": Case(mask=documents_of(device)),
        "alibi": Case(alibi_of(device), causal),
        "soft cap": Case(capped, causal),
        "prefix": Case(mask=prefix),
        "grouped 32/8": Case(mask=causal, shared=4, batch=2, heads=32),
        "decode": Case(queries=1, batch=16),
        "decode, one request": Case(queries=1, batch=1, heads=32),
    }


def inputs(case: Case, device: str) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    kind: Any = {"device": device, "dtype": torch.bfloat16, "generator": generator}
    query = torch.randn(case.batch, case.heads, case.queries, WIDTH, **kind)
    shape = case.batch, case.heads // case.shared, LENGTH, WIDTH
    return [query, torch.randn(shape, **kind), torch.randn(shape, **kind)]


def function_of(case: Case, device: str) -> Function:
    mask = None
    if case.mask is not None:
        mask = create_block_mask(case.mask, None, None, case.queries, LENGTH, device=device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result: Tensor = flex_attention(
            query, key, value, case.score, mask, enable_gqa=case.shared > 1
        )
        return result

    return attend


def exact(case: Case, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of one batch and its first heads in float64."""
    key, value = (t.repeat_interleave(case.shared, 1) for t in (key, value))
    scores = query @ key.mT / math.sqrt(WIDTH)
    b, h, q, k = (torch.arange(n, device=query.device) for n in scores.shape)
    places = b[:, None, None, None], h[:, None, None], q[:, None], k
    if case.score is not None:
        scores = case.score(scores, *places)
    if case.mask is not None:
        scores = scores.masked_fill(~case.mask(*places), -math.inf)
    return torch.softmax(scores, -1) @ value


def errors(case: Case, compiled: Function, args: list[Tensor]) -> tuple[float, float]:
    """Those of the result and of the gradients, of the first batch and the first keys' heads."""
    leaves = [t.detach().clone().requires_grad_() for t in args]
    result = compiled(*leaves)
    tangent = torch.randn_like(result)
    gradients = torch.autograd.grad(result, leaves, tangent)
    few = [t[:1, : case.shared if k == 0 else 1].detach().double() for k, t in enumerate(args)]
    few = [t.requires_grad_() for t in few]
    expected = exact(case, *few)
    exact_gradients = torch.autograd.grad(expected, few, tangent[:1, : case.shared].double())
    return distance(result, expected), max(map(distance, gradients, exact_gradients))


def distance(actual: Tensor, expected: Tensor) -> float:
    part = actual[:1, : expected.shape[1]].double()
    return ((part - expected).norm() / expected.norm()).item()


def seconds(call: Callable[[], Any], count: int = 10) -> float:
    """Of the device's work for one call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10_000_000)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count / 1e3


def measure(
    name: str, case: Case, compilers: dict[str, Callable[..., Function]], rounds: int, table: Table
) -> None:
    device = "cuda"
    args = inputs(case, device)
    leaves = [t.detach().clone().requires_grad_() for t in args]
    tangent = torch.randn_like(args[0])
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    first, errors_of = {}, {}
    torch.compiler.reset()
    for compiler, compile_ in compilers.items():
        compiled = compile_(function_of(case, device))
        begin = time.perf_counter()
        with torch.no_grad():
            compiled(*args)
        torch.cuda.synchronize()
        first[compiler] = time.perf_counter() - begin
        errors_of[compiler] = errors(case, compiled, args)

        def forward(compiled: Function = compiled) -> None:
            with torch.no_grad():
                compiled(*args)

        def step(compiled: Function = compiled) -> None:
            torch.autograd.grad(compiled(*leaves), leaves, tangent)

        calls[compiler, "forward"], calls[compiler, "step"] = forward, step
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            times[key].append(seconds(call))
    for part in ("forward", "step"):
        row = [name, part]
        for compiler in compilers:
            error = errors_of[compiler][part == "step"]
            row += [
                f"{statistics.median(times[compiler, part]) * 1e3:.3f}",
                f"{error:.1e}",
                f"{first[compiler]:.1f}" if part == "forward" else "",
            ]
        ratios = (
            [a / b for a, b in zip(*(times[c, part] for c in compilers))]
            if len(compilers) > 1
            else []
        )
        row.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        table.add_row(*row)
        print(*row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flex_attention")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--only", nargs="*", choices=list(cases("cpu")))
    parser.add_argument("--without-compile", action="store_true")
    arguments = parser.parse_args()
    compilers: dict[str, Any] = {"torch.compile": torch.compile, "Ingot": ingot.compile}
    if arguments.without_compile:
        del compilers["torch.compile"]
    table = Table("row", "part")
    for compiler in compilers:
        for column in ("ms", "error", "first call, s"):
            table.add_column(f"{compiler}, {column}")
    table.add_column("x torch.compile")
    for name, case in cases("cuda").items():
        if not arguments.only or name in arguments.only:
            measure(name, case, compilers, arguments.rounds, table)
    console().print(table)


if __name__ == "__main__":
    main()
