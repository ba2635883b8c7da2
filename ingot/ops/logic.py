"""Comparisons, truth values and bits, and what is chosen by them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ingot.graph.checks import overflows
from ingot.graph.meta.families import masked
from ingot.graph.schemas import Cost
from ingot.loops import ops
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import (
    Operand,
    Scalar,
    apply,
    constant,
    constant_like,
    pointwise,
    simple,
)
from ingot.loops.lowering.values import LoopTensor, Spec
from ingot.ops.op import binary, op, unary
from ingot.torch_private import aten, left_shift, right_shift


def _bitwise(name: str) -> Scalar:
    """An op of bits, which is a logical one of truth values."""

    def scalar(*values: int) -> int:
        if ops.dtype_of(values[0]) is torch.bool:
            return apply(name.replace("bitwise", "logical"), *values)
        return apply(name, *values)

    return scalar


def _logical(name: str) -> Scalar:
    def scalar(*values: int) -> int:
        return apply(name, *[ops.to(v, torch.bool) for v in values])

    return scalar


def _float_test(name: str) -> Scalar:
    """A question that only floats can answer with yes."""

    def scalar(x: int) -> int:
        if ops.dtype_of(x) in ops.FLOATS:
            return apply(name, x)
        return constant(False, torch.bool)

    return scalar


def _comparison(name: str) -> Scalar:
    def scalar(a: int, b: int) -> int:
        if ops.dtype_of(a) is torch.bool and name not in ("eq", "ne"):
            a, b = ops.to(a, torch.uint8), ops.to(b, torch.uint8)
        return apply(name, a, b)

    return scalar


def _infinite(test: str, bound: float) -> Scalar:
    def scalar(x: int) -> int:
        if ops.dtype_of(x) in ops.FLOATS:
            return apply(test, x, constant_like(x, bound))
        return constant(False, torch.bool)

    return scalar


def _sign_bit(x: int) -> int:
    dtype = ops.dtype_of(x)
    if dtype is torch.bool:
        return constant(False, torch.bool)
    if dtype in ops.FLOATS:
        return apply("signbit", x)
    return apply("lt", x, constant_like(x, 0))


def where(lw: Lowering, out: Spec, condition: LoopTensor, a: Operand, b: Operand) -> LoopTensor:
    return pointwise(
        lw, out, simple("where"), [condition, a, b], [torch.bool, out.dtype, out.dtype]
    )


def masked_fill(
    lw: Lowering, out: Spec, x: LoopTensor, mask: LoopTensor, value: Operand
) -> LoopTensor:
    return where(lw, out, mask, value, x)


def masked_fill_refusal(x: Tensor, mask: Tensor, value: Any) -> str:
    if mask.dtype is not torch.bool:
        return "a mask that is not boolean"
    if overflows(x.dtype, value):
        return "a number that the tensor's type cannot hold"
    if isinstance(value, Tensor) and value.dim():
        return "a value with dimensions"
    return ""


_COMPARISONS = [
    binary(
        packet.Tensor,
        packet.Scalar,
        scalar=_comparison(packet.__name__),
        dtype="compare",
        cost=Cost.LIGHT,
    )
    for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
]
_LOGICAL = [
    binary(packet.default, scalar=_logical(packet.__name__), dtype="own", cost=Cost.LIGHT)
    for packet in (aten.logical_and, aten.logical_or, aten.logical_xor)
]
_BITWISE = [
    binary(packet.Tensor, packet.Scalar, scalar=_bitwise(packet.__name__))
    for packet in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor)
]

OPS = (
    *_COMPARISONS,
    *_LOGICAL,
    *_BITWISE,
    unary(aten.logical_not.default, scalar=_logical("logical_not"), dtype="own", cost=Cost.LIGHT),
    unary(aten.bitwise_not.default, scalar=_bitwise("bitwise_not")),
    binary(
        aten.bitwise_left_shift.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar,
        left_shift.Tensor,
        left_shift.Scalar,
        scalar=simple("shift_left"),
    ),
    binary(
        aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar,
        right_shift.Tensor,
        right_shift.Scalar,
        scalar=simple("shift_right"),
    ),
    unary(aten.isnan.default, scalar=_float_test("isnan"), dtype="own"),
    unary(aten.isinf.default, scalar=_float_test("isinf"), dtype="own"),
    unary(aten.isposinf.default, scalar=_infinite("eq", math.inf), dtype="own"),
    unary(aten.isneginf.default, scalar=_infinite("eq", -math.inf), dtype="own"),
    unary(aten.signbit.default, scalar=_sign_bit, dtype="own"),
    op(aten.where.self, cost=Cost.LIGHT, lower=where),
    op(
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        meta=masked,
        refuses=masked_fill_refusal,
        takes_no_elements=True,
        lower=masked_fill,
    ),
    op(
        aten.nonzero.default,
        aten.masked_select.default,
        aten._local_scalar_dense.default,
        takes_no_elements=True,
    ),
)
