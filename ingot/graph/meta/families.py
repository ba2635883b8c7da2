"""The rules of families of ops, whose results follow from the sizes of their arguments, symbolic
ones included."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import by_look, fresh, has_symbols, tensors_in
from ingot.graph.meta.trials import dtype_of, is_copied, kinds
from ingot.graph.schemas import arguments_of, bind
from ingot.graph.symbolic_views import is_symbolic, view_symbolically
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload

_results: dict[Any, tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]] = {}
_MOST_RESULTS = 1 << 14


@by_look
def pointwise_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """The rule of pointwise ops, on a CPU."""
    return _pointwise_meta(op, args, kwargs, copies=True)


@by_look
def pointwise_meta_on_gpus(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """The same where kernels cast what they read."""
    return _pointwise_meta(op, args, kwargs, copies=False)


def _pointwise_meta(op: OpOverload, args: Args, kwargs: Kwargs, copies: bool) -> Tensor:
    """The geometry of each call is kept: a program has many that are alike."""
    operands = tensors_in(args)
    if kwargs:
        operands += tensors_in(kwargs)
    if any(map(is_symbolic, operands)):
        return fresh(*_pointwise(op, args, kwargs, operands, copies))
    key = kinds(op, args, kwargs), copies, *[(t.shape, t.stride()) for t in operands]
    result = _results.get(key)
    if result is None:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        result = _results[key] = _pointwise(op, args, kwargs, operands, copies)
    return fresh(*result)


def _pointwise(
    op: OpOverload, args: Args, kwargs: Kwargs, operands: list[Tensor], copies: bool
) -> Any:
    """Sizes, dtype and strides of the result."""
    first = operands[0]
    if len(operands) == 1:
        shape = tuple(first.shape)
    else:
        shape = geometry.broadcast(*[t.shape for t in operands])
    with_number = len(operands) == 1 and len(args) > 1 and arguments_of(op)[1][0] == "other"
    order = list(operands)
    if copies and len(operands) > 1:
        for k, t in enumerate(operands):
            if geometry.is_expanded(t) and is_copied(op, args, kwargs, t):
                order[k] = fresh(t.shape, t.dtype, geometry.preserved(t))
    if op in geometry.LAST_FIRST:
        order.reverse()
    return shape, dtype_of(op, args, kwargs), geometry.elementwise(shape, order, with_number)


@by_look
def like_self(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Fills and writes at indices: a changed copy of the first argument."""
    t = args[0]
    return fresh(t.shape, t.dtype, geometry.preserved(t))


@by_look
def plain_self(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Scatters and draws: a changed copy of the first argument, contiguous."""
    return fresh(args[0].shape, args[0].dtype)


@by_look
def masked(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """masked_fill and masked_scatter: the first argument, broadcast with the mask, contiguous."""
    return fresh(geometry.broadcast(args[0].shape, args[1].shape), args[0].dtype)


@by_look
def contiguous_self(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    t = args[0]
    return fresh(t.shape, dtype_of(op, args, kwargs))


@by_look
def formatted_copy(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """clone, _to_copy and the *like factories: dtype and memory_format keywords over the first
    argument's geometry."""
    t, format_ = args[0], kwargs.get("memory_format")
    dtype = kwargs.get("dtype") or t.dtype
    if format_ in (None, torch.preserve_format):
        return fresh(t.shape, dtype, geometry.preserved(t))
    if format_ is torch.contiguous_format:
        return fresh(t.shape, dtype)
    return fresh(t.shape, dtype, geometry.channels_last(t.shape))


@by_look
def exact_self(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """`copy`: the first argument's geometry, gaps between the elements included, unless elements
    share memory."""
    t = args[0]
    return fresh(t.shape, t.dtype, geometry.preserved(t) if geometry.is_expanded(t) else t.stride())


def factory(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """zeros, full, rand, ...: sizes are the argument named `size`; the dtype is eager's own
    answer."""
    if op._schema.name == "aten::eye":
        return fresh((args[0], args[-1]), kwargs.get("dtype") or torch.get_default_dtype())
    bound = bind(op, args, kwargs)
    name = next(a.name for a in op._schema.arguments if str(a.type) == "List[int]")
    small = tuple([1] if v is bound[name] else v for v in args)
    return fresh(bound[name], dtype_of(op, small, kwargs))


def new_factory(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return fresh(args[1], kwargs.get("dtype") or args[0].dtype)


def native(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """torch's own C++ meta kernel: for views, which must share the meta tensor's storage."""
    if args and isinstance(args[0], Tensor) and (is_symbolic(args[0]) or has_symbols(args[1:])):
        return view_symbolically(op, args[0], args[1:], kwargs)
    return op(*args, **kwargs)
