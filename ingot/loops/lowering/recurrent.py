"""Recurrent layers that a library computes."""

from __future__ import annotations

from typing import Any

import torch

from ingot.loops.expr import ONE
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.library import laid_out
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Spec
from ingot.torch_private import AutoDispatchBelowAutograd, aten


@lowers(aten.mkldnn_rnn_layer.default)
def rnn_layer(lw: Lowering, outs: tuple[Spec, ...], *args: Any) -> tuple[Any, ...]:
    """oneDNN's layer, which keeps what its backward needs only where gradients are being
    recorded."""
    shown = outs[3] is not None and outs[3].sizes == (ONE,)
    if not args[-1] and not shown:  # not training
        raise NotLowered("the op itself will do")
    wanted = [out if used else None for out, used in zip(outs, lw.used)]
    return tuple(lw.call(_with_window if shown else _with_workspace, wanted, laid_out(lw, args)))


@lowers(aten.mkldnn_rnn_layer_backward.default)
def rnn_layer_backward(lw: Lowering, outs: tuple[Spec, ...], *args: Any) -> tuple[Any, ...]:
    if args[-1].sizes != (ONE,):
        raise NotLowered("the op itself will do")
    wanted = [out if used else None for out, used in zip(outs, lw.used)]
    return tuple(lw.call(_of_window, wanted, laid_out(lw, args)))


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
    *given, window = args
    workspace = window.as_strided((window.untyped_storage().nbytes(),), (1,), 0)
    return aten.mkldnn_rnn_layer_backward.default(*given, workspace)
