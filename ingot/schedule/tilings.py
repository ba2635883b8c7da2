"""Which tilings of a product are worth trying on a GPU. An estimate of what each takes, from bytes,
multiplications and the number of blocks, leaves a handful."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch

from ingot.schedule.blocks import power_of_two
from ingot.schedule.kernel import Tiling

Sizes = tuple[int, int, int, int]
MOST_TRIED = 10
SMALLEST = 16  # rows, columns or steps that tensor cores take
LARGE = 128 * 128  # elements of a tile
REGISTERS = 128  # sums that a thread may hold


class Chip(NamedTuple):
    """What an estimate needs of a device. These are its name, compute capability (90 is 9.0),
    multiprocessors, the most shared memory of a block, and the bytes of its second-level cache."""

    name: str
    capability: int
    multiprocessors: int
    shared: int
    cache: int


# Of one multiprocessor: multiply-adds twice in a nanosecond, of halves by compute capability, and
# of float32.
_HALVES = {80: 2200.0, 86: 1000.0, 89: 1100.0, 90: 6500.0, 100: 13000.0}
_FULL = 250.0
_SLOWDOWN = {"ieee": 0.0, "tf32": 2.0, "tf32x3": 6.5}  # how many times as long as halves
_FED = 40.0  # bytes in a nanosecond that reach a multiprocessor
_LATENCY = 600.0  # nanoseconds until what is asked for is there
_STEP = 60.0  # nanoseconds that a block waits for itself at each step
_START = 1500.0  # nanoseconds of a block beside its steps
_THREADS = 2048
_LANES = 218.0  # instructions of single threads in a nanosecond
_INSTRUCTIONS_OF_STORE, _INSTRUCTIONS = 8, 3  # for each sum, and for each operation on it
_LAUNCH = 2000.0
# bytes in a nanosecond that all multiprocessors write and read in the second-level cache
_CACHED = 3000.0


def tilings(
    sizes: Sizes,
    dtype: torch.dtype,
    chip: Chip,
    precisions: Sequence[str] = ("ieee",),
    work: float = 0.0,
) -> list[tuple[float, Tiling]]:
    """The tilings to try for a product of these sizes (batch, rows, columns, depth), best guess
    first. Each is behind the nanoseconds that it is estimated to take. `precisions` are those that
    products of float32 may have, `work` is how many operations are done with each sum."""
    best: dict[tuple[int, int, int, int, str], list[tuple[float, Tiling]]] = {}
    for tiling in _all(sizes, dtype, chip, precisions):
        # for which the number of warps is a guess as good as any
        few = tiling.rows * tiling.columns < LARGE
        key = (
            tiling.rows,
            tiling.columns,
            tiling.depth,
            0 if few else tiling.warps,
            tiling.precision,
        )
        best.setdefault(key, []).append((estimate(sizes, dtype, chip, tiling, work), tiling))
    return sorted(map(min, best.values()))[:MOST_TRIED]


def after_parts(sizes: Sizes, parts: int) -> float:
    """Nanoseconds of adding up the parts of a product's sums, in a kernel of its own."""
    batch, rows, columns, _ = sizes
    if parts > 1:
        return _LAUNCH + 8 * batch * rows * columns / _CACHED
    return 0.0


def _all(
    sizes: Sizes, dtype: torch.dtype, chip: Chip, precisions: Sequence[str]
) -> Iterator[Tiling]:
    _, rows, columns, depth = sizes
    halves = dtype.itemsize == 2
    heights, widths = (_up_to(size, (16, 32, 64, 128, 256)) for size in (rows, columns))
    steps = _up_to(depth, (32, 64, 128) if halves else (16, 32, 64))
    for precision in ("ieee",) if halves else precisions:
        for y, x, r, stages, warps in product(heights, widths, steps, (2, 3, 4, 5), (2, 4, 8)):
            tiling = Tiling(y, x, r, stages, warps, precision=precision)
            if _fits(tiling, dtype, chip) and stages - 1 <= -(-depth // r):
                yield tiling


def _up_to(size: int, lengths: Sequence[int]) -> list[int]:
    """The lengths that a size fills at least by half."""
    return [n for n in lengths if n <= power_of_two(size)] or [SMALLEST]


def _fits(tiling: Tiling, dtype: torch.dtype, chip: Chip) -> bool:
    sums = tiling.rows * tiling.columns // (32 * tiling.warps)
    if dtype.itemsize == 2:
        most = REGISTERS
    else:
        most = REGISTERS // 2
    return 4 <= sums <= most and _shared(tiling, dtype) <= chip.shared


def _shared(tiling: Tiling, dtype: torch.dtype) -> int:
    return tiling.stages * (tiling.rows + tiling.columns) * tiling.depth * dtype.itemsize


def estimate(
    sizes: Sizes, dtype: torch.dtype, chip: Chip, tiling: Tiling, work: float = 0.0
) -> float:
    """Nanoseconds of a product with `work` for each sum, roughly: enough to compare."""
    batch, rows, columns, depth = sizes
    blocks = batch * -(-rows // tiling.rows) * -(-columns // tiling.columns)
    steps = -(-depth // tiling.depth)
    sums = tiling.rows * tiling.columns // (32 * tiling.warps)
    threads = 32 * tiling.warps
    fitting = min(
        chip.shared // _shared(tiling, dtype),
        _THREADS // threads,
        65536 // (threads * min(255, sums + 64)),
    )
    each = -(-blocks // chip.multiprocessors)
    resident = max(1, min(fitting, each))
    products = 2 * tiling.rows * tiling.columns * tiling.depth
    # what is used how often
    square = min(1.0, tiling.rows * tiling.columns / (tiling.rows + tiling.columns) / 64)
    slower = 1.0
    if dtype is torch.float32:
        slower = _SLOWDOWN[tiling.precision]
    if slower:
        rate = _halves(chip) / slower * square
    else:
        rate = _FULL * min(1.0, 2 * square)
    rate *= min(1.0, resident * tiling.warps / 4)  # each tensor core serves one warp
    fed = (tiling.rows + tiling.columns) * tiling.depth * dtype.itemsize / _FED
    step = (
        max(resident * products / rate, resident * fed, _LATENCY / (tiling.stages - 1))
        + resident * _STEP
    )
    step *= 1 + 0.3 / tiling.stages**2  # what is late now and then
    finish = tiling.rows * tiling.columns * (_INSTRUCTIONS_OF_STORE + _INSTRUCTIONS * work) / _LANES
    finish *= resident / min(1.0, resident * tiling.warps / 8)
    return -(-each // resident) * (steps * step + _START + finish)


def _halves(chip: Chip) -> float:
    known = []
    for arch in _HALVES:
        if arch <= chip.capability:
            known.append(arch)
    if known:
        return _HALVES[max(known)]
    return 500.0
