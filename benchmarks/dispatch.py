"""`python -m benchmarks.dispatch`: what a compiled call costs beside the work it does.

Dispatch overhead is the time of a compiled call whose backend returns outputs that were computed
beforehand (`lambda *inputs: outs`), less the time of calling that lambda. Ingot and torch.compile
take turns in one process, under no_grad; the figures are medians, the ratio is Ingot's overhead
over torch.compile's, with its 90% interval.

What many entries cost is measured on the same function and backend: calls of one size where one
size is compiled, and of 64 sizes in turn where each has an entry of its own.

With gradients, whole calls of the 8-element function are compared, each compiled by its compiler's
own backend (which takes a C++ compiler): the forward that records them, and the forward with its
backward.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import timeit
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import ingot
from examples import gpt2
from ingot.explain.cli import positive
from ingot.explain.measure import ratio_interval

SAMPLE = 0.002  # seconds that one sample takes at least


@dataclass(frozen=True)
class Subject:
    """`make()` returns (function or module, arguments). `limit`: the ratio that is to be kept."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    limit: float | None = None


@dataclass
class Finding:
    """Seconds of overhead per call, a figure per round; the ratio is (low, middle, high)."""

    name: str
    parameters: int
    modules: int
    graph_inputs: int
    ingot: list[float]
    torch_compile: list[float]
    ratio: tuple[float, float, float]
    limit: float | None


def eight_elements() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x * y + x)

    return function, (torch.randn(8), torch.randn(8))


def gpt2_124m() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return gpt2.gpt2(), (gpt2.encode(gpt2.TEXT)[:, :8],)


