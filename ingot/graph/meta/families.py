"""The rules of families of ops, whose results follow from the sizes of their arguments, symbolic
ones included."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import fresh, has_symbols, tensors_in
from ingot.graph.meta.trials import dtype_of, kinds
from ingot.graph.schemas import arguments_of, bind
from ingot.graph.symbolic_views import is_symbolic, view_symbolically
from ingot.torch_private import (
    OpOverload,
)

_results: dict[Any, tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]] = {}
_MOST_RESULTS = 1 << 14


def pointwise(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The geometry of each call is kept: a program has many that are alike."""
    operands = tensors_in(args)
    if kwargs:
        operands += tensors_in(kwargs)
    if any([is_symbolic(t) for t in operands]):
        return fresh(*_pointwise(op, args, kwargs, operands))
    key = kinds(op, args, kwargs), *[(t.shape, t.stride()) for t in operands]
    found = _results.get(key)
    if found is None:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        found = _results[key] = _pointwise(op, args, kwargs, operands)
    return fresh(*found)


def _pointwise(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
) -> Any:
    """Sizes, dtype and strides of the result."""
    first = operands[0]
    shape = (
        tuple(first.shape)
        if len(operands) == 1
        else geometry.broadcast(*[t.shape for t in operands])
    )
    with_number = len(operands) == 1 and len(args) > 1 and arguments_of(op)[1][0] == "other"
    order = operands[::-1] if op in geometry.LAST_FIRST else operands
    return shape, dtype_of(op, args, kwargs), geometry.elementwise(shape, order, with_number)


def like_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Fills and writes at indices: a changed copy of the first argument."""
    t = args[0]
    return fresh(t.shape, t.dtype, geometry.preserved(t))


def plain_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Scatters and draws: a changed copy of the first argument, contiguous."""
    return fresh(args[0].shape, args[0].dtype)


def masked(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """masked_fill and masked_scatter: the first argument, broadcast with the mask, contiguous."""
    return fresh(geometry.broadcast(args[0].shape, args[1].shape), args[0].dtype)


def contiguous_exponent(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A number to the power of a tensor."""
    return fresh(args[1].shape, dtype_of(op, args, kwargs))


def is_scaled_exactly(x: Tensor, exponent: Tensor) -> bool:
    """Whether eager's ldexp rounds once: else it is the product with a power of 2."""
    return _SCALES_EXACTLY and x.is_floating_point() and exponent.dtype in _INTEGERS


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_SCALES_EXACTLY = math.isfinite(
    torch.ldexp(torch.zeros(1, device="cpu"), torch.full((1,), 2000, device="cpu")).item()
)
"""Since torch 2.12 or 2.13; 0 times infinity before."""


def power_of_two(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """ldexp: the product with a power of 2, which is contiguous where it is of the default
    dtype."""
    x, exponent = args
    if is_scaled_exactly(x, exponent):
        return pointwise(op, args, kwargs)
    if (
        not (exponent.is_floating_point() or exponent.is_complex())
        or exponent.dtype is torch.get_default_dtype()
    ):
        exponent = fresh(exponent.shape, exponent.dtype)
    return pointwise(op, (x, exponent), kwargs)


def contiguous_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t = args[0]
    return fresh(t.shape, dtype_of(op, args, kwargs))


def angle(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return (contiguous_self if args[0].is_complex() else pointwise)(op, args, kwargs)


def formatted_copy(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """clone, _to_copy and the *like factories: dtype and memory_format keywords over the first
    argument's geometry."""
    t, format_ = args[0], kwargs.get("memory_format")
    dtype = kwargs.get("dtype") or t.dtype
    if format_ in (None, torch.preserve_format):
        return fresh(t.shape, dtype, geometry.preserved(t))
    if format_ is torch.contiguous_format:
        return fresh(t.shape, dtype)
    return fresh(t.shape, dtype, geometry.channels_last(t.shape))


def exact_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`copy`: the first argument's geometry, gaps between the elements included, unless elements
    share memory."""
    t = args[0]
    return fresh(t.shape, t.dtype, geometry.preserved(t) if geometry.is_expanded(t) else t.stride())


def factory(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """zeros, full, rand, ...: sizes are the argument named `size`; the dtype is eager's own
    answer."""
    if op._schema.name == "aten::eye":
        return fresh((args[0], args[-1]), kwargs.get("dtype") or torch.get_default_dtype())
    bound = bind(op, args, kwargs)
    name = next(a.name for a in op._schema.arguments if str(a.type) == "List[int]")
    small = tuple([1] if v is bound[name] else v for v in args)
    return fresh(bound[name], dtype_of(op, small, kwargs))


def new_factory(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return fresh(args[1], kwargs.get("dtype") or args[0].dtype)


def native(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own C++ meta kernel: for views, which must share the meta tensor's storage."""
    if args and isinstance(args[0], Tensor) and (is_symbolic(args[0]) or has_symbols(args[1:])):
        return view_symbolically(op, args[0], args[1:], kwargs)
    return op(*args, **kwargs)
