"""The rules of ops that rearrange their argument or go along it: for symbolic sizes, and for
GPUs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.untried import unless_known
from ingot.graph.schemas import bind
from ingot.torch_private import OpOverload


@unless_known
def log_sigmoid(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The result, and what the backward takes."""
    x = args[0]
    return fresh(x.shape, x.dtype), fresh(x.shape, x.dtype)


@unless_known
def rot90(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    bound = bind(op, args, kwargs)
    x, k, (first, second) = args[0], bound.get("k", 1) % 4, bound.get("dims", (0, 1))
    if first % x.dim() == second % x.dim():
        raise EagerRaises(f"{op}: dimensions {first} and {second} are one")
    sizes, strides = (
        list(x.shape),
        list(geometry.preserved(x) if k else geometry.contiguous(x.shape)),
    )
    if k % 2:
        for of in (sizes, strides):
            of[first], of[second] = of[second], of[first]
    return fresh(sizes, x.dtype, strides)


@unless_known
def pixel_shuffle(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, factor = args
    if x.dim() < 3 or factor < 1 or x.shape[-3] % (factor * factor) != 0:
        raise EagerRaises(f"{op}: {tuple(x.shape)} cannot be shuffled by {factor}")
    *batch, channels, height, width = x.shape
    sizes = (*batch, channels // (factor * factor), height * factor, width * factor)
    return fresh(sizes, x.dtype, geometry.suggested(x, sizes))


@unless_known
def pixel_unshuffle(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, factor = args
    if x.dim() < 3 or factor < 1 or x.shape[-2] % factor != 0 or x.shape[-1] % factor != 0:
        raise EagerRaises(f"{op}: {tuple(x.shape)} cannot be shuffled back by {factor}")
    *batch, channels, height, width = x.shape
    sizes = (*batch, channels * factor * factor, height // factor, width // factor)
    return fresh(sizes, x.dtype, geometry.suggested(x, sizes))
