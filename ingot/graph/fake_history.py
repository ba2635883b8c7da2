"""The history of a fake that was not computed, since an earlier one is like it.

In: what the fake depends on, and how it would be computed. Out: a fake that autograd takes for the
result of one operation. Where a program differentiates, the backward of that operation computes it
after all, and differentiates what that gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.graph.call_keys import FakeSpec
from ingot.graph.fakes import FakeTensor
from ingot.torch_private import engine_run_backward

Compute = Callable[[Sequence[FakeTensor]], FakeTensor]
"""Computes the fake of what it depends on."""


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spec: FakeSpec, compute: Compute, *inputs: Any) -> Any:  # type: ignore[override]
        ctx.compute, ctx.inputs = compute, inputs
        ctx.set_materialize_grads(False)
        return spec.new()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:  # type: ignore[override]
        if tangent is None:
            return (None,) * (2 + len(ctx.inputs))
        creates_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            result = ctx.compute(ctx.inputs)
        keep = allow_unused = True
        args = (result,), (tangent,), keep, creates_graph, ctx.inputs, allow_unused
        return None, None, *engine_run_backward(*args, accumulate_grad=False)


def with_history(spec: FakeSpec, compute: Compute, inputs: Sequence[FakeTensor]) -> FakeTensor:
    """A new fake of the geometry in `spec`, which requires a gradient and depends on `inputs`."""
    fake: FakeTensor = _Operation.apply(spec, compute, *inputs)
    return fake


def dependences(fake: FakeTensor, before: Sequence[FakeTensor]) -> list[int] | None:
    """Which of the fakes `before` the history of another one leads to. None where it leads past
    them."""
    ends, leaves = {}, {}
    for k, known in enumerate(before):
        if known.requires_grad and known.is_leaf:
            leaves[id(known)] = k
        elif known.requires_grad:
            ends[known.grad_fn, known.output_nr] = k
    found, visited, stack = set(), set(), [(fake.grad_fn, fake.output_nr)]
    while stack:
        edge = stack.pop()
        node: Any = edge[0]
        if node is None or edge in visited:
            continue
        visited.add(edge)
        if edge in ends:
            found.add(ends[edge])
        elif hasattr(node, "variable"):
            if id(node.variable) not in leaves:
                return None
            found.add(leaves[id(node.variable)])
        else:
            stack += node.next_functions
    return sorted(found)
