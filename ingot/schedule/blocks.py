"""How the points of a kernel are cut into blocks of threads, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingot.loops.depthwise import TILE as TILE_OF_SUMS
from ingot.loops.depthwise import WARPS as WARPS_OF_SUMS
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, minimum
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Kernel, Stage, ceil_div, scaling
from ingot.schedule.online import in_one_pass

# points of a block where each is on its own: eight for each of 128 threads, two accesses of 16
# bytes
FLAT = 1024
SHORT_ROW = 512  # elements; of shorter rows a block has more
LEAST_ROWS = 512  # elements of a block, where there are few rows: two warps
TILE = 32  # points along both loops of a tile that is read along one and written along the other
BESIDE = 16  # points that lie side by side in memory, of a block that reduces: 64 bytes of each row
MOST_BESIDE = 128  # ... of one that reads each element once
# threads of more warps take twice as many elements: they would wait for each other at every sum
FEW_WARPS = 8
MOST_WARPS = 16
# of blocks that take one row after another, at most: of more, few fit a multiprocessor
WARPS_OF_RUN = 8
# ... where that is enough: then rows of float32 and of halves are spread over threads alike
PER_THREAD_OF_RUN = 4
LONGEST_OF_RUN = 4096
MANY_LOADS = 8  # of a point, that are not part of wider ones
# elements of the shortest rows that there is a form for, where sizes are symbols
SHORTEST_FORM = 64

Condition = tuple[Expr, int]  # an expression over sizes, and what it must not be greater than


@dataclass(frozen=True)
class Blocks:
    """A block of threads takes `points` neighbouring points of the outer loops. With a `tile`,
    these are points of the last loop, by `tile` of the one before. `inner` elements of the inner
    loops are taken at a time; where a block is `persistent`, that is all of them, so each is read
    once and stays in registers: of loops whose size is a symbol's, `lengths` says how many these
    may be. If there are `most` blocks, of flat points, each takes one share of the points after
    another."""

    points: int
    inner: int = 0
    tile: int = 0
    persistent: bool = True
    warps: int = 4
    lengths: tuple[tuple[Expr, int], ...] = ()
    most: int = 0

    def count(self, kernel: Kernel) -> Expr:
        """How many blocks there are."""
        shares = self.shares(kernel)
        if self.most:
            return minimum(shares, self.most)
        return shares

    def shares(self, kernel: Kernel) -> Expr:
        """How many there would be if each took its points alone."""
        if kernel.members:
            return sum([choose_blocks(m).count(m) for m in kernel.members], ZERO)
        if kernel.product is not None:
            return kernel.points
        if kernel.depthwise is not None:
            parts, *_, channels = kernel.depthwise.target.sizes
            return parts * ceil_div(channels, self.points)
        if not self.tile:
            return ceil_div(kernel.points, kernel.run or self.points)
        *rest, tile, vector = kernel.loops
        across = ceil_div(vector.extent, self.points)
        return points_of(rest) * ceil_div(tile.extent, self.tile) * across

    @property
    def slack(self) -> int:
        """More than what the last block goes beyond the end."""
        return max(self.points * max(self.tile, 1), self.inner)

    def length(self, stage: Stage) -> int:
        """How many elements of a stage's inner loops there are at most, if all of them are taken at
        once."""
        size = inner_size(stage)
        if size.constant is None:
            return dict(self.lengths)[size]
        return size.constant


def choose_blocks(kernel: Kernel) -> Blocks:
    """The blocks of a kernel, which depend on its sizes alone, and are right for all that symbols
    may be."""
    if kernel.members:
        return max(map(choose_blocks, kernel.members), key=lambda blocks: blocks.warps)
    if kernel.product is not None:
        tiling = kernel.product.tiling
        assert tiling is not None
        return Blocks(tiling.columns, tiling.depth, tiling.rows, warps=tiling.warps)
    if kernel.depthwise is not None:
        columns = kernel.depthwise.piece.columns
        return Blocks(TILE_OF_SUMS // columns, columns, warps=WARPS_OF_SUMS)
    rows = _rows(kernel)
    if kernel.run:
        blocks = rows_of_run(rows[0].constant or 0)
        assert blocks is not None
        return blocks
    if not rows and kernel.table:
        points = _at_most(FLAT, kernel.points.constant)
        return Blocks(points, warps=max(1, min(4, points // 128)))
    if not rows:
        if kernel.tile is not None:
            return Blocks(TILE, tile=TILE)
        choose = _flat
        if _loads_are_strided(kernel):
            choose = _alone
        blocks = choose(kernel)
        if scaling(kernel):
            return replace(blocks, most=kernel.blocking.most_scaling)
        return blocks
    known = all(row.constant is not None for row in rows)
    width = _known_width(rows)
    if _is_columns(kernel):
        return _columns(kernel, width if known else 0)
    if known and _fits(kernel, width):
        return _whole_rows(kernel, width)
    blocking = kernel.blocking
    if kernel.vector is not None:
        return Blocks(2 * BESIDE, blocking.steps_beside, persistent=False, warps=8)
    inner = blocking.step
    if not known:
        inner = blocking.short_rows
    elif _reads_again(kernel):
        inner = blocking.step_again
    return Blocks(1, inner, persistent=False, warps=max(1, inner // (32 * blocking.per_thread)))


def blocks_for_some_sizes(kernel: Kernel) -> list[tuple[Blocks, tuple[Condition, ...]]]:
    """The blocks of a kernel of symbolic sizes that are better than those of `choose_blocks` where
    these conditions hold. The first whose conditions hold are nearly those that known sizes would
    have."""
    result: list[tuple[Blocks, tuple[Condition, ...]]] = []
    rows = _rows(kernel)
    unknown = []
    for row in rows:
        if row.constant is None:
            unknown.append(row)
    if kernel.run or kernel.members or kernel.product is not None or kernel.depthwise is not None:
        return result
    if _is_columns(kernel):
        if kernel.points.constant is not None:
            return result
        if unknown:
            width = 0
        else:
            width = _known_width(rows)
        block = BESIDE
        while block < MOST_BESIDE:
            most = kernel.points, (kernel.blocking.few_blocks // 4 - 1) * 2 * block
            result.append((_columns_of(kernel, block, width), (most,)))
            block *= 2
        return result
    width = SHORTEST_FORM
    while unknown and _fits(kernel, all_rows := max(width, _known_width(rows))):
        lengths = _lengths(unknown, width)
        result.append((_whole_rows(kernel, all_rows, lengths), lengths))
        width *= 2
    return result


def _rows(kernel: Kernel) -> list[Expr]:
    results = []
    for stage in kernel.stages:
        if stage.loops:
            results.append(inner_size(stage))
    return results


def _known_width(rows: Sequence[Expr]) -> int:
    return power_of_two(max((row.constant for row in rows if row.constant is not None), default=0))


def _is_columns(kernel: Kernel) -> bool:
    """Whether the kernel reduces columns, each element of which is read once."""
    return kernel.vector is not None and not kernel.rows and len(_rows(kernel)) == 1


def _least_points(kernel: Kernel) -> int:
    if kernel.vector is not None:
        return BESIDE
    return 1


def _fits(kernel: Kernel, width: int) -> bool:
    """Whether a block of rows of `width` elements fits the registers of a multiprocessor."""
    return width * _least_points(kernel) <= kernel.blocking.largest_row


def _whole_rows(kernel: Kernel, width: int, lengths: tuple[Condition, ...] = ()) -> Blocks:
    least, rows = _least_points(kernel), kernel.points.constant
    elements = FLAT
    if width < SHORT_ROW:
        elements = kernel.blocking.short_rows
    points = max(elements // width, least)
    while (
        rows is not None
        and points > least
        and points * width > LEAST_ROWS
        and rows < points * kernel.blocking.few_blocks // 4
    ):
        points //= 2
    if width >= SHORT_ROW and reads_weights(kernel):
        return _of_weights(kernel, width, lengths)
    points = _at_most(points, rows)
    return Blocks(points, width, warps=_warps(kernel, points * width), lengths=lengths)


def _of_weights(kernel: Kernel, width: int, lengths: tuple[Condition, ...]) -> Blocks:
    """The blocks of products of one row.

    Each thread asks for two times 16 bytes of a weight at once, or four times where a block makes
    the row first, or where the row is long.

    Measured on an H200, bfloat16, us beside a kernel that only reads as much: [1, 2048] times 8192
    columns 8.9 and 8.8, with 8 warps 11.0; times 128256 columns 114 and 113, with 8 warps 145;
    [1, 8192] times 2048 columns 9.2 and 8.7; two weights of 8192 columns behind a norm 17.1 and
    15.7, with one row and 8 warps 21.8. Rows of 14336 elements that are taken in steps take 27.3,
    whole ones 28.4.
    """
    points = 1
    if begins_with_shared_row(kernel):
        points = 2
    most = points * width // (64 * kernel.blocking.per_thread)  # times 16 bytes, of two a load
    warps = most // 2
    if points == 1:
        warps = max(warps, min(FEW_WARPS, most))
    return Blocks(points, width, warps=max(1, min(MOST_WARPS, warps)), lengths=lengths)


def reads_weights(kernel: Kernel) -> bool:
    """Whether the kernel sums products of rows that it reads once and of one row that all points
    share."""
    for stage in kernel.stages:
        if not stage.loops or stage.stores or not stage.reductions:
            continue
        along = [i.attrs[1] for i in stage.body.loads if _depends(i.attrs[1], stage.loops)]
        own = [_depends(index, kernel.loops) for index in along]
        if any(own) and not all(own):
            return True
    return False


def begins_with_shared_row(kernel: Kernel) -> bool:
    """Whether the first of several stages with loops reads what all points share alone."""
    stages = [stage for stage in kernel.stages if stage.loops]
    if len(stages) < 2 or stages[0].stores:
        return False
    return not any(_depends(i.attrs[1], kernel.loops) for i in stages[0].body.loads)


def _depends(index: Expr, loops: Sequence[Symbol]) -> bool:
    return not index.symbols.isdisjoint(loops)


def _lengths(rows: Sequence[Expr], width: int) -> tuple[Condition, ...]:
    """How long rows may be of which none is longer than `width`; a multiple of another's length is
    one of its limit."""
    factors = {}
    for row in rows:
        factors[row] = row.terms[0] if len(row.terms) == 1 else (1, (row,))
    most: dict[object, int] = {}
    for factor, atoms in factors.values():
        most[atoms] = max(most.get(atoms, 1), factor)
    return tuple((row, width * factor // most[atoms]) for row, (factor, atoms) in factors.items())


def rows_of_run(columns: int) -> Blocks | None:
    """The blocks of a kernel that sums columns over runs of rows; None where the sums take too many
    registers."""
    width = power_of_two(columns)
    if width > LONGEST_OF_RUN:
        return None
    points = max(FLAT // width, 1)
    return Blocks(
        points, width, warps=min(WARPS_OF_RUN, max(1, points * width // (32 * PER_THREAD_OF_RUN)))
    )


def _columns(kernel: Kernel, width: int) -> Blocks:
    """The blocks of columns that are read once: neighbours in memory side by side, and sums of each
    thread's own."""
    block, points, few = MOST_BESIDE, kernel.points.constant, kernel.blocking.few_blocks // 4
    while points is not None and block > BESIDE and -(-points // block) < few:
        block //= 2
    return _columns_of(kernel, _at_most(block, points), width)


def _columns_of(kernel: Kernel, block: int, width: int) -> Blocks:
    inner = max(kernel.blocking.short_rows // block, 1)
    if 0 < width <= inner:
        return Blocks(block, width, warps=max(1, _warps(kernel, block * width) // 4))
    # Each thread has several loads under way. Measured on an H200, sums of columns of 16384 x 3072,
    # us: 119 with GELU's gradient and 32 alone with 16 elements a thread, 146 and 35 with 8; above,
    # of 16 x 786432, 15 with 32, 60 with 8.
    return Blocks(block, inner, persistent=False, warps=max(1, _warps(kernel, block * inner) // 2))


def inner_size(stage: Stage) -> Expr:
    """The elements of a stage's inner loops."""
    return points_of(stage.loops)


def keeps_rows(kernel: Kernel) -> bool:
    """Whether the kernel's rows of scratch can be values in registers: each is read where it was
    written."""
    if not choose_blocks(kernel).persistent:
        return False
    rows = {row.name for row in kernel.rows}
    written: dict[str, set[tuple[object, object]]] = {}
    for stage in kernel.stages:
        for load in stage.body.loads:
            name, index = load.attrs
            if name in rows and written.get(name) != {(stage.loops, index)}:
                return False
        for store in stage.stores:
            if store.buffer in rows:
                written.setdefault(store.buffer, set()).add((stage.loops, store.index))
    return True


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()


def _reads_again(kernel: Kernel) -> bool:
    """Whether rows are read that were read or written before."""
    met: set[str] = set()
    for stage in in_one_pass(kernel).stages:
        here = set()
        for name, index in (load.attrs for load in stage.body.loads):
            if not index.symbols.isdisjoint(stage.loops):
                here.add(name)
        if here & met:
            return True
        met |= here
        if stage.loops:
            met.update(store.buffer for store in stage.stores)
    return False


def _at_most(points: int, all_points: int | None) -> int:
    if all_points is None:
        return points
    return min(points, power_of_two(all_points))


def _flat(kernel: Kernel) -> Blocks:
    """Eight points a thread where there are many. Measured on an H200, 16.8 million points, us by
    blocks of 512, 1024 and 256: `sin(x) * cos(x)` and more 37.5, 37.8 and 41.8, tanh-GELU 95.7,
    95.8 and 120.0."""
    block, points, few = FLAT // 2, kernel.points.constant, kernel.blocking.few_blocks
    if points is None or points >= few * block:
        return Blocks(block, warps=2)
    while block > 128 and -(-points // block) < few:
        block //= 2
    block = _at_most(block, points)
    return Blocks(block, warps=max(1, block // 128))


def _alone(kernel: Kernel) -> Blocks:
    """Blocks whose threads take a point or two, side by side: what is loaded for one would be in
    the others' way. Measured on an H200, depthwise windows of 3x3 with what is before and behind
    them, us: 2.4 at 75 thousand points and 5.7 at 450 thousand, with four points a thread 3.0 and
    7.3."""
    block, points = FLAT // 8, kernel.points.constant
    if points is None or points >= kernel.blocking.few_blocks * FLAT // 4:
        block = FLAT // 4
    return Blocks(_at_most(block, points), warps=4)


def _loads_are_strided(kernel: Kernel) -> bool:
    """Whether a point loads many elements of which those of the next point lie apart."""
    if not kernel.loops:
        return False
    steps = []
    for load in kernel.loads:
        steps.append(load.attrs[1].step(kernel.loops[-1]))
    return sum(step not in (ZERO, ONE) for step in steps) >= MANY_LOADS


def _warps(kernel: Kernel, elements: int) -> int:
    """The warps of a block of so many elements. Measured on an H200, the layer norm of 16384 x 4096
    of bfloat16, us: 67 with 8 warps, 66 with 4, 83 with 16; RMS norm 64, 64 and 72."""
    warps = elements // (32 * kernel.blocking.per_thread)
    return max(1, min(warps, max(FEW_WARPS, warps // 2), MOST_WARPS))
