"""The DTensors that a graph takes apart, and the gradients that it gives for them: one node of
autograd's for all of a call.

In: the DTensors of a call that require gradients. Out: their local tensors, whose history is that
of the DTensors. A model has hundreds of parameters, and a node for each takes longer than many of
its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.graph.dtensors import arrived
from ingot.graph.wrappers import GradientLayout, Layout, TakeApart, Wrap
from ingot.native import _native
from ingot.torch_private import DisableTorchFunctionSubclass

_native.await_locals_by(arrived)


class PartsOf:
    """Gives the inner tensors of an instance that requires a gradient, with its history.
    `gradients` is what the graph learns of the gradients that it gives for them."""

    __name__ = "parts_of"

    def __init__(self, gradients: GradientLayout | None = None) -> None:
        self.gradients = gradients
        self.layout_of: Callable[[Tensor], Layout] = Layout.of
        if gradients is not None:
            self.layout_of = _native.OfTheLast(Layout.of)

    def __call__(self, wrapper: Tensor) -> tuple[Tensor, ...]:
        return TakeApart(self.layout_of(wrapper), self.gradients)(wrapper)


class WithHistories:
    """Runs a program that takes local tensors with the history of DTensors, which are given at
    these `places`."""

    def __init__(
        self, run: Callable[..., Any], places: Sequence[int], parts: Sequence[PartsOf]
    ) -> None:
        self.run, self.places, self.parts = run, tuple(places), tuple(parts)

    def __call__(self, *inputs: Tensor) -> Any:
        given = list(inputs)
        wrappers = [given[place] for place in self.places]
        with DisableTorchFunctionSubclass(), torch.enable_grad():
            locals_ = _apply_histories(self.parts, *wrappers)
        for place, local in zip(self.places, locals_):
            given[place] = local
        return self.run(*given)


class _Histories(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Sequence[PartsOf], *wrappers: Any) -> Any:  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.parts = parts
        ctx.layouts = []  # of DTensors whose gradients nothing is known of yet
        for one, wrapper in zip(parts, wrappers):
            is_known = one.gradients is not None and one.gradients.layout is not None
            ctx.layouts.append(None if is_known else one.layout_of(wrapper))
        return tuple([wrapper._local_tensor.detach() for wrapper in wrappers])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # type: ignore[override]
        tracks = torch.is_grad_enabled()
        results: list[Tensor | None] = [None]
        with DisableTorchFunctionSubclass():
            for parts, layout, gradient in zip(ctx.parts, ctx.layouts, gradients):
                if gradient is None:
                    results.append(None)
                    continue
                expected = TakeApart(layout, parts.gradients).layout_of_gradient()
                if tracks and gradient.requires_grad:
                    results.append(Wrap(expected, True)(gradient))
                else:
                    results.append(expected.make((gradient,)))
        return tuple(results)


# `apply` itself looks at each argument, for transforms of torch.func; guards see to these
_apply_histories = super(torch.autograd.Function, _Histories).apply  # type: ignore[misc]
