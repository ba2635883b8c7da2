"""What eager refuses, for ops whose result's geometry the rules in `meta` give without asking.

An op without a row is tried out, or checked by its rule, or by the library that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ingot.errors import EagerRaises
from ingot.graph.geometry import bad_dims
from ingot.graph.schemas import bind, name_of
from ingot.torch_private import OpOverload

Tensor = torch.Tensor


def check(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise EagerRaises if eager would not take the arguments (tensors with geometry only)."""
    test = REFUSALS.get(op) or _TESTS.get(name_of(op))
    if test is not None:
        problem = test(**{_NAMES.get(k, k): v for k, v in bind(op, args, kwargs).items()})
        if problem:
            raise EagerRaises(f"{op} does not take these arguments in eager: {problem}")


REFUSALS: dict[OpOverload, Callable[..., str]] = {}
"""Why eager refuses the arguments of an op, as `rules.py` hands it over."""

_NAMES = {"self": "x", "input": "x"}


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
    least = info.min if info.min or isinstance(value, float) else -info.max
    return not least <= value <= info.max


def _pow(exponent: Any, x: Any = None, **_: Any) -> str:
    """Of halves eager takes powers as of elements."""
    halves = isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return (
        "an exponent that the tensor's type cannot hold"
        if halves and overflows(x.dtype, exponent)
        else ""
    )


def number_overflows(x: Tensor, value: Any, **_: Any) -> str:
    return "a number that the tensor's type cannot hold" if overflows(x.dtype, value) else ""


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> str:
    if mask.dtype is not torch.bool:
        return "a mask that is not boolean"
    if overflows(x.dtype, value):
        return "a number that the tensor's type cannot hold"
    return "a value with dimensions" if isinstance(value, Tensor) and value.dim() else ""


def _softshrink(x: Tensor, lambd: float = 0.5) -> str:
    most = torch.finfo(x.dtype).max if x.is_floating_point() else math.inf
    return (
        ""
        if 0 <= lambd <= most
        else "a limit that is negative, or that the tensor's type cannot hold"
    )


def source_of_dtype(name: str) -> Callable[..., str]:
    """What is put into a tensor has its dtype."""

    def test(x: Tensor, **given: Any) -> str:
        source = given.get(name)
        return (
            "a source of another dtype"
            if isinstance(source, Tensor) and source.dtype is not x.dtype
            else ""
        )

    return test


_TESTS: dict[str, Callable[..., str]] = {
    "aten::pow": _pow,
    "aten::masked_fill": _masked_fill,
    "aten::threshold": lambda x, threshold, value: (
        number_overflows(x, threshold) or number_overflows(x, value)
    ),
    "aten::softshrink": _softshrink,
}
