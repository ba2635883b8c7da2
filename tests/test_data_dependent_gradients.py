"""Gradients through sizes that the data decide: one program forward, one backward, eager's
gradients for none, one and many elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near
from tests.test_data_dependent_sizes import (
    COUNTS,
    Counted,
    joined,
    made,
    mask_of,
    normalized,
    places,
    put_back,
    viewed,
)

cross_entropy = pytest.mark.skipif(
    torch.__version__ < "2.13",
    reason="torch's own cross_entropy branches on two sizes that the data decide",
)

X = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gradient(function: Callable[..., Any], mask: Tensor) -> tuple[Any, Any]:
    """The result for X and a mask, and the gradient of X."""
    x = X.clone().requires_grad_()
    result = function(x, mask)
    tracked = [
        t
        for t in (result if isinstance(result, tuple) else (result,))
        if getattr(t, "requires_grad", False)
    ]
    torch.autograd.backward(
        tracked, [torch.arange(1.0, t.numel() + 1).cos().view(t.shape).to(t) for t in tracked]
    )
    return result, x.grad


def hessian_product(function: Callable[..., Any], mask: Tensor) -> tuple[Any, Any]:
    """A gradient of X, and that of its square."""
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(x, mask).sin().sum(), x, create_graph=True)
    (found * found).sum().backward()
    return found, x.grad


def compiled_once(
    function: Callable[..., Any], counts: tuple[int, ...], taken: Any = gradient
) -> None:
    """What is `taken` of it is eager's, by the program of one compilation, backward included."""
    counted = Counted(function, fullgraph=True)
    for count in counts:
        assert_near(
            taken(counted.tracked.compiled, mask_of(count)), taken(function, mask_of(count))
        )
    assert counted.replays == []
    (compilation,) = Compiler.of(counted.tracked.compiled).compilations
    later = compilation.backward
    while later is not None:
        assert later.skipped is None
        later = later.backward


def twice(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    selected = x[mask]
    return selected.exp(), (selected * 2).sin()


def shared(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    rows = x[mask[:, 0]] * 2
    return rows, rows.t(), rows.view(-1), x[0]


@pytest.mark.parametrize(
    "function",
    [
        places, made, joined, put_back, twice,
        lambda x, mask: x[mask],
        lambda x, mask: x[mask].sum(),
        lambda x, mask: x[mask].mean() * x[mask].shape[0],
        lambda x, mask: x[mask[:, 0]].sum(0),
        lambda x, mask: x[mask[:, 0]].sum(1),
        lambda x, mask: x[mask[:, 0]] + x[0],
        lambda x, mask: x[mask[:, 0]].t() * 2,
        lambda x, mask: x[x > 0.5].unsqueeze(1) + x[0],
        lambda x, mask: x.view(-1)[mask.long().sum(1).unique(return_inverse=True)[1]].sin(),
        lambda x, mask: torch.zeros_like(x).masked_scatter(mask, x.exp()),
    ],
)  # fmt: skip
def test_gradients(function):
    compiled_once(function, COUNTS)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: torch.softmax(x[mask[:, 0]], 0),
        lambda x, mask: x[mask[:, 0]] @ x.t(),
        lambda x, mask: x[mask].max(),
        lambda x, mask: F.layer_norm(x[mask[:, 0]], (5,)),
        pytest.param(lambda x, mask: F.cross_entropy(x[mask[:, 0]], mask.sum(1)[mask[:, 0]] % 5),
            marks=cross_entropy),
        lambda x, mask: torch.masked_select(x, mask).exp().prod(),
        lambda x, mask: torch.masked_select(x[0], mask),
        lambda x, mask: F.relu(x[mask]).unsqueeze(0).expand(3, -1).sum(0),
        lambda x, mask: x.repeat_interleave(mask.sum(1), 0).sin(),
        shared, normalized, viewed,
    ],
)  # fmt: skip
def test_gradients_of_some_elements(function):
    compiled_once(function, (12, 7, 30, 20))


