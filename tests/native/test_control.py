"""Conditionals and loops: native callables that run programs."""

from __future__ import annotations

import _thread
import signal
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
    # a shell has what runs in its background ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # inside: it may be over before the call
            endless(X)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_scan_runs_its_body_for_each_slice(is_reversed: bool) -> None:
    def body(state: Tensor, x: Tensor, weight: Tensor) -> Any:
        return state * 0.5 + x * weight, state + x

    state, rows, weight = torch.zeros(4), torch.randn(9, 8)[2:, 4:], torch.randn(4)
    scan = _native.Scan(program(body, state, rows[0].clone(), weight), 1, 1, is_reversed, FLOAT)
    last, stacked = scan(state, rows, weight)
    expected: list[Any] = [None] * len(rows)
    for k in reversed(range(7)) if is_reversed else range(7):
        state, expected[k] = body(state, rows[k], weight)
    torch.testing.assert_close((last, stacked), (state, torch.stack(expected)))
    assert stacked.stride() == (4, 1) and str(scan) == "scan"


FLOAT = (torch.float32,)


def test_wrong_scans_are_errors(add: _native.Program) -> None:
    over = _native.Scan(add, 0, 1, False, FLOAT)
    (stacked,) = over(torch.zeros(2, 4))
    assert torch.equal(stacked, torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="over nothing"):
        over(torch.zeros(0, 4))
    with pytest.raises(RuntimeError, match="over nothing"):
        over(torch.tensor(1.0))
    with pytest.raises(TypeError, match="lacks its state"):
        over()
    with pytest.raises(ValueError, match="what is stacked"):
        _native.Scan(add, 1, 1, False, FLOAT)
    with pytest.raises(ValueError, match="what is stacked"):
        _native.Scan(add, 1, 0, False, ())
    two = _native.Scan(program(lambda x, y: x + y, X, X + 1), 0, 2, False, FLOAT)
    with pytest.raises(RuntimeError, match="different lengths"):
        two(torch.zeros(3, 4), torch.zeros(2, 4))


def test_scans_without_native_windows_are_the_same(add: _native.Program) -> None:
    over, rows = _native.Scan(add, 0, 1, False, FLOAT), torch.randn(5, 4)
    _native._force_slow_allocation(True)
    try:
        (stacked,) = over(rows)
    finally:
        _native._force_slow_allocation(False)
    assert torch.equal(stacked, rows + 1)
