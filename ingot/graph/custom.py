"""torch.autograd.Function in a captured graph: what its forward computes is there as operations, what its backward
computes is a graph of its own, and a node behind the forward tells autograd that these belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ingot.errors import Unsupported
from ingot.graph.fakes import FakeTensor


class CustomGradient:
    """The node: gives the outputs of a function, which it has for arguments, the history that their gradients are what
    `backward` computes.

    `backward` takes what the function has kept and one tangent for each output, and returns one gradient, or None, for
    each of its tensor arguments. `constant` are the positions of outputs that have no gradient; `once`: the gradients
    have none.
    """

    __module__ = __name__

    def __init__(self, name: str, backward: torch.fx.GraphModule, constant: frozenset[int], once: bool) -> None:
        self.__name__ = name
        self.backward, self.constant, self.once = backward, constant, once

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        return _Custom.apply(self, outputs, kept, *inputs)

    def gradients(self, kept: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """What the backward gives, with a history where one is recorded."""
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():  # as it was captured
            found = list(self.backward(*kept, *tangents))
        if recorded and not self.once:
            return found
        found = [g if g is None else g.detach() for g in found]
        if not recorded or not any(t.requires_grad for t in tangents):
            return found
        if any(isinstance(t, FakeTensor) for t in tangents):  # only .backward() comes by that error
            raise Unsupported(f"second derivatives of {self.__name__}, which is differentiable once", skip=True)
        return _not_again(found)


def _not_again(gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients with a history that raises an error, as that of `once_differentiable` does."""
    text = b"trying to differentiate twice a function that was marked with @once_differentiable"
    tensors = [g.requires_grad_() for g in gradients if g is not None]
    made = torch._C._functions.DelayedError(text, len(tensors))(*tensors)  # type: ignore[attr-defined]
    raising = iter(made if isinstance(made, tuple) else (made,))
    return [g if g is None else next(raising) for g in gradients]


class _Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, node: CustomGradient, outputs: Any, kept: Any, *inputs: Any) -> Any:  # type: ignore[override]
        ctx.node = node
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(*[outputs[k] for k in node.constant])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:  # type: ignore[override]
        return None, None, None, *ctx.node.gradients(ctx.saved_tensors, tangents)
