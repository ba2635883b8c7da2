"""Ops of Ingot's own that graphs may hold beside ATen's: what passes put in the place of
several."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.torch_private import aten

_library = torch.library.Library("ingot", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, bool replaces, "
    "bool zero_rows, "
    "bool heads_last) -> Tensor"
)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, replaces: bool,
    zero_rows: bool,
    heads_last: bool,
) -> Tensor:  # fmt: skip
    """softmax(scale * query @ key.T, masked) @ value for (batch, head, row, column) tensors,
    contiguous.

    Key and value may have fewer heads, each for as many neighbouring ones of the query. The mask is
    broadcast and added, or, if it `replaces`, put in the place of scores where it is not NaN. A
    query that sees nothing gives NaN, or zero with `zero_rows`. The result is (batch * head, row,
    column), or (batch, row, head, column) with `heads_last`.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = query @ key.mT * scale
    if mask is not None:
        if replaces:
            scores = torch.where(mask.isnan(), scores, mask)
        else:
            scores = scores + mask
    if zero_rows:
        weights = aten._safe_softmax(scores, -1)
    else:
        weights = torch.softmax(scores, -1)
    result = weights @ value
    if heads_last:
        return result.transpose(1, 2).contiguous()
    return result.flatten(0, 1)


_library.impl("attention", _attention, "CPU")

attention = torch.ops.ingot.attention.default
