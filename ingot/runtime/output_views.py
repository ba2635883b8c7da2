"""The outputs of an autograd node that stands for a program, and inputs that the program writes.

Autograd refuses that a view is written which a Function makes, so no output of the node is one,
but for windows that have a history of their own. An input that is written where autograd records it
becomes the result of what wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.runtime.windows import Windows, tensor_of
from ingot.torch_private import CreationMeta, get_creation_meta, unsafe_set_version_counter


def outputs_of_node(
    inputs: Sequence[Tensor], results: Sequence[Any], count: int, windows: Windows | None
) -> tuple[Any, ...]:
    """The first `count` results of a program, as outputs of its node. The `windows` among them are
    views, which autograd does not let be written, as it is with those that a Function returns in
    eager."""
    outputs = [_without_view(result) for result in results[:count]]
    if windows is not None:
        for window in windows.at(windows.read(inputs, results)):
            outputs[window.output] = tensor_of(window, inputs, outputs)
    return tuple(outputs)


def _without_view(result: Any) -> Any:
    """A result that autograd lets be written. Its version counter is that of what is saved of
    it."""
    is_view = isinstance(result, Tensor) and result._is_view()
    if is_view:
        return result.detach()
    return result


class _Rebased(torch.autograd.Function):
    """Makes a tensor that was written the result of what wrote it, of which `value` is the result
    in autograd's eyes. A view hands on what it knows to what it is a view of."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        ctx.mark_dirty(tensor)
        ctx.set_materialize_grads(False)
        ctx.is_view = tensor._is_view()
        return tensor

    @staticmethod
    def backward(ctx: Any, tangent: Tensor | None) -> Any:  # type: ignore[override]
        if tangent is None or not (ctx.is_view and ctx.needs_input_grad[0]):
            return None, tangent
        # of None, autograd would make None for the rest of the base as well
        return torch.zeros_like(tangent), tangent


def rebase(tensor: Tensor, value: Tensor) -> None:
    """Gives a tensor that a program wrote the history of `value`."""
    version = tensor._version  # which counts the program's write already
    _Rebased.apply(tensor, value)
    unsafe_set_version_counter((tensor,), (version,))


def refuse_unwritable(tensor: Tensor) -> None:
    """Raises autograd's error for a view that must not be written where gradients are recorded."""
    if not tensor._is_view():
        return
    base = tensor._base
    is_view_of_leaf = tensor.requires_grad and base is not None and base.is_leaf
    if is_view_of_leaf or get_creation_meta(tensor) != CreationMeta.DEFAULT:
        tensor.as_strided((0,), (1,)).zero_()
