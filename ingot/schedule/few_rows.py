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
USUAL = 4  # stages
MARGIN = 0.95  # of the library's estimated time that a kernel may take

# Of an H200: bytes in a nanosecond that all multiprocessors read from memory, and that reach one of
# them; nanoseconds until what is asked for is there, of a kernel beside its reads, of one that
# follows, and of a step of a block at least, since it waits for the sums of the step before. These
# are fitted to 112 times of 32 rows, 14 tilings of each of eight weights of 2 to 525 MB
# (`python -m benchmarks.few_rows --rows 32`): the error is 14%, and the best guess takes up to 1.09
# of the best time.
_MEMORY, _ONE = 4600.0, 69.0
_LATENCY, _START, _KERNEL, _STEP = 800.0, 2000.0, 1900.0, 130.0
# The library takes there, us: 4.8 for 2048 x 512 (depth by columns), 5.8 for 2048 x 2048, 10.3 for
# 2048 x 8192, 12.9 for 8192 x 2048, 29.8 for 4096 x 14336 and 31.9 for 14336 x 4096. With one row
# 4.9, 5.6, 10.2, 12.9, 29.7 and 29.7.
_LIBRARY_START, _LIBRARY_LEAST = 3400.0, 5300.0
_LIBRARY_MEMORY = {8: 3500.0, MOST_ROWS: 4600.0}  # up to so many rows
_LIBRARY_DEEP = 1500.0  # where the depth is larger than twice the columns
_HALVES = (torch.float16, torch.bfloat16)


class FewRows:
    """The choices for a program on a device; `notes` has a line for each kernel."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.notes: list[str] = []

    def __call__(self, sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
        guesses = list(map(self._alone, sites))
        choices = [choice for _, choice in guesses]
        for positions in _reading_the_same(sites, guesses):
            shared = [sites[k] for k in positions]
            tiling = self._together(shared, sum(guesses[k][0] for k in positions))
            if tiling is not None:
                for k in positions:
                    choices[k] = sites[k].forms[0], tiling
        for site, choice in zip(sites, choices):
            if choice is not None:
                title = f"{site.title} at {site.where}"
                self.notes.append(f"{title}: a kernel, {choice[1]}, by an estimate")
        return choices

    def _alone(self, site: Site) -> tuple[float, Choice]:
        """The best choice for a site, and its estimated nanoseconds; infinite for what is no
        product of few rows by a weight."""
        whole = site.forms[0]
        batch, rows, columns, depth = whole.sizes
        size = columns * depth * site.dtype.itemsize
        if batch != 1 or rows > MOST_ROWS or site.dtype not in _HALVES:
            return math.inf, None
        if not SMALL <= size <= LARGE or not _streams(whole, site):
            return math.inf, None
        guesses = []
        for number, form in enumerate(site.forms):
            for tiling in tilings(form.sizes, site.dtype.itemsize, self.chip):
                time = estimate(form.sizes, site.dtype.itemsize, self.chip, tiling)
                launches = len(form.groups) + len(site.positions) - len(form.positions)
                time += _KERNEL * (launches - 1)
                order = -tiling.depth, -tiling.columns, abs(tiling.stages - USUAL)
                guesses.append((round(time), number, order, tiling))
        time, number, _, tiling = min(guesses)  # of equal ones that with the longest steps
        library = library_time(rows, columns, depth, site.dtype.itemsize)
        library += _KERNEL * (len(site.positions) - 1)
        if time > MARGIN * library:
            return library, None
        return time, (site.forms[number], tiling)

    def _together(self, sites: Sequence[Site], alone: float) -> Tiling | None:
        """The tiling of products of the same rows that share a launch (`schedule.concurrent`); None
        where they are estimated to take as long as `alone`."""
        _, rows, _, depth = sites[0].forms[0].sizes
        columns = sum(site.forms[0].sizes[2] for site in sites)
        others = sum(len(site.positions) - len(site.forms[0].positions) for site in sites)
        itemsize = sites[0].dtype.itemsize
        guesses = []
        for tiling in tilings((1, rows, columns, depth), itemsize, self.chip):
            time = estimate((1, rows, columns, depth), itemsize, self.chip, tiling)
            order = -tiling.depth, -tiling.columns, abs(tiling.stages - USUAL)
            guesses.append((round(time), order, tiling))
        time, _, tiling = min(guesses)
        return tiling if time + _KERNEL * others <= MARGIN * alone else None


def _reading_the_same(
    sites: Sequence[Site], guesses: Sequence[tuple[float, Choice]]
) -> list[list[int]]:
    """The positions of sites whose kernels read the same rows, and need nothing of each other."""
    shared: dict[tuple[object, ...], list[int]] = {}
    for k, site in enumerate(sites):
        form = site.forms[0]
        contraction = form.groups[0].members[0]
        assert isinstance(contraction, Contraction)
        if not math.isfinite(guesses[k][0]) or form.groups[0].prologues != (None, None):
            continue
        key = contraction.left.buffer, form.sizes[1], form.sizes[3], site.dtype
        others = shared.setdefault(key, [])
        written = set().union(*(_written(sites[j]) for j in others))
        reads = set().union(*(group.reads for group in form.groups))
        if written.isdisjoint(reads):
            others.append(k)
    return [positions for positions in shared.values() if len(positions) > 1]


def _written(site: Site) -> set[str]:
    return set().union(*(group.writes for group in site.forms[0].groups))


def library_time(rows: int, columns: int, depth: int, itemsize: int) -> float:
    """Nanoseconds of the library's call for a weight in memory."""
    rate = next(rate for most, rate in _LIBRARY_MEMORY.items() if rows <= most)
    time = _LIBRARY_START + columns * depth * itemsize / rate
    if depth > 2 * columns:
        time += _LIBRARY_DEEP
    return max(time, _LIBRARY_LEAST)


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
    for width, steps, stages in product((16, 32, 64, 128), (64, 128, 256), (4, 5)):
        shared = stages * (height + width) * steps * itemsize
        if steps <= depth and shared <= chip.shared // 2 and stages - 1 <= depth // steps:
            yield Tiling(height, width, steps, stages, 8 if height * width >= 8192 else 4)
    if depth < 128:
        yield Tiling(height, SMALLEST, SMALLEST, 2, 4)


def estimate(sizes: Sizes, itemsize: int, chip: Chip, tiling: Tiling) -> float:
    """Nanoseconds of a product whose right operand comes from memory.

    A block waits at each step: for what is on its way, for its own sums, or for what reaches its
    multiprocessor. That with the most blocks is the last to end.
    """
    parts, _, columns, depth = sizes
    blocks = parts * math.ceil(columns / tiling.columns)
    read = (tiling.rows + tiling.columns) * tiling.depth * itemsize  # in a step
    fitting = max(1, min(chip.shared // (tiling.stages * read), 2048 // (32 * tiling.warps)))
    most = math.ceil(blocks / chip.multiprocessors)
    resident = min(most, fitting)
    step = max(_LATENCY / (tiling.stages - 1), _STEP, resident * read / _ONE)
    waiting = most / resident * math.ceil(depth / tiling.depth) * step
    reading = parts * columns * depth * itemsize / _MEMORY
    return _START + (waiting**3 + reading**3) ** (1 / 3)  # of which neither waits for the other
