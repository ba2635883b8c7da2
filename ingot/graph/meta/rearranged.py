"""The rules of ops that rearrange their argument or go along it: for symbolic sizes, and for
GPUs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.graph.meta.basis import fresh
from ingot.graph.meta.untried import unless_known
from ingot.torch_private import OpOverload


@unless_known
def log_sigmoid(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The result, and what the backward takes."""
    x = args[0]
    return fresh(x.shape, x.dtype), fresh(x.shape, x.dtype)
