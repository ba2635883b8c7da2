"""Conditionals and loops: native callables that run programs."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.native import _native

X = torch.arange(4.0)


def program(function: Callable[..., Any], *inputs: Tensor) -> _native.Program:
    """The native program of a function without guards on what it is given."""
    compiled = ingot.compile(function, fullgraph=True)
    with torch.no_grad():
        compiled(*inputs)
    log = ingot.explain(compiled)(*inputs).compilations[-1].log
    assert log.program is not None
    return log.program.native


@pytest.fixture(scope="module")
def add() -> _native.Program:
    return program(lambda x: x + 1, X)


@pytest.fixture(scope="module")
def double() -> _native.Program:
    return program(lambda x: x * 2, X)


@pytest.fixture(scope="module")
def is_small() -> _native.Program:
    return program(lambda x: x.sum() < 100, X)


def test_a_conditional_runs_one_of_its_programs(
    add: _native.Program, double: _native.Program
) -> None:
    conditional = _native.Conditional(add, double)
    (taken,), (other,) = conditional(torch.tensor(True), X), conditional(torch.tensor(False), X)
    assert torch.equal(taken, X + 1) and torch.equal(other, X * 2)
    assert conditional.first is add and conditional.second is double
    assert str(conditional) == "cond"


def test_a_loop_runs_its_body_while_its_condition_holds(
    is_small: _native.Program, double: _native.Program
) -> None:
    loop, before = _native.Loop(is_small, double), X.clone()
    (result,) = loop(before)
    assert torch.equal(result, X * 32) and torch.equal(before, X)
    (same,) = loop(result)
    assert same is result
    assert str(loop) == "while_loop"


def test_what_is_no_program_is_refused(add: _native.Program) -> None:
    two = program(lambda x: (x + 1, x * 2), X)
    with pytest.raises(TypeError):
        _native.Conditional(add, torch.sin)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="as many outputs"):
        _native.Conditional(add, two)
    with pytest.raises(ValueError, match="gives one output"):
        _native.Loop(two, add)


def test_wrong_calls_are_errors(add: _native.Program, is_small: _native.Program) -> None:
    conditional, loop = _native.Conditional(add, add), _native.Loop(is_small, add)
    with pytest.raises(TypeError, match="no predicate"):
        conditional()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="keyword"):
        conditional(torch.tensor(True), X, x=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="1 inputs was given 2"):
        conditional(torch.tensor(True), X, X)
    with pytest.raises(TypeError, match="lacks its state"):
        loop()


def test_an_endless_loop_is_interrupted(add: _native.Program) -> None:
    endless = _native.Loop(program(lambda x: x.sum() > -1, X), add)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        endless(X)
    assert time.monotonic() - begin < 30
