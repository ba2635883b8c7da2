"""Random programs as artifacts: what eager does, or a refusal.

`python -m tests.artifacts.test_random_artifacts COUNT [FIRST]` runs more of them, and counts what
was refused and why.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from tests import random_programs_indexing  # noqa: F401  (more statements)
from tests.oracle import ignore_warnings
from tests.random_programs_writer import RandomProgram, random_program
from tests.test_random_programs import Outcome, compare_or_move

CALLS = ((1, False), (2, False), (3, True), (1, False))
"""Draws of the arguments, and whether they have other sizes and numbers."""


def artifact_of(program: RandomProgram, path: Path, varies: bool) -> Any:
    """A program's artifact, in which all sizes vary or none."""
    arguments = program.arguments(1)
    dynamic: list[Any] = []
    for argument in arguments:
        is_tensor = isinstance(argument, torch.Tensor) and varies
        dynamic.append((True,) * argument.dim() if is_tensor else None)
    ingot.export(program.function, arguments, path=path, dynamic=dynamic)
    return ingot.load(path)


def check(program: RandomProgram, path: Path, varies: bool) -> Counter[str]:
    """Compares calls of an artifact with eager's. Gives how many were served and refused."""
    counts: Counter[str] = Counter()
    with torch.no_grad(), warnings.catch_warnings():
        ignore_warnings()
        try:
            artifact = artifact_of(program, path, varies)
        except ingot.ExportError as error:
            counts[f"not exported: {str(error)[:90]}"] += 1
            return counts
        for draw, other in CALLS:
            expected = Outcome(program.function, program.arguments(draw, other))
            actual = Outcome(artifact, program.arguments(draw, other))
            if isinstance(actual.error, ingot.ArtifactError):
                counts[f"refused: {other}"] += 1
                continue
            counts[f"served: {other}"] += 1
            try:
                compare_or_move(actual, expected, program, (draw, other))
            except AssertionError as error:
                raise AssertionError(f"{error}\nin call {draw} of\n{program}") from None
    return counts


@pytest.mark.parametrize("first", range(4, 12, 4))
def test_random_artifacts(tmp_path: Path, first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 4):
        counts += check(random_program(seed), tmp_path / "it.ingot", seed % 2 == 0)
    assert counts["served: False"] > 2


def main(count: int, first: int = 0) -> None:
    counts: Counter[str] = Counter()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            for varies in (False, True):
                try:
                    found = check(random_program(seed), Path(folder) / "it.ingot", varies)
                    counts.update({f"{varies} {key}": n for key, n in found.items()})
                except Exception as error:
                    failed.append((seed, varies))
                    print(f"seed {seed}, {varies}: {type(error).__name__}: {str(error)[:1500]}")
    print(f"failed: {failed}")
    for reason, number in counts.most_common(40):
        print(f"{number:5d}  {reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
