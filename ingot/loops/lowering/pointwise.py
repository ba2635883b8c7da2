"""What the lowering rules of pointwise ops share: broadcasting, type promotion, rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.loops import ops
from ingot.loops.expr import Expr
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import NotLowered, Rule
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    broadcast_index,
    compute_dtype,
    rounded,
    rounded_number,
)

apply, constant = ops.apply, ops.constant

Number = bool | int | float | Expr
Operand = LoopTensor | Number
Scalar = Callable[..., int]  # from recorded values to a recorded value


# -- promotion -------------------------------------------------------------------------------------

_DTYPE_OF_NUMBER = {bool: torch.bool, int: torch.int64, float: torch.float64, Expr: torch.int64}


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        raise NotLowered("complex numbers")
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def promoted(operands: Sequence[Operand]) -> torch.dtype:
    """The dtype in which eager computes.

    Tensors with dimensions outrank 0-dim tensors, which outrank Python numbers, unless a lower rank
    has the higher category (bool < int < float).
    """
    result: torch.dtype | None = None
    ranks: list[list[torch.dtype]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, LoopTensor):
            ranks[0 if operand.sizes else 1].append(operand.dtype)
        else:
            kind = Expr if isinstance(operand, Expr) else type(operand)
            number = _DTYPE_OF_NUMBER.get(kind)
            if number is None:
                raise NotLowered("complex numbers")
            ranks[2].append(torch.get_default_dtype() if number is torch.float64 else number)
    for rank in ranks:
        if not rank:
            continue
        dtype = functools.reduce(torch.promote_types, rank)
        if result is None or _category(dtype) > _category(result):
            result = dtype
    if result is None:
        raise NotLowered("no operands")
    return result


# -- the shared machinery --------------------------------------------------------------------------


def read(operand: Operand, index: Index, dtype: torch.dtype) -> int:
    """The operand's value at `index` of the broadcast result, as eager would convert it to `dtype`,
    to be computed with."""
    if isinstance(operand, LoopTensor):
        value = operand.load(broadcast_index(index, operand.sizes))
        if operand.dtype is dtype:
            return value
        return rounded(value, dtype)
    if isinstance(operand, Expr):
        return rounded(ops.index(operand, compute_dtype(dtype)), dtype)
    return constant(rounded_number(operand, dtype), compute_dtype(dtype))


def pointwise(
    lw: Lowering,
    out: Spec,
    scalar: Scalar,
    operands: Sequence[Operand],
    dtypes: Sequence[torch.dtype] | None = None,
) -> LoopTensor:
    """The lazy tensor `scalar(*operands)`, operand k computed with as `dtypes[k]`, or all as
    `out.dtype`, to which the result is rounded.

    Raises NotLowered where the code generator lacks an op.
    """
    if dtypes is None:
        dtypes = [out.dtype] * len(operands)
    cost, heavy = measure(lw, scalar, tuple(compute_dtype(d) for d in dtypes))
    tensors = []
    for operand in operands:
        if isinstance(operand, LoopTensor):
            tensors.append(operand)
    for tensor in tensors:
        if tensor.sizes != out.sizes:
            lw.share(tensor)  # it is broadcast: computed once per copy otherwise

    def compute(index: Index) -> int:
        values = []
        for operand, dtype in zip(operands, dtypes):
            values.append(read(operand, index, dtype))
        return rounded(scalar(*values), out.dtype)

    return lw.computed(out, compute, tensors, cost, heavy)


def measure(lw: Lowering, scalar: Scalar, dtypes: tuple[torch.dtype, ...]) -> tuple[int, bool]:
    """(number of ops, whether one is heavy) of `scalar`, found by recording it once. Raises
    NotLowered for a missing op."""
    with ops.recording() as recorder:
        scalar(*[recorder.emit("load", (), dtype, (f"?{k}",)) for k, dtype in enumerate(dtypes)])
        cost, heavy = 0, False
        for instruction in recorder.instructions:
            if instruction.op in ops.STRUCTURAL:
                continue
            dtype = recorder.instructions[instruction.args[-1]].dtype
            if not ops.supported(instruction.op, dtype) or not lw.supported(instruction.op, dtype):
                raise NotLowered(f"{instruction.op} of {dtype}")
            cost += 1
            heavy = heavy or instruction.op not in ops.CHEAP
    return cost, heavy


def filled(lw: Lowering, out: Spec, number: Any) -> LoopTensor:
    dtype = compute_dtype(out.dtype)

    def compute(index: Index) -> int:
        if isinstance(number, Expr):
            value = ops.index(number, dtype)
        else:
            value = constant(number, dtype)
        return rounded(value, out.dtype)

    return lw.computed(out, compute, [], cost=0)


# -- rules -------------------------------------------------------------------------------------


def simple(name: str) -> Scalar:
    def scalar(*values: int) -> int:
        return apply(name, *values)

    return scalar


def constant_like(value: int, number: bool | int | float) -> int:
    return constant(number, ops.dtype_of(value))


def number_like(like: int, number: bool | int | float | Expr) -> int:
    if isinstance(number, Expr):
        return ops.index(number, ops.dtype_of(like))
    return constant_like(like, number)


def elementwise(scalar: Scalar, operands: int, dtype: str = "result") -> Rule:
    """The lowering rule of an op that is `scalar` of each element. `operands` is how many leading
    arguments are operands; what follows goes to `scalar` by keyword or position as it is.

    `dtype` says in which dtype to compute: "result" (the result's), "compare" (the promoted one),
    "own" (each operand's), "scaled" (the result's, but a last operand that is a number or a 0-dim
    tensor is not rounded to a half), "summed" (the result's, and so is alpha)."""

    def rule(lw: Lowering, out: Spec, *args: Any, **kwargs: Any) -> LoopTensor:
        values, rest = args[:operands], args[operands:]
        if dtype == "summed":
            rest = tuple(_alpha(v, out.dtype) for v in rest)
            kwargs = {k: _alpha(v, out.dtype) for k, v in kwargs.items()}
        function = functools.partial(scalar, **kwargs) if kwargs else scalar
        if rest:
            function = _with_rest(function, rest)
        return pointwise(lw, out, function, values, _computed_in(dtype, out, values))

    return rule


def _computed_in(dtype: str, out: Spec, operands: Sequence[Operand]) -> list[torch.dtype]:
    """The dtype in which to compute with each operand."""
    if dtype == "compare":
        return [promoted(operands)] * len(operands)
    if dtype == "own":
        return [promoted([operand]) for operand in operands]
    dtypes = [out.dtype] * len(operands)
    last = operands[-1]
    if dtype == "scaled" and not (isinstance(last, LoopTensor) and last.sizes):
        dtypes[-1] = compute_dtype(out.dtype)
    return dtypes


def _alpha(number: Number, dtype: torch.dtype) -> Number:
    if isinstance(number, Expr):
        return number
    return rounded_number(number, dtype)


def _with_rest(scalar: Scalar, rest: Sequence[Any]) -> Scalar:
    return lambda *values: scalar(*values, *rest)
