"""Attention and its gradients in double: what `loops.ir.Attention` and `AttentionBackward` mean.

All tensors are (batch, head, row, column), but the logarithms, which have no columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    target: Tensor,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    zero_rows: bool = False,
    replaces: bool = False,
    logarithms: Tensor | None = None,
) -> None:
    """Writes the `target`, and the `logarithms` where they are wanted."""
    shared = query.shape[1] // key.shape[1]
    key = key.double().repeat_interleave(shared, 1)
    value = value.double().repeat_interleave(shared, 1)
    scores = query.double() @ key.mT * scale
    if mask is not None and replaces:
        scores = torch.where(mask.isnan(), scores, mask.double())
    elif mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = _causal(scores)
    weights = torch.softmax(scores, -1)
    if zero_rows:
        weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
    target.copy_(weights @ value)
    if logarithms is not None:
        sums = scores.logsumexp(-1)
        if zero_rows:
            sums = sums.masked_fill(sums == -torch.inf, 0)
        logarithms.copy_(sums)


def attention_backward(
    tangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    logarithms: Tensor,
    of_query: Tensor,
    of_key: Tensor,
    of_value: Tensor,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
) -> None:
    """Writes the gradients of query, key and value, for the `tangent` of the `result`."""
    query, key, value, tangent = query.double(), key.double(), value.double(), tangent.double()
    scores = query @ key.mT * scale - logarithms.double().unsqueeze(-1)
    if mask is not None:
        scores += mask
    if causal:
        scores = _causal(scores)
    weights = scores.exp()
    of_scores = weights * (tangent @ value.mT - (tangent * result).sum(-1, keepdim=True)) * scale
    of_query.copy_(of_scores @ key)
    of_key.copy_(of_scores.mT @ query)
    of_value.copy_(weights.mT @ tangent)


def _causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
