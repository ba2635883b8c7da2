"""Hooks that a compiled function puts on the gradients of its inputs: they are the program's own,
stay on the tensors, and run in eager's order."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import ingot
from ingot.errors import GraphBreakError
from tests.test_differentiation import both

Log = list[Any]


def changes(x: Tensor, log: Log) -> Any:
    x.register_hook(lambda g: g * 2)
    return (x * 3).sum()


def logs(x: Tensor, log: Log) -> Any:
    x.register_hook(lambda g: log.append(g.sum()))
    return (x * x).sum()


def reads_what_is_computed(x: Tensor, log: Log) -> Any:
    x.register_hook(lambda g: g + 1)
    y = x.sin()
    x.register_hook(lambda g: g * y.detach())
    scale = 3.0
    x.register_hook(lambda g: g / scale)
    scale = 5.0
    return y * x


def removed(x: Tensor, log: Log) -> Any:
    handle = x.register_hook(lambda g: g * 7)
    other = x.register_hook(lambda g: g + 1)
    handle.remove()
    handle.remove()
    return x.exp(), other is not handle


def handle_is_returned(x: Tensor, log: Log) -> Any:
    return x.exp(), x.register_hook(torch.neg)


def handles_in_another_order(x: Tensor, log: Log) -> Any:
    first = x.register_hook(lambda g: g + 1)
    second = x.register_hook(lambda g: g * 3)
    log.append(2 if second is first else 1)
    return x.exp(), [second, first], {"first": first}


def removes_itself(x: Tensor, log: Log) -> Any:
    handle = x.register_hook(lambda g: (handle.remove(), g * 2)[1])
    return x.exp()


def from_elsewhere(x: Tensor, log: Log) -> Any:
    for hook in (torch.neg, functools.partial(torch.mul, other=3), Hook(log).call):
        x.register_hook(hook)
    return x.exp()


class Hook:
    def __init__(self, log: Log) -> None:
        self.log = log

    def call(self, g: Tensor) -> Tensor:
        self.log.append(g.norm())
        return g + 1


def of_other_inputs(x: Tensor, log: Log) -> Any:
    WEIGHT.register_hook(lambda g: log.append(g.sum()))
    (x * WEIGHT).register_hook(lambda g: g * 2)
    return x * WEIGHT


def without_gradients(x: Tensor, log: Log) -> Any:
    with torch.no_grad():
        x.register_hook(lambda g: g * 2)
        y = x * 2
    return x * y


def around_what_is_printed(x: Tensor, log: Log) -> Any:
    x.register_hook(lambda g: g * 3)
    print("between")
    x.register_hook(lambda g: g + 1)
    return x * x


WEIGHT = nn.Parameter(torch.arange(3, dtype=torch.float64))
WHOLE = (
    changes, logs, reads_what_is_computed, removed, handle_is_returned, handles_in_another_order,
    removes_itself, from_elsewhere, of_other_inputs, without_gradients, around_what_is_printed,
)  # fmt: skip


def behind_accumulation(x: Tensor, log: Log) -> Any:
    x.register_post_accumulate_grad_hook(lambda t: log.append(t.grad.clone()))  # type: ignore
    return x.exp()


def inside_gradients(x: Tensor, log: Log) -> Any:
    x.register_hook(lambda g: g * 3)
    return torch.autograd.grad((x * x).sum(), x, create_graph=True)[0]


def around_a_break(x: Tensor, log: Log) -> Any:
    x.register_hook(lambda g: g * 3)
    y = x * 2
    time.sleep(0)
    x.register_hook(lambda g: g + y.detach())
    return y * x


def removed_too_late(x: Tensor, log: Log) -> Any:
    handle = x.register_hook(lambda g: g * 3)
    print("between")
    handle.remove()
    return x * 2


def program(function: Callable[..., Any], is_leaf: bool, wrap: Callable[[Any], Any]) -> Any:
    """Two calls, each with a backward, in which all hooks so far take part."""
    log: Log = []
    leaf = torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()
    x = leaf if is_leaf else leaf * 1
    wrapped = wrap(lambda x: function(x, log))
    found: list[Any] = []
    for _ in range(2):
        result = wrapped(x)
        parts = result if isinstance(result, tuple) else (result,)
        parts[0].sum().backward(retain_graph=True)
        found.append((parts[0], leaf.grad.clone(), len(parts)))  # type: ignore
        if isinstance(parts[-1], RemovableHandle):
            parts[-1].remove()
        if isinstance(parts[-1], dict):
            parts[-1]["first"].remove()
    WEIGHT._backward_hooks = None
    return found, log, len(x._backward_hooks or ()), WEIGHT.grad


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_captured(function: Any, backend: str, is_leaf: bool) -> None:
    if function is of_other_inputs and backend == "eager":
        pytest.skip("a hook on what is computed, in a graph that autograd sees, breaks it")

    def run(wrap: Callable[[Any], Any]) -> Any:
        WEIGHT.grad = None
        return program(function, is_leaf, wrap)

    both(run, functools.partial(ingot.compile, fullgraph=True, backend=backend))


def test_behind_accumulation() -> None:
    both(functools.partial(program, behind_accumulation, True))


@pytest.mark.parametrize("function", [inside_gradients, around_a_break, removed_too_late])
def test_with_a_break(function: Any) -> None:
    with pytest.raises(GraphBreakError, match=r"a hook on tensor x|sleep\(\) is written in C"):
        program(function, True, functools.partial(ingot.compile, fullgraph=True))
    both(functools.partial(program, function, True), ingot.compile)


@pytest.mark.parametrize("function", [changes, behind_accumulation])
def test_errors(function: Any) -> None:
    compiled = ingot.compile(function)
    computed = torch.ones(2, requires_grad=True) * 1
    for x in (torch.ones(2), computed, torch.ones(2, requires_grad=True)):
        outcomes = []
        for run in (function, compiled):
            try:
                outcomes.append(run(x, []).sum().item())
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def test_a_hook_that_is_given() -> None:
    """The entry serves other hooks, which it never looks into."""

    def fn(x: Tensor, hook: Any) -> Tensor:
        x.register_hook(hook)
        return x.exp()

    compiled = ingot.compile(fn, fullgraph=True)
    for factor in (2.0, 3.0, 4.0):
        x = torch.zeros(2, requires_grad=True)
        compiled(x, functools.partial(torch.mul, other=factor)).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), factor))
    assert len(ingot.explain(compiled)(x, torch.neg).compilations) == 1


def test_modules_that_register_while_they_run() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3).double()
            self.seen: Log = []

        def forward(self, x: Tensor) -> Tensor:
            self.linear.weight.register_hook(lambda g: self.seen.append(g.sum()))
            return self.linear(x).relu()

    def run(wrap: Callable[[Any], Any]) -> Any:
        module = Watched()
        wrapped, x = wrap(module), torch.randn(2, 3, dtype=torch.float64)
        for _ in range(3):
            wrapped(x).sum().backward()
        return module.seen, module.linear.weight.grad

    both(run)
