"""`torch.matmul` of tensors whose sizes are symbols, and attention that torch writes out with it.
The products are the same as torch's, which asks for plain sizes before torch 2.13."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.symbolic_views import reshaped
from ingot.torch_private import aten


def matmul(left: Tensor, right: Tensor) -> Tensor:
    ranks = left.dim(), right.dim()
    if 0 in ranks or max(ranks) <= 2:
        return torch.matmul(left, right)
    if folds(left, right):
        return _folded(left, right)
    if ranks == (3, 3) and not geometry.surely_same(left.shape[0], right.shape[0]):
        if left.requires_grad and _is_one_of_many(left, right):
            return matmul(left.squeeze(0), right)
        if right.requires_grad and _is_one_of_many(right, left):
            return matmul(left, right.squeeze(0))
    return _batched(left, right)


def _is_one_of_many(t: Tensor, other: Tensor) -> bool:
    """Whether a batch of one is broadcast."""
    if geometry.at_hand(t.shape[0]) != 1 or geometry.at_hand(other.shape[0]) == 1:
        return False
    return bool(t.shape[0] == 1)


def folds(left: Tensor, right: Tensor) -> bool:
    """Whether all matrices of one operand are multiplied as one tall matrix. They are where that
    takes no copy, or where the other's gradient would be as large as the result."""
    many, other = left, right
    if left.dim() < right.dim():
        many, other = right.mT, left
    if other.dim() > 2:
        return False
    if other.requires_grad:
        return True
    if left.dim() == 2:
        return False
    if geometry.surely_plain(many) or geometry.is_empty(many):
        return True
    sizes, strides = many.shape, many.stride()
    dims = []
    for d in range(many.dim() - 1):
        if not _SKIPS_ONES or sizes[d] != 1:
            dims.append(d)
    return all(strides[d] == strides[inner] * sizes[inner] for d, inner in itertools.pairwise(dims))


def _skips_ones() -> bool:
    """Whether eager folds whatever the strides of dimensions of size 1 are: since torch 2.14."""
    with torch.inference_mode(False), torch.enable_grad():
        many = torch.zeros((2, 1, 1), device="cpu").as_strided((2, 1, 1), (1, 5, 1))
        history = torch.matmul(many.requires_grad_(), torch.zeros(1, device="cpu")).grad_fn
    below, _ = history.next_functions[0]  # type: ignore[union-attr]
    return below is not None and below.name().startswith("Mv")


_SKIPS_ONES = _skips_ones()


def _folded(left: Tensor, right: Tensor) -> Tensor:
    turned = right.dim() > left.dim()
    many, other = left, right
    if turned:
        many, other = right.mT, left.mT if left.dim() == 2 else left
    *sizes, last = many.shape
    rows = reshaped(many, [math.prod(sizes), last])
    if other.dim() == 1:
        # autocast does not know all of mv
        return aten._unsafe_view.default(torch.matmul(rows, other), sizes)
    result = aten._unsafe_view.default(rows.mm(other), [*sizes, other.shape[1]])
    if turned:
        return result.mT.contiguous()
    return result


def _batched(left: Tensor, right: Tensor) -> Tensor:
    batch = list(geometry.broadcast(left.shape[:-2], right.shape[:-2]))
    count = math.prod(batch)

    def matrices(t: Tensor) -> Tensor:
        sizes = t.shape[-min(t.dim(), 2) :]
        return reshaped(t.expand([*batch, *sizes]), [count, *sizes], certain=True)

    first, second = matrices(left), matrices(right)
    rows, columns = left.shape[-2:-1], right.shape[1:][-1:]
    if not rows:
        first = first.unsqueeze(1)
    if not columns:
        second = second.unsqueeze(2)
    result = first.bmm(second)
    if not columns:
        result = result.squeeze(-1)
    return aten._unsafe_view.default(result, [*batch, *rows, *columns])


def attention_written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention of float32 and float64 without heads, or with more dimensions, written out as torch
    does. Its width is specialized if it decides the scale."""
    if causal:
        mask = query.new_ones((query.shape[-2], key.shape[-2]), dtype=torch.bool).tril()
    if mask is not None and mask.dtype is torch.bool:
        zero = torch.scalar_tensor(0.0, dtype=query.dtype, device=mask.device)
        never = torch.scalar_tensor(-math.inf, dtype=query.dtype, device=mask.device)
        mask = torch.where(mask, zero, never)
    if scale is None:
        scale = 1 / math.sqrt(int(query.shape[-1]))
    root = math.sqrt(abs(scale))
    scores = matmul(query * math.copysign(root, scale), key.mT * root)
    if mask is not None:
        scores = scores + mask
    return matmul(aten._safe_softmax.default(scores, -1), value)
