"""One test of each stage, in ten seconds: what to run on every save.

`python -m pytest tests/test_smoke.py`. Nothing here is tested here alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.codegen.triton.module import available
from tests.oracle import (
    AGAINST_FLOAT64,
    CLOSE,
    assert_call,
    assert_captured,
    assert_near,
    assert_same,
    outcome,
)
from tests.tracked import Tracked


def chain(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1).cumsum(0) + x.sin().mean()


def test_capture() -> None:
    def function(x: Tensor, state: dict[str, Any]) -> Any:
        state["calls"] += 1
        return [part * state["calls"] for part in x.unbind()], x.shape[0]

    captured = assert_captured(function, torch.randn(3, 4), {"calls": 1})
    assert captured.ops == 7  # unbind, its three parts, their products


def test_a_program_is_right_and_one_kernel() -> None:
    compiled = ingot.compile(lambda x: (x.sin() * 2 + x).relu(), fullgraph=True)
    x = torch.randn(5, 7)
    assert_call(compiled, lambda x: (x.sin() * 2 + x).relu(), x, numbers=AGAINST_FLOAT64)
    assert len(ingot.explain(compiled)(x).kernels) == 1


def test_a_break() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.cos()
        torch._dynamo.graph_break()
        return y * 2

    compiled = ingot.compile(function)
    assert_call(compiled, function, torch.randn(4), numbers=CLOSE)
    assert ingot.explain(compiled)(torch.randn(4)).graph_count == 2


def test_an_error() -> None:
    def function(x: Tensor) -> Tensor:
        return x.view(3) if x.dim() == 1 else x

    compiled = ingot.compile(function)
    with torch.no_grad():
        for size in (3, 4):
            expected, actual = (outcome(f, torch.ones(size)) for f in (function, compiled))
            assert type(actual.raised) is type(expected.raised)
            assert_same(actual._replace(raised=None), expected._replace(raised=None))
    assert expected.raised is not None


def test_a_training_step() -> None:
    found = []
    for wrap in (ingot.compile, lambda f: f):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = wrap(lambda x, model=model: model(x).square().mean())
        for _ in range(3):
            optimizer.zero_grad()
            step(torch.randn(6, 4)).backward()
            optimizer.step()
        found.append([parameter.detach() for parameter in model.parameters()])
    assert_near(*found)


def test_gradients() -> None:
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled = ingot.compile(chain, fullgraph=True)
    assert_call(compiled, chain, x, w, numbers=AGAINST_FLOAT64, gradients=True)


def test_a_size_that_varies() -> None:
    tracked = Tracked(lambda x: torch.softmax(x, 0) * x.shape[0])
    with torch.no_grad():
        assert [tracked(torch.randn(n, 3)) for n in (4, 6, 9, 5)] == [1, 1, 0, 0]


def test_a_write_to_an_argument() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x[1:].mul_(2)
        y.add_(x.sum())
        return x.t()

    compiled = ingot.compile(function, fullgraph=True)
    assert_call(compiled, function, torch.randn(3, 4), torch.randn(5), numbers=CLOSE)


def test_a_report() -> None:
    report = ingot.explain(chain)(torch.randn(5, 4), torch.randn(4, 4))
    assert report.graph_count == 1 and not report.breaks
    assert "softmax" in str(report)


PROGRAM = """
import torch
from tests.codegen.triton.interpreter import planned, run
from tests.oracle import CLOSE, assert_call

def function(x):
    return torch.softmax(x * 2, -1) + x

x = torch.randn(3, 20)
plan = planned(function, x)
assert len(plan.steps) == 1, plan.steps
assert_call(lambda *own: run(plan, list(own)), function, x, numbers=CLOSE, structure=False)
"""


@pytest.mark.skipif(not available(), reason="Triton is not installed")
def test_a_kernel_of_triton_under_its_interpreter() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
