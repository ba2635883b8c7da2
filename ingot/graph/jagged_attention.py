"""Attention of jagged nested tensors on a CPU, by way of padded tensors.

torch splits them into their rows there, for which it reads the offsets. Here rows are padded to the
longest, and a mask leaves out what is not there: no size depends on single rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.torch_private import (
    JaggedTensor,
    SDPBackend,
    jagged_from_padded,
    native_attention,
    select_jagged_attention,
)


def jagged_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`F.scaled_dot_product_attention` of tensors [rows, heads, ragged, features]. Of others it is
    torch's own."""
    tensors = query, key, value
    options = attn_mask, dropout_p, is_causal
    if options == (None, 0.0, False) and not enable_gqa and _is_plain(tensors):
        choice = select_jagged_attention(*tensors, *options, enable_gqa)
        if choice is SDPBackend.MATH:
            return _padded_attention(query, key, value, scale)
    return native_attention(*tensors, *options, scale=scale, enable_gqa=enable_gqa)


def _is_plain(tensors: tuple[Any, ...]) -> bool:
    if torch.is_autocast_enabled("cpu"):
        return False
    facts = set()
    for tensor in tensors:
        if type(tensor) is not JaggedTensor or tensor.device.type != "cpu" or tensor.dim() != 4:
            return False
        if tensor._ragged_idx != 2 or tensor._lengths is not None:
            return False
        facts.add((tensor.dtype, tensor.shape[0], tensor.shape[1]))
    same_keys = tensors[1]._size[2] == tensors[2]._size[2]
    return len(facts) == 1 and bool(same_keys) and tensors[0].shape[3] == tensors[1].shape[3]


def _padded_attention(query: Any, key: Any, value: Any, scale: float | None) -> Any:
    padded: list[Tensor] = []
    for tensor, longest in ((query, _longest(query)), (key, _longest(key)), (value, _longest(key))):
        by_row = tensor.transpose(1, 2)
        shape = by_row.shape[0], longest, *by_row.shape[2:]
        padded.append(by_row.to_padded_tensor(0.0, shape).transpose(1, 2))
    places = torch.arange(padded[1].shape[2], device=key.device)
    mask = (places < key.offsets().diff()[:, None])[:, None, None]
    q, k, v = padded
    rows = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    made = jagged_from_padded(
        rows.transpose(1, 2),
        query.offsets(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
        sum_S=query._values.shape[1],
    )
    return made.transpose(1, 2)


def _longest(tensor: Any) -> Any:
    """The length of the longest row, which eager does not keep here."""
    known = tensor._maybe_max_seqlen
    if known is not None:
        return known
    return tensor.offsets().diff().max().item()
