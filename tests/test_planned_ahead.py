"""A backward is planned while others compile the kernels of its forward.

The CPU stands in for a device whose kernels others compile: its code is there once somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot import devices, pipeline
from ingot.compiler import Compiler


class Code:
    """Kernels that somebody else compiles, of the program with this number."""

    def __init__(self, code: Any, number: int, others: Others) -> None:
        self._code, self._number, self._others = code, number, others
        self._is_waited_for = False

    def __getattr__(self, name: str) -> Any:
        assert self._is_waited_for
        return getattr(self._code, name)

    @property
    def is_done(self) -> bool:
        self._others.asked += 1
        return self._is_waited_for or self._others.asked > self._others.patience

    def wait(self) -> None:
        self._others.events.append(f"wait for {self._number}")
        self._is_waited_for = True


class Others:
    """Who compiles kernels, and what was asked of them. They are done when somebody has asked
    whether they are more often than their `patience` allows."""

    def __init__(self, patience: int) -> None:
        self.patience, self.asked = patience, 0
        self.events: list[str] = []
        self.programs = 0

    def begin(self, plan: Any, device: Any, hints: Any, options: Any, soon: bool) -> Code:
        self.programs += 1
        self.events.append(f"begin {self.programs}, {'soon' if soon else 'later'}")
        code = devices._cpu_code(plan, device, hints, options)
        return Code(code, self.programs, self)

    def lower(self, *args: Any) -> Any:
        self.events.append("lower")
        return lower(*args)


lower = pipeline.lower


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Others]]:
    def made(patience: int = 1000) -> Others:
        others = Others(patience)
        row = devices.DEVICES["cpu"]._replace(begin=others.begin)
        monkeypatch.setitem(devices.DEVICES, "cpu", row)
        monkeypatch.setattr(pipeline, "lower", others.lower)
        return others

    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    yield made


def function(x: Tensor, w: Tensor) -> Tensor:
    return (torch.tanh(x @ w) * x.sum(1, keepdim=True)).cos()


def operands() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)


def assert_gradients_like_eager(result: Tensor, operands: tuple[Tensor, ...], **how: Any) -> None:
    gradients = torch.autograd.grad(result.sin().sum(), operands, **how)
    expected = torch.autograd.grad(function(*operands).sin().sum(), operands)
    for mine, its in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, its)


def backward_of(compiled: Any) -> Any:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.compilations[-1].backward


def test_a_backward_is_begun_before_its_forward_is_there(others: Any) -> None:
    """And nobody waits for it before it is asked for."""
    seen, compiled, given = others(), ingot.compile(function), operands()
    result = compiled(*given)
    planned = ["lower", "begin 1, soon", "lower", "begin 2, later"]
    assert seen.events == [*planned, "wait for 1"]
    torch.testing.assert_close(result, function(*given))
    assert_gradients_like_eager(result, given, retain_graph=True)
    assert seen.events == [*planned, "wait for 1", "wait for 2"]
    assert_gradients_like_eager(result, given)
    assert_gradients_like_eager(compiled(*given), given)
    assert len(seen.events) == 6 and backward_of(compiled).skipped is None


def test_nothing_is_planned_where_nothing_is_waited_for(others: Any) -> None:
    seen, compiled, given = others(0), ingot.compile(function), operands()
    result = compiled(*given)
    assert seen.events == ["lower", "begin 1, soon", "wait for 1"]
    assert_gradients_like_eager(result, given)
    assert seen.events[3:] == ["lower", "begin 2, later", "wait for 2"]


@pytest.mark.parametrize("patience", range(2, 7))
def test_planning_ends_when_the_forward_is_there(others: Any, patience: int) -> None:
    """The backward goes on where it was left: no step is taken twice."""
    seen, compiled, given = others(patience), ingot.compile(function), operands()
    result = compiled(*given)
    before = seen.events.index("wait for 1")
    assert before == [2, 3, 3, 4, 4][patience - 2]
    assert_gradients_like_eager(result, given)
    assert seen.events.count("lower") == seen.programs == 2


def test_an_error_of_the_plan_is_the_backwards(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in eager, with the reason."""
    seen, compiled, given = others(), ingot.compile(function), operands()
    schedule, calls = pipeline.schedule, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("no plan for you")
        return schedule(*args)

    monkeypatch.setattr(pipeline, "schedule", failing)
    result = compiled(*given)
    assert len(calls) == 2 and backward_of(compiled).skipped is None
    torch.testing.assert_close(result, function(*given))
    assert_gradients_like_eager(result, given)
    assert "no plan for you" in str(backward_of(compiled).skipped)
    assert seen.events[-1] == "lower"  # it is tried again, by and by


@pytest.mark.internal_error
def test_a_forward_that_fails_leaves_no_backward(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others()

    def refused(self: Code) -> None:
        raise RuntimeError("no kernel for you")

    monkeypatch.setattr(Code, "wait", refused)
    compiled, given = ingot.compile(function), operands()
    torch.testing.assert_close(compiled(*given), function(*given))
    assert backward_of(compiled) is None


def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return y.sum(), y


def test_where_some_gradients_may_not_come_in(others: Any) -> None:
    """Which of them do is known at the backward alone."""
    seen, compiled, given = others(), ingot.compile(two), operands()
    loss, _ = compiled(*given)
    assert seen.events == ["lower", "begin 1, soon", "wait for 1"]
    gradients = torch.autograd.grad(loss, given)
    for mine, its in zip(gradients, torch.autograd.grad(two(*given)[0], given), strict=True):
        torch.testing.assert_close(mine, its)


def test_gradients_of_some_inputs_beside_a_plan_for_all(others: Any) -> None:
    seen, compiled, given = others(), ingot.compile(function), operands()
    result = compiled(*given)
    (gradient,) = torch.autograd.grad(result.sum(), given[1:], retain_graph=True)
    (expected,) = torch.autograd.grad(function(*given).sum(), given[1:])
    torch.testing.assert_close(gradient, expected)
    assert_gradients_like_eager(result, given)
    assert seen.events[-1] == "wait for 2"


def test_gradients_of_gradients_beside_a_plan(others: Any) -> None:
    others()
    compiled, given = ingot.compile(function), operands()
    expected = torch.autograd.grad(function(*given).sum(), given, create_graph=True)
    gradients = torch.autograd.grad(compiled(*given).sum(), given, create_graph=True)
    for mine, its in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, its)
    second = torch.autograd.grad(gradients[0].sin().sum(), given)
    for mine, its in zip(second, torch.autograd.grad(expected[0].sin().sum(), given), strict=True):
        torch.testing.assert_close(mine, its)


def test_a_plan_that_is_made_ahead_is_the_one_of_the_backward(others: Any) -> None:
    """Autocast and gradients are off in it, as they are where autograd asks for it."""
    plans = []
    for patience in (0, 1000):
        others(patience)
        compiled, given = ingot.compile(function), operands()
        with torch.autocast("cpu", torch.bfloat16):
            result = compiled(*given)
        result.float().sum().backward()
        log = backward_of(compiled).log
        plans.append((str(log.loops), str(log.program), log.code.module_text(log.plan.kernels)))
    assert plans[0] == plans[1]


def test_sizes_that_vary_are_asked_about_at_the_backward(others: Any) -> None:
    seen, compiled, given = others(), ingot.compile(function, dynamic=True), operands()
    result = compiled(*given)
    assert seen.events == ["lower", "begin 1, soon", "wait for 1"]
    assert_gradients_like_eager(result, given)
