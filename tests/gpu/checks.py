"""Eager is the oracle on the GPU too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ingot
from tests.oracle import (
    AgainstFloat64,
    Close,
    Numbers,
    assert_results,
    called,
    doubled,
    tensors_in,
)

ORACLE = AgainstFloat64(together=True)
CLOSE = Close(half=2**-6)


def copied(args: Sequence[Any]) -> list[Any]:
    """The arguments in memory of their own, with their strides and requires_grad."""

    def copy(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        base = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        return base.copy_(t.detach()).requires_grad_(t.requires_grad)

    return pytree.tree_map(copy, list(args))


def assert_compiled(fn: Callable[..., Any], *args: Any, numbers: Numbers = ORACLE) -> Any:
    """A call of the compiled function does what eager's does. Returns the compiled function."""
    compiled = ingot.compile(fn, fullgraph=True)
    agree(compiled, fn, *args, numbers=numbers)
    return compiled


def agree(
    compiled: Callable[..., Any],
    fn: Callable[..., Any],
    *args: Any,
    numbers: Numbers = ORACLE,
) -> None:
    expected_args, found_args = copied(args), copied(args)
    expected, found = fn(*expected_args), compiled(*found_args)
    assert_results(
        (found, found_args),
        (expected, expected_args),
        numbers,
        aliasing=False,
        exact=lambda: called(fn, doubled(copied(args)))[:2],
    )


def gradients_agree(
    fn: Callable[..., torch.Tensor],
    *args: Any,
    compiled: Callable[..., Any] | None = None,
    strides: bool = True,
) -> None:
    """Values and gradients are eager's, and so, with `strides`, are those of the gradients."""
    compiled = compiled or ingot.compile(fn, fullgraph=True)
    results = []
    for call, given in ((compiled, copied(args)), (fn, copied(args)), (fn, doubled(copied(args)))):
        out = call(*given)
        weight = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=torch.float64).reshape(
            out.shape
        )
        wanted = [t for t in tensors_in(given) if t.requires_grad]
        grads = torch.autograd.grad(out, wanted, weight.to(out.dtype))
        results.append(([out.detach()], list(grads)))
    (out, grads), (eager_out, eager_grads), (true_out, true_grads) = results
    for a, b in zip([*out, *grads], [*eager_out, *eager_grads], strict=True):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        assert a.stride() == b.stride() or not strides
    for numbers, ours, eagers, truth in (
        (ORACLE, out, eager_out, true_out),
        (AgainstFloat64(ratio=1.2, together=True), grads, eager_grads, true_grads),
    ):
        difference = numbers.difference_of(ours, eagers, truth)
        assert not difference, difference
