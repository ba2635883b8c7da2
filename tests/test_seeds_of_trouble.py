"""Programs that are known to trouble compilers of this kind, each with the number of graphs it
takes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.tracked import Tracked

X = torch.linspace(-1, 2, 8)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def graphs(tracked: Tracked) -> int:
    """How many graphs were captured; nothing may have been left to eager."""
    assert tracked.skips == []
    return len([c for c in tracked.compiler.compilations if c.captured.ops])


def test_a_branch_on_a_tensor() -> None:
    def toy(a: Tensor, b: Tensor) -> Tensor:
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    for first, second in ((X, -X), (-X, X)):
        ingot.reset()
        tracked = Tracked(toy)
        tracked(X, first)
        assert graphs(tracked) == 2
        tracked(X, second)
        assert tracked(X, first) == tracked(X, second) == 0


def test_a_branch_on_a_number() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        return x.sin() * n if n >= 0 else x.cos()

    tracked = Tracked(fn)
    for n in (2, 3, 6, -3):
        tracked(X, n)
    assert [tracked(X, n) for n in (2, 3, 6, -3)] == [0, 0, 0, 0]
    assert graphs(tracked) == len(tracked.compiler.compilations)  # none is broken


def test_a_break_in_a_helper_in_a_loop_in_a_with() -> None:
    depth: list[str] = []

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[list[str]]:
        depth.append(name)
        try:
            yield depth
        finally:
            depth.remove(name)

    def helper(x: Tensor) -> Tensor:
        y = x.sin()
        time.sleep(0)
        return y.cos()

    def fn(x: Tensor) -> Any:
        total = x * 2
        with noted("outer") as names:
            for step in range(3):
                total = total + helper(x + step) * len(names)
        return total, list(depth)

    tracked = Tracked(fn)
    tracked(X)
    assert graphs(tracked) == 4  # the loop's three breaks cut one graph into four
    assert tracked(X) == 0 and depth == []


def test_a_logger_in_forward(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tests.forward")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            log.info("width %d", y.shape[-1])
            return torch.relu(y)

    tracked = Tracked(Model())
    with caplog.at_level(logging.INFO):
        tracked(X)
        tracked(X)
    assert graphs(tracked) == 1
    # eager and compiled, twice
    assert [record.getMessage() for record in caplog.records] == ["width 8"] * 4
    assert {record.funcName for record in caplog.records} == {"forward"}
    assert len({record.lineno for record in caplog.records}) == 1
