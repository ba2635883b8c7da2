"""Losses and their gradients as simpler ops: eager's values, no further from float64 than eager's
own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.graph import AtenGraph
from tests.graph.test_decompositions_backward import FLOATS, assert_decomposed, numbers

aten = torch.ops.aten

FORWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y.round(), beta=0.5, reduction="none"),
    "smooth_l1_loss without a bend": lambda x, y: F.smooth_l1_loss(x, y, beta=0.0),
    "huber_loss": lambda x, y: F.huber_loss(x, y.round(), delta=0.5, reduction="none"),
    "mean huber_loss": lambda x, y: F.huber_loss(x, y, delta=1.5),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y.sign(), reduction="none"),
}

GRADIENTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mse_loss": lambda g, x: aten.mse_loss_backward(g, x, g * 2, 0),
    "mean mse_loss": lambda g, x: aten.mse_loss_backward(g.sum(), x, g * 2, 1),
    "smooth_l1_loss": lambda g, x: aten.smooth_l1_loss_backward(g, x, x.round(), 0, 0.5),
    "smooth_l1_loss without a bend": lambda g, x: aten.smooth_l1_loss_backward(
        g.sum(), x, g, 1, 0.0
    ),
    "huber_loss": lambda g, x: aten.huber_loss_backward(g, x, x.round(), 0, 0.5),
    "soft_margin_loss": lambda g, x: aten.soft_margin_loss_backward(g, x.clamp(-8, 8), g.sign(), 0),
    "binary_cross_entropy": lambda g, x: aten.binary_cross_entropy_backward(
        g, x.clamp(0, 1), g.clamp(0, 1), None, 0
    ),
    "weighted binary_cross_entropy": lambda g, x: aten.binary_cross_entropy_backward(
        g.sum(), x.sigmoid(), g.clamp(0, 1), g.abs(), 1
    ),
}


def takes_apart(graph: AtenGraph) -> bool:
    return not any("loss" in str(n.target) for n in graph.graph.nodes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FORWARD)
def test_values(name: str, dtype: torch.dtype) -> None:
    assert takes_apart(
        assert_decomposed(FORWARD[name], numbers(0, 40, 8), numbers(1, 40, 8).roll(5), dtype=dtype)
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    if "entropy" in name and dtype.itemsize == 2:
        dtype = torch.float32  # halves are left to eager
    assert_decomposed(GRADIENTS[name], numbers(0, 40, 8).roll(5), numbers(1, 40, 8), dtype=dtype)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(12, 5), (3, 5, 2, 2)])
def test_nll_loss(shape: tuple[int, ...], weighted: bool, reduction: int) -> None:
    forward, op = aten.nll_loss_forward, aten.nll_loss_backward
    if len(shape) > 2:
        forward, op = aten.nll_loss2d_forward, aten.nll_loss2d_backward
    x, target = numbers(0, *shape), torch.arange(12).view(shape[0], *shape[2:]) % 5
    target.view(-1)[3] = 1

    def loss_of(ignored: int) -> Callable[..., Any]:
        def loss(x: Tensor, w: Tensor, target: Tensor) -> Any:
            weight = w if weighted else None
            found = forward(x, target, weight, reduction, ignored)
            grad = op(found[0] + 1, x, target, weight, reduction, ignored, found[1])
            return found[0], grad

        return loss

    for ignored in (-100, 2):
        assert takes_apart(
            assert_decomposed(loss_of(ignored), x, numbers(1, 5).abs(), target, dtype=torch.float32)
        )


@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 2)])
def test_a_class_that_there_is_not(shape: tuple[int, ...]) -> None:
    """Eager raises its error, at its own line."""
    loss = ingot.compile(lambda x, t: F.cross_entropy(x, t))
    for wrong in (5, -1):
        target = torch.zeros(shape[0], *shape[2:], dtype=torch.int64)
        target.view(-1)[-1] = wrong
        with pytest.raises(IndexError, match="out of bounds"):
            loss(torch.randn(shape), target)
