"""Results of compiled functions that the caller writes in place, as eager allows: values, gradients
and what shares memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda x, w: F.linear(x, w),
    "view": lambda x, w: F.linear(x, w).view(2, 8),
    "part": lambda x, w: (x @ w).sin()[:, 1:],
    "dropout": lambda x, w: F.dropout(F.linear(x, w), 0.0, True),
    "two": lambda x, w: (F.linear(x, w) * 2, F.linear(x, w).cos()[0]),
    "of_input": lambda x, w: (x + w[0], x[0]),
    "constant_and_part": lambda x, w: (x * w[0], torch.sin(x.detach())[0]),
}


def tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def outcome(f: Callable[..., Any], wanted: bool, factor: bool, without: bool) -> list[Any]:
    """What writing all results of f in place leads to."""
    torch.manual_seed(0)
    x, w = torch.rand(2, 2, 4), torch.rand(4, 4, requires_grad=wanted)
    scale = torch.rand(4, requires_grad=factor) if factor else 2.0
    with torch.set_grad_enabled(not without):
        results = tensors(f(x, w))
    total = torch.zeros(())
    for result in results:
        result.mul_(scale[: result.shape[-1]] if factor and result.shape[-1] <= 4 else 2.0)
        total = total + result.square().sum()
    if total.requires_grad:
        total.backward()
    leaves = [t for t in (x, w, scale) if isinstance(t, Tensor) and t.is_leaf]
    return [*(r.detach() for r in results), x.detach(), *(t.grad for t in leaves)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wanted", [False, True], ids=["constant", "wanted"])
@pytest.mark.parametrize("factor", [False, True], ids=["by_number", "by_factor"])
def test_results_may_be_written(name: str, wanted: bool, factor: bool) -> None:
    compiled = ingot.compile(FUNCTIONS[name])
    for _ in range(2):
        expected = outcome(FUNCTIONS[name], wanted, factor, False)
        torch.testing.assert_close(outcome(compiled, wanted, factor, False), expected)


@pytest.mark.parametrize("name", ["product", "dropout"])
def test_results_without_gradients_may_be_written_where_they_are_recorded(name: str) -> None:
    compiled = ingot.compile(FUNCTIONS[name])
    expected = outcome(FUNCTIONS[name], True, True, True)
    torch.testing.assert_close(outcome(compiled, True, True, True), expected)


@pytest.mark.parametrize("wanted", [False, True], ids=["constant", "wanted"])
def test_what_shares_memory_shares_what_is_written(wanted: bool) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x, w)
        return y, y.view(2, 8)

    def use(f: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        x, w = torch.rand(2, 2, 4), torch.rand(4, 4, requires_grad=wanted)
        factor = torch.rand(4, requires_grad=True)
        y, shown = f(x, w)
        y.mul_(factor)
        shown.square().sum().backward()
        return [y.detach(), shown.detach(), w.grad, factor.grad]

    torch.testing.assert_close(use(ingot.compile(function)), use(function))


def test_a_result_is_written_behind_a_break() -> None:
    def function(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
        hidden = F.dropout(F.linear(x, w), 0.0, True)
        assert len(mask.tolist()) == 2
        hidden[mask] = 0.0
        return hidden.square().sum()

    def use(f: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        x, w = torch.rand(2, 2, 4), torch.rand(4, 4, requires_grad=True)
        loss = f(x, w, torch.tensor([[True, False], [False, True]]))
        loss.backward()
        return [loss.detach(), w.grad]

    torch.testing.assert_close(use(ingot.compile(function)), use(function))


@pytest.mark.parametrize(
    "last", [torch.exp, torch.sqrt, lambda y: y.softmax(-1), lambda y: F.layer_norm(y, (4,))]
)
def test_a_gradient_is_right_or_refused_where_a_result_was_written(
    last: Callable[[Tensor], Tensor],
) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return last(F.linear(x, w)).view(2, 8)

    def gradient(f: Callable[..., Tensor], write: bool) -> Tensor | None:
        torch.manual_seed(0)
        x, w = torch.rand(2, 2, 4), torch.rand(4, 4, requires_grad=True)
        result = f(x, w)
        if write:
            result.add_(1)
        result.backward(torch.rand(2, 8))
        return w.grad

    try:
        found = gradient(ingot.compile(function), True)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(found, gradient(function, False))


def test_results_that_share_what_an_operation_made_for_itself() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        turned = torch.rot90(x * 2)
        return turned, turned.t()

    def gradient(f: Callable[..., Any]) -> Tensor | None:
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        turned, back = f(x)
        (turned.square().sum() + back.exp().sum()).backward()
        return x.grad

    torch.testing.assert_close(gradient(ingot.compile(function)), gradient(function))


def test_writes_of_arguments_without_elements_are_seen_by_autograd() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y.sum())
        return y.sin()

    def outcome(f: Callable[..., Any], size: int) -> Any:
        y, base = torch.ones(3, requires_grad=True), torch.ones(4, size, requires_grad=True)
        x = base * 1
        f(x, y)
        return x._version, torch.autograd.grad(x, [base, y], torch.ones_like(x))

    compiled = ingot.compile(function)
    for size in (0, 2, 5, 0):
        torch.testing.assert_close(outcome(compiled, size), outcome(function, size))


@pytest.mark.parametrize("part", [lambda y: y, lambda y: y[:1]])
def test_results_that_share_memory_and_are_all_detached_have_no_history(
    part: Callable[[Tensor], Tensor],
) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = part(x * 2)
        return y.detach(), y.detach(), x**3

    x = torch.ones(2, 3, requires_grad=True)
    found, expected = ingot.compile(function)(x), function(x)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
    found[0].add_(1)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], expected[1] + 1)
