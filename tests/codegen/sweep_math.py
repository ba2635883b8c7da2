"""Vector math against eager and float64 over a function's whole float32 range.

`python -m tests.codegen.sweep_math [--every N] [--only NAME ...]` tries every N-th bit pattern of a
float (256 where nothing is said), the neighbours of each power of two and of points where functions
change their ways, and for functions of two arguments all pairs of special values and random pairs
of several kinds. Errors are in units in the last place of the exact result (float64, by eager). A
function passes if it is nowhere further off than eager plus one unit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler

UNARY: dict[str, Callable[..., Tensor]] = {
    f.__name__: f
    for f in (
        torch.exp, torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p,
        torch.sin, torch.cos, torch.tan, torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh,
        torch.tanh, torch.asinh, torch.acosh, torch.atanh, torch.erf, torch.erfc, torch.erfinv,
        torch.lgamma, torch.digamma, torch.sqrt, torch.rsqrt,
        torch.reciprocal, torch.sigmoid, torch.logit, F.softplus,
    )
}  # fmt: skip
UNARY["cube root"] = lambda x: x.pow(0.3333333432674408)  # 1/3 as a float
BINARY: dict[str, Callable[..., Tensor]] = {
    f.__name__: f
    for f in (torch.pow, torch.atan2, torch.hypot, torch.remainder, torch.fmod, torch.floor_divide)
}

TURNS = (
    0.0, 1e-40, 2e-38, 2.0**-12, 0.1, 0.25, 0.375, 0.4142135, 0.42, 0.47, 0.5, 0.625, 0.7,
    0.70710678, 0.75, 0.7853982, 0.84, 0.845, 0.85, 0.95, 1.0, 1.4142135, 1.4616321, 1.5, 1.5707964,
    2.0, 2.4142135, 2.5, 3.0, 3.1415927, 3.95, 4.0, 6.0, 6.2831855, 8.5, 9.1, 10.0, 15.0, 17.0,
    18.0, 20.0, 27.5, 28.0, 33.0, 40.0, 64.0, 87.33654, 88.02969, 88.72284, 12.0, 89.41598,
    103.27893, 103.97208, 127.0, 128.0, 149.0, 150.0, 2.0**20, 2.0**23, 2.0**24, 2.0**28, 2.0**30,
    2.0**31, 2.0**63, 1.8446744e19, 4.0850034e36, 3.4028235e38,
)  # fmt: skip
EDGES = (
    0.0, 1e-45, 1.17549435e-38, 1e-20, 1e-4, 0.25, 0.5, 1.0 - 2.0**-24, 1.0, 1.0 + 2.0**-23, 1.5,
    2.0, 3.0, 7.0, 10.0, 64.0, 87.0, 89.0, 127.0, 128.0, 1e5, 8388607.0, 8388608.5, 16777215.0,
    16777216.0, 1e20, 3.4028235e38, float("inf"),
    float("nan"),
)  # fmt: skip
CHUNK = 1 << 22


class Worst(NamedTuple):
    """A largest error, in units in the last place, and where it is."""

    error: float = 0.0
    at: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.error:.4g} at {', '.join(f'{x:.9g}' for x in self.at)}"


class Found(NamedTuple):
    """What a sweep of one function found. `excess` is the largest of Ingot's error less eager's
    thereabouts, `zeros` how many zeros have the other sign."""

    ingot: Worst
    eager: Worst
    excess: Worst
    zeros: int
    is_native: bool

    @property
    def passes(self) -> bool:
        return self.excess.error <= 1.0 and not self.zeros


def bit_patterns(every: int, start: int = 0) -> Iterator[Tensor]:
    """Every so many-th float, in chunks."""
    for first in range(-(2**31) + start, 2**31, every * CHUNK):
        yield (
            torch.arange(first, min(first + every * CHUNK, 2**31), every)
            .to(torch.int32)
            .view(torch.float32)
        )


def neighbours(points: Sequence[float], count: int) -> Tensor:
    """So many floats on either side of some points and of their negatives."""
    centers = torch.tensor(points, dtype=torch.float32).view(torch.int32)
    near = (centers[:, None] + torch.arange(-count, count + 1, dtype=torch.int32)).flatten()
    near = near.clamp(0, 0x7F800001)
    return torch.cat([near, near | -(2**31)]).view(torch.float32)


def single_arguments(every: int, start: int = 0, near: int = 300) -> Iterator[tuple[Tensor, ...]]:
    """The arguments for functions of one."""
    yield (neighbours([*TURNS, *(2.0**k for k in range(-149, 128))], near),)
    for chunk in bit_patterns(every, start):
        yield (chunk,)


def pairs(count: int, seed: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """The arguments for functions of two: all pairs of edges, and random ones."""
    edges = torch.tensor([*EDGES, *(-x for x in EDGES)])
    both = torch.cartesian_prod(edges, edges)
    yield both[:, 0].contiguous(), both[:, 1].contiguous()
    generator = torch.Generator().manual_seed(seed)

    def bits() -> Tensor:
        return (
            torch.randint(-(2**31), 2**31, (count,), generator=generator)
            .to(torch.int32)
            .view(torch.float32)
        )

    def normal(scale: float) -> Tensor:
        return torch.randn(count, generator=generator) * scale

    def whole(limit: int) -> Tensor:
        return torch.randint(-limit, limit, (count,), generator=generator).float()

    yield bits(), bits()
    yield normal(1.0), normal(1.0)
    yield normal(30.0), normal(3.0)
    yield normal(1.0).abs(), normal(30.0)
    yield 1 + normal(1e-4), normal(1e4)
    yield whole(2**24), whole(1000)
    yield normal(1e3), whole(20)
    near = normal(1.0)
    yield near, near * (1 + normal(1e-6))
    yield bits(), normal(1.0)
    yield near * whole(2**20), near
    yield normal(1.0), bits()


def units(found: Tensor, exact: Tensor) -> Tensor:
    """The distance of float32 results from float64 ones, in units in the last place; infinity
    counts as 2**128."""
    limit = 2.0**128
    value, truth = found.double().clamp(-limit, limit), exact.clamp(-limit, limit)
    exponent = torch.where(truth == 0, -125, torch.frexp(truth).exponent).clamp(-125, 128)
    error = (value - truth).abs() * torch.ldexp(torch.ones_like(truth), 24 - exponent)
    undefined = found.isnan() | exact.isnan()
    return torch.where(undefined, torch.where(found.isnan() & exact.isnan(), 0.0, torch.inf), error)


def _worse(worst: Worst, errors: Tensor, arguments: tuple[Tensor, ...]) -> Worst:
    position = int(errors.argmax())
    if float(errors[position]) <= worst.error:
        return worst
    return Worst(float(errors[position]), tuple(float(x[position]) for x in arguments))


def _locally(errors: Tensor, count: int) -> Tensor:
    """The largest error among so many consecutive arguments, for each of them: eager may be right
    by luck at one."""
    padded = F.pad(errors, (0, -len(errors) % count))
    return padded.view(-1, count).amax(1, keepdim=True).expand(-1, count).flatten()[: len(errors)]


def sweep(function: Callable[..., Tensor], chunks: Iterator[tuple[Tensor, ...]]) -> Found:
    """Compare a function, compiled and in eager, with float64."""
    compiled = ingot.compile(lambda *args: function(*args), dynamic=True)
    ours, eagers, excess, zeros = Worst(), Worst(), Worst(), 0
    with torch.no_grad():
        for arguments in chunks:
            found, eager = compiled(*arguments), function(*arguments)
            exact = function(*(x.double() for x in arguments))
            around = 64 if len(arguments) == 1 else 4096  # pairs are in no order
            error, its = units(found, exact), units(eager, exact)
            ours, eagers = _worse(ours, error, arguments), _worse(eagers, its, arguments)
            more = torch.where(error == its, 0.0, error - _locally(its, around)).nan_to_num(
                torch.inf
            )
            excess = _worse(excess, more, arguments)
            zeros += int(((found == 0) & (eager == 0) & (found.signbit() != eager.signbit())).sum())
    program: Any = Compiler.of(compiled).compilations[-1]  # type: ignore[union-attr]
    is_native = program.log.plan is not None and len(program.log.plan.kernels) == len(
        program.log.plan.steps
    )
    return Found(ours, eagers, excess, zeros, is_native)


def main(arguments: Sequence[str]) -> int:
    """Sweep and print; the exit status is 1 where a function fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--every", type=int, default=256, help="which bit patterns (default: every 256th)"
    )
    parser.add_argument(
        "--pairs", type=int, default=1 << 20, help="how many random pairs of each kind"
    )
    parser.add_argument("--only", nargs="*", help="the functions")
    given = parser.parse_args(arguments)
    failed = 0
    for name, function in (UNARY | BINARY).items():
        if given.only and name not in given.only:
            continue
        found = sweep(
            function, single_arguments(given.every) if name in UNARY else pairs(given.pairs)
        )
        failed += not found.passes
        verdict = ("ok" if found.passes else "FAILS") + ("" if found.is_native else " (ATen)")
        print(
            f"{name:14} {verdict:6} Ingot {found.ingot}; eager {found.eager}; more {found.excess}",
            flush=True,
        )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
