"""The kernels of contractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.loops.expr import ONE, ZERO, Expr, Symbol
from ingot.loops.ir import (
    Access,
    Body,
    BodyBuilder,
    Buffer,
    Contraction,
    Instruction,
    Node,
    Origin,
    Pointwise,
    Visit,
)
from ingot.loops.spaces import extents_of, points_of
from ingot.loops.weights import TILE
from ingot.schedule.attention import query_block
from ingot.schedule.build import StageDraft, accessed, kernel_name, loaded_by, parameters_of
from ingot.schedule.epilogue import Prologues
from ingot.schedule.kernel import Kernel, Parameter, Product, Stage, Store, Tiling, ceil_div
from ingot.schedule.nests import fresh_loops

SUM = "sum"  # the name of the contraction's value in its kernel's stage


def build_contraction(
    members: Sequence[Node],
    internal: set[str],
    buffers: dict[str, Buffer],
    tiling: Tiling | None = None,
    prologues: Prologues = (None, None),
) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of a contraction and the pointwise nodes laid over it, and the buffers its
    parameters stand for.

    What is in `internal` is not stored. A GPU's kernel has a `tiling`, and `prologues`: operands
    that it computes.
    """
    contraction = members[0]
    assert isinstance(contraction, Contraction)
    stage_loops = contraction.rows + contraction.columns
    draft = StageDraft(stage_loops)
    value = draft.emit("scalar", (), contraction.dtype, (SUM,))
    # of several values stored in one place, the last counts
    stores = {contraction.target: Store(contraction.target, contraction.index, value)}
    known = {(contraction.target, contraction.index): value}
    origin = contraction.origin
    for node in prologues:
        if node is not None:
            origin = node.origin.merged(origin)
    for member in members[1:]:
        assert isinstance(member, Pointwise)
        numbers = draft.copy(member.body, _forwarding(known))
        value = known[member.target, member.index] = numbers[member.body.results[0]]
        stores[member.target] = Store(member.target, member.index, value)
        # equal where it is the rest of the same op, its bias
        if member.origin != contraction.origin:
            origin = origin.merged(member.origin)
    draft.stores = [store for store in stores.values() if store.buffer not in internal]
    return _canonical_kernel(contraction, origin, draft.stage(), buffers, tiling, prologues)


