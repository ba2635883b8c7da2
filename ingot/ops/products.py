"""Matrix products: as contractions, which generated code computes, or as calls of the library where
that is faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises, unsupported
from ingot.graph import geometry
from ingot.graph.meta.basis import by_look, fresh
from ingot.graph.meta.trials import dtype_of
from ingot.graph.schemas import Cost
from ingot.loops import ops
from ingot.loops.aligned_products import mm_in_parts, suits
from ingot.loops.expr import ONE, ZERO, Expr, integer, loop_symbol, product
from ingot.loops.ir import Access, View
from ingot.loops.lowering import few_rows
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import LibraryCall, NotLowered
from ingot.loops.lowering.values import (
    LoopTensor,
    Spec,
    constants,
    contiguous,
    dense_strides,
    numel,
)
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.ops.creation import join
from ingot.ops.op import op
from ingot.precision import float32_precisions
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, addmm_activation, aten, current_autograd_node

FEW_ELEMENTS = 1 << 21  # of a product on a GPU


def contracts(lw: Lowering, out: Spec) -> bool:
    """Whether the product `out` is generated rather than called."""
    if not lw.target.contracts:
        return False
    return out.dtype is torch.float64 or (out.dtype is torch.float32 and contracts_in_full())


def contracts_in_full() -> bool:
    """Whether contractions of float32 are generated: not where lower precision is asked for."""
    return set(float32_precisions()) == {"ieee"}


def contract(lw: Lowering, out: Spec, left: LoopTensor, right: LoopTensor) -> LoopTensor:
    """left [..., m, k] times right [..., k, n], of equal leading sizes, as a contraction or as
    sums."""
    a, b = lw.view(left), lw.view(right)
    sums = few_rows.product(lw, out, left, right, lambda spec, sums, row: sums, join)
    if sums is not None:
        return sums
    strides = dense_strides(out.sizes, out.strides)
    batch = tuple(loop_symbol(f"b{d}", size) for d, size in enumerate(out.sizes[:-2]))
    row, column = loop_symbol("m", out.sizes[-2]), loop_symbol("n", out.sizes[-1])
    inner = loop_symbol("k", left.sizes[-1])
    x, y = access(a, (*batch, row, inner)), access(b, (*batch, inner, column))
    loops = batch, (row,), (column,), (inner,)
    return lw.contraction(out._replace(strides=strides), loops, x, y, (*batch, row, column))


def access(view: View, index: Sequence[Expr]) -> Access:
    return Access(view.buffer, address_of(index, view.strides, view.offset))


def linear(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    weight: LoopTensor,
    bias: LoopTensor | None = None,
) -> LoopTensor:
    """x @ weight.T + bias over the last dimension, with the weight as it is."""
    if len(weight.sizes) != 2 or ZERO in out.sizes or ZERO in x.sizes:
        raise NotLowered("a linear of vectors, or of nothing")
    rows, inner = product(x.sizes[:-1]), weight.sizes[1]
    flat = lw.reshaped(x, contiguous((rows, inner), x.dtype))
    sizes = (rows, weight.sizes[0])
    result = _product(lw, contiguous(sizes, x.dtype), flat, transposed(lw, weight), bias)
    return lw.reshaped(result, out)


def mm(lw: Lowering, out: Spec, x: LoopTensor, y: LoopTensor) -> LoopTensor:
    """x @ y, for matrices or for batches of them."""
    if ZERO in (*x.sizes, *out.sizes):
        raise NotLowered("a product of nothing")
    return _product(lw, out, x, y, None)


def mv(lw: Lowering, out: Spec, x: LoopTensor, y: LoopTensor) -> LoopTensor:
    """x @ y, for a matrix or a vector and a vector: one row times x.T."""
    if ZERO in (*x.sizes, *y.sizes) or not contracts(lw, out):
        raise NotLowered("a product that the library computes")
    columns = out.sizes or (ONE,)
    sizes = (*columns, *y.sizes)
    matrix = lw.mapped(
        x, contiguous(sizes, x.dtype), lambda index: index[len(index) - len(x.sizes) :]
    )
    row = lw.mapped(y, contiguous((ONE, *y.sizes), y.dtype), lambda index: index[1:])
    result = contract(lw, contiguous((ONE, *columns), x.dtype), row, transposed(lw, matrix))
    return lw.mapped(result, out, lambda index: (ZERO, *(index or (ZERO,))))


def addmm(
    lw: Lowering,
    out: Spec,
    bias: LoopTensor,
    x: LoopTensor,
    y: LoopTensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> LoopTensor:
    """beta * bias + alpha * (x @ y); with beta 0 the bias does not count, whatever it holds."""
    if ZERO in (*x.sizes, *out.sizes):
        raise NotLowered("a product of nothing")
    # whether NaN and infinities count is for the library to say
    if alpha == 0 or not math.isfinite(alpha):
        raise NotLowered("a product by a number that is 0, infinite or NaN")
    sums = _of_few_rows(lw, out, x, y, bias, beta, alpha)
    if sums is not None:
        return sums
    if contracts(lw, out) or adds_separately(lw, out):
        return _scaled(lw, out, _product(lw, out, x, y, None), bias, beta, alpha)
    if (
        lw.target.contracts
        or (beta, alpha) != (1, 1)
        or len(bias.sizes) != 1
        or len(out.sizes) != 2
    ):
        raise NotLowered("a product that the library computes")
    return _product(lw, out, x, y, bias)


def adds_separately(lw: Lowering, out: Spec) -> bool:
    """Whether a GPU computes the product alone, so that what is added is part of what comes next.

    Of few elements of float32, the library's sums are slower. Measured on an H200, us: [197, 768]
    to 768 21 with the bias and 16 without, [197, 3072] to 768 91 and 37, [850, 256] to 2048 31 and
    31. Of symbolic sizes they may be few; where they are not, adding them takes little beside a
    product in full precision.
    """
    few = numel(out.sizes).constant
    full = out.dtype is torch.float32 and contracts_in_full()
    return (
        full
        and not lw.target.contracts
        and (few is None or few <= FEW_ELEMENTS)
        and out.sizes[-2] is not ONE
    )


def _product(
    lw: Lowering, out: Spec, x: LoopTensor, y: LoopTensor, bias: LoopTensor | None
) -> LoopTensor:
    sums = _of_few_rows(lw, out, x, y, bias)
    if sums is not None:
        return sums
    if bias is not None and (contracts(lw, out) or adds_separately(lw, out)):
        return _scaled(lw, out, _product(lw, out, x, y, None), bias, 1, 1)
    if contracts(lw, out):
        return contract(lw, out, x, y)
    if out.strides != contiguous_strides(out.sizes):
        raise NotLowered("a product in another layout")
    if bias is None:
        plain: Any = torch.bmm
        if len(out.sizes) == 2:
            plain = torch.mm
        if _uses_aligned_parts(lw, out, x, y):
            plain = mm_in_parts
        return lw.result_of(plain, out, [x, y], out="out")
    return lw.result_of(torch.addmm, out, [bias, x, y], out="out")


def _of_few_rows(
    lw: Lowering, out: Spec, x: LoopTensor, y: LoopTensor, bias: LoopTensor | None,
    beta: Any = 1, alpha: Any = 1,
) -> LoopTensor | None:  # fmt: skip
    """beta * bias + alpha * (x @ y), rounded once, of a few rows on a CPU; None of others."""
    if lw.target.contracts:
        if not (out.dtype in ops.HALVES or contracts(lw, out)):
            return None
    elif out.dtype not in ops.HALVES or out.sizes[-2] is not ONE or y.buffer is None:
        return None

    def finish(spec: Spec, sums: LoopTensor, row: int | None) -> LoopTensor:
        if bias is not None:
            added = bias if row is None else _row_of(lw, bias, row)
            sums = _scaled(lw, spec._replace(dtype=sums.dtype), sums, added, beta, alpha)
        return lw.rounded_to(spec, sums)

    return few_rows.product(lw, out, x, y, finish, join)


def _row_of(lw: Lowering, x: LoopTensor, row: int) -> LoopTensor:
    """What is added to a row of a matrix, of an `x` that is added to the whole matrix."""
    if len(x.sizes) < 2 or x.sizes[-2] is ONE:
        return x
    spec = Spec((*x.sizes[:-2], ONE, x.sizes[-1]), x.strides, x.dtype)
    return lw.mapped(x, spec, lambda index: (*index[:-2], integer(row), index[-1]))


def _scaled(
    lw: Lowering, out: Spec, result: LoopTensor, bias: LoopTensor, beta: Any, alpha: Any
) -> LoopTensor:
    """beta * bias + alpha * result, lazily: it becomes part of the contraction's epilogue."""

    def compute(index: tuple[Expr, ...]) -> int:
        value = result.load(index)
        if alpha != 1:
            value = ops.apply("mul", value, ops.constant(alpha, out.dtype))
        if beta == 0:
            return value
        own = index[len(index) - len(bias.sizes) :]
        added = bias.load(
            tuple(ZERO if size.constant == 1 else i for i, size in zip(own, bias.sizes))
        )
        return ops.apply(
            "add",
            value,
            added if beta == 1 else ops.apply("mul", added, ops.constant(beta, out.dtype)),
        )

    value = lw.computed(out, compute, [result] if beta == 0 else [result, bias])
    value.finishes = True
    if len(bias.sizes) > 1 and bias.sizes == out.sizes:
        lw.realize(value)  # of a sum of products, each is added as soon as it is there
    return value


