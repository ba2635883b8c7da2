"""Ops under a default dtype that is not the one around the call.

In: the arguments of an op that is traced there. Out: arguments with which the op means the same
under any default dtype: no later stage asks for the one that held where the op stood.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph.meta import map_tensors, tensors_in
from ingot.graph.nodes import results_of
from ingot.graph.schemas import arguments_of, is_pointwise, name_of
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

_BY_CONDITION = frozenset(("aten::where", "aten::masked_fill"))
"""Pointwise ops with an argument that is no operand."""


def independent(op: OpOverload, args: Args, kwargs: Kwargs, result: Any) -> tuple[Args, Kwargs]:
    """The arguments of an op, whose `result` is known, so that the default dtype does not matter.

    Raises Unsupported where it may matter and cannot be written out."""
    operands, results = tensors_in((args, kwargs)), tensors_in(results_of(result))
    if _any_inexact(operands):
        return args, kwargs
    if kwargs.get("dtype") is not None or not (
        _is_given_float(args, kwargs) or _any_inexact(results)
    ):
        return args, kwargs
    if len(results) == 1 and ("dtype", None) in arguments_of(op) and _any_inexact(results):
        return args, {**kwargs, "dtype": results[0].dtype}
    if operands and is_pointwise(op) and name_of(op) not in _BY_CONDITION:
        return map_tensors(_converted, args), kwargs
    if not operands and not _any_inexact(results):
        return args, kwargs
    raise unsupported("mode", f"{name_of(op)} under another default dtype than around the call")


def _converted(tensor: Tensor) -> Tensor:
    return aten._to_copy.default(tensor, dtype=torch.get_default_dtype())  # type: ignore[no-any-return]


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _any_inexact(tensors: Any) -> bool:
    for tensor in tensors:
        if _is_inexact(tensor.dtype):
            return True
    return False


def _is_given_float(args: Args, kwargs: Kwargs) -> bool:
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, (float, complex, torch.SymFloat)):
            return True
    return False
