"""The Python that is measured behind a graph break, compiled beside eager."""

from __future__ import annotations

import pytest
import torch

import ingot
from benchmarks.inner_calls import main, program_around
from benchmarks.inner_works import WORKS

X = torch.ones(8)


@pytest.mark.parametrize("name", list(WORKS))
@torch.no_grad()
def test_what_is_called_behind_a_break(name):
    program = program_around(WORKS[name])
    compiled = ingot.compile(program, backend="eager")
    expected = repr(program(X))
    for _ in range(20):
        assert repr(compiled(X)) == expected


def test_a_case_is_measured(capsys, tmp_path):
    arguments = ["re.sub", "--rounds", "3", "--without-peer", "--json", str(tmp_path / "found")]
    assert main(arguments) in (0, 1)
    printed = capsys.readouterr().out
    assert "re.sub" in printed and "torch.compile" not in printed
    with pytest.raises(SystemExit):
        main(["no such case"])
