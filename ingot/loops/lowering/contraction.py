"""Matrix products: as contractions, which generated code computes, or as calls of the library where that is faster."""

from __future__ import annotations

from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import ZERO, Expr, Symbol, contiguous_strides, loop_symbol, product
from ingot.loops.ir import Access, Contraction, View
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Spec, TensorValue, dense_strides, stored
from ingot.loops.lowering.views import reshape_map

aten = torch.ops.aten

TYPICAL_SIZE = 64  # what a symbolic size counts for

# Products with fewer rows are bound by memory, and a kernel that packs reads the matrix twice.
FEWEST_ROWS = 8


def contracts(out: Spec) -> bool:
    """Whether the product `out` is generated rather than called."""
    return out.dtype is torch.float32 and out.device.type == "cpu" and contracts_in_full(out.sizes[-2])


def contracts_in_full(rows: Expr) -> bool:
    """Whether contractions of float32 with so many rows are generated: not where lower precision is asked for."""
    if torch.get_float32_matmul_precision() != "highest":
        return False
    return rows.evaluate(dict.fromkeys(rows.symbols, TYPICAL_SIZE)) >= FEWEST_ROWS


def contract(lw: Lowering, out: Spec, left: TensorValue, right: TensorValue) -> TensorValue:
    """left [..., m, k] times right [..., k, n], of equal leading sizes, as a contraction."""
    a, b = lw.view(left), lw.view(right)
    strides = dense_strides(out.sizes, out.strides)
    spec = Spec(out.sizes, strides, out.dtype, out.device)
    buffer = lw.new_buffer(spec, strides)
    batch = tuple(loop_symbol(f"b{d}", size) for d, size in enumerate(out.sizes[:-2]))
    row, column = loop_symbol("m", out.sizes[-2]), loop_symbol("n", out.sizes[-1])
    inner = loop_symbol("k", left.sizes[-1])
    target = sum((s * stride for s, stride in zip((*batch, row, column), strides)), ZERO)
    lw.graph.nodes.append(
        Contraction(
            lw.node_name(), lw.origin, batch, (row,), (column,), (inner,),
            _access(a, (*batch, row, inner)), _access(b, (*batch, inner, column)), buffer, target, out.dtype,
        )
    )  # fmt: skip
    return stored(buffer, spec)


def _access(view: View, loops: tuple[Symbol, ...]) -> Access:
    return Access(view.buffer, sum((s * stride for s, stride in zip(loops, view.strides)), view.offset))


@lowers(aten.linear.default)
def linear(
    lw: Lowering, out: Spec, x: TensorValue, weight: TensorValue, bias: TensorValue | None = None
) -> TensorValue:
    """x @ weight.T + bias over the last dimension, with the weight as it is."""
    if len(weight.sizes) != 2 or ZERO in out.sizes or ZERO in x.sizes:
        raise NotLowered("a linear of vectors, or of nothing")
    rows, inner = product(x.sizes[:-1]), weight.sizes[1]
    flat = _flattened(lw, x, (rows, inner))
    sizes = (rows, weight.sizes[0])
    spec = Spec(sizes, contiguous_strides(sizes), out.dtype, out.device)
    result = _product(lw, spec, flat, transposed(lw, weight), bias)
    return lw.mapped(result, out, reshape_map(out.sizes, sizes))


@lowers(aten.mm.default, aten.bmm.default)
def mm(lw: Lowering, out: Spec, x: TensorValue, y: TensorValue) -> TensorValue:
    """x @ y, for matrices or for batches of them."""
    if ZERO in (*x.sizes, *out.sizes):
        raise NotLowered("a product of nothing")
    return _product(lw, out, x, y, None)


@lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(
    lw: Lowering, out: Spec, bias: TensorValue, x: TensorValue, y: TensorValue, *, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    """beta * bias + alpha * (x @ y); with beta 0 the bias does not count, whatever it holds."""
    if ZERO in (*x.sizes, *out.sizes) or not contracts(out):
        raise NotLowered("a product that the library computes")
    return _scaled(lw, out, contract(lw, out, x, y), bias, beta, alpha)


def _product(lw: Lowering, out: Spec, x: TensorValue, y: TensorValue, bias: TensorValue | None) -> TensorValue:
    if contracts(out):
        result = contract(lw, out, x, y)
        return result if bias is None else _scaled(lw, out, result, bias, 1, 1)
    if out.strides != contiguous_strides(out.sizes):
        raise NotLowered("a product in another layout")
    if bias is None:
        (called,) = lw.call(torch.mm if len(out.sizes) == 2 else torch.bmm, [out], [x, y], out="out")
    else:
        (called,) = lw.call(torch.addmm, [out], [bias, x, y], out="out")
    assert called is not None
    return called


def _scaled(lw: Lowering, out: Spec, result: TensorValue, bias: TensorValue, beta: Any, alpha: Any) -> TensorValue:
    """beta * bias + alpha * result, lazily: it becomes part of the contraction's epilogue."""

    def compute(index: tuple[Expr, ...]) -> int:
        value = result.load(index)
        if alpha != 1:
            value = ops.apply("mul", value, ops.constant(alpha, out.dtype))
        if beta == 0:
            return value
        own = index[len(index) - len(bias.sizes) :]
        added = bias.load(tuple(ZERO if size.constant == 1 else i for i, size in zip(own, bias.sizes)))
        return ops.apply("add", value, added if beta == 1 else ops.apply("mul", added, ops.constant(beta, out.dtype)))

    value = lw.computed(out, compute, [result] if beta == 0 else [result, bias])
    value.finishes = True
    return value


def _flattened(lw: Lowering, x: TensorValue, sizes: tuple[Expr, Expr]) -> TensorValue:
    spec = Spec(sizes, contiguous_strides(sizes), x.dtype, torch.device("cpu"))
    return lw.mapped(x, spec, reshape_map(sizes, x.sizes))


def transposed(lw: Lowering, x: TensorValue) -> TensorValue:
    """The matrix x.T, a view."""
    spec = Spec(x.sizes[::-1], x.strides[::-1], x.dtype, torch.device("cpu"))
    return lw.mapped(x, spec, lambda index: index[::-1])
