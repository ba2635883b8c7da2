"""The backward of attention over few keys: the matrix products that it is, with the scores in memory. Over many keys it
is a library call, which has a block of them at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ingot.loops import ops
from ingot.loops.expr import Expr, contiguous_strides
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.contraction import contract, contracts
from ingot.loops.lowering.indexing import compare
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Index, Spec, TensorValue

aten = torch.ops.aten
apply = ops.apply

FEW_KEYS = 4
"""Keys are few up to so many for each column of the values: the scores are then no more than that times the queries."""


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    lw: Lowering, outs: Sequence[Spec], grad: TensorValue, query: TensorValue, key: TensorValue, value: TensorValue,
    result: TensorValue, logarithms: TensorValue, dropout: float, causal: bool, *,
    attn_mask: TensorValue | None = None, scale: float | None = None,
) -> tuple[TensorValue, ...]:  # fmt: skip
    """The gradients of (batch, head, row, column) queries, keys and values. `logarithms` (batch, head, row) are those
    of the sums of the exponentials of the scores. Raises NotLowered before anything is written."""
    if dropout != 0.0 or attn_mask is not None:
        raise NotLowered("random numbers, or a mask")
    scores = _scores(lw, query, key, value, outs[0])
    factor = 1 / math.sqrt(query.sizes[3].constant or 1) if scale is None else scale
    products = contract(lw, scores, query, _swapped(lw, key))

    def weight(index: Index) -> int:
        score = apply("mul", products.load(index), ops.constant(factor, torch.float32))
        power = apply("exp", apply("sub", score, logarithms.load(index[:3])))
        return _unless_later(power, 0, index) if causal else power

    weights = lw.realize(lw.computed(scores, weight, [products, logarithms]))
    of_values = contract(lw, outs[2], _swapped(lw, weights), grad)
    of_weights = contract(lw, scores, grad, _swapped(lw, value))
    both = lw.computed(
        _spec(grad.sizes, outs[0]), lambda index: apply("mul", grad.load(index), result.load(index)), [grad, result]
    )
    means = lw.reduce(_spec(grad.sizes[:3], outs[0]), "sum", both, (3,), torch.float32, lambda v: v)

    def of_score(index: Index) -> int:
        above = apply("sub", of_weights.load(index), means.load(index[:3]))
        return apply("mul", apply("mul", weights.load(index), above), ops.constant(factor, torch.float32))

    of_scores = lw.realize(lw.computed(scores, of_score, [weights, of_weights, means]))
    of_queries = contract(lw, outs[0], of_scores, key)
    of_keys = contract(lw, outs[1], _swapped(lw, of_scores), query)
    return of_queries, of_keys, of_values


def _scores(lw: Lowering, query: TensorValue, key: TensorValue, value: TensorValue, like: Spec) -> Spec:
    """(batch, head, query, key), where that is little memory."""
    keys, width = key.sizes[2].constant, query.sizes[3].constant
    known = [s.constant for t in (query, key, value) for s in t.sizes]
    if None in known or 0 in known or (keys or 0) > FEW_KEYS * (width or 0) or key.sizes[:2] != query.sizes[:2]:
        raise NotLowered("sizes that are not known, many keys, or heads that share theirs")
    scores = _spec((*query.sizes[:3], key.sizes[2]), like)
    if any(t.dtype is not torch.float32 for t in (query, key, value)) or not contracts(lw, scores):
        raise NotLowered("products that the library computes")
    return scores


def _unless_later(value: int, otherwise: float, index: Index) -> int:
    """`value` where a key is not behind its query."""
    return apply("where", compare("le", index[3], index[2]), value, ops.constant(otherwise, torch.float32))


def _spec(sizes: Sequence[Expr], like: Spec) -> Spec:
    return Spec(tuple(sizes), contiguous_strides(tuple(sizes)), torch.float32, like.device)


def _swapped(lw: Lowering, x: TensorValue) -> TensorValue:
    """x with its last two dimensions exchanged, a view."""
    spec = Spec((*x.sizes[:2], *x.sizes[:1:-1]), (*x.strides[:2], *x.strides[:1:-1]), x.dtype, torch.device("cpu"))
    return lw.mapped(x, spec, lambda index: (*index[:2], index[3], index[2]))
