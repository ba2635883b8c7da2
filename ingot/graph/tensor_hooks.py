"""Hooks on the gradient of a tensor in a captured graph: a node puts the graph of each on its
tensor, and autograd runs it as it runs hooks in eager, when the gradient of the tensor is
complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

_HOOKED = "ingot: hooked"


def is_hooked(node: Any) -> bool:
    """Whether a hook of the program has been put on a result of a node of autograd's graph."""
    return _HOOKED in node.metadata


class TensorHook:
    """The node that puts a hook on a tensor. `graph` takes what the hook reads, and the gradient;
    it gives another in place of that."""

    __module__, __name__ = __name__, "tensor_hook"

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph

    def __call__(self, tensor: torch.Tensor, read: Sequence[torch.Tensor]) -> Any:
        """What the hook is taken off by; None where no gradients are recorded."""
        if not tensor.requires_grad:
            return None
        node: Any = tensor.grad_fn
        if node is not None:
            node.metadata[_HOOKED] = True
        return tensor.register_hook(lambda gradient: self.graph(*read, gradient)[0])


def take_off(handle: Any) -> None:
    """The node that takes a hook off its tensor."""
    if handle is not None:
        handle.remove()
