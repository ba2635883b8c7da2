"""Gradients of a loss that the forward computes, before it is known by what they are multiplied."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.compiler import Compiler

ROWS, CLASSES = 32, 600


def scores(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float32).to(dtype)
    target = torch.randint(CLASSES, (ROWS,), generator=generator)
    target[3] = -100  # left out
    return x.requires_grad_(), target


def compilation_of(compiled: Any) -> Any:
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    return compilation


def computes_ahead(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether the backward only multiplies by the tangent."""
    compiled: Any = ingot.compile(fn, fullgraph=True)
    result = compiled(*args)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    nodes = compilation_of(compiled).backward.log.aten.graph.nodes
    called = {str(n.target) for n in nodes if n.op == "call_function"}
    return called == {"aten.mul.Tensor", "aten.eq.Scalar", "aten.where.self"}


def smooth(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, label_smoothing=0.1)


def weighted(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(
        x, target, torch.linspace(0.5, 2, CLASSES, dtype=x.dtype), reduction="sum"
    )


LOSSES = {"mean": F.cross_entropy, "smooth": smooth, "weighted": weighted}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_eagers(name: str, dtype: torch.dtype) -> None:
    x, target = scores(dtype)
    compiled = ingot.compile(LOSSES[name], fullgraph=True)
    for factor in (1.0, 3.0, 1 / 7, 0.0, -1.0, math.nan):
        (expected,) = torch.autograd.grad(LOSSES[name](x, target) * factor, x)
        (found,) = torch.autograd.grad(compiled(x, target) * factor, x)
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_forward_computes_the_gradient_of_scores() -> None:
    x, target = scores()
    compiled: Any = ingot.compile(F.cross_entropy, fullgraph=True)
    loss = compiled(x, target)
    (kept,) = [t.clone() for t in loss.grad_fn.saved_tensors if t.numel() == x.numel()]
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.equal(kept, gradient)
    assert computes_ahead(F.cross_entropy, *scores())
    plan = compilation_of(compiled).backward.log.plan
    assert len(plan.steps) == 1 and plan.lenders


def test_with_1_for_tangent_nothing_is_touched_and_with_others_all() -> None:
    """In the memory of what was kept; where that is not to be had, it is copied."""
    x, target = scores()
    compiled = ingot.compile(F.cross_entropy, fullgraph=True)
    (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    for factor in (1.0, 2.0):
        loss = compiled(x, target)
        places = [t.data_ptr() for t in loss.grad_fn.saved_tensors]
        for retained in (True, True, False):
            (found,) = torch.autograd.grad(loss, x, torch.tensor(factor), retain_graph=retained)
            torch.testing.assert_close(found, expected * factor)
            assert (found.data_ptr() in places) == (not retained)


def test_scores_may_be_written_before_the_backward() -> None:
    x, target = scores()
    compiled = ingot.compile(lambda x, target: F.cross_entropy(x, target), fullgraph=True)
    (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    y = x * 1
    loss = compiled(y, target)
    y.detach().zero_()
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)


def test_second_derivatives() -> None:
    x, target = scores(torch.float64)
    found = []
    for fn in (ingot.compile(F.cross_entropy, fullgraph=True), F.cross_entropy):
        (gradient,) = torch.autograd.grad(fn(x, target), x, create_graph=True)
        found.append((gradient, *torch.autograd.grad(gradient.square().sum(), x)))
    torch.testing.assert_close(found[0], found[1])


def test_hooks_and_threads() -> None:
    x, target = scores()
    compiled = ingot.compile(F.cross_entropy, fullgraph=True)
    (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    loss, seen = compiled(x, target), []
    loss.register_hook(lambda g: g * 2)
    handle = x.register_hook(lambda g: seen.append(g.clone()))
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    handle.remove()
    torch.testing.assert_close(x.grad, 2 * expected)
    torch.testing.assert_close(seen[0], 2 * expected)


def test_within_a_checkpoint_and_a_model() -> None:
    torch.manual_seed(0)
    model, target = (
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, CLASSES)),
        torch.randint(CLASSES, (64,)),
    )
    h = torch.randn(64, 16)

    def loss(h: Tensor) -> Tensor:
        return F.cross_entropy(model(h), target)

    expected = torch.autograd.grad(loss(h), list(model.parameters()))
    compiled = ingot.compile(loss, fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(h), list(model.parameters())), expected)
    again = checkpoint(compiled, h, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again, list(model.parameters())), expected)


def both(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(x, target), F.log_softmax(x, 1)


def of_halves(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.half(), target)


def squares(x: Tensor, target: Tensor) -> Tensor:
    return (x - 1).square().mean()


def rows(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none")


@pytest.mark.parametrize("fn", [both, of_halves, squares, rows])
def test_what_would_keep_more_or_is_not_of_one_number_is_left(fn: Callable[..., Any]) -> None:
    assert not computes_ahead(fn, *scores())
