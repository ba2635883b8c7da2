"""copy.copy and copy.deepcopy of modules and parameters inside of a compiled function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.oracle import assert_near, assert_same, outcome

X = torch.randint(-3, 4, (3, 4), generator=torch.Generator().manual_seed(0)).float()
"""With weights of few bits, all sums and products are exact."""


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("count", torch.zeros(4))
        self.window = self.count[1:]
        self.sizes = [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.second(self.first(x)) * self.frozen + self.count


def model() -> Tied:
    torch.manual_seed(0)
    tied = Tied()
    with torch.no_grad():
        for p in tied.parameters():
            p.copy_((p * 8).round() / 8)
    return tied


def called(m: nn.Module, x: Tensor) -> Any:
    return copy.deepcopy(m)(x), m(x)


def shallow(m: nn.Module, x: Tensor) -> Any:
    other = copy.copy(m)
    other.sizes.append(3)
    return other(x), other.first is m.first, other is m, type(other) is type(m), m.sizes


def changed(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    with torch.no_grad():
        other.first.weight.mul_(2)
        other.frozen.add_(1)
    other.sizes.append(5)
    return other(x), m(x), m.sizes


def averaged(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    with torch.no_grad():
        for p, q in zip(other.parameters(), m.parameters()):
            p.mul_(0.5).add_(q * x.sum(), alpha=0.25)
    return other(x)


def asked(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    return (
        (
            other.first.weight is other.second.weight,
            other.first.weight is m.first.weight,
            isinstance(other.frozen, nn.Parameter),
            isinstance(other.count, nn.Parameter),
            type(other.frozen) is nn.Parameter,
            other.frozen.requires_grad,
            other.first.weight.requires_grad,
            other.first.weight.is_leaf,
            [name for name, _ in other.named_parameters()],
            sum(p.numel() for p in other.parameters()),
            other.training,
        ),
        other.eval().training,
        x + 1,
    )


def parameter_alone(m: Any, x: Tensor) -> Any:
    w = copy.deepcopy(m.first.weight)
    both = copy.deepcopy([m.frozen, m.frozen])
    return x @ w + both[0], both[0] is both[1]


def stacked(m: nn.Module, x: Tensor) -> Any:
    for layer in [copy.deepcopy(m) for _ in range(2)]:
        x = layer(x)
    return x


def gradients_inside(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    loss = other(x).sum()
    grads = torch.autograd.grad(loss, [other.first.weight, other.first.bias])
    return [g * 2 for g in grads]


def a_step_inside(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    other(x.detach()).sum().backward()
    with torch.no_grad():
        for p in other.parameters():
            if p.grad is not None:
                p -= 0.5 * p.grad
    return other(x)


WHOLE = (called, shallow, changed, averaged, asked, parameter_alone, stacked)
OTHERS = (gradients_inside, a_step_inside)


def given_away(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    return other, other(x)


def shallow_given_away(m: nn.Module, x: Tensor) -> Any:
    other = copy.copy(m)
    return other, other(x)


def a_parameter_given_away(m: Any, x: Tensor) -> Any:
    return copy.deepcopy(m.frozen), copy.deepcopy(m.first.weight)


def kept(m: Any, x: Tensor) -> Any:
    m.teacher = copy.deepcopy(m.first)
    return m.teacher(x)


def of_attributes(m: Any, x: Tensor) -> Any:
    m.frozen.tag = "a"
    other = copy.deepcopy(m)
    return other(x), hasattr(other.frozen, "tag")


def around_a_break(m: nn.Module, x: Tensor) -> Any:
    other = copy.deepcopy(m)
    if x.sum() > 0:
        return other(x) * 2
    return other(x)


BROKEN = (
    given_away,
    shallow_given_away,
    a_parameter_given_away,
    kept,
    of_attributes,
    around_a_break,
)


def shown(tree: Any) -> Any:
    if isinstance(tree, nn.Module):
        states = {k: (v, v.requires_grad) for k, v in tree.named_parameters()}
        return type(tree), states, dict(tree.named_buffers()), tree.training
    if isinstance(tree, (tuple, list)):
        return [shown(item) for item in tree]
    if isinstance(tree, nn.Parameter):
        return nn.Parameter, tree.detach(), tree.requires_grad
    return tree


def compared(function: Callable[..., Any], original: Callable[..., Any], grad: bool) -> None:
    module, own = model(), model()
    for _ in range(3):
        results = []
        for f, m in ((function, module), (original, own)):
            x = X.clone().requires_grad_(grad)
            with torch.set_grad_enabled(grad or original in OTHERS):
                found = outcome(f, m, x)
            assert found.raised is None, found.raised
            tensors = [
                t for t in torch.utils._pytree.tree_leaves(found.result)
                if isinstance(t, Tensor) and t.requires_grad and not t.is_leaf
            ]  # fmt: skip
            if grad and tensors:
                sum(t.sum() for t in tensors).backward()
            grads = [p.grad for p in m.parameters()]
            results.append((shown(found.result), x.grad, grads, shown(m)))
        assert_same(*results)


@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(function: Callable[..., Any], grad: bool) -> None:
    compared(ingot.compile(function, fullgraph=True), function, grad)


@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("function", OTHERS + BROKEN, ids=lambda f: f.__name__)
def test_eagers_meaning(function: Callable[..., Any], grad: bool) -> None:
    compared(ingot.compile(function), function, grad)


def test_guards_of_a_copied_module() -> None:
    def function(m: Any, x: Tensor) -> Any:
        return copy.deepcopy(m)(x)

    compiled = ingot.compile(function)
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    for change in (module.train, module.eval, lambda: module[0].weight.requires_grad_(False)):
        change()
        results = []
        for f in (compiled, function):
            torch.manual_seed(1)
            results.append((f(module, X).detach(), dict(module.named_buffers())))
        assert_near(*results)
