"""The rules of ops that only GPUs have, or that differ there."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import Rule, fresh, like
from ingot.torch_private import OpOverload


def rms_norm(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    t, normalized = args[0], len(args[1])
    stats = [*t.shape[: t.dim() - normalized], *[1] * normalized]
    return fresh(t.shape, t.dtype), fresh(stats, _accumulated(t.dtype))


def rms_norm_backward(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor | None, ...]:
    return tuple(
        [like(t, t is not None and wanted) for t, wanted in zip((args[1], args[4]), args[5])]
    )


def cudnn_batch_norm(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...]:
    x, training = args[0], args[5]
    stats = [fresh((x.shape[1],) if training else (0,), _accumulated(x.dtype)) for _ in range(2)]
    return fresh(x.shape, x.dtype, geometry.suggested(x)), *stats, fresh((0,), torch.uint8)


def cudnn_batch_norm_backward(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...]:
    x, weight = args[0], args[2]
    slopes = [fresh((x.shape[1],), weight.dtype) for _ in range(2)]
    return fresh(x.shape, x.dtype, geometry.suggested(x)), *slopes


def with_wide_statistics(rule: Rule) -> Rule:
    """The rule of a norm whose mean and deviation are kept as they were accumulated."""

    @wraps(rule)
    def widened(
        op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        first, *stats = rule(op, args, kwargs)
        return first, *(fresh(t.shape, _accumulated(args[0].dtype)) for t in stats)

    return widened


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
