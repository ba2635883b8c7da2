"""Hooks that see gradients around and inside compiled functions: eager's order, values and replacements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.test_differentiation import both

MODULE_HOOKS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "full": lambda m, log: m[1].register_full_backward_hook(  # type: ignore[index]
        lambda mod, inputs, outputs: (log.append(inputs[0].sum()), (inputs[0] * 2,))[1]
    ),
    "pre": lambda m, log: m[1].register_full_backward_pre_hook(  # type: ignore[index]
        lambda mod, outputs: (log.append(outputs[0].sum()), (outputs[0] * 3,))[1]
    ),
    "of the whole": lambda m, log: m.register_full_backward_hook(
        lambda mod, inputs, outputs: log.append(outputs[0].sum())
    ),
}


@pytest.mark.parametrize("kind", MODULE_HOOKS)
def test_backward_hooks_of_modules(kind):
    def program(wrap: Any) -> Any:
        model, log = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), list[Any]()
        MODULE_HOOKS[kind](model, log)
        compiled, x = wrap(model), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            compiled(x).sum().backward()
        assert len(log) == 2
        return log, x.grad, [p.grad for p in model.parameters()]

    both(program, ingot.compile)


def test_hooks_of_intermediates():
    def program(wrap: Any) -> Any:
        log: list[Tensor] = []

        def function(x: Tensor) -> Tensor:
            y = x.sin()
            y.register_hook(lambda g: (log.append(g.sum()), g * 2)[1])
            return (y * y).sum()

        compiled, x = wrap(function), torch.ones(3, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            compiled(x).backward()
        assert len(log) == 2
        return log, x.grad

    both(program, ingot.compile)


@pytest.mark.parametrize("inside", [False, True])
def test_hooks_behind_accumulation(inside):
    """Each parameter is updated as soon as it has its gradient."""

    def program(wrap: Any) -> Any:
        layer, log = nn.Linear(3, 2).double(), list[int]()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in layer.parameters()}

        def update(p: Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()
            log.append(p.numel())

        for p in layer.parameters():
            p.register_post_accumulate_grad_hook(update)

        def function(x: Tensor) -> Tensor:
            loss = layer(x).square().sum()
            if inside:
                loss.backward()
            return loss

        compiled = wrap(function)
        for _ in range(3):
            loss = compiled(torch.ones(1, 3, dtype=torch.float64))
            if not inside:
                loss.backward()
        return torch.tensor(sorted(log)), list(layer.parameters()), [p.grad for p in layer.parameters()]

    both(program, ingot.compile)
