"""flex_attention, forward and backward: torch.compile and Ingot in turns.

    python -m benchmarks.flex_attention [--device cuda] [--dtype bfloat16] [--rounds 15]
        [--only NAME ...] [--without-compile]

On a CPU sizes are smaller, and eager takes part: attention with all of its scores in memory, as
torch has no gradients of flex_attention there. So does `F.scaled_dot_product_attention`, where its
own arguments ask for the same multiplications. A row's times are of the device's work; ratios are
others' times to Ingot's. Errors are the relative distance of the result, or of the worst gradient,
to attention computed in float64; where that is too large for the memory, rows of fewer heads are
compared.
"""

from __future__ import annotations

import argparse
import math
import operator
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from ingot.explain.cli import console, positive

WIDTH = 64
CAP = 20.0
DOCUMENTS = 8
Function = Callable[..., Tensor]


class Sizes(NamedTuple):
    """Of a device's rows; windows and prefixes are sixteenths and eighths of the length."""

    batch: int
    heads: int
    length: int
    cache: int  # keys of the rows that decode


SIZES = {"cuda": Sizes(4, 16, 4096, 4096), "cpu": Sizes(1, 8, 1024, 4096)}


@dataclass(frozen=True)
class Case:
    """The functions of a row, its sizes, and how many heads share a key's."""

    batch: int
    heads: int
    queries: int
    keys: int
    score: Function | None = None
    mask: Function | None = None
    shared: int = 1


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def sliding_of(window: int) -> Function:
    def sliding(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k <= window)

    return sliding


def prefix_of(length: int) -> Function:
    def prefix(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) | (k < length)

    return prefix


def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return CAP * torch.tanh(score / CAP)


def documents_of(device: str, length: int) -> Function:
    number = torch.arange(length, device=device) // (length // DOCUMENTS)

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (number[q] == number[k]) & (q >= k)

    return same


def alibi_of(device: str, heads: int) -> Function:
    slopes = torch.exp2(-(torch.arange(heads, device=device) + 1) * 8.0 / heads)

    def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + slopes[h] * (k - q)

    return biased