def _forwarding(stored: Mapping[tuple[str, Expr], int]) -> Visit:
    """Takes the values that are stored at (buffer, index) in place of loads of these."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        value = None
        if i.op == "load":
            value = stored.get(i.attrs)
        if value is None:
            return builder.append(i)
        return builder.in_place_of(i, value)

    return visit


def _canonical_kernel(
    node: Contraction,
    origin: Origin,
    stage: Stage,
    buffers: dict[str, Buffer],
    tiling: Tiling | None,
    prologues: Prologues,
) -> tuple[Kernel, tuple[str, ...]]:
    """Loops and parameters named by position."""
    loops: dict[Symbol, Expr] = {}

    def renamed(prefix: str, symbols: Sequence[Symbol]) -> tuple[Symbol, ...]:
        fresh = fresh_loops(prefix, extents_of(symbols))
        loops.update(zip(symbols, fresh))
        return fresh

    batch, rows = renamed("o", node.batch), renamed("m", node.rows)
    columns, reduced = renamed("n", node.columns), renamed("k", node.reduced)
    weights = node.weights
    depths = {}
    if weights is not None:
        for k, p in enumerate(weights.products):
            (depths[p.depth],) = renamed(f"d{k}_", (p.depth,))
        if weights.beside is not None:
            column = weights.beside.column  # which may be the symbol of the other columns too
            (depths[column],) = fresh_loops("w", [column.extent])
    parameters, names = _parameters(node, stage, prologues, buffers)

    def operand(access: Access, prologue: Pointwise | None) -> tuple[Access, Body | None]:
        if prologue is None:
            return Access(names[access.buffer], access.index.substitute(loops)), None
        body = prologue.body.with_buffers(names.__getitem__)
        return Access("", ZERO), body.substitute(loops)

    stage = stage.with_buffers(names.__getitem__).substitute(loops, rows + columns)
    left, left_body = operand(node.left, prologues[0])
    right, right_body = operand(node.right, prologues[1])
    if weights is not None:
        weights = weights.with_buffers(names.__getitem__).substitute(loops, depths)
    whole = Product(
        SUM, rows, columns, reduced, left, right, node.dtype, 0, 0,
        tiling=tiling, prologues=(left_body, right_body), weights=weights,
    )  # fmt: skip
    kernel = Kernel(
        kernel_name(origin),
        origin,
        batch,
        (stage,),
        parameters,
        parallel=len(batch),
        product=_in_blocks(whole, batch),
    )
    return kernel, tuple(names)


def _parameters(
    node: Contraction, stage: Stage, prologues: Prologues, buffers: dict[str, Buffer]
) -> tuple[tuple[Parameter, ...], dict[str, str]]:
    """Parameters in order of first use, and graph buffer name -> parameter name."""
    read: list[str] = []
    for access, prologue in zip((node.left, node.right), prologues):
        if prologue is None:
            read.append(access.buffer)
        else:
            read += loaded_by(prologue.body)
    loaded, stored = accessed(stage)
    if node.weights is not None:
        for access in node.weights.accesses:
            read.append(access.buffer)
        read += loaded_by(node.weights.body)
        stored = [*stored, *node.weights.writes]
    read += loaded
    names: dict[str, str] = {}
    for name in read + stored:
        names.setdefault(name, f"p{len(names)}")
    return parameters_of(names, read, stored, buffers, node.weights is not None), names


def _in_blocks(whole: Product, batch: Sequence[Symbol]) -> Product:
    """The product with its blocks: those of its tiling, if it has one."""
    if whole.tiling is not None:
        return replace(whole, row_block=whole.tiling.rows, column_block=whole.tiling.columns)
    points, height = points_of(batch), points_of(whole.rows)
    width = whole.columns[0].extent
    if whole.weights is not None:
        rows = _rows_together(height)
        if (height.constant or FEW) < FEW and whole.weights.beside is None:
            rows = 1
        return replace(whole, row_block=rows, column_block=width.constant or 1)
    copies = copies_rows(whole.rows, whole.reduced, whole.left, width)
    if copies:
        steps = whole.reduced[0].extent.constant
        row_bytes = None
        if steps:
            row_bytes = steps * whole.dtype.itemsize
        blocks = choose_squares(points, height, width, row_bytes)
    else:
        right_size = points_of(whole.columns + whole.reduced).constant
        left_size = _reach(whole.left.index, whole.rows + whole.reduced)
        blocks = choose_blocks(points, height, width, right_size, left_size)
    return replace(whole, row_block=blocks[0], column_block=blocks[1], copies=copies)


FEW = 5  # rows: fewer are taken one by one, with steps side by side


def _rows_together(rows: Expr) -> int:
    """The rows of a block whose left operand are weights: of many, a tile has whole blocks."""
    if (rows.constant or TILE) < TILE:
        return query_block(rows)
    return TILE // 2


# Blocks: a thread takes one at a time, and packs the right operand's part of it anew. The more
# rows, the less that matters; but the sums of a block should stay in the second-level cache, and
# there should be blocks for all threads.
LARGEST_ROWS = 264
LARGEST_COLUMNS = 256
# ... or half as many where the left operand has so many elements: each column of blocks reads it
FEWEST_BLOCKS = 16
LARGE = 1 << 20  # again, and not from a cache
TALLER = 4  # Where there are more than that, they have up to so many times as many rows,
FEWEST_ROWS = 128  # ... and if there is one block of at least so many rows,
# it is halved, so that a thread reads what it has written before, unless packing twice takes
# longer:
PACKED = 3
# elements of the right operand that are packed while one of the left operand comes from another
# core One block of fewer rows, but of so many products, is halved across: each half packs its own
# columns
SHARED = 1 << 20


def choose_blocks(
    batch: Expr, rows: Expr, columns: Expr, right_size: int | None = None, left_size: int = 0
) -> tuple[int, int]:
    """(rows, columns) of a block; the columns are a multiple of 16 such that tiles leave little
    empty. The sizes are the elements of the operands for each point of the batch, as far as they
    are known."""
    count, width = batch.constant or 1, _tile_width(columns.constant or 48)
    across = _ceil(columns.constant or 48, width)
    height = rows.constant or LARGEST_ROWS
    is_alone = batch.constant == 1
    if height > LARGEST_ROWS:
        height = _height_of_many(height, _ceil(FEWEST_BLOCKS, count * across), width)
    elif height >= FEWEST_ROWS and is_alone and right_size and right_size < PACKED * left_size:
        height = _ceil(height, 2)
    elif is_alone and across == 1 and width % 32 == 0 and height * (right_size or 0) >= SHARED:
        width, across = width // 2, 2
    blocks = count * (ceil_div(rows, height).constant or 1) * across
    most = min(LARGEST_COLUMNS, LARGEST_ROWS * LARGEST_COLUMNS // height)
    if left_size < LARGE:
        fewest = FEWEST_BLOCKS
    else:
        fewest = FEWEST_BLOCKS // 2
    together = 1
    while together < across and together * 2 * width <= most and blocks // (together * 2) >= fewest:
        together *= 2
    return height, width * together


def _height_of_many(height: int, fewest: int, width: int) -> int:
    """The rows of a block, where one of all rows would be too large: there are to be so many."""
    most = max(_ceil(height, TALLER * LARGEST_ROWS), min(fewest, _ceil(height, LARGEST_ROWS)))
    # whole tiles, of 6 rows if they are as wide: threads have as many of them each
    unit = 6 if width == 64 else 24
    return _ceil(_ceil(height, most), unit) * unit


# Where steps of the reduction are at least so many elements apart, and rows are adjacent, as in a
# weight's gradient, a block copies its rows of the left operand: each step would be on another
# page, and all of them in few sets of a cache.
FAR = 256
FEWEST_COLUMNS = 48  # for which that pays
SQUARE_BLOCKS = 8  # wanted: fewer than of others, since each makes two copies
FEWEST_SQUARE_ROWS = 48
# bytes of a block's copied rows, over all steps, that stay for the next blocks of the same rows:
KEPT = 640 << 10
LARGEST_KEPT_ROWS = 528  # these are narrow then,
PANELS = 2  # of so many tiles' width


def copies_rows(
    rows: Sequence[Symbol], reduced: Sequence[Symbol], left: Access, columns: Expr
) -> bool:
    """Whether a block copies its rows of the left operand."""
    linear = left.index.linear((*rows, *reduced))
    if (
        linear is None
        or len(rows) != 1
        or len(reduced) != 1
        or (columns.constant or 0) < FEWEST_COLUMNS
    ):
        return False
    stride = linear[1].get(reduced[0], ZERO).constant
    return linear[1].get(rows[0]) is ONE and (stride is None or stride >= FAR)


def choose_squares(
    batch: Expr, rows: Expr, columns: Expr, row_bytes: int | None = None
) -> tuple[int, int]:
    """The blocks where both operands are copied, of rows of so many bytes over all steps. They are
    about as wide as they are high, or as high as is kept."""
    width = _tile_width(columns.constant or 48)
    across, height = _ceil(columns.constant or 48, width), rows.constant or LARGEST_ROWS
    most = 0
    if row_bytes is not None:
        most = min(KEPT // row_bytes // 24 * 24, LARGEST_KEPT_ROWS)
    keeps = most >= FEWEST_ROWS
    if keeps:
        together = min(across, PANELS)
    else:
        together = _ceil(across, _ceil(across * width, LARGEST_COLUMNS))
    down = _ceil(height, most if keeps else LARGEST_ROWS)
    if keeps and down > 1:
        down += down % 2  # else two threads share the blocks of some rows, and each copies these
    while (batch.constant or 1) * down * _ceil(across, together) < SQUARE_BLOCKS:
        narrows = together > 1 and (keeps or height // down < together * width)
        if not narrows and height // down > FEWEST_SQUARE_ROWS:
            down += 1
        elif together > 1:
            together = _ceil(together, 2)
        else:
            break
    return _ceil(_ceil(height, down), 24) * 24 if down > 1 else height, width * together


def _reach(index: Expr, loops: Sequence[Symbol]) -> int:
    """How many elements lie between the first and the last that an index gives over `loops`, 0 if
    that is not known."""
    linear = index.linear(loops)
    if linear is None or not linear[1]:
        return 0
    reach = 1
    for s, slope in linear[1].items():
        step, extent = slope.constant, s.extent.constant
        if step is None or extent is None:
            return 0
        reach += step * (extent - 1)
    return reach


def _tile_width(columns: int) -> int:
    """16 to 64 columns at a time, so that few lanes are idle in the last ones; 48 where nothing
    speaks for others."""
    return min((48, 64, 32, 16), key=lambda width: (_ceil(columns, width) * width, width != 48))


def _ceil(a: int, b: int) -> int:
    return (a + b - 1) // b
