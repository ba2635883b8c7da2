"""Ops that are recorded as simpler ones: one small function per op, run under the recorder.

float32 results agree with eager's to rounding; bfloat16 and float16 are computed in float32 and
rounded once, as eager's kernels do. A rule may return NotImplemented: the op is then recorded
whole. Strides need no care here: the recorder gives every result those of eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ingot.tables import Table

Rule = Callable[..., Any]

DECOMPOSITIONS: Table[Rule] = Table("decompose")

HALVES = (torch.bfloat16, torch.float16)


def widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in HALVES:
        return value.to(torch.float32)
    return value


def rounded_once(function: Rule) -> Rule:
    """Compute in float32 if the first tensor is bfloat16 or float16, and round the (first) result
    back to its dtype."""

    @wraps(function)
    def wrapper(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        if first.dtype not in HALVES:
            return function(first, *args, **kwargs)
        result = function(
            widened(first), *map(widened, args), **{k: widened(v) for k, v in kwargs.items()}
        )
        if result is NotImplemented:
            return result
        return _narrow(result, first.dtype)

    return wrapper


def in_float32(number: float) -> float:
    """As eager's code holds some of its constants, for each type of tensor."""
    return torch.tensor(number, dtype=torch.float32).item()


def _narrow(result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, tuple):
        return (result[0].to(dtype), *result[1:])
    return result.to(dtype)


def quotient(a: Any, b: Any, dtype: torch.dtype) -> Any:
    """a / b of numbers; a tensor of the dtype where one is a symbolic size."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return (torch.full((), a, dtype=torch.float64) / torch.full((), b, dtype=torch.float64)).to(
            dtype
        )
    if b == 0:
        if a:
            return math.copysign(math.inf, a)
        return math.nan
    return a / b