def cases(device: str) -> dict[str, Case]:
    batch, heads, length, cache = SIZES[device]
    square = partial(Case, batch, heads, length, length)
    return {
        "causal": square(mask=causal),
        "sliding window": square(mask=sliding_of(length // 16)),
        "documents": square(mask=documents_of(device, length)),
        "alibi": square(alibi_of(device, heads), causal),
        "soft cap": square(capped, causal),
        "prefix": square(mask=prefix_of(length // 8)),
        "grouped 32/8": Case(max(1, batch // 2), 32, length, length, mask=causal, shared=4),
        "decode": Case(4 * batch, 16, 1, cache),
        "decode, one request": Case(1, 32, 1, cache),
    }


def inputs(case: Case, device: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    kind: Any = {"device": device, "dtype": dtype, "generator": generator}
    query = torch.randn(case.batch, case.heads, case.queries, WIDTH, **kind)
    shape = case.batch, case.heads // case.shared, case.keys, WIDTH
    return [query, torch.randn(shape, **kind), torch.randn(shape, **kind)]


def function_of(case: Case, device: str) -> Function:
    mask = None
    if case.mask is not None:
        mask = create_block_mask(case.mask, None, None, case.queries, case.keys, device=device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result: Tensor = flex_attention(
            query, key, value, case.score, mask, enable_gqa=case.shared > 1
        )
        return result

    return attend


def dense(case: Case, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by its formula, with all scores in memory."""
    key, value = (t.repeat_interleave(case.shared, 1) for t in (key, value))
    scores = query @ key.mT / math.sqrt(WIDTH)
    b, h, q, k = (torch.arange(n, device=query.device) for n in scores.shape)
    places = b[:, None, None, None], h[:, None, None], q[:, None], k
    if case.score is not None:
        scores = case.score(scores, *places)
    if case.mask is not None:
        scores = scores.masked_fill(~case.mask(*places), -math.inf)
    return torch.softmax(scores, -1).to(value.dtype) @ value


def library_of(case: Case, device: str) -> Function | None:
    """The library's kernel of the row's multiplications, None where it has none."""
    if case.score is not None or case.mask not in (None, causal):
        return None
    return partial(
        F.scaled_dot_product_attention,
        is_causal=case.mask is causal,
        enable_gqa=case.shared > 1,
    )


COMPILERS: dict[str, Callable[[Case, str], Function | None]] = {
    "torch.compile": lambda case, device: torch.compile(function_of(case, device)),
    "Ingot": lambda case, device: ingot.compile(function_of(case, device)),
    "the library": library_of,
    "eager": lambda case, device: partial(dense, case),
}
"""What computes a row: its function, None where it cannot."""


def errors(case: Case, compiled: Function, args: list[Tensor]) -> tuple[float, float]:
    """Those of the result and of the gradients, of the first batch and the first keys' heads."""
    leaves = [t.detach().clone().requires_grad_() for t in args]
    result = compiled(*leaves)
    tangent = torch.randn_like(result)
    gradients = torch.autograd.grad(result, leaves, tangent)
    few = [t[:1, : case.shared if k == 0 else 1].detach().double() for k, t in enumerate(args)]
    few = [t.requires_grad_() for t in few]
    expected = dense(case, *few)
    exact_gradients = torch.autograd.grad(expected, few, tangent[:1, : case.shared].double())
    return distance(result, expected), max(map(distance, gradients, exact_gradients))


def distance(actual: Tensor, expected: Tensor) -> float:
    part = actual[:1, : expected.shape[1]].double()
    return ((part - expected).norm() / expected.norm()).item()


def seconds(call: Callable[[], Any], device: str, count: int = 10) -> float:
    """Of the device's work for one call."""
    if device == "cpu":
        clock = time.perf_counter
        if torch.get_num_threads() == 1:  # whatever else the machine does meanwhile
            clock = time.process_time
        start = clock()
        call()
        return clock() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10_000_000)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count / 1e3


class Measured(NamedTuple):
    """What was measured of a row: times by compiler and part, and by compiler the errors of
    both parts and the seconds of the first call."""

    times: dict[tuple[str, str], list[float]]
    errors: dict[str, tuple[float, float]]
    first: dict[str, float]


def measure(
    case: Case, device: str, dtype: torch.dtype, compilers: Iterable[str], rounds: int
) -> Measured:
    args = inputs(case, device, dtype)
    leaves = [t.detach().clone().requires_grad_() for t in args]
    tangent = torch.randn_like(args[0])
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    measured = Measured({}, {}, {})
    torch.compiler.reset()
    for compiler in compilers:
        compiled = COMPILERS[compiler](case, device)
        if compiled is None:
            continue
        begin = time.perf_counter()
        with torch.no_grad():
            compiled(*args)
        if device == "cuda":
            torch.cuda.synchronize()
        measured.first[compiler] = time.perf_counter() - begin

        def forward(compiled: Function = compiled) -> None:
            with torch.no_grad():
                compiled(*args)

        def step(compiled: Function = compiled) -> None:
            torch.autograd.grad(compiled(*leaves), leaves, tangent)

        calls[compiler, "forward"] = forward
        if device == "cuda" or compiler != "torch.compile":  # which has none on a CPU
            calls[compiler, "step"] = step
            measured.errors[compiler] = errors(case, compiled, args)
    for key in calls:
        measured.times[key] = []
    for _ in range(rounds):
        for key, call in calls.items():
            measured.times[key].append(seconds(call, device))
    return measured


def row(part: str, measured: Measured, compilers: Iterable[str]) -> list[str]:
    """The columns of a part of a row."""
    texts, ratios = [], []
    ours = measured.times["Ingot", part]
    for compiler in compilers:
        times = measured.times.get((compiler, part))
        if times is None:
            texts += ["-"] * 3
        else:
            texts.append(f"{statistics.median(times) * 1e3:.3f}")
            error = measured.errors.get(compiler)
            texts.append("-" if error is None else f"{error[part == 'step']:.1e}")
            texts.append(f"{measured.first[compiler]:.1f}" if part == "forward" else "")
        if compiler != "Ingot":
            ratio = statistics.median(map(operator.truediv, times, ours)) if times else None
            ratios.append("-" if ratio is None else f"{ratio:.2f}")
    return texts + ratios


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flex_attention")
    parser.add_argument("--device", choices=list(SIZES), default=None)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--only", nargs="*", choices=list(cases("cpu")))
    parser.add_argument("--without-compile", action="store_true")
    arguments = parser.parse_args()
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    compilers = list(COMPILERS)
    if device == "cuda":
        compilers.remove("eager")
    if arguments.without_compile:
        compilers.remove("torch.compile")
    table = Table("row", "part")
    for compiler in compilers:
        for column in ("ms", "error", "first call, s"):
            table.add_column(f"{compiler}, {column}")
    for compiler in compilers:
        if compiler != "Ingot":
            table.add_column(f"x {compiler}")
    for name, case in cases(device).items():
        if arguments.only and name not in arguments.only:
            continue
        measured = measure(case, device, dtype, compilers, arguments.rounds)
        for part in ("forward", "step"):
            texts = [name, part, *row(part, measured, compilers)]
            table.add_row(*texts)
            print(*texts, flush=True)
    console().print(table)


if __name__ == "__main__":
    main()
