"""Users' Triton kernels in the graph, beside eager, under Triton's interpreter. It is chosen when
Triton is imported: this file runs itself once more, in a process where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ingot
from ingot.codegen.triton.module import available
from tests.codegen.triton.interpreting import INTERPRETED, interpreted, run_interpreted

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if INTERPRETED:
    from tests.user_kernels import (
        PROGRAMS,
        TRAINING,
        draw,
    )  # fmt: skip
else:
    PROGRAMS = TRAINING = {}

    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected)


@interpreted
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = ingot.compile(program.fn, fullgraph=True, dynamic=dynamic)
    for seed in (0, 1):
        ours, eagers = draw(program, seed=seed), draw(program, seed=seed)
        assert_same(compiled(*ours), program.fn(*eagers))
        assert_same(ours, eagers)


@interpreted
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TRAINING)
def test_gradients(name: str, dynamic: bool | None) -> None:
    program = TRAINING[name]
    compiled = ingot.compile(program.fn, fullgraph=True, dynamic=dynamic)
    ours, eagers = draw(program), draw(program)
    for fn, tensors in ((compiled, ours), (program.fn, eagers)):
        for t in tensors:
            t.requires_grad_()
        fn(*tensors).cos().sum().backward()
    assert_same([t.grad for t in ours], [t.grad for t in eagers])
