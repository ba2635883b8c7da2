"""`memory_budget`: what a forward saves, and that its gradients are eager's all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ingot
from examples import gpt2
from ingot.compiler import Compiler

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
Make = Callable[[], tuple[Callable[..., Any], tuple[Tensor, ...]]]


def compiled_for(fn: Any, budget: float | None, **options: Any) -> Any:
    if budget is not None:
        options["options"] = {"memory_budget": budget}
    return ingot.compile(fn, fullgraph=True, **options)


def saved_bytes(compiled: Any) -> int:
    """What the forward of the newest entry saves beside the tensors that are there anyway."""
    compilation = Compiler.of(compiled).compilations[-1]  # type: ignore[union-attr]
    backward = compilation.backward.log.aten
    places = compilation.captured.graph_module.graph.output_node().args[0]
    specs = compilation.log.aten.outputs[len(places) :]
    total = 0
    for spec in specs:
        if spec.node is not None:
            total += spec.node.meta["val"].nbytes
    assert backward.lends is not None
    return total


def gradients(fn: Any, model: Any, args: tuple[Tensor, ...]) -> list[Tensor | None]:
    leaves = [arg for arg in args if arg.requires_grad]
    if isinstance(model, nn.Module):
        leaves += model.parameters()
    torch.manual_seed(5)
    result = fn(*args)
    loss = result.float().square().mean()
    return [result.detach(), *torch.autograd.grad(loss, leaves, allow_unused=True)]


def assert_near(got: list[Any], expected: list[Any]) -> None:
    for a, b in zip(got, expected, strict=True):
        if b is None:
            assert a is None or not a.any()
        else:
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


# -- models ----------------------------------------------------------------------------------------


def perceptron() -> Any:
    layers = [part for _ in range(8) for part in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(256, 32),)


def images() -> Any:
    layers = [
        part
        for _ in range(3)
        for part in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*layers), (torch.randn(2, 4, 16, 16, requires_grad=True),)


def language() -> Any:
    model = gpt2.gpt2(gpt2.Config(layers=3, heads=2, width=32, positions=32, vocabulary=64))
    return model.requires_grad_(), (torch.randint(64, (2, 32)),)


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), (torch.randn(2, 8, 16),)


def recurrent() -> Any:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            state = x[0]
            for part in x:
                state = self.cell(part, state)
            return state

    return Last(), (torch.randn(6, 4, 16, requires_grad=True),)


def with_a_checkpoint() -> Any:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(lambda t: F.dropout(self.first(t).sin(), 0.5), x, use_reentrant=False)
            return torch.tanh(self.second(y)) @ x.t()

    return Partly(), (torch.randn(16, 16, requires_grad=True),)


MAKERS = [perceptron, images, language, encoder, recurrent, with_a_checkpoint]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_gradients_are_eagers_and_fewer_bytes_are_saved(make: Make) -> None:
    torch.manual_seed(1)
    model, args = make()
    expected = gradients(model, model, args)
    sizes = []
    for budget in BUDGETS:
        compiled = compiled_for(model, budget)
        if budget == 1.0:  # which dropout draws anew
            usual = gradients(compiled, model, args)
        assert_near(gradients(compiled, model, args), usual)
        sizes.append(saved_bytes(compiled))
    if not any(isinstance(m, nn.Dropout) and m.p for m in model.modules()):
        assert_near(usual, expected)
    for budget, size in zip(BUDGETS, sizes):
        assert size <= max(budget * sizes[0], sizes[-1])
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < sizes[0]
    assert saved_bytes_of_torch_default(model, args) == sizes[0]


def saved_bytes_of_torch_default(model: Any, args: Any) -> int:
    """What is saved where nothing is said."""
    compiled = compiled_for(model, None)
    gradients(compiled, model, args)
    return saved_bytes(compiled)


def test_alike_layers_are_computed_again_one_by_one() -> None:
    model, args = perceptron()
    sizes = []
    for eighths in range(9):
        compiled = compiled_for(model, eighths / 8)
        gradients(compiled, model, args)
        sizes.append(saved_bytes(compiled))
    layer = 256 * 32 * 4
    assert sizes == [layer * eighths for eighths in range(9)]


def test_nothing_is_drawn_again() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = F.dropout(torch.sin(x @ w), 0.5)
        return torch.cos(y @ w) * torch.rand_like(y)

    x, w = torch.randn(16, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    expected = gradients(fn, None, (x, w))
    for budget in BUDGETS:
        compiled = compiled_for(fn, budget)
        for _ in range(2):
            assert_near(gradients(compiled, None, (x, w)), expected)


def test_sizes_that_vary() -> None:
    model, _ = perceptron()
    compiled = ingot.compile(model, fullgraph=True, dynamic=True, options={"memory_budget": 0.25})
    for rows in (64, 256, 31):
        x = torch.randn(rows, 32, requires_grad=True)
        assert_near(gradients(compiled, model, (x,)), gradients(model, model, (x,)))


def test_sizes_that_the_data_decide() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).sin()
        return torch.sin(y[y[:, 0] > 0] @ w).exp()

    x, w = torch.randn(16, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    expected = gradients(fn, None, (x, w))
    for budget in (0.5, 0.0):
        compiled = ingot.compile(fn, options={"memory_budget": budget})
        assert_near(gradients(compiled, None, (x, w)), expected)


def test_second_derivatives_and_some_of_the_gradients() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x @ w)
        return torch.cos(y @ w), y.exp()

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    compiled = compiled_for(fn, 0.0)

    def outcome(f: Any) -> list[Tensor]:
        first, second = f(x, w)
        (part,) = torch.autograd.grad(second.sum(), x, retain_graph=True)
        (other,) = torch.autograd.grad(first.sum(), w, retain_graph=True)
        (gx,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(gx.square().sum(), w)
        return [part, other, twice]

    assert_near(outcome(compiled), outcome(fn))


def test_an_input_that_is_written_by_the_function() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = torch.sin((x + 1) @ w)
        x.mul_(2)
        return torch.cos(y @ w) * x

    w = torch.randn(8, 8, requires_grad=True)
    results = []
    for f in (fn, compiled_for(fn, 0.0), compiled_for(fn, 0.5)):
        x = torch.linspace(-1, 1, 64).reshape(8, 8)
        f(x, w).sum().backward()
        results.append([x, w.grad])
        w.grad = None
    assert_near(results[1], results[0])
    assert_near(results[2], results[0])


def test_an_input_that_is_written_before_the_backward() -> None:
    """It is read again, so that autograd refuses; eager, which reads it no more, goes on."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin((x + 1) @ w).exp()

    w = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(8, 8)
    result = compiled_for(fn, 0.0)(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_comparisons_with_a_statistic_come_out_alike() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return torch.where(y > y.mean(-1, keepdim=True), y.sin(), y.exp() * 100).cos()

    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    expected = gradients(fn, None, (x, w))
    for budget in (0.5, 0.0):
        assert_near(gradients(compiled_for(fn, budget), None, (x, w)), expected)


def test_branches_that_the_data_decide() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = torch.sin(x @ w)
        z = torch.cond(y.sum() > 0, lambda a: (a @ a).cos(), lambda a: a.exp() * 2, (y,))
        return (z @ w).sin()

    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    compiled = compiled_for(fn, 0.0)
    for sign in (1, -1):
        inputs = (x * sign).requires_grad_(), w
        assert_near(gradients(compiled, None, inputs), gradients(fn, None, inputs))


# -- ways to say it --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-0.1, 1.5, "half", None, True, math.nan])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="memory_budget may not be .*; a number from 0 to 1"):
        ingot.compile(F.gelu, options={"memory_budget": value})


def test_the_setting_of_torch_compile_is_heeded() -> None:
    import torch._functorch.config as config

    model, args = perceptron()
    sizes = []
    for own in (None, 1.0):
        with config.patch(activation_memory_budget=0.5):
            compiled = compiled_for(model, own)
            gradients(compiled, model, args)
        sizes.append(saved_bytes(compiled))
    assert sizes[0] * 2 == sizes[1]


def test_after_install_the_option_is_taken() -> None:
    model, args = perceptron()
    ingot.install()
    try:
        compiled = torch.compile(model, fullgraph=True, options={"memory_budget": 0.0})
    finally:
        ingot.uninstall()
    gradients(compiled, model, args)
    assert saved_bytes(compiled) == 0


@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "region_activation_memory_budget"),
    reason="this torch has no budgets of regions",
)
def test_a_budget_inside() -> None:
    model, args = perceptron()
    budget = torch.autograd.graph.region_activation_memory_budget

    def fn(x: Tensor) -> Tensor:
        with budget(0.25):
            return model(x)

    def wrong(x: Tensor) -> Tensor:
        with budget(2.0):
            return model(x)

    compiled = compiled_for(fn, None)
    assert_near(gradients(compiled, model, args), gradients(model, model, args))
    assert saved_bytes(compiled) == 2 * 256 * 32 * 4
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        ingot.compile(wrong)(*args)
