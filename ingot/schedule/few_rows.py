"""Products of a few rows on a GPU, as when tokens are decoded: they read a weight, and do little
else. A kernel of ours computes what comes next on its sums, where an estimate says that this takes
less than the library's call and the kernel behind it.

`FewRows` chooses as `schedule.templates.Choose`, without measuring anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch

from ingot.loops.expr import ONE
from ingot.loops.ir import Contraction
from ingot.schedule.blocks import power_of_two
from ingot.schedule.kernel import Tiling
from ingot.schedule.plan import Plan
from ingot.schedule.templates import Choice, Form, Site
from ingot.schedule.tilings import SMALLEST, Chip, Sizes

MOST_ROWS = 64
SMALL = 1 << 20  # bytes of a weight that is read in no time
LARGE = 1 << 27  # ... and of one that libraries read as fast as any kernel
MARGIN = 0.95  # of the library's estimated time that a kernel may take

# Of an H200: bytes in a nanosecond that all multiprocessors read from memory and from the
# second-level cache, and one of them; nanoseconds until what is asked for is there, of a kernel
# beside its reads, and of one that follows.
_MEMORY, _CACHE, _ONE = 4100.0, 5500.0, 50.0
_LATENCY, _START, _KERNEL = 900.0, 1800.0, 1500.0
# The library's calls were measured there with 1 to 64 rows, us: 2 MiB 5.3, 8 MiB 5.6 to 5.8, 32 MiB
# 10.6 to 13.0, and 13.9 where the depth is larger than the columns, 501 MiB 125 to 134.
_LIBRARY_START, _LIBRARY_MEMORY = 4000.0, 3700.0
_HALVES = (torch.float16, torch.bfloat16)


class FewRows:
    """The choices for a program on a device; `notes` has a line for each kernel."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.notes: list[str] = []

    def __call__(self, sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
        return list(map(self._choose, sites))

    def _choose(self, site: Site) -> Choice:
        form = site.forms[0]
        batch, rows, columns, depth = form.sizes
        size = columns * depth * site.dtype.itemsize
        if batch != 1 or rows > MOST_ROWS or site.dtype not in _HALVES or not _streams(form, site):
            return None
        if not SMALL <= size <= LARGE:
            return None
        guesses = []
        for tiling in tilings(form.sizes, site.dtype.itemsize, self.chip):
            time = estimate(form.sizes, site.dtype.itemsize, self.chip, tiling)
            guesses.append((round(time), -tiling.columns, -tiling.stages, tiling))
        time, *_, tiling = min(guesses)  # of equal ones that with the fewest, longest blocks
        library = _LIBRARY_START + size / _LIBRARY_MEMORY
        library += _KERNEL * (len(form.positions) - 1)
        if time > MARGIN * library:
            return None
        self.notes.append(f"{site.title} at {site.where}: a kernel, {tiling}")
        return form, tiling


def _streams(form: Form, site: Site) -> bool:
    """Whether the right operand is a weight that lies in memory, row by row of columns or of
    steps."""
    contraction = form.groups[0].members[0]
    assert isinstance(contraction, Contraction)
    right = contraction.right
    if right.buffer not in site.outside or len(contraction.reduced) != 1:
        return False
    return ONE in map(right.index.step, (*contraction.columns, *contraction.reduced))


def tilings(sizes: Sizes, itemsize: int, chip: Chip) -> Iterator[Tiling]:
    """Those that fit a device."""
    _, rows, columns, depth = sizes
    height = power_of_two(max(SMALLEST, rows))
    for width, steps, stages in product((16, 32, 64, 128), (64, 128, 256), (3, 4, 5, 6)):
        shared = stages * (height + width) * steps * itemsize
        if steps <= depth and shared <= chip.shared // 2 and stages - 1 <= depth // steps:
            yield Tiling(height, width, steps, stages, 8 if height * width >= 8192 else 4)
    if depth < 128:
        yield Tiling(height, SMALLEST, SMALLEST, 2, 4)


def estimate(sizes: Sizes, itemsize: int, chip: Chip, tiling: Tiling) -> float:
    """Nanoseconds of a product whose right operand comes from memory.

    What is on its way to a multiprocessor says how fast this reads; that with the most blocks is
    the last to end.
    """
    _, rows, columns, depth = sizes
    blocks = math.ceil(columns / tiling.columns)
    shared = tiling.stages * (tiling.rows + tiling.columns) * tiling.depth * itemsize
    fitting = max(1, min(chip.shared // shared, 2048 // (32 * tiling.warps)))
    most = math.ceil(blocks / chip.multiprocessors)
    resident = min(most, fitting)
    step = tiling.columns * tiling.depth * itemsize
    each = min(_ONE, resident * (tiling.stages - 1) * step / _LATENCY)
    of_block = tiling.columns * depth * itemsize
    left = rows * depth * itemsize * blocks
    size = columns * depth * itemsize
    reading = max(size / _MEMORY, (size + left) / _CACHE, most * of_block / each)
    steps = math.ceil(depth / tiling.depth) * math.ceil(most / resident)
    return _START + reading + 10.0 * steps
