"""Recurrent layers that a library computes."""

from __future__ import annotations

from typing import Any

import torch

from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.library import laid_out
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Spec

aten = torch.ops.aten


@lowers(aten.mkldnn_rnn_layer.default)
def rnn_layer(lw: Lowering, outs: tuple[Spec, ...], *args: Any) -> tuple[Any, ...]:
    """oneDNN's layer, which keeps what its backward needs only where gradients are being recorded."""
    if not args[-1]:  # not training
        raise NotLowered("the op itself will do")
    wanted = [out if used else None for out, used in zip(outs, lw.used)]
    return tuple(lw.call(_with_workspace, wanted, laid_out(lw, args)))


def _with_workspace(*args: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return aten.mkldnn_rnn_layer.default(*args)