def transposed(lw: Lowering, x: LoopTensor) -> LoopTensor:
    """The matrix x.T, a view."""
    spec = Spec(x.sizes[::-1], x.strides[::-1], x.dtype)
    return lw.mapped(x, spec, lambda index: index[::-1])


def _uses_aligned_parts(lw: Lowering, out: Spec, x: LoopTensor, y: LoopTensor) -> bool:
    """Whether a GPU computes the product in parts whose rows are aligned. Margins would have been
    given to it where they are faster."""
    if lw.target.device != "cuda" or len(out.sizes) != 2:
        return False
    left, right = constants(lw.view(x).strides), constants(lw.view(y).strides)
    rows, depth, columns = constants((*x.sizes, out.sizes[1]))
    return suits(rows, depth, columns, left, right, out.dtype)


# -- of vectors, and of diagonals ------------------------------------------------------------------


def cross(x: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    if x.is_complex():
        return NotImplemented

    def turned(t: Tensor, steps: int) -> Tensor:
        return torch.cat([t.narrow(dim, steps, 3 - steps), t.narrow(dim, 0, steps)], dim)

    return turned(x, 1) * turned(other, 2) - turned(x, 2) * turned(other, 1)


def trace(x: Tensor) -> Tensor:
    return torch.sum(torch.diagonal(x))


# -- what they look like, and what eager refuses ---------------------------------------------------


@by_look
def matmul_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """mm, bmm, mv, dot and their add* forms: the last two matrices decide."""
    left, right = [a for a in args if isinstance(a, Tensor)][-2:]
    if not geometry.expect_same(left.shape[-1], right.shape[max(right.dim() - 2, 0)]):
        raise EagerRaises(
            f"{op}: shapes {tuple(left.shape)} and {tuple(right.shape)} do not multiply"
        )
    sizes = (*left.shape[:-1], *([right.shape[-1]] if right.dim() > 1 else []))
    return fresh(sizes, dtype_of(op, args, kwargs))


@by_look
def linear_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    x, weight = args[0], args[1]
    return fresh((*x.shape[:-1], weight.shape[0]), x.dtype)


def addend_refusal(x: Tensor, **factors: Any) -> str:
    """The bias of addmm and baddbmm broadcasts to the product."""
    second, third, *_ = factors.values()
    sizes = (*second.shape[:-1], third.shape[-1])
    fits = x.dim() <= len(sizes) and geometry.expect_same_sizes(
        geometry.broadcast(x.shape, sizes), sizes
    )
    if fits:
        return ""
    return "an addend of another size"


def bmm_refusal(x: Tensor, mat2: Tensor, **_: Any) -> str:
    fits = x.dim() == mat2.dim() == 3 and geometry.expect_same_sizes(x.shape[:1], mat2.shape[:1])
    if fits:
        return ""
    return "batches of different sizes"


def linear_refusal(x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
    if weight.dim() != 2:
        return ""
    if not geometry.expect_same(x.shape[-1], weight.shape[1]):
        return "an input and a weight that do not multiply"
    fits = bias is None or bias.dim() != 1 or bias.shape[0] == 1 or bias.shape[0] == weight.shape[0]
    if fits:
        return ""
    return "a bias of another size"


def svd_refusal(**_: Any) -> str:
    node = current_autograd_node()
    # which takes any fake matrix for a singular one
    if node is not None and node.name() == "LinalgDetBackward0":
        why = "the formula of the derivative of a determinant looks at values"
        raise unsupported("op-form", why)
    return ""


_matmul = partial(op, meta=matmul_meta)

OPS = (
    _matmul(aten.mm.default, cost=Cost.CONTRACTION, lower=mm, library=LibraryCall(torch.mm)),
    _matmul(
        aten.bmm.default,
        refuses=bmm_refusal,
        cost=Cost.CONTRACTION,
        lower=mm,
        library=LibraryCall(torch.bmm),
    ),
    _matmul(aten.mv.default, lower=mv, library=LibraryCall(torch.mv)),
    _matmul(aten.dot.default, lower=mv),
    _matmul(aten.addmv.default),
    _matmul(
        aten.addmm.default,
        refuses=addend_refusal,
        cost=Cost.CONTRACTION,
        lower=addmm,
        library=LibraryCall(torch.addmm),
    ),
    _matmul(
        aten.baddbmm.default,
        refuses=addend_refusal,
        cost=Cost.CONTRACTION,
        lower=addmm,
        library=LibraryCall(torch.baddbmm),
    ),
    op(aten._addmm_activation.default, library=LibraryCall(addmm_activation)),
    _matmul(aten.mm.dtype),
    _matmul(aten.bmm.dtype, refuses=bmm_refusal),
    _matmul(aten.addmm.dtype, refuses=addend_refusal),
    _matmul(aten.baddbmm.dtype, refuses=addend_refusal),
    op(aten.linear.default, meta=linear_meta, refuses=linear_refusal, lower=linear),
    op(aten.linalg_cross.default, decompose=cross),
    op(aten.trace.default, decompose=trace),
    op(aten._linalg_svd.default, refuses=svd_refusal),
)
