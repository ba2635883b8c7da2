"""Random programs with ops that have effects: each runs as often as in eager, in eager's order, in
inference and in training, and values agree.

`python -m tests.test_random_effectful_programs COUNT [FIRST]` runs more of them.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import ingot
from tests import random_programs  # noqa: F401  (the statements)
from tests.effectful_ops import KEPT, LOG
from tests.oracle import ignore_warnings
from tests.random_programs_effects import effectful_program
from tests.random_programs_writer import RandomProgram
from tests.test_random_programs import Outcome, compare_or_move


class Logged(Outcome):
    """What a call did, and what its ops and its backward logged."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], gradients: bool) -> None:
        if gradients:
            arguments = tuple(map(_tracked, arguments))
        LOG.clear()
        KEPT.clear()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            super().__init__(function, arguments)
        self.logs = [printed.getvalue(), [name for name, _ in LOG]]
        self.raises = False  # the backward
        results = [
            t for t in tree_leaves(self.result) if isinstance(t, torch.Tensor) and t.requires_grad
        ]
        if gradients and results:
            LOG.clear()
            try:
                torch.autograd.backward([t.float().sum() for t in results])
            except (RuntimeError, IndexError) as error:  # int32 indices of index_fill
                self.logs.append(type(error).__name__)
                self.raises = True
            self.logs.append([name for name, _ in LOG])


def _tracked(argument: Any) -> Any:
    floats = (
        isinstance(argument, torch.Tensor) and argument.is_floating_point() and argument.is_leaf
    )
    return argument.clone().requires_grad_() * 1 if floats else argument


def check(program: RandomProgram, gradients: bool) -> None:
    compiled = ingot.compile(program.function)
    with torch.set_grad_enabled(gradients), warnings.catch_warnings():
        ignore_warnings()
        for draw, other in [(1, False), (2, False), (3, True)]:
            expected = Logged(program.function, program.arguments(draw, other), gradients)
            actual = Logged(compiled, program.arguments(draw, other), gradients)
            compared = 2 if expected.raises else None  # of such a backward docs/limits.md tells
            try:
                assert actual.logs[:compared] == expected.logs[:compared], (
                    f"{actual.logs}, eager {expected.logs}"
                )
                if not gradients:
                    compare_or_move(actual, expected, program, (draw, other))
            except AssertionError as error:
                raise AssertionError(
                    f"{error}\ngradients {gradients}, draw {draw} of\n{program}"
                ) from None


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_effectful_programs(first, gradients):
    for seed in range(first, first + 10):
        check(effectful_program(seed), gradients)


def main(count: int, first: int = 0) -> None:
    failed = []
    for seed in range(first, first + count):
        for gradients in (False, True):
            try:
                check(effectful_program(seed), gradients)
            except Exception as error:
                failed.append((seed, gradients))
                print(
                    f"==== seed {seed}, gradients {gradients}\n{type(error).__name__}: {error}",
                    flush=True,
                )
    print(f"{count} programs, failed: {failed}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
