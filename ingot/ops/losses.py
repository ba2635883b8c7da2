"""Losses and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.decompositions import HALVES, in_float32, quotient, rounded_once
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.untried import unless_known
from ingot.graph.schemas import bind, indexes
from ingot.loops.lowering.rules import LibraryCall
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

_SMALLEST = in_float32(1e-12)

# by ATen's number
_REDUCE: tuple[Callable[[Tensor], Tensor], ...] = (lambda loss: loss, torch.mean, torch.sum)
_MEAN = 1


def _averaged(x: Tensor, reduction: int) -> Any:
    """The number of elements where the loss is their mean, else 1."""
    if reduction == _MEAN:
        return x.numel()
    return 1


# -- what losses look like -------------------------------------------------------------------------


@unless_known
def loss_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Of an input and a target of its shape."""
    sizes = ()
    if bind(op, args, kwargs)["reduction"] == 0:
        sizes = geometry.broadcast(args[0].shape, args[1].shape)
    return fresh(sizes, args[0].dtype)


@unless_known
def loss_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return fresh(args[1].shape, args[1].dtype)


@unless_known
def nll_loss_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    x, target, reduction = args[0], args[1], args[3]
    return fresh(target.shape if reduction == 0 and x.dim() > 1 else (), x.dtype), fresh(
        (), x.dtype
    )


# -- of differences --------------------------------------------------------------------------------


@rounded_once
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    difference = x - target
    return _REDUCE[reduction](difference * difference)


@rounded_once
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return quotient(2.0, _averaged(x, reduction), x.dtype) * (x - target) * grad


@rounded_once
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    distance = torch.abs(x - target)
    if not beta:
        return _REDUCE[reduction](distance)
    inner = 0.5 * distance * distance / beta
    return _REDUCE[reduction](torch.where(distance < beta, inner, distance - 0.5 * beta))


@rounded_once
def smooth_l1_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    difference, norm = x - target, quotient(1.0, _averaged(x, reduction), x.dtype)
    if beta:
        inner = norm * difference * grad / beta
    else:
        inner = norm * difference * grad
    outer = torch.where(difference <= -beta, -norm * grad, norm * grad)
    return torch.where(torch.abs(difference) >= beta, outer, inner)


@rounded_once
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    distance = torch.abs(x - target)
    outer = delta * (distance - 0.5 * delta)
    return _REDUCE[reduction](torch.where(distance <= delta, 0.5 * distance * distance, outer))


@rounded_once
def huber_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    difference, norm = x - target, quotient(1.0, _averaged(x, reduction), x.dtype)
    outer = torch.where(difference <= -delta, -norm * grad * delta, norm * grad * delta)
    return torch.where(torch.abs(difference) >= delta, outer, norm * difference * grad)


# -- of probabilities ------------------------------------------------------------------------------


def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _REDUCE[reduction](torch.log1p(torch.exp(-target * x)))


@rounded_once
def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    power = torch.exp(-target * x)
    return grad * (-target * power / (1.0 + power) / _averaged(x, reduction))


def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    if x.dtype in HALVES:
        # eager rounds at each step, and float16 does not have the smallest denominator
        return NotImplemented
    inward = grad * (x - target) / torch.clamp((1 - x) * x, min=_SMALLEST)
    if weight is not None:
        inward = inward * weight
    if reduction == _MEAN:
        return inward / x.numel()
    return inward


def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> Any:
    """(loss, sum of the weights of the classes that count) of logarithms of probabilities (n,
    class, ...)."""
    if x.dim() < 2 or geometry.is_empty(x) or x.dtype in HALVES:
        return NotImplemented
    kept = target != ignored
    index = torch.where(kept, target, 0)
    picked = -torch.gather(x, 1, index.unsqueeze(1)).squeeze(1)
    if weight is None:
        total = torch.sum(kept).to(x.dtype)
    else:
        weights = torch.index_select(weight, 0, index.reshape(-1)).view(index.shape)
        picked, total = picked * weights, torch.sum(torch.where(kept, weights, 0.0))
    losses = torch.where(kept, picked, 0.0)
    if reduction == 0:
        return losses, x.new_zeros(())
    summed = torch.sum(losses)
    return (summed / total if reduction == _MEAN else summed), total


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total: Tensor,
) -> Tensor:
    """By comparison of each class with the target, so that nothing has to be in memory."""
    if x.dim() < 2 or geometry.is_empty(x):
        return NotImplemented
    shape = (1, -1, *[1] * (x.dim() - 2))
    classes, targets = torch.arange(x.shape[1], device=x.device).view(shape), target.unsqueeze(1)
    slope = -(grad / total if reduction == _MEAN else grad)
    if reduction == 0:
        slope = slope.unsqueeze(1)
    if weight is not None:
        slope = slope * weight.view(shape)
    hit = torch.eq(classes, targets)
    if not isinstance(x.shape[1], int) or 0 <= ignored < x.shape[1]:
        hit = torch.logical_and(hit, torch.ne(targets, ignored))
    return torch.where(hit, slope, 0)


OPS = (
    op(aten.mse_loss.default, decompose=mse_loss, meta=loss_meta),
    op(aten.mse_loss_backward.default, decompose=mse_loss_backward, meta=loss_backward_meta),
    op(aten.smooth_l1_loss.default, decompose=smooth_l1_loss, meta=loss_meta),
    op(
        aten.smooth_l1_loss_backward.default,
        decompose=smooth_l1_loss_backward,
        meta=loss_backward_meta,
    ),
    op(aten.huber_loss.default, decompose=huber_loss, meta=loss_meta),
    op(aten.huber_loss_backward.default, decompose=huber_loss_backward, meta=loss_backward_meta),
    op(aten.soft_margin_loss.default, decompose=soft_margin_loss, meta=loss_meta),
    op(aten.soft_margin_loss_backward.default, decompose=soft_margin_loss_backward),
    op(aten.binary_cross_entropy.default, may_raise=indexes, library=LibraryCall(resizes_out=True)),
    op(aten.binary_cross_entropy_backward.default, decompose=binary_cross_entropy_backward),
    op(aten.binary_cross_entropy_with_logits.default, meta=loss_meta),
    op(
        aten.nll_loss_forward.default,
        aten.nll_loss2d_forward.default,
        decompose=nll_loss_forward,
        meta=nll_loss_meta,
        may_raise=indexes,
    ),
    op(
        aten.nll_loss_backward.default,
        aten.nll_loss2d_backward.default,
        decompose=nll_loss_backward,
        meta=loss_backward_meta,
    ),
    op(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor, meta=loss_backward_meta),
)
"""The records of losses."""
