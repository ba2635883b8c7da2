"""What functions of single elements cost in Ingot's kernels and in eager's: `python -m
benchmarks.costs [NAME ...]`.

Prints the table of `ingot.loops.lowering.cost`, from which it is predicted where eager's kernel is
called. With `--calls`, the microseconds of whole calls over several sizes (ours/eager's), against
which tests hold the predictions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import torch
from torch.nn import functional as F

import ingot
from benchmarks.sweep import DOMAIN, UNARY, short, values
from ingot.explain import measure
from ingot.explain.cli import positive
from ingot.loops.lowering import cost

NAMES = (
    *(name for name in UNARY if name not in ("silu", "softplus", "mish", "square")),
    "acos",
    "cosh",
    "asinh",
)
# elements, of a call that does nothing else and of one that does little else
FEW, MANY = 1 << 6, 1 << 16
SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 20)


def seconds(name: str, dtype: torch.dtype, elements: int, rounds: int) -> tuple[float, float]:
    """(Ingot's, eager's) seconds of a call."""
    function = getattr(torch, name, None) or getattr(F, name)
    x = DOMAIN.get("asin" if name == "acos" else name, lambda x: x)(values(elements, dtype=dtype))
    ingot.reset()
    compiled = ingot.compile(lambda x: function(x))
    calls = {"ours": lambda: compiled(x), "eager": lambda: function(x)}
    found = measure.interleave(calls, rounds, torch.device("cpu"))
    return statistics.median(found["ours"].tolist()), statistics.median(found["eager"].tolist())


def per_element(name: str, dtype: torch.dtype, rounds: int) -> str:
    """Nanoseconds of a call of eager's, and picoseconds per element, ours and eager's: as
    "900:40/50"."""
    whole, call = seconds(name, dtype, MANY, rounds), seconds(name, dtype, FEW, rounds)
    each = "/".join(str(max(1, round((a - b) / MANY * 1e12))) for a, b in zip(whole, call))
    return f"{round(call[1] * 1e7) * 100}:{each}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=NAMES,
        help="some of the functions; all of them if none is named",
    )
    parser.add_argument(
        "--rounds", type=positive, default=11, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument("--calls", action="store_true", help="whole calls over several sizes")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no function {', '.join(sorted(unknown))}")
    cost.FUNCTIONS.clear()  # kernels of Ingot's are measured everywhere
    torch.manual_seed(0)
    with torch.no_grad():
        for name in arguments.names:
            if not arguments.calls:
                figures = (per_element(name, dtype, arguments.rounds) for dtype in cost.DTYPES)
                print(f"{name:10}", *(f"{figure:>15}" for figure in figures), flush=True)
                continue
            for dtype in cost.DTYPES:
                found = (seconds(name, dtype, n, arguments.rounds) for n in SIZES)
                calls = (f"{a * 1e6:8.1f}/{b * 1e6:.1f}" for a, b in found)
                print(f"{name:10} {short(dtype):9}", *calls, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
