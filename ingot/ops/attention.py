"""Attention in float32 becomes a kernel of its own kind; other dtypes, and heads and widths that
are not known, are library calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.untried import gradients_of
from ingot.loops import own_ops
from ingot.loops.expr import ONE, ZERO, Expr
from ingot.loops.ir import Attention, AttentionBackward, View
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import LibraryCall, NotLowered
from ingot.loops.lowering.values import LoopTensor, Spec, contiguous, stored
from ingot.loops.scores import Step, Value
from ingot.loops.spaces import contiguous_strides
from ingot.ops.op import op
from ingot.ops.scored_attention import by_steps, few_queries
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten


def scaled_dot_product_attention(
    lw: Lowering,
    outs: tuple[Spec, Spec],
    query: LoopTensor,
    key: LoopTensor,
    value: LoopTensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: LoopTensor | None = None,
    scale: float | None = None,
) -> tuple[LoopTensor, LoopTensor | None]:
    if dropout != 0.0:
        raise NotLowered("random numbers")
    logarithms = None
    if lw.used[1]:
        logarithms = outs[1]
    return attention(
        lw, outs[0], query, key, value, attn_mask, _scale(query, scale), causal=causal,
        zero_rows=True, logarithms=logarithms,
    )  # fmt: skip


def _scale(query: LoopTensor, scale: float | None) -> float:
    if scale is None:
        return 1 / math.sqrt(query.sizes[3].constant or 1)
    return scale


def own_attention(
    lw: Lowering, out: Spec, query: LoopTensor, key: LoopTensor, value: LoopTensor,
    mask: LoopTensor | None,
    scale: float, replaces: bool, zero_rows: bool, heads_last: bool,
) -> LoopTensor:  # fmt: skip
    batch, heads, queries, _ = query.sizes
    spec = contiguous((batch, heads, queries, value.sizes[3]), out.dtype)
    if not lw.target.contracts:
        result = few_queries(lw, out, query, key, value, mask, scale, zero_rows)
        if heads_last:
            return lw.mapped(result, out, _swapped)
        return lw.reshaped(result, out)
    if heads_last:
        strides = contiguous_strides(_swapped(spec.sizes))
        spec = spec._replace(strides=_swapped(strides))
    result, _ = attention(
        lw, spec, query, key, value, mask, scale, zero_rows=zero_rows, replaces=replaces
    )
    if heads_last:
        return lw.mapped(result, out, _swapped)
    return lw.reshaped(result, out)


def _swapped(items: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return (items[0], items[2], items[1], items[3])


def attention(
    lw: Lowering,
    out: Spec,
    query: LoopTensor,
    key: LoopTensor,
    value: LoopTensor,
    mask: LoopTensor | None,
    scale: float,
    *,
    causal: bool = False,
    zero_rows: bool = False,
    replaces: bool = False,
    logarithms: Spec | None = None,
) -> tuple[LoopTensor, LoopTensor | None]:
    """The node, for (batch, head, row, column) tensors; the mask may have fewer dimensions, and
    sizes of 1. The second result are the `logarithms` (batch, head, row) of the sums of the
    exponentials of scores, if they are wanted. Raises NotLowered before anything is written."""
    _require(lw, query, key, value, mask)
    if out.strides[3] is not ONE and out.sizes[3] is not ONE:
        raise NotLowered("attention with another layout of the result")
    if query.sizes[2] is ONE:
        if logarithms is not None or (causal and key.sizes[2] is not ONE):
            raise NotLowered("gradients of one query, or one that sees a part of the keys")
        return _of_one_query(lw, out, query, key, value, mask, scale, zero_rows, replaces), None
    window = _mask(lw, mask, (*query.sizes[:3], key.sizes[2]))
    q, k, v = (_rows(lw, t) for t in (query, key, value))
    result, sums, of_sums = _new(lw, out), None, None
    if logarithms is not None:
        sums = _new(lw, logarithms)
        of_sums = stored(sums.buffer, logarithms)
    node = Attention(
        lw.node_name(), lw.origin, q, k, v, window, result, float(scale), causal, zero_rows,
        replaces, sums
    )  # fmt: skip
    lw.graph.nodes.append(node)
    return stored(result.buffer, out), of_sums


def attention_backward(
    lw: Lowering, outs: Sequence[Spec], tangent: LoopTensor, query: LoopTensor, key: LoopTensor,
    value: LoopTensor, result: LoopTensor, logarithms: LoopTensor, dropout: float, causal: bool,
    *,
    attn_mask: LoopTensor | None = None, scale: float | None = None,
) -> tuple[LoopTensor, ...]:  # fmt: skip
    """The gradients of queries, keys and values. Raises NotLowered before anything is written."""
    if dropout != 0.0:
        raise NotLowered("random numbers")
    _require(lw, query, key, value, attn_mask)
    if key.sizes[1] is not query.sizes[1] or any(
        t.dtype is not torch.float32 for t in (tangent, result, logarithms)
    ):
        raise NotLowered("gradients of attention over shared heads, or of another dtype")
    if any(out.strides[3] is not ONE and out.sizes[3] is not ONE for out in outs):
        raise NotLowered("gradients of attention that lie in another layout")
    window = _mask(lw, attn_mask, (*query.sizes[:3], key.sizes[2]))
    dy, q, k, v, y = (_rows(lw, t) for t in (tangent, query, key, value, result))
    sums, (dq, dk, dv) = lw.view(logarithms), (_new(lw, out) for out in outs)
    node = AttentionBackward(
        lw.node_name(), lw.origin, dy, q, k, v, window, y, sums, dq, dk, dv,
        float(_scale(query, scale)), causal,
    )  # fmt: skip
    lw.graph.nodes.append(node)
    return tuple(stored(view.buffer, out) for view, out in zip(node.results, outs))


def _require(
    lw: Lowering,
    query: LoopTensor,
    key: LoopTensor,
    value: LoopTensor,
    mask: LoopTensor | None,
) -> None:
    """Raises NotLowered for what the kernels do not take."""
    if not lw.target.contracts:
        raise NotLowered("attention for the library")
    tensors = [query, key, value, *([mask] if mask is not None else [])]
    if any(t.dtype is not torch.float32 for t in tensors):
        raise NotLowered("attention of another dtype")
    if any((n.bounds[0] or 0) < 1 for t in tensors for n in t.sizes):
        raise NotLowered("attention of sizes that may be 0")
    if any(t.sizes[k].constant is None for t in (query, key, value) for k in (1, 3)):
        raise NotLowered("attention of heads or widths that are not known")
    scores = (*query.sizes[:3], key.sizes[2])
    if mask is not None and any(
        n is not ONE and n is not size for n, size in zip(mask.sizes[::-1], scores[::-1])
    ):
        raise NotLowered("attention with a mask of which it is not known whether it is broadcast")
    if key.sizes[2] is not value.sizes[2] or any(
        t.sizes[0] is not query.sizes[0] for t in (key, value)
    ):
        raise NotLowered("attention of sizes that are not known to be equal")
    if mask is not None and mask.sizes[-1] is ONE and key.sizes[2] is not ONE:
        raise NotLowered("a mask that is the same for all keys")


def _of_one_query(
    lw: Lowering, out: Spec, query: LoopTensor, key: LoopTensor, value: LoopTensor,
    mask: LoopTensor | None, scale: float, zero_rows: bool, replaces: bool,
) -> LoopTensor:  # fmt: skip
    """The contraction of `ingot.ops.scored_attention`. Queries of a block share the keys that are
    loaded; one has them for itself, and takes many in parts, side by side."""
    batch, heads, _, _ = query.sizes
    scores = batch, heads, ONE, key.sizes[2]
    captured = [] if mask is None else [mask]
    steps: list[Step] = []

    def step(op: OpOverload, *args: Any, sizes: tuple[Expr, ...] = scores) -> Value:
        steps.append(Step(op, args, {}, sizes, torch.float32))
        return Value(len(captured) + len(steps))

    score = step(aten.view.default, Value(0), list(scores))
    score = step(aten.mul.Scalar, score, scale)
    if mask is not None and replaces:
        stands = step(aten.eq.Tensor, Value(1), Value(1), sizes=mask.sizes)
        step(aten.where.self, stands, Value(1), score)
    elif mask is not None:
        step(aten.add.Tensor, score, Value(1))
    rows = batch * heads, ONE, value.sizes[3]
    wanted = contiguous(rows, out.dtype)._replace(device=out.device), None
    q, k, v = (_of_heads(lw, t, heads) for t in (query, key, value))
    result, _ = by_steps(lw, wanted, q, _turned(lw, k), v, captured, steps, zero_rows)
    return lw.mapped(result, out, lambda index: (index[0] * heads + index[1], *index[2:]))


def _of_heads(lw: Lowering, t: LoopTensor, heads: Expr) -> LoopTensor:
    """(batch and head, row, column): of so many heads, of which some share those of `t`."""
    spec = contiguous((t.sizes[0] * heads, *t.sizes[2:]), t.dtype)
    shared = heads // t.sizes[1]
    return lw.mapped(
        t, spec, lambda index: (index[0] // heads, index[0] % heads // shared, *index[1:])
    )


def _turned(lw: Lowering, t: LoopTensor) -> LoopTensor:
    """With rows and columns swapped."""
    batch, rows, columns = t.sizes
    spec = contiguous((batch, columns, rows), t.dtype)
    return lw.mapped(t, spec, lambda index: (index[0], index[2], index[1]))


def _new(lw: Lowering, spec: Spec) -> View:
    """A buffer that is to be written."""
    return View(lw.new_buffer(spec, spec.strides), spec.sizes, spec.strides, ZERO, spec.dtype)


def _rows(lw: Lowering, value: LoopTensor) -> View:
    """A window on `value` whose rows lie in consecutive elements, copied if need be."""
    window = lw.view(value)
    if window.strides[-1] is ONE or window.sizes[-1] is ONE:
        return window
    return lw.view(lw.copied(value, contiguous_strides(value.sizes)))


def _mask(lw: Lowering, mask: LoopTensor | None, sizes: tuple[Expr, ...]) -> View | None:
    """The mask's window, if there is one, broadcast to `sizes`; its rows lie in consecutive
    elements or are all the same."""
    if mask is None:
        return None
    same_rows = len(mask.sizes) < 2 or mask.sizes[-2] is ONE
    if same_rows:
        window = lw.view(mask)
    else:
        window = _rows(lw, mask)
    missing = len(sizes) - len(mask.sizes)
    strides = []
    for size, stride in zip(window.sizes, window.strides):
        strides.append(ZERO if size is ONE else stride)
    return View(window.buffer, sizes, (*[ZERO] * missing, *strides), window.offset, window.dtype)


# -- what it looks like ----------------------------------------------------------------------------


def attention_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    query, value = args[0], args[2]
    batch, heads, length, _ = query.shape
    sizes = (batch, heads, length, value.shape[3])
    if _attention_keeps_layout():
        strides = geometry.preserved(query)
    else:
        strides = geometry.ordered(sizes, (3, 1, 2, 0))
    if query.dtype == torch.float64:
        stats = torch.float64
    else:
        stats = torch.float32
    logsumexp = fresh(
        (batch, heads, length), stats, geometry.ordered((batch, heads, length), (1, 2, 0))
    )
    return fresh(sizes, query.dtype, strides), logsumexp


@cache
def _attention_keeps_layout() -> bool:
    """Whether the fused CPU kernel returns the query's layout or (batch, length, head, width)
    order, which differs between versions."""
    query = torch.zeros(1, 2, 3, 1)
    return aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)[0].is_contiguous()


def own_attention_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    query, value, heads_last = args[0], args[2], args[7]
    batch, heads, length, _ = query.shape
    if heads_last:
        return fresh((batch, length, heads, value.shape[3]), query.dtype)
    return fresh((batch * heads, length, value.shape[3]), query.dtype)


def encoder_layer_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return fresh(args[0].shape, args[0].dtype)


# -- layers that torch has as one op ---------------------------------------------------------------


def _self_attention(
    x: Tensor, heads: int, weight: Tensor, bias: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention of (batch, token, feature) to itself, with one projection for queries, keys and
    values. A token does not see what the mask is not zero for; one that sees nothing is NaN."""
    projections = aten.linear(x, weight, bias).split(x.shape[2], 2)
    query, key, value = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in projections)
    if mask is None:
        return (
            aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]
            .transpose(1, 2)
            .flatten(2)
        )
    scores = query @ key.mT * query.shape[3] ** -0.5
    weights = torch.softmax(torch.where(mask.to(torch.bool), -math.inf, scores), -1)
    return (weights @ value).transpose(1, 2).flatten(2)