@pytest.mark.parametrize(
    "function", [lambda x, mask: x[mask].exp() * 2, lambda x, mask: twice(x, mask)[1]]
)
def test_second_derivatives(function):
    compiled_once(function, COUNTS, hessian_product)


def test_how_many_distinct_indices_are_filled_is_asked_of_the_data():
    """What eager differentiates the gradient of `trace` by counts them."""
    x, found = X[:, :4].clone().requires_grad_(), []
    for function in (torch.trace, ingot.compile(lambda x: torch.trace(x))):
        tangent = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(function(x), x, tangent, create_graph=True)
        found.append((first.detach(), torch.autograd.grad(first.square().sum(), tangent)))
    assert_near(found[1], found[0])


def test_what_is_checked_again_for_second_derivatives():
    """No row at all is eager's, forward and backward."""

    def function(x: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(x[mask[:, 0]], 0)

    counted = Counted(function, fullgraph=True)
    for count in (12, 7, 1, 0, 20):
        expected = hessian_product(function, mask_of(count))
        assert_near(hessian_product(counted.tracked.compiled, mask_of(count)), expected)
    assert counted.tracked.count == 1 and len(counted.replays) == 1


def test_some_of_the_gradients():
    """The backward of one of two results takes what the forward kept for both."""

    def second(function: Callable[..., Any], mask: Tensor) -> tuple[Any, Any]:
        x = X.clone().requires_grad_()
        result = function(x, mask)[1]
        result.cos().sum().backward()
        return result, x.grad

    compiled_once(twice, COUNTS, second)


def test_twice_through_a_graph():
    def kept(function: Callable[..., Any], mask: Tensor) -> tuple[Any, Any]:
        x = X.clone().requires_grad_()
        first, second = function(x, mask)
        (first * second).sum().backward(retain_graph=True)
        before = x.grad.clone()
        first.sum().backward()
        return before, x.grad

    compiled_once(twice, COUNTS, kept)


@cross_entropy
def test_training_on_what_a_mask_selects():
    """A step on the labelled rows of a batch, whose size is another one each time."""

    def step(weight: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        known = labels >= 0
        return F.cross_entropy((x @ weight)[known], labels[known])

    generator = torch.Generator().manual_seed(1)
    counted = Counted(step, fullgraph=True)
    weights = [torch.randn(5, 4, generator=generator).requires_grad_()] * 2
    weights[1] = weights[0].detach().clone().requires_grad_()
    for rows in (16, 9, 30, 2, 25):
        x, labels = (
            torch.randn(rows, 5, generator=generator),
            torch.randint(-2, 4, (rows,), generator=generator),
        )
        labels[:2] = 1
        for function, weight in zip((step, counted.tracked.compiled), weights):
            loss = function(weight, x, labels)
            loss.backward()
            with torch.no_grad():
                weight -= weight.grad
            weight.grad = None
    torch.testing.assert_close(*weights)
    assert counted.tracked.count == 2 and counted.replays == []


@pytest.mark.parametrize("as_tensors", [True, False], ids=["tensors", "lists"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ctc_loss(as_tensors: bool, reduction: str) -> None:
    """Its backward reads a table whose width is that of the longest target."""

    def program(x: Tensor, targets: Tensor, inputs: Any, lengths: Any) -> Tensor:
        return (
            F.ctc_loss(
                x.log_softmax(-1), targets, inputs, lengths, reduction=reduction, zero_infinity=True
            )
            * 2
        )

    compiled = ingot.compile(program, fullgraph=True)
    for lengths in ([4, 3], [2, 4], [1, 1]):
        x, targets = torch.randn(10, 2, 5), torch.randint(1, 5, (2, 4))
        given = [torch.tensor(n) if as_tensors else tuple(n) for n in ([10, 9], lengths)]
        found = []
        for function in (compiled, program):
            own = x.clone().requires_grad_()
            loss = function(own, targets, *given)
            loss.sum().backward()
            found.append((loss, own.grad))
        assert_near(*found)
        with torch.no_grad():
            assert_near(compiled(x, targets, *given), program(x, targets, *given))
