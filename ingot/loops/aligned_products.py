"""Products of matrices into rows that do not begin at multiples of 16 bytes, in parts that cuBLAS
writes fast.

Rows that are `step` apart begin at one distance from such a multiple. They are a matrix whose rows
are `step` times as far apart, at a multiple, and so are the columns from the first on that lies at
one. The `step` matrices are products of one shape, a batch; each begins `shift` columns behind the
one before. What is left are a few columns at the beginning and at the end of each row, and a few
rows, which are products of their own, slow and small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.loops.expr import Expr, as_expr
from ingot.loops.ir import View

ROW = 16  # bytes
# of each matrix of the batch: with fewer, reading the other operand takes longer than multiplying
LEAST_ROWS = 256

# Measured on an H200, bfloat16, us: [8192, 768] times [768, 50257] 897 with margins, 930 as a
# batch, 26 for the columns at either end, 105 for 7 rows that are left; [2048, 4096] times [4096,
# 32001] 700, 780, 36 and 361. multiply-adds twice in a microsecond, and the share of a product that
# a batch adds
FASTEST, SHARE_LOST = 650e6, 0.08
ASIDE = 26.0  # microseconds for what is left at either end of the rows
READ = 0.74e6  # bytes in a microsecond of the other operand, for the rows that are left
COPIED = 4e6  # bytes in a microsecond


class Part(NamedTuple):
    """`rows` of each matrix of the `batch`, from the row `first` on and `step` apart, and `columns`
    of them from `begin` on. The next matrix of the batch has the next rows, and columns that begin
    `shift` further on."""

    batch: int
    first: int
    step: int
    rows: int
    begin: int
    shift: int
    columns: int


def step_of(columns: int, itemsize: int) -> int:
    """How many rows of so many columns are a multiple of 16 bytes."""
    return ROW // math.gcd(ROW, columns * itemsize)


def aligned_width(columns: int, itemsize: int) -> int:
    """How many columns the batch has; none (a number that is not positive) where rows are too
    short."""
    unit = ROW // itemsize
    return (columns - -columns % unit * (step_of(columns, itemsize) - 1)) // unit * unit


def parts(rows: int, columns: int, itemsize: int) -> Iterator[Part]:
    """The parts of a product whose columns lie side by side in memory, from a multiple of 16 bytes
    on. Some have elements that others have as well."""
    unit, step = ROW // itemsize, step_of(columns, itemsize)
    shift = -columns % unit
    aside = shift * (step - 1)
    width = aligned_width(columns, itemsize)
    yield Part(1, 0, 1, rows, 0, 0, aside)
    yield Part(1, 0, 1, rows, width, 0, columns - width)
    if rows % step:
        yield Part(1, rows - rows % step, 1, rows % step, 0, 0, columns)
    yield Part(step, 0, step, rows // step, 0, shift, width)


def suits(
    rows: int | None, depth: int | None, columns: int | None, of_left: Sequence[int | None],
    of_right: Sequence[int | None], dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Whether a GPU computes a product in parts if the result's rows may not be padded.

    The other way is a product with margins: one operand is copied, and then the result. Matrices
    have these strides; None stands for a size or stride that is not known.
    """
    if (
        dtype not in (torch.float16, torch.bfloat16)
        or rows is None
        or depth is None
        or columns is None
    ):
        return False
    unit, step = ROW // dtype.itemsize, step_of(columns, dtype.itemsize)
    (across, along), (down, beside) = of_left, of_right
    if (along, down) != (1, 1) or any(not n or n % unit for n in (across, beside)):
        return False  # the left one's rows and the right one's columns are taken as they lie
    benefit = 2 * columns * (rows + depth) * dtype.itemsize / COPIED
    cost = 2 * ASIDE + SHARE_LOST * 2 * rows * depth * columns / FASTEST
    if rows % step:
        cost += depth * columns * dtype.itemsize / READ
    else:
        cost += 0
    fits = step > 1 and aligned_width(columns, dtype.itemsize) > 0
    return fits and rows >= LEAST_ROWS * step and benefit > cost


def mm_in_parts(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    """x @ y."""
    rows, columns = out.shape
    for part in parts(rows, columns, out.dtype.itemsize):
        windows = _windows(part, *((t.shape, t.stride()) for t in (x, y, out)))
        batches = []
        for t, (sizes, strides, offset) in zip((x, y, out), windows):
            batches.append(torch.as_strided(t, sizes, strides, t.storage_offset() + offset))
        for left, right, result in zip(*batches):
            torch.mm(left, right, out=result)
    return out


def views_of_parts(x: View, y: View, out: View) -> Iterator[tuple[View, ...]]:
    """What of the operands and of the result each part is, matrices or batches of them; the sizes
    are known."""
    rows, columns = (size.constant for size in out.sizes)
    assert rows is not None and columns is not None
    for part in parts(rows, columns, out.dtype.itemsize):
        windows = _windows(part, *((view.sizes, view.strides) for view in (x, y, out)))
        begin = 0 if part.batch > 1 else 1
        yield tuple(
            View(
                view.buffer,
                _exprs(sizes[begin:]),
                _exprs(strides[begin:]),
                view.offset + offset,
                view.dtype,
            )
            for view, (sizes, strides, offset) in zip((x, y, out), windows)
        )


def _exprs(numbers: Iterable[Any]) -> tuple[Expr, ...]:
    return tuple(map(as_expr, numbers))


def _windows(part: Part, x: Any, y: Any, out: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Sizes, strides and first elements of the batch of each operand and of the result, made of the
    matrices' sizes and strides."""
    (_, depth), (row, along) = x
    _, (down, column) = y
    _, (out_row, beside) = out
    yield (part.batch, part.rows, depth), (row, row * part.step, along), row * part.first
    yield (
        (part.batch, depth, part.columns),
        (column * part.shift, down, column),
        column * part.begin,
    )
    strides = out_row + beside * part.shift, out_row * part.step, beside
    yield (part.batch, part.rows, part.columns), strides, out_row * part.first + beside * part.begin