def _has_own_attention(x: Tensor) -> bool:
    return (
        x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.dim() == 3
        and not geometry.is_empty(x)
    )


def _broadcast_mask(mask: Tensor | None, kind: int | None) -> Tensor | None:
    """A mask by torch's number for its kind: 0 is (query, key), 1 (batch, key), 2 (batch, head,
    query, key)."""
    if mask is not None and kind == 1:
        return mask[:, None, None]
    return mask


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, weight: Tensor, bias: Tensor,
    out_weight: Tensor, out_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    if need_weights or query is not key or key is not value or not _has_own_attention(query):
        return NotImplemented
    if mask is not None and mask_type is None:
        return NotImplemented
    output = _self_attention(query, heads, weight, bias, _broadcast_mask(mask, mask_type))
    return aten.linear(output, out_weight, out_bias), None


def transformer_encoder_layer(
    x: Tensor, width: int, heads: int, weight: Tensor, bias: Tensor, out_weight: Tensor,
    out_bias: Tensor, gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor,
    norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, weight_1: Tensor,
    bias_1: Tensor, weight_2: Tensor, bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    if not _has_own_attention(x) or (mask is not None and mask_type is None):
        return NotImplemented
    hidden = _broadcast_mask(mask, mask_type)

    def norm(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.layer_norm(y, [width], weight, bias, eps)

    def attend(y: Tensor) -> Tensor:
        return aten.linear(_self_attention(y, heads, weight, bias, hidden), out_weight, out_bias)

    def feed_forward(y: Tensor) -> Tensor:
        wide = aten.linear(y, weight_1, bias_1)
        return aten.linear(aten.gelu(wide) if gelu else torch.relu(wide), weight_2, bias_2)

    if norm_first:
        x = x + attend(norm(x, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(x + attend(x), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)


OPS = (
    op(
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        meta=attention_meta,
        lower=scaled_dot_product_attention,
    ),
    op(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        meta=gradients_of("query", "key", "value"),
        lower=attention_backward,
    ),
    op(
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_efficient_attention_backward.default,
        library=LibraryCall(bias_rows=8),
    ),
    op(own_ops.attention, meta=own_attention_meta, lower=own_attention),
    op(aten._native_multi_head_attention.default, decompose=multi_head_attention),
    op(
        aten._transformer_encoder_layer_fwd.default,
        decompose=transformer_encoder_layer,
        meta=encoder_layer_meta,
    ),
)
