"""`python -m benchmarks.endurance`: calls without end must leak nothing.

Each scenario makes the same call many times over. After a tenth of the calls the clock starts: from
there on the resident memory, the memory blocks that Python has handed out, the objects that its
collector tracks (frames among them), and the references to the arguments, the function, its code
and what it uses must stay as they are.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.explain.cli import positive

Call = Callable[[], Any]
Scenario = Callable[[], tuple[Call, list[Any]]]
"""Gives the call, and what it uses: objects whose reference counts must stay."""

SCENARIOS: dict[str, Scenario] = {}
MOST_BLOCKS = 200  # of Python's memory, that come and go on their own
MOST_BYTES = 4 << 20  # of resident memory, likewise: a million of the smallest blocks are 16 MiB


def scenario(make: Scenario) -> Scenario:
    SCENARIOS[make.__name__] = make
    return make


def compiled_call(
    function: Callable[..., Any], *args: Any, **options: Any
) -> tuple[Call, list[Any]]:
    compiled = ingot.compile(function, **options)
    code = getattr(function, "__code__", None)
    return lambda: compiled(*args), [
        compiled,
        function,
        code,
        *args,
        *Compiler.of(compiled).dispatcher.entries(),
    ]


@scenario
def tensors() -> tuple[Call, list[Any]]:
    """A graph of two inputs."""
    return compiled_call(lambda x, y: torch.relu(x * y + x), torch.randn(8), torch.randn(8))


@scenario
def structures() -> tuple[Call, list[Any]]:
    """Arguments and results of nested containers, keywords, views of the arguments."""

    def function(batch: dict[str, Any], *more: Tensor, scale: float = 2.0) -> Any:
        x = batch["x"] * scale
        return {"x": x, "pair": (x + 1, more[0][1:]), "list": [batch["x"], None, 3]}

    compiled = ingot.compile(function)
    x, y = torch.randn(8), torch.randn(8)
    return lambda: compiled({"x": x}, y, scale=3.0), [compiled, function, function.__code__, x, y]


@scenario
def module() -> tuple[Call, list[Any]]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    call, used = compiled_call(model, torch.randn(2, 4))
    return call, [*used, *model.parameters(), *model, *[child._parameters for child in model]]


@scenario
def changing_module() -> tuple[Call, list[Any]]:
    """A module that is changed, in what matters and in what does not, between calls."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    compiled, x = ingot.compile(model), torch.randn(2, 4)

    def call() -> None:
        model.count = getattr(model, "count", 0) + 1
        model[0].weight.data = torch.ones(4, 4)
        model.train(model.count % 2 == 0)
        compiled(x)

    return call, [compiled, x, model, *model, *model.parameters()]


@scenario
def custom_backend() -> tuple[Call, list[Any]]:
    x = torch.randn(8)
    outputs = (x + 1,)
    return compiled_call(lambda x: x + 1, x, backend=lambda graph, inputs: lambda *inputs: outputs)


