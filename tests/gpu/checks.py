"""Eager is the oracle on the GPU too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ingot

HALF = {"rtol": 2**-6, "atol": 2**-6}
EPSILONS = 4  # of the dtype: what an error may be where eager's is less
SHARE = 1.1  # of eager's error against float64


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def copied(args: Sequence[Any]) -> list[Any]:
    """The arguments in memory of their own, with their strides and requires_grad."""

    def copy(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        base = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        return base.copy_(t.detach()).requires_grad_(t.requires_grad)

    return pytree.tree_map(copy, list(args))


def doubled(args: Sequence[Any]) -> list[Any]:
    def double(t: Any) -> Any:
        if isinstance(t, torch.Tensor) and t.is_floating_point():
            return t.detach().double().requires_grad_(t.requires_grad)
        return t

    return pytree.tree_map(double, list(args))


def error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The relative error of all together, in the norm of the sum of squares."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, exact) if a.is_floating_point()]
    total = sum(float(b.nan_to_num(0, 0, 0).square().sum()) for _, b in pairs)
    wrong = sum(float((a - b).nan_to_num(0, 0, 0).square().sum()) for a, b in pairs)
    return (wrong / total) ** 0.5 if total else wrong**0.5


def same(fn: Callable[..., Any], *args: Any, exact: bool = False, oracle: bool = True) -> Any:
    """A call of the compiled function gives what eager gives: structure, dtypes, shapes, strides,
    devices; equal numbers if `exact`, else (with an `oracle`) with no more error against float64
    than eager's; inputs written alike. Returns the compiled function."""
    compiled = ingot.compile(fn, fullgraph=True)
    agree(compiled, fn, *args, exact=exact, oracle=oracle)
    return compiled


def agree(
    compiled: Callable[..., Any],
    fn: Callable[..., Any],
    *args: Any,
    exact: bool = False,
    oracle: bool = True,
) -> None:
    expected_args, found_args = copied(args), copied(args)
    expected, found = fn(*expected_args), compiled(*found_args)
    assert pytree.tree_structure(expected) == pytree.tree_structure(found)
    ours, eagers = tensors([found, found_args]), tensors([expected, expected_args])
    for a, b in zip(ours, eagers, strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)
        assert a.requires_grad == b.requires_grad
        if exact or not a.is_floating_point():
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert torch.equal(a.isnan(), b.isnan())
            if not oracle:
                tolerance = HALF if a.dtype.itemsize == 2 else {}
                torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
    if oracle and not exact:
        truth_args = doubled(copied(args))
        truth = tensors([fn(*truth_args), truth_args])
        epsilon = max(
            (torch.finfo(a.dtype).eps for a in ours if a.is_floating_point()), default=0.0
        )
        assert error(ours, truth) <= max(SHARE * error(eagers, truth), EPSILONS * epsilon)


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
        wanted = [t for t in tensors(given) if t.requires_grad]
        grads = torch.autograd.grad(out, wanted, weight.to(out.dtype))
        results.append(([out.detach()], list(grads)))
    (out, grads), (eager_out, eager_grads), (true_out, true_grads) = results
    for a, b in zip([*out, *grads], [*eager_out, *eager_grads], strict=True):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        assert a.stride() == b.stride() or not strides
    epsilon = torch.finfo(out[0].dtype).eps
    assert error(out, true_out) <= max(SHARE * error(eager_out, true_out), EPSILONS * epsilon)
    assert error(grads, true_grads) <= max(1.2 * error(eager_grads, true_grads), EPSILONS * epsilon)
