"""Hooks on the gradient of a tensor in a captured graph.

The graph of a hook goes in, and a node of the captured graph puts it on its tensor. Autograd runs
it as it runs hooks in eager: when the gradient of the tensor is complete.
"""

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
    """The node that puts a hook on a tensor. `graph` takes what the hook reads, and the gradient,
    and gives another gradient in its place."""

    __module__, __name__ = __name__, "tensor_hook"

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph

    def __call__(self, tensor: torch.Tensor, read: Sequence[torch.Tensor]) -> Any:
        """The handle that removes the hook; None where no gradients are recorded."""
        if not tensor.requires_grad:
            return None
        node: Any = tensor.grad_fn
        if node is not None:
            node.metadata[_HOOKED] = True
        return tensor.register_hook(lambda gradient: self.graph(*read, gradient)[0])


def take_off(handle: Any) -> None:
    """The node that removes a hook from its tensor."""
    if handle is not None:
        handle.remove()
