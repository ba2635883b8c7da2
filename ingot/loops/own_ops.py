"""Ops of Ingot's own that graphs may hold beside ATen's: what passes put in the place of
several."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.loops.scores import decode, run
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
    broadcast and added, or, if it `replaces`, put in the place of scores where it is not NaN; a
    boolean one says which keys are seen. A query that sees nothing gives NaN, or zero with
    `zero_rows`. The result is (batch * head, row, column), or (batch, row, head, column) with
    `heads_last`.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = query @ key.mT * scale
    if mask is not None:
        if mask.dtype is torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        elif replaces:
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
_library.impl("attention", _attention, "CUDA")

attention = torch.ops.ingot.attention.default

_library.define(
    "scored_attention(Tensor query, Tensor key, Tensor value, Tensor[] captured, str score, "
    "SymInt[] sizes, bool zero_rows) -> (Tensor, Tensor)"
)
_library.define(
    "scored_product(Tensor[] operands, Tensor other, Tensor[] captured, str weight, "
    "SymInt[] sizes, bool by_keys, bool zero_rows) -> Tensor"
)
_library.define(
    "scored_square(Tensor[] operands, Tensor[] captured, str weight, SymInt[] sizes, "
    "SymInt[] size) -> Tensor"
)


def _scored_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    captured: list[Tensor],
    score: str,
    sizes: list[int],
    zero_rows: bool,
) -> tuple[Tensor, Tensor]:
    """softmax(score(query @ key)) @ value for (batch, row, column) tensors.

    `key` has a column for each key. The second result are the logarithms of the sums of the
    exponentials of scores, (batch, row, 1) in float32. The product is in float32, the softmax goes
    over the last dimension, and its weights are rounded to the dtype of `value`. `score` are steps
    (`loops.scores`) of these `sizes`, which give a tensor of as many elements. A row of nothing but
    -inf gives NaN, or zero with `zero_rows`.
    """
    product = torch.bmm(query.float(), key.float())
    scores = _stepped(score, sizes, [product], captured).reshape(product.shape)
    logarithms = scores.logsumexp(-1, keepdim=True)
    softmax = aten._safe_softmax if zero_rows else torch.softmax
    return torch.bmm(softmax(scores, -1).to(value.dtype), value), logarithms


def _scored_product(
    operands: list[Tensor], other: Tensor, captured: list[Tensor], weight: str,
    sizes: list[int], by_keys: bool, zero_rows: bool,
) -> Tensor:  # fmt: skip
    """weight(a @ b, c @ d) @ other in float32, where a, b, c and d are the operands.

    There may be two of them alone. `weight` are steps that give (batch, row, key), whose last two
    dimensions are swapped if the result is `by_keys`. `zero_rows` says that they give zero where
    what the first product goes into is -inf.
    """
    products = []
    for left, right in zip(operands[::2], operands[1::2]):
        products.append(torch.bmm(left.float(), right.float()))
    weights = _stepped(weight, sizes, products, captured).reshape(products[0].shape)
    if by_keys:
        weights = weights.mT
    return torch.bmm(weights.float(), other.float())


def _scored_square(
    operands: list[Tensor], captured: list[Tensor], weight: str, sizes: list[int], size: list[int]
) -> Tensor:
    """What the steps `weight` make of the products of `operands`, in memory and of a size."""
    products = []
    for left, right in zip(operands[::2], operands[1::2]):
        products.append(torch.bmm(left.float(), right.float()))
    return _stepped(weight, sizes, products, captured).reshape(size)


def _stepped(text: str, sizes: list[int], products: list[Tensor], captured: list[Tensor]) -> Tensor:
    result: Tensor = run(
        decode(text, sizes),
        [*products, *captured],
        lambda step, args, kwargs: step.op.overloadpacket(*args, **kwargs),
    )
    return result


for _device in ("CPU", "CUDA"):
    _library.impl("scored_attention", _scored_attention, _device)
    _library.impl("scored_product", _scored_product, _device)
    _library.impl("scored_square", _scored_square, _device)

scored_attention = torch.ops.ingot.scored_attention.default
scored_product = torch.ops.ingot.scored_product.default
scored_square = torch.ops.ingot.scored_square.default