@scenario
def eager_entry() -> tuple[Call, list[Any]]:
    """Left to eager, for the result would require a gradient."""
    weight = torch.randn(8, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return x * weight

    call, used = compiled_call(function, torch.randn(8))

    def with_gradient() -> Any:
        with torch.enable_grad():
            return call()

    return with_gradient, [*used, weight]


@scenario
def graph_break() -> tuple[Call, list[Any]]:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y * x

    return compiled_call(function, torch.ones(8))


@scenario
def deep_break() -> tuple[Call, list[Any]]:
    """A break in an inlined call within a loop within a `with`."""

    def helper(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(2):
                x = helper(x * 0.5)
        return x * 2

    return compiled_call(function, torch.ones(8))


@scenario
def effects() -> tuple[Call, list[Any]]:
    """A list, a dict and an attribute that existed before the call are changed."""
    seen: list[Any] = []
    table: dict[str, Any] = {}
    owner = type("Owner", (), {})()

    def function(x: Tensor) -> Tensor:
        seen.append(x * 2)
        table["last"] = x + 1
        owner.last = x - 1
        return x * 3

    call, used = compiled_call(function, torch.ones(8))

    def cleared() -> Any:
        result = call()
        seen.clear()
        return result

    return cleared, [*used, seen, table, owner]


@scenario
def raised_error() -> tuple[Call, list[Any]]:
    def function(x: Tensor, flag: bool) -> Tensor:
        y = x * 2
        if flag:
            raise ValueError("flag")
        return y

    call, used = compiled_call(function, torch.ones(8), True)

    def caught() -> None:
        with suppress(ValueError):
            call()

    return caught, used


@scenario
def generator() -> tuple[Call, list[Any]]:
    def function(x: Tensor) -> Tensor:
        return sum((x * i for i in range(3)), start=x)

    return compiled_call(function, torch.ones(8))


@scenario
def many_variants() -> tuple[Call, list[Any]]:
    """Entries that take turns."""
    compiled = ingot.compile(lambda x: x * 2)
    tensors = [torch.ones(size) for size in range(2, 10)]
    calls = [0]

    def call() -> Any:
        calls[0] = (calls[0] + 1) % 8
        return compiled(tensors[calls[0]])

    return call, [compiled, *tensors]


@scenario
def too_many_variants() -> tuple[Call, list[Any]]:
    """More than are kept: what has no entry runs in eager."""
    compiled = ingot.compile(lambda x, k: x * k, backend="eager")
    x = torch.ones(8)
    for k in range(Compiler.max_entries + 1):
        compiled(x, str(k) and k)
    return lambda: compiled(x, -1), [compiled, x]


# -- measuring -------------------------------------------------------------------------------------


@dataclass
class Finding:
    """What a scenario left behind. `references`: by how much the most changed reference count
    did."""

    name: str
    calls: int
    seconds: float
    resident: int
    blocks: int
    objects: int
    references: int

    @property
    def leaks(self) -> bool:
        """Less than a reference, an object or a block in ten calls may come from elsewhere; more is
        a leak."""
        allowed = min(MOST_BLOCKS, self.calls // 10)
        return (
            self.resident > MOST_BYTES
            or max(self.blocks, self.objects, abs(self.references)) > allowed
        )


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0


def state(used: list[Any]) -> tuple[int, int, int, list[int]]:
    gc.collect()
    return (
        resident_bytes(),
        sys.getallocatedblocks(),
        len(gc.get_objects()),
        [sys.getrefcount(one) for one in used],
    )


@contextmanager
def quiet() -> Any:
    """Without what is logged once, of variants that are too many."""
    logger = logging.getLogger("ingot")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def measure(name: str, calls: int) -> Finding:
    with torch.no_grad(), quiet():
        call, used = SCENARIOS[name]()
        for _ in range(max(calls // 10, 300)):
            call()
        state(used)
        before = state(used)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - start
        after = state(used)
    references = max((b - a for a, b in zip(before[3], after[3])), key=abs, default=0)
    differences = (after[0] - before[0], after[1] - before[1], after[2] - before[2])
    return Finding(name, calls, seconds, *differences, references)


def main(argv: list[str] | None = None) -> int:
    """Measures and prints; the exit status is 1 where something leaks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__)
    parser.add_argument(
        "--calls", type=positive, default=1_000_000, help="calls per scenario (%(default)s)"
    )
    parser.add_argument(
        "--only", choices=SCENARIOS, action="append", help="one of the scenarios; may be repeated"
    )
    arguments = parser.parse_args(argv)
    table = Table(title=f"What {arguments.calls:,} calls leave behind")
    table.add_column("scenario")
    for heading in ("us a call", "resident, KiB", "blocks", "objects", "references", ""):
        table.add_column(heading, justify="right")
    findings = []
    for name in arguments.only or SCENARIOS:
        found = measure(name, arguments.calls)
        findings.append(found)
        figures = (found.resident // 1024, found.blocks, found.objects, found.references)
        microseconds = f"{found.seconds / found.calls * 1e6:.2f}"
        table.add_row(name, microseconds, *map(str, figures), "leaks" if found.leaks else "")
        print(f"{name}: {found}", file=sys.stderr)
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    return int(any(found.leaks for found in findings))


if __name__ == "__main__":
    sys.exit(main())
