"""What eager refuses, for ops whose result's geometry the rules in `meta` give without asking.

An op without an entry is tried out, or checked by its rule, or by the library that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph.geometry import bad_dims
from ingot.graph.schemas import bind
from ingot.tables import Table
from ingot.torch_private import OpOverload


def check(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise EagerRaises if eager would not take the arguments (tensors with geometry only)."""
    test = REFUSALS.get(op)
    if test is not None:
        problem = test(**{NAMES.get(k, k): v for k, v in bind(op, args, kwargs).items()})
        if problem:
            raise EagerRaises(f"{op} does not take these arguments in eager: {problem}")


REFUSALS: Table[Callable[..., str]] = Table("refuses")
"""Why eager refuses the arguments of an op."""

NAMES = {"self": "x", "input": "x"}


def along(x: Tensor, dim: int, **_: Any) -> str:
    return bad_dims(x, [dim])


def overflows(dtype: torch.dtype, value: Any) -> bool:
    """Whether eager refuses a Python number for a tensor of a narrower type."""
    if not isinstance(value, (int, float)) or dtype.is_complex or dtype is torch.bool:
        return False
    if dtype.is_floating_point:
        return math.isfinite(value) and abs(value) > torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    # as negative integers wrap around
    if info.min or isinstance(value, float):
        least = info.min
    else:
        least = -info.max
    return not least <= value <= info.max


def number_overflows(x: Tensor, value: Any, **_: Any) -> str:
    if overflows(x.dtype, value):
        return "a number that the tensor's type cannot hold"
    return ""


def source_of_dtype(name: str) -> Callable[..., str]:
    """What is put into a tensor has its dtype."""

    def test(x: Tensor, **others: Any) -> str:
        source = others.get(name)
        if isinstance(source, Tensor) and source.dtype is not x.dtype:
            return "a source of another dtype"
        return ""

    return test
