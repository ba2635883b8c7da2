"""Products of few rows on a GPU, one at a time: Ingot's kernels in many blocks beside the library.

    python -m benchmarks.few_rows [--rows 1 32] [--shapes 2048x8192 gated:2048x8192 ...]
        [--seconds 200]

A shape is the depth by the columns of a product of bfloat16; `gated` has two of them, between a
norm of the row and a gate, and `added` has something added to it. For each there is a line for a
kernel that reads as many bytes and no more, for the library's calls, for sums of a row (of one
row), and for products by tensor cores, in different blocks. The columns are us of the device's work
as torch's profiler sees it, the rate of the weights, that rate beside the best one of a read, and
the relative error. Weights are in no cache. `chosen` marks the blocks of the default mode.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, fx

from benchmarks.decode import device_work
from ingot import rules
from ingot.codegen.triton import supported, write_kernel
from ingot.codegen.triton.forms import general_form
from ingot.codegen.triton.kernel import TritonKernel
from ingot.codegen.triton.translation import load
from ingot.explain.cli import positive
from ingot.graph import FakeContext, trace
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.runtime.measuring import chip_of
from ingot.schedule import schedule
from ingot.schedule.blocks import Blocks, choose_blocks, power_of_two
from ingot.schedule.few_rows import FewRows, tilings
from ingot.schedule.kernel import Kernel, Tiling
from ingot.schedule.plan import KernelStep, Plan
from ingot.schedule.templates import Choice, Site
from ingot.schedule.tilings import Chip

SHAPES = (
    "2048x2048 2048x512 2048x8192 gated:2048x8192 8192x2048 added:8192x2048 4096x4096 4096x14336"
    " 14336x4096 2048x128256"
).split()
CALLS = 12  # of one measurement
COLD = 1 << 28  # bytes that calls take their weights from, in turns


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def added(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight) + x[:, : weight.shape[0]]


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    wide = x.float()
    x = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


PROGRAMS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "linear": (linear, 1),
    "added": (added, 1),
    "gated": (gated, 2),
}
"""Functions of a row and of so many weights."""


class Shape(NamedTuple):
    """A program, and its sizes."""

    program: str
    rows: int
    depth: int
    columns: int

    @property
    def weights(self) -> int:
        return PROGRAMS[self.program][1]

    @property
    def bytes(self) -> int:
        return self.weights * self.depth * self.columns * 2

    def __str__(self) -> str:
        sizes = f"M={self.rows} K={self.depth} N={self.columns}"
        return f"{self.program} {sizes} {self.bytes / 1e6:.1f} MB"


class Way(NamedTuple):
    """How a program is computed: its name, and the call for weights."""

    name: str
    call: Callable[..., Any]


# -- what Ingot writes -----------------------------------------------------------------------------


def plan_of(shape: Shape, device: torch.device, choose: Any) -> Plan:
    """The plan of a program."""
    graph = fx.Graph()
    places = tuple(graph.placeholder(f"x{k}") for k in range(1 + shape.weights))
    graph.output(graph.call_function(PROGRAMS[shape.program][0], places))
    context = FakeContext()
    sizes = [(shape.rows, shape.depth), *[(shape.columns, shape.depth)] * shape.weights]
    fakes = []
    for size in sizes:
        fakes.append(context.fake(torch.empty(size, dtype=torch.bfloat16, device=device)))
    with torch.no_grad():
        aten = trace(fx.GraphModule(torch.nn.Module(), graph), fakes, context)
    return schedule(lower(aten, supported, target=GPU), target=GPU, choose=choose)


def tiled(shape: Shape, device: torch.device, tiling: Tiling) -> Plan:
    """The plan where products are kernels of a tiling."""

    def choose(sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
        return [(site.forms[0], tiling) for site in sites]

    return plan_of(shape, device, choose)


_loaded: dict[Any, Any] = {}


class Steps:
    """A plan's launches, in order; `blocks` are those of the largest kernel, if they are said."""

    def __init__(self, plan: Plan, x: Tensor, blocks: Blocks | None) -> None:
        self.x, self.plan = x, plan
        self.buffers: dict[str, Tensor] = {}
        self.steps: list[tuple[KernelStep, TritonKernel]] = []
        kernels = [step for step in plan.steps if isinstance(step, KernelStep)]
        if len(kernels) < len(plan.steps):
            raise ValueError("a library's call")
        largest = max(kernels, key=lambda step: len(step.arguments))
        for step in kernels:
            assert isinstance(step.kernel, Kernel)
            form = general_form(step.kernel)
            if blocks is not None and step is largest:
                form = replace(form, blocks=blocks)
            self.steps.append((step, write_kernel(step.kernel, form)))

    def __call__(self, *weights: Tensor) -> Tensor:
        given = dict(zip(self.plan.graph.inputs, (self.x, *weights)))
        for step, written in self.steps:
            tensors = [given[n] if n in given else self._buffer(n) for n in step.arguments]
            key = written.source
            if key not in _loaded:
                _loaded[key] = load(written.name, written.source)
            options: dict[str, Any] = {"num_warps": written.warps, "enable_fp_fusion": False}
            if written.stages:
                options["num_stages"] = written.stages
            grid = (written.grid.constant,)
            _loaded[key][grid](*tensors, **dict(written.constants), **options)
        (output,) = self.plan.graph.outputs
        return self._buffer(output.buffer).view(len(self.x), -1)  # type: ignore[union-attr]

    def _buffer(self, name: str) -> Tensor:
        if name not in self.buffers:
            buffer = self.plan.graph.buffers[name]
            size = buffer.length.constant or 0
            self.buffers[name] = torch.empty(size, dtype=buffer.dtype, device=self.x.device)
        return self.buffers[name]


