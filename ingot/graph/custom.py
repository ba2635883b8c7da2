"""torch.autograd.Function in a captured graph.

Its forward is captured as operations, its backward as a graph of its own. A node behind the forward
tells autograd that they belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
import torch.fx
from torch import Tensor

from ingot.errors import EagerRaises, unsupported
from ingot.graph.fakes import FakeTensor
from ingot.reasons import PROGRAM_RAISES
from ingot.sequences import are_present, at, present
from ingot.torch_private import DelayedError


class Backward(NamedTuple):
    """The graph of a backward. It takes the saved tensors at the positions `reads`, and the
    tangents that are not None, and returns one gradient, or None, for each of the function's tensor
    arguments."""

    graph: torch.fx.GraphModule
    reads: tuple[int, ...]


class _Behind:
    """A node behind a forward: gives its outputs a history by `gradients`."""

    __module__ = __name__

    def __call__(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        kept: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        return Custom.apply(self, outputs, kept, *inputs)


class CustomGradient(_Behind):
    """The node: gives the outputs of a function, its arguments, a history by a captured backward.

    `backwards` holds one for each choice of outputs that have a tangent, or the error that the
    program raises then. With `zeros` there is but one: absent tangents are zeros. `constant` are
    the positions of outputs that have no gradient; `once`: the gradients have none.
    """

    def __init__(
        self,
        name: str,
        backwards: Mapping[tuple[bool, ...], Backward | Exception],
        constant: frozenset[int],
        once: bool,
        zeros: bool,
    ) -> None:
        self.__name__ = name
        self.backwards, self.constant, self.once, self.zeros = backwards, constant, once, zeros

    def gradients(
        self, kept: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients, with a history where one is recorded."""
        differentiable = torch.is_grad_enabled()
        incoming = present(tangents)
        backward = self.backwards[are_present(tangents)]
        if isinstance(backward, Exception):
            raise_in_backward(f"the backward of {self.__name__}", backward, (*kept, *incoming))
        with torch.enable_grad():  # as it was captured
            gradients = list(backward.graph(*at(kept, backward.reads), *incoming))
        if differentiable and not self.once:
            return gradients
        gradients = [g if g is None else g.detach() for g in gradients]
        if not differentiable or not any(t.requires_grad for t in incoming):
            return gradients
        if _is_traced(incoming):  # only .backward() comes by that error
            raise unsupported(
                "second-derivatives",
                f"second derivatives of {self.__name__}, which is differentiable once",
            )
        return _not_again(gradients)


class Reentrant(_Behind):
    """The node behind a checkpointed region that eager's backward runs, and differentiates by
    itself: gradients pass unchanged, zeros in place of absent ones. All `outputs` that may have a
    gradient require one; `constant` are the positions of the others."""

    __name__ = "reentrant"
    zeros = True

    def __init__(self, constant: frozenset[int]) -> None:
        self.constant = constant

    def gradients(self, kept: Any, tangents: Sequence[Tensor]) -> list[Tensor | None]:
        """Those of the inputs."""
        if torch.is_grad_enabled():  # eager's have no history
            text = "second derivatives of a checkpoint with use_reentrant=True"
            if _is_traced(tangents):
                raise unsupported("second-derivatives", text)
            raise RuntimeError(f"{text} in a compiled function (hint: use_reentrant=False)")
        results = []
        for k, t in enumerate(tangents):
            results.append(None if k in self.constant else t)
        return results


def is_reentrant(node: Any) -> bool:
    """Whether a node of autograd's graph is the history that a `Reentrant` gave."""
    return isinstance(getattr(node, "node", None), Reentrant)


def _not_again(gradients: list[Tensor | None]) -> list[Tensor | None]:
    """The gradients with a history that raises an error, as that of `once_differentiable` does."""
    text = b"trying to differentiate twice a function that was marked with @once_differentiable"
    tensors = []
    for g in present(gradients):
        tensors.append(g.requires_grad_())
    delayed = DelayedError(text, len(tensors))(*tensors)
    raising = iter(delayed if isinstance(delayed, tuple) else (delayed,))
    return [g if g is None else next(raising) for g in gradients]


def _is_traced(tensors: Iterable[Any]) -> bool:
    return any(isinstance(t, FakeTensor) for t in tensors)


def raise_in_backward(what: str, error: Exception, tensors: Sequence[Any]) -> NoReturn:
    """Raise an error of the program's; where it is being traced, the reason to run it in eager."""
    if _is_traced(tensors):
        raise EagerRaises(f"{what} raises {error!r}", id=PROGRAM_RAISES) from error
    raise error


class Custom(torch.autograd.Function):
    """Gives `outputs` the history that `node.gradients` says, as functions of `inputs`."""

    @staticmethod
    def forward(ctx: Any, node: Any, outputs: Any, kept: Any, *inputs: Any) -> Any:  # type: ignore[override]
        ctx.node = node
        ctx.set_materialize_grads(node.zeros)
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(*at(outputs, node.constant))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:  # type: ignore[override]
        return None, None, None, *ctx.node.gradients(ctx.saved_tensors, tangents)
