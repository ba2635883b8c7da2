"""Tests under Triton's interpreter, which is chosen when Triton is imported: a file of them runs
itself once more, in a process where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from ingot.loops.target import GPU, Blocking, Target

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="runs in the process of test_under_the_interpreter"
)


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
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, file],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