def row_blocks(depth: int) -> Iterator[Blocks]:
    """Blocks that take whole rows of weights, and steps of some of them."""
    width = power_of_two(depth)
    for points, warps in product((1, 2, 4, 8), (1, 2, 4, 8, 16)):
        elements = points * width // (32 * warps)
        if 8 <= elements <= 64:
            yield Blocks(points, width, warps=warps)
    for points, inner, warps in (
        (1, 1024, 4), (2, 1024, 4), (4, 512, 4), (4, 1024, 4), (8, 512, 4), (4, 1024, 8),
        (8, 1024, 8), (16, 256, 4), (8, 256, 2), (4, 2048, 8), (1, 2048, 4), (2, 2048, 4),
    ):  # fmt: skip
        if inner < depth:
            yield Blocks(points, inner, persistent=False, warps=warps)


def ways(shape: Shape, x: Tensor, chip: Chip) -> Iterator[Way]:
    """The library, and Ingot's kernels."""
    yield Way("library", partial(PROGRAMS[shape.program][0], x))
    choose = FewRows(chip)
    plan = plan_of(shape, x.device, choose)
    usual = None
    for step in plan.steps:
        if isinstance(step, KernelStep) and isinstance(step.kernel, Kernel):
            if step.kernel.product is None:
                usual = choose_blocks(step.kernel)
    for blocks in row_blocks(shape.depth) if shape.rows == 1 and usual else ():
        kind = "whole" if blocks.persistent else "steps"
        mark = " chosen" if blocks == usual else ""
        name = f"rows {kind} {blocks.points}x{blocks.inner}, {blocks.warps} warps{mark}"
        yield Way(name, Steps(plan, x, blocks))
    if shape.rows == 1:
        return
    for tiling in tilings((1, shape.rows, shape.columns, shape.depth), 2, chip):
        if tiling.stages not in (3, 6):
            mark = " chosen" if str(tiling) in str(choose.notes) else ""
            steps = Steps(tiled(shape, x.device, tiling), x, None)
            yield Way(f"tiles {tiling}{mark}", steps)


# -- what is measured ------------------------------------------------------------------------------


@triton.jit
def read(weight, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Reads as many bytes as a product, and no more."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(weight + at).to(tl.float32)
    total = tl.sum(value, 0)
    if total == 12345.678:
        tl.store(out, total)


def read_only(out: Tensor, block: int, warps: int, *weights: Tensor) -> None:
    size = sum(w.numel() for w in weights)
    read[(size // block,)](weights[0], out, BLOCK=block, num_warps=warps)


def microseconds(of: Way, weights: Sequence[Sequence[Tensor]]) -> float:
    """Of the device's work in one call; the median of some calls."""
    for k in range(2):
        of.call(*weights[k % len(weights)])

    def calls() -> None:
        for k in range(CALLS):
            of.call(*weights[k % len(weights)])

    events = device_work(calls, 1)
    each = len(events) // CALLS
    times = []
    for k in range(CALLS):
        times.append(sum(e.device_time for e in events[k * each : (k + 1) * each]))
    return statistics.median(times)


def measure(shape: Shape, until: float) -> None:
    torch.manual_seed(0)
    kind: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    x = torch.randn(shape.rows, shape.depth, **kind)
    count = max(2, min(16, COLD // shape.bytes))
    weights = []
    for _ in range(count):  # side by side, so that a read may go over both
        size = shape.weights, shape.columns, shape.depth
        weights.append(list(torch.randn(size, **kind) / shape.depth**0.5))
    function = PROGRAMS[shape.program][0]
    expected = function(x.double(), *[w.double() for w in weights[0]])
    out, best = torch.empty(1, device="cuda"), 0.0
    for block, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 8)):
        reader = Way("", partial(read_only, out, block, warps))
        best = max(best, shape.bytes / microseconds(reader, weights))
    print(f"{shape}: a read takes {shape.bytes / best:.2f} us, {best / 1e6:.2f} TB/s", flush=True)
    results = []
    for each in ways(shape, x, chip_of(x.device)):
        if time.monotonic() > until:
            print("out of time")
            break
        try:
            found = each.call(*weights[0]).double()
            error = float((found - expected).norm() / expected.norm())
            results.append((microseconds(each, weights), each.name, error))
        except Exception as problem:
            print(f"  {each.name}: {type(problem).__name__} {str(problem)[:80]}", flush=True)
    for took, name, error in sorted(results):
        rate = shape.bytes / took
        print(f"  {name:44} {took:8.2f} us {rate / 1e6:5.2f} TB/s {rate / best:5.2f} {error:.1e}")
    print(flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_rows", description=__doc__)
    parser.add_argument("--rows", nargs="+", type=positive, default=[1, 32])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--seconds", type=positive, default=200)
    arguments = parser.parse_args(argv)
    rules.hand_over()
    until = time.monotonic() + arguments.seconds
    for rows in arguments.rows:
        for text in arguments.shapes:
            program, _, sizes = text.rpartition(":")
            shape = Shape(program or "linear", rows, *map(int, sizes.split("x")))
            if time.monotonic() < until:
                measure(shape, until)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
