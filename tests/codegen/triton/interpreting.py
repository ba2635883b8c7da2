"""Tests under Triton's interpreter, which is chosen when Triton is imported: a file of them runs
itself once more, in a process where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ingot.loops.target import GPU, Blocking, Target
from ingot.rules import hand_over
from tests.forks import run_forked

hand_over()

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_elsewhere = pytest.mark.skipif(
    not INTERPRETED, reason="runs in the process of test_under_the_interpreter"
)


def interpreted(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test of values that the interpreter computes."""
    return pytest.mark.interpreted(_elsewhere(test))


def with_blocking(**sizes: int) -> Target:
    """A GPU that few large blocks keep busy, since the interpreter takes them one after the other,
    with blocks of these sizes."""
    return replace(GPU, blocking=Blocking(**{"few_blocks": 1, **sizes}))


FEW_BLOCKS = with_blocking()
NARROW = with_blocking(largest_row=8, step=16, step_again=16, steps_beside=4)
"""Blocks so small that rows are taken in steps."""


def run_interpreted(file: str, chosen: str = "") -> None:
    """Runs the tests of a file where Triton is interpreted: those that `chosen` names, as pytest's
    option -k does."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen]
    options += ["-m", "interpreted and not long"]
    done = run_forked(
        f"{__name__}:pytest_on", *options, file, modules=MODULES, TRITON_INTERPRET="1"
    )
    assert done.status == 0, done.output[-6000:]


MODULES = "triton", "ingot.compiler", "ingot.pipeline", "ingot.codegen.triton.module", __name__


def pytest_on(*arguments: str) -> int:
    """Its exit status."""
    return int(pytest.main([*arguments]))


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
