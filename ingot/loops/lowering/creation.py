"""Tensors out of nothing, and tensors put together: full, arange, cat, stack, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, contiguous_strides
from ingot.loops.lowering.context import WINDOW, Lowering
from ingot.loops.lowering.index_maps import compare, reshape_map
from ingot.loops.lowering.pointwise import filled
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import (
    Index,
    Margins,
    Spec,
    TensorValue,
    compute_dtype,
    rounded,
    rounded_number,
)
from ingot.torch_private import aten

apply = ops.apply


@lowers(aten.full.default)
def full(lw: Lowering, out: Spec, like: object, *args: Any, **_: object) -> TensorValue:
    return filled(lw, out, args[-1])


@lowers(aten.fill.Scalar)
def fill(lw: Lowering, out: Spec, like: object, number: Any) -> TensorValue:
    return filled(lw, out, number)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(lw: Lowering, out: Spec, number: Any, **_: object) -> TensorValue:
    return filled(lw, out, number)


@lowers(aten.ones.default)
def ones(lw: Lowering, out: Spec, *_: object, **__: object) -> TensorValue:
    return filled(lw, out, 1)


@lowers(
    aten.zeros.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
)
def zeros(lw: Lowering, out: Spec, *_: object, **__: object) -> TensorValue:
    """Zeros; an empty tensor may hold anything, so it holds zeros too."""
    return filled(lw, out, 0)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(lw: Lowering, out: Spec, *args: Any, **_: object) -> TensorValue:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    if out.dtype in ops.INTS:
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if all(isinstance(v, (int, Expr)) for v in (start, step)) and out.dtype in ops.INTS:
        return lw.computed(
            out, lambda index: ops.index(index[0] * step + start, out.dtype), [], cost=0
        )
    if any(isinstance(v, Expr) for v in (start, step)):
        raise NotLowered("a symbolic arange of floats")
    # Eager computes start + step * i in the accumulation type of the result: double on a CPU.
    dtype = torch.float64

    def compute(index: Index) -> int:
        steps = apply("mul", ops.index(index[0], dtype), ops.constant(step, dtype))
        return rounded(
            ops.to(apply("add", steps, ops.constant(start, dtype)), compute_dtype(out.dtype)),
            out.dtype,
        )

    return lw.computed(out, compute, [], cost=2)


@lowers(aten.constant_pad_nd.default)
def constant_pad(
    lw: Lowering, out: Spec, x: TensorValue, pad: Sequence[Any], number: Any = 0
) -> TensorValue:
    rank = len(x.sizes)
    before: list[Any] = [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k] = pad[2 * k]
    if len(pad) // 2 > rank:
        raise NotLowered("more padding than dimensions")

    def compute(index: Index) -> int:
        inner = tuple(i - b for i, b in zip(index, before))
        inside = ops.constant(True, torch.bool)
        for i, pad_before, size, whole in zip(inner, before, x.sizes, out.sizes):
            if size is not whole or as_expr(pad_before) is not ZERO:
                inside = apply("logical_and", inside, compare("ge", i, 0))
                inside = apply("logical_and", inside, compare("lt", i, size))
        with ops.masked(inside):
            value = x.load(inner)
        return apply(
            "where",
            inside,
            value,
            ops.constant(rounded_number(number, out.dtype), ops.dtype_of(value)),
        )

    value = lw.computed(out, compute, [x], cost=3)
    after = [whole - size - b for whole, size, b in zip(out.sizes, x.sizes, before)]
    margins = [as_expr(n).constant for n in (*before, *after)]
    known = [n for n in margins if n is not None and n >= 0]
    if len(known) == 2 * rank:
        value.margins = Margins(x, known[:rank], known[rank:], rounded_number(number, out.dtype))
    return value


# -- putting together
# ----------------------------------------------------------------------------------------------------


class Joined(TensorValue):
    """Tensors one after the other along `axis`. In memory, each piece is written straight into its
    place."""

    parts: list[tuple[TensorValue, Expr]]  # each with where it starts along the axis
    axis: int

    def pieces(self, strides: Sequence[Expr]) -> list[tuple[TensorValue, Expr]]:
        return [(part, start * strides[self.axis]) for part, start in self.parts]


@lowers(aten.cat.default)
def cat(lw: Lowering, out: Spec, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    rank = len(out.sizes)
    dim %= rank
    return join(lw, out, [t for t in tensors if len(t.sizes) == rank], dim)


def join(lw: Lowering, out: Spec, tensors: Sequence[TensorValue], dim: int) -> TensorValue:
    """`tensors`, of `out`'s sizes but along `dim`, one after the other."""
    parts: list[tuple[TensorValue, Expr]] = []
    start = ZERO
    for t in tensors:
        if t.sizes[dim] is ZERO:
            continue
        spec = out._replace(sizes=t.sizes, strides=out.strides)
        parts.append((t if t.dtype is out.dtype else _converted(lw, spec, t), start))
        start = start + t.sizes[dim]
    if not parts:
        return filled(lw, out, 0)
    joined = Joined(
        out.sizes,
        out.strides,
        out.dtype,
        lambda index: _joined_at(parts, dim, index),
        cost=3 * (len(parts) - 1),
    )
    model = lw.computed(out, joined.compute, [t for t, _ in parts])
    joined.origin, joined.cost, joined.heavy = model.origin, joined.cost + model.cost, model.heavy
    joined.parts, joined.axis = parts, dim
    # Read in place, a joined tensor computes all its pieces at every element.
    if len(parts) > 2 or joined.heavy or model.cost > lw.target.cost_of_joining:
        lw.realize(
            joined, None if lw.returned else lw.strides_of_loads(joined, WINDOW * len(parts))
        )
    return joined


