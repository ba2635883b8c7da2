"""Products on a GPU whose rows do not begin at multiples of 16 bytes: tensor cores take them in pieces, many times more
slowly. Where it pays, the library is given copies in memory whose rows do, with zeros at their ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.loops.expr import ONE, Expr, as_expr, contiguous_strides, product
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.creation import constant_pad
from ingot.loops.lowering.values import Spec, TensorValue, view_of

ROW = 16  # bytes

# Measured on an H200, bfloat16, [8192, 768] times [768, 50257]: 6.67 ms as it is, 0.88 ms with 50264 columns.
SLOW, FAST = 95e6, 600e6  # multiply-adds twice in a microsecond, of rows that are not aligned and of rows that are
TRAFFIC, LAUNCH = 2e6, 4.0  # bytes in a microsecond, and microseconds


def aligned(
    lw: Lowering, out: Spec, x: TensorValue, y: TensorValue, bias: TensorValue | None
) -> tuple[TensorValue, TensorValue, TensorValue | None, Spec] | None:
    """What to multiply instead of x [..., m, k] and y [..., k, n], and to add, for a result of which `out` is the
    beginning of each dimension; None where that would not be faster."""
    sizes = [s.constant for s in (*out.sizes, x.sizes[-1])]
    if out.dtype not in (torch.float16, torch.bfloat16) or None in sizes:
        return None
    unit = ROW // out.dtype.itemsize
    inner = {-1: out.sizes[-1]}  # the sizes of what lies side by side in memory, by their places in (..., m, k, n)
    inner |= {-2 if _inner(x) == -1 else -3: x.sizes[_inner(x)], -1 if _inner(y) == -1 else -2: y.sizes[_inner(y)]}
    wide = {place: _rounded_up(size, unit) for place, size in inner.items()}
    if all(wide[place] is size for place, size in inner.items()):
        return None
    m, k, n = out.sizes[-2], x.sizes[-1], out.sizes[-1]
    rows, depth, columns = wide.get(-3, m), wide.get(-2, k), wide.get(-1, n)
    batch = out.sizes[:-2]
    made = Spec((*batch, rows, columns), contiguous_strides((*batch, rows, columns)), out.dtype, out.device)
    changes = [(x, (rows, depth)), (y, (depth, columns))]
    copies = [value for value, last in changes if value.sizes[-2:] != last]
    if not _pays(product((*batch, m, k, n)), [product(c.sizes) for c in copies], out.dtype.itemsize):
        return None
    left, right = (_with_margin(lw, value, (*value.sizes[:-2], *last)) for value, last in changes)
    if bias is not None and columns is not n and bias.sizes[-1] is not ONE:
        bias = _with_margin(lw, bias, (*bias.sizes[:-1], columns))
    return left, right, bias, made


def _pays(multiplications: Expr, copied: Sequence[Expr], itemsize: int) -> bool:
    work = 2 * (multiplications.constant or 0)
    copies = sum(LAUNCH + 2 * itemsize * (count.constant or 0) / TRAFFIC for count in copied)
    return work / FAST + copies < work / SLOW


def _inner(value: TensorValue) -> int:
    """Which of the last two dimensions lies side by side in memory."""
    window = view_of(value)
    return -2 if (window or value).strides[-2] is ONE and value.sizes[-1] is not ONE else -1


def _rounded_up(size: Expr, unit: int) -> Expr:
    return size if (size.constant or 0) % unit == 0 else as_expr(-(-(size.constant or 0) // unit) * unit)


def _with_margin(lw: Lowering, value: TensorValue, sizes: tuple[Expr, ...]) -> TensorValue:
    """`value` in memory with zeros at the ends of its dimensions, in its own order; what is made once serves again."""
    if value.sizes == sizes:
        return value
    if len(sizes) > 1 and _inner(value) == -2:
        return _swapped(lw, _with_margin(lw, _swapped(lw, value), (*sizes[:-2], sizes[-1], sizes[-2])))
    key = ("margin", view_of(value) or value, sizes)
    if key not in lw.padded:
        spec = Spec(sizes, contiguous_strides(sizes), value.dtype, torch.device(lw.target.device))
        margins = [n for whole, size in zip(sizes[::-1], value.sizes[::-1]) for n in (0, whole - size)]
        lw.padded[key] = lw.realize(constant_pad(lw, spec, value, margins))
    return lw.padded[key]


def _swapped(lw: Lowering, value: TensorValue) -> TensorValue:
    """The last two dimensions change places: a view."""
    sizes, strides = ((*of[:-2], of[-1], of[-2]) for of in (value.sizes, value.strides))
    return lw.mapped(value, Spec(sizes, strides, value.dtype, torch.device(lw.target.device)), _swap)


def _swap(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return (*index[:-2], index[-1], index[-2])
