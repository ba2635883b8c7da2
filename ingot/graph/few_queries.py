"""Attention of a few queries on a GPU as one op of Ingot's, whatever kernel torch would choose."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.loops.own_ops import attention

MOST_ROWS = 64  # queries of all heads that share keys
WIDEST = 128  # elements of a head
FEWEST_KEYS = 128  # for fewer a library's call is as good
DEVICE = "cuda"  # of the tensors that it takes
_HALVES = (torch.float16, torch.bfloat16)


def few_queries(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """`F.scaled_dot_product_attention`, as (batch, head, 1, column), None where it is not of one
    query of halves for each head, or where gradients are wanted."""
    tensors = [query, key, value]
    if any(t.dim() != 4 or t.device.type != DEVICE for t in tensors):
        return None
    if dropout_p or is_causal or torch.is_autocast_enabled(DEVICE):
        return None
    if query.dtype not in _HALVES or any(t.dtype is not query.dtype for t in tensors):
        return None
    if attn_mask is not None:
        if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            return None
        tensors.append(attn_mask)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return None
    if not all(map(geometry.is_static, tensors)) or not _fits(query, key, value, enable_gqa):
        return None
    if attn_mask is not None and not _is_broadcast(attn_mask, query, key):
        return None
    if scale is None:
        scale = 1 / math.sqrt(query.shape[3])
    result: Tensor = attention(query, key, value, attn_mask, float(scale), False, True, True)
    return result.transpose(1, 2)


def _fits(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> bool:
    """Whether sizes are those of one query that sees many keys."""
    batch, heads, length, width = query.shape
    own, keys = key.shape[1:3]
    if length != 1 or keys < FEWEST_KEYS or not 0 < batch or not 0 < heads:
        return False
    if key.shape[:3] != value.shape[:3] or key.shape[0] != batch or key.shape[3] != width:
        return False
    if not (0 < width <= WIDEST and 0 < value.shape[3] <= WIDEST):
        return False
    if own == heads:
        return True
    return grouped and own > 0 and heads % own == 0 and heads // own <= MOST_ROWS


def _is_broadcast(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether a mask is broadcast to scores, with an element for each key."""
    scores = (*query.shape[:3], key.shape[2])
    if not 2 <= mask.dim() <= 4 or mask.shape[-1] != scores[-1]:
        return False
    return all(n in (1, size) for n, size in zip(mask.shape[::-1], scores[::-1]))