def _converted(lw: Lowering, spec: Spec, t: TensorValue) -> TensorValue:
    dtype = compute_dtype(spec.dtype)
    return lw.computed(spec, lambda index: rounded(ops.to(t.load(index), dtype), spec.dtype), [t])


def _joined_at(parts: list[tuple[TensorValue, Expr]], dim: int, index: Index) -> int:
    """The value at `index`, chosen among the parts from the last to the first."""
    result: int | None = None
    for part, start in reversed(parts):
        position = index[dim] - start
        inside = ops.constant(True, torch.bool)
        if start is not ZERO:
            inside = compare("ge", position, 0)
        if result is not None:
            inside = apply("logical_and", inside, compare("lt", position, part.sizes[dim]))
        with ops.masked(inside):
            value = part.load((*index[:dim], position, *index[dim + 1 :]))
        result = value if result is None else apply("where", inside, value, result)
    assert result is not None
    return result


@lowers(aten.stack.default)
def stack(lw: Lowering, out: Spec, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    dim %= len(out.sizes)
    sizes = tuple(as_expr(1) if k == dim else size for k, size in enumerate(out.sizes))
    spec = out._replace(sizes=sizes)
    return cat(
        lw, out, [lw.mapped(t, spec, lambda i: (*i[:dim], *i[dim + 1 :])) for t in tensors], dim
    )


@lowers(aten.repeat.default)
def repeat(lw: Lowering, out: Spec, x: TensorValue, repeats: Sequence[Any]) -> TensorValue:
    """Written with a loop for the copies and one for what is copied: a remainder in the index would
    be a gather."""
    lw.share(x)
    rank = len(x.sizes)
    sizes: list[Expr] = []
    # of each dimension of `x`: which of `sizes` counts it; None where it has one element
    place: list[int | None] = []
    for dim, times in enumerate(repeats, rank - len(repeats)):
        size, copies = x.sizes[dim] if dim >= 0 else ONE, as_expr(times)
        sizes += [copies] if size is ONE else [size] if copies is ONE else [copies, size]
        place += [None if size is ONE else len(sizes) - 1] if dim >= 0 else []
    spec = Spec(tuple(sizes), contiguous_strides(sizes), out.dtype, out.device)

    def index_map(index: Index) -> Index:
        return tuple(ZERO if k is None else index[k] for k in place)

    written: TensorValue = lw.mapped(x, spec, index_map)
    if len(sizes) > len(repeats):
        written = lw.copied(written)
    return lw.mapped(written, out, reshape_map(out.sizes, sizes))