def submodules(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A model of so many submodules without parameters."""
    return nn.Sequential(*[nn.ReLU() for _ in range(count)]), (torch.randn(8),)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("8 elements", eight_elements, 0.4),
        Subject("GPT-2 124M", gpt2_124m, 0.3),
        Subject("10 submodules", lambda: submodules(10)),
        Subject("100 submodules", lambda: submodules(100)),
        Subject("1,000 submodules", lambda: submodules(1000), 0.1),
    )
}


class Overhead:
    """The overhead of calling a function that `compile` compiled, beyond that of calling what its
    backend returned."""

    def __init__(
        self,
        compile: Callable[..., Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        expected: Any,
    ) -> None:
        self.targets: list[Callable[..., Any]] = []
        compiled = compile(function, backend=self.backend)
        for _ in range(5):
            torch.testing.assert_close(compiled(*args), expected)
        (target,) = self.targets  # one graph, compiled once
        inputs = (None,) * self.inputs
        self.calls = timeit.Timer(lambda: compiled(*args)), timeit.Timer(lambda: target(*inputs))
        self.numbers = [max(1, round(SAMPLE / (timer.timeit(200) / 200))) for timer in self.calls]

    def backend(self, graph: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        outputs = tuple(graph(*example_inputs))
        self.inputs = len(example_inputs)
        self.targets.append(lambda *inputs: outputs)
        return self.targets[-1]

    def seconds(self) -> float:
        compiled, target = (
            timer.timeit(number) / number for timer, number in zip(self.calls, self.numbers)
        )
        return compiled - target


def measure(subject: Subject, rounds: int) -> Finding:
    """Both compilers in turns, each first in every other round."""
    torch._dynamo.reset()
    function, args = subject.make()
    expected = function(*args)
    peers = [
        Overhead(compile, function, args, expected) for compile in (ingot.compile, torch.compile)
    ]
    seconds: tuple[list[float], list[float]] = [], []
    for turn in range(rounds):
        for peer in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[peer].append(peers[peer].seconds())
    module = function if isinstance(function, nn.Module) else nn.Module()
    return Finding(
        subject.name,
        sum(parameter.numel() for parameter in module.parameters()),
        len(list(module.modules())) - 1,
        peers[0].inputs,
        *seconds,
        ratio_interval(np.array(seconds[0]), np.array(seconds[1])),
        subject.limit,
    )


def forward(function: Callable[..., Any]) -> Callable[[], Any]:
    """A call of the 8-element function that records gradients."""
    x, y = torch.randn(8, requires_grad=True), torch.randn(8)
    return lambda: function(x, y)


def forward_and_backward(function: Callable[..., Any]) -> Callable[[], Any]:
    x, y, gradient = torch.randn(8, requires_grad=True), torch.randn(8), torch.ones(8)

    def step() -> None:
        function(x, y).backward(gradient)
        x.grad = None

    return step


WITH_GRADIENTS = {
    "8 elements, gradients recorded": forward,
    "8 elements and their backward": forward_and_backward,
}


def measure_gradients(name: str, rounds: int) -> Finding:
    """Seconds of whole calls, in turns."""
    torch._dynamo.reset()
    function, _ = eight_elements()
    calls = {}
    for compile in (ingot.compile, torch.compile):
        compiled = compile(function)
        forward_and_backward(compiled)()  # the backward is compiled when it is first asked for
        calls[compile] = timeit.Timer(WITH_GRADIENTS[name](compiled))
    numbers = {
        compile: max(1, round(SAMPLE / (timer.timeit(200) / 200)))
        for compile, timer in calls.items()
    }
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for taken, (compile, timer) in zip(seconds, calls.items()):
            taken.append(timer.timeit(numbers[compile]) / numbers[compile])
    ratio = ratio_interval(np.array(seconds[0]), np.array(seconds[1]))
    return Finding(name, 0, 0, 2, *seconds, ratio, 0.4)


ENTRIES, ENTRIES_LIMIT = 64, 1.3


@dataclass
class Entries:
    """Seconds per call with one entry and with many, a figure per round; the ratio of the latter to
    the former is (low, middle, high)."""

    peer: str
    one: list[float]
    many: list[float]
    ratio: tuple[float, float, float]
    limit: float | None


def sized_calls(compile: Callable[..., Any], count: int) -> timeit.Timer:
    """`ENTRIES` calls that take so many entries in turn."""

    def backend(graph: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        outputs = tuple(graph(*example_inputs))
        return lambda *inputs: outputs

    function, _ = eight_elements()
    compiled = compile(function, backend=backend, dynamic=False)
    calls = [(torch.randn(8 + i), torch.randn(8 + i)) for i in range(count)] * (ENTRIES // count)
    for args in calls:
        torch.testing.assert_close(compiled(*args), function(*args))

    def call() -> None:
        for args in calls:
            compiled(*args)

    return timeit.Timer(call)


def measure_entries(rounds: int) -> list[Entries]:
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 2 * ENTRIES
    found = []
    for peer, compile, limit in (
        ("Ingot", ingot.compile, ENTRIES_LIMIT),
        ("torch.compile", torch.compile, None),
    ):
        timers = sized_calls(compile, 1), sized_calls(compile, ENTRIES)
        number = max(1, round(SAMPLE / (timers[0].timeit(20) / 20)))
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            for taken, timer in zip(seconds, timers):
                taken.append(timer.timeit(number) / number / ENTRIES)
        found.append(
            Entries(
                peer, *seconds, ratio_interval(np.array(seconds[1]), np.array(seconds[0])), limit
            )
        )
    return found


def kept(ratio: tuple[float, float, float], limit: float | None) -> str:
    return "" if limit is None else f"{limit} {'kept' if ratio[1] <= limit else 'missed'}"


def entries_table(found: Sequence[Entries]) -> Table:
    shown = Table(title=f"A call in us, with one entry and with {ENTRIES}")
    shown.add_column("compiled by", no_wrap=True)
    for heading in ("1", str(ENTRIES), "ratio (90%)", "limit"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for peer in found:
        low, middle, high = peer.ratio
        one, many = (f"{statistics.median(seconds) * 1e6:.2f}" for seconds in (peer.one, peer.many))
        shown.add_row(
            peer.peer,
            one,
            many,
            f"{middle:.3f} ({low:.3f}-{high:.3f})",
            kept(peer.ratio, peer.limit),
        )
    return shown


def table(findings: Sequence[Finding]) -> Table:
    shown = Table(
        title=(
            f"Dispatch overhead in us, Python {platform.python_version()}, torch "
            f"{torch.__version__}"
        )
    )
    shown.add_column("call", no_wrap=True)
    for heading in (
        "parameters",
        "modules",
        "inputs",
        "Ingot",
        "torch.compile",
        "ratio (90%)",
        "limit",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for found in findings:
        low, middle, high = found.ratio
        shown.add_row(
            found.name,
            f"{found.parameters:,}",
            f"{found.modules:,}",
            str(found.graph_inputs),
            f"{statistics.median(found.ingot) * 1e6:.2f}",
            f"{statistics.median(found.torch_compile) * 1e6:.2f}",
            f"{middle:.3f} ({low:.3f}-{high:.3f})",
            kept(found.ratio, found.limit),
        )
    return shown


def main(argv: list[str] | None = None) -> int:
    """Measures and prints; the exit status is 1 where a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch", description=__doc__)
    parser.add_argument(
        "--rounds", type=positive, default=60, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument(
        "--only",
        choices=[*SUBJECTS, *WITH_GRADIENTS, "entries"],
        action="append",
        help="one of the calls, or what many entries cost; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    names = arguments.only or [*SUBJECTS, *WITH_GRADIENTS, "entries"]
    findings, entries = [], []
    for name in names:
        if name in WITH_GRADIENTS:
            findings.append(measure_gradients(name, arguments.rounds))
            continue
        with torch.no_grad():
            if name == "entries":
                entries = measure_entries(arguments.rounds)
            else:
                findings.append(measure(SUBJECTS[name], arguments.rounds))
    console = Console(width=None if sys.stdout.isatty() else 120)
    if findings:
        console.print(table(findings))
    if entries:
        console.print(entries_table(entries))
    measured = [*findings, *entries]
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(found) for found in measured]))
    return int(any(found.limit is not None and found.ratio[1] > found.limit for found in measured))


if __name__ == "__main__":
    sys.exit(main())
