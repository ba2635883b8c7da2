"""Recurrent layers that a library computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.graph.meta.basis import fresh, like
from ingot.graph.meta.trials import tried_out
from ingot.graph.meta.untried import sized_as, unless_known
from ingot.loops.expr import ONE
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.library import laid_out
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import Spec
from ingot.loops.packed_ops import packed_rnn
from ingot.loops.recurrent_ops import cudnn_rnn, cudnn_rnn_backward
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import AutoDispatchBelowAutograd, OpOverload, aten


def rnn_layer(lw: Lowering, outs: tuple[Spec, ...], *args: Any) -> tuple[Any, ...]:
    """oneDNN's layer, which keeps what its backward needs only where gradients are being
    recorded."""
    has_window = outs[3] is not None and outs[3].sizes == (ONE,)
    if not args[-1] and not has_window:  # not training
        raise NotLowered("the op itself will do")
    function = _with_window if has_window else _with_workspace
    return tuple(lw.call(function, lw.with_users(outs), laid_out(lw, args)))


def rnn_layer_backward(lw: Lowering, outs: tuple[Spec, ...], *args: Any) -> tuple[Any, ...]:
    if args[-1].sizes != (ONE,):
        raise NotLowered("the op itself will do")
    return tuple(lw.call(_of_window, lw.with_users(outs), laid_out(lw, args)))


def _with_workspace(*args: Any) -> Any:
    with torch.enable_grad(), AutoDispatchBelowAutograd():
        return aten.mkldnn_rnn_layer.default(*args)


def _with_window(*args: Any) -> Any:
    """The layer with a window of one byte in the place of its workspace, whose memory it keeps."""
    *results, workspace = _with_workspace(*args)
    if workspace.numel() == 0:
        workspace = workspace.new_empty(1)
    return *results, workspace.as_strided((1,), (1,))


def _of_window(*args: Any) -> Any:
    *arguments, window = args
    workspace = window.as_strided((window.untyped_storage().nbytes(),), (1,), 0)
    return aten.mkldnn_rnn_layer_backward.default(*arguments, workspace)


# -- what they look like ---------------------------------------------------------------------------


@unless_known
def rnn_layer_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor | None, ...]:
    """oneDNN does not say how large its workspace is: a window of one byte of it stands for it."""
    x, hidden, cell = args[0], args[5], args[6]
    sizes = [(*x.shape[:2], args[10]), hidden.shape, cell.shape]
    *results, workspace = tried_out(op, args, kwargs)
    window = None if workspace is None else fresh((1,), workspace.dtype)  # none in inference
    return *[sized_as(op, s, t) for s, t in zip(sizes, results)], window


@unless_known
def rnn_layer_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Any, ...]:
    return tuple(map(like, args[:7]))


def cudnn_rnn_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    x, _, hx, cx, _, hidden, projected, _, both, _, reserve = args
    output = fresh((*x.shape[:2], (projected or hidden) * (1 + both)), x.dtype)
    final = fresh(hx.shape, x.dtype), fresh((0,) if cx is None else cx.shape, x.dtype)
    return output, *final, fresh((reserve,), torch.uint8)


def cudnn_rnn_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> list[Tensor]:
    x, weights, hx, cx, *_ = args
    results = []
    for t in (x, hx, cx, *(weights if args[9] else ())):
        if t is not None:
            results.append(fresh(t.shape, t.dtype))
    return results


def packed_rnn_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    _, data, _, states, *_, both = args
    output = fresh((data.shape[0], states[0].shape[2] * (1 + both)), data.dtype)
    cell = states[1].shape if len(states) == 2 else (0,)
    return output, fresh(states[0].shape, data.dtype), fresh(cell, data.dtype)


OPS = (
    op(aten.mkldnn_rnn_layer.default, meta=rnn_layer_meta, lower=rnn_layer),
    op(
        aten.mkldnn_rnn_layer_backward.default,
        meta=rnn_layer_backward_meta,
        lower=rnn_layer_backward,
    ),
    op(packed_rnn, meta=packed_rnn_meta),
    op(cudnn_rnn, meta=cudnn_rnn_meta),
    op(cudnn_rnn_backward, meta=cudnn_rnn_backward_meta),
)
