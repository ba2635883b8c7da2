"""The microbenchmarks: what there is, one measured row, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import accuracy, micro
from benchmarks.compilers import PEERS
from benchmarks.micro_cases import CASES, SETS
from benchmarks.runner import Row


def test_there_are_forty_and_sets_name_them():
    assert len(CASES) == 40
    assert micro.chosen([]) == list(CASES)
    assert micro.chosen(["layouts", "softmax"]) == [*SETS["layouts"], "softmax"]
    with pytest.raises(SystemExit, match="no set or case 'sort'"):
        micro.chosen(["sort"])


def test_a_case_is_measured_and_shown():
    rows = micro.measure_case(CASES["sum of 8"], ["eager", "ingot"], 3)
    eager, ours = rows
    assert not ours.problem and len(ours.seconds) == 3 and ours.error < 1e-6
    assert eager.over_eager == (1, 1, 1) and ours.over_inductor is None
    cells = micro.cells(rows)
    assert len(cells) == 6 and cells[1] == "-"
    assert micro.table(rows).row_count == 2  # the case and the mean


def test_what_is_said_of_a_row():
    def says(ratio, problem=""):
        eager = Row("a", "eager", [], [1.0], (1, 1, 1))
        return micro.verdict([eager, Row("a", "ingot", [], [1.0], ratio, problem=problem)])

    assert says((0.9, 0.95, 0.98)) == ""  # part of the interval reaches 0.97
    assert says((0.9, 0.95, 0.96)) == "slower"
    assert says(None, "it broke") == "it broke"


def test_a_wrong_result_is_a_problem(monkeypatch):
    wrong = replace(
        PEERS["ingot"], prepare=lambda workload, function, args: lambda: function(*args) * 1.001
    )
    monkeypatch.setitem(PEERS, "ingot", wrong)
    _, ours = micro.measure_case(CASES["sum of 2^12"], ["eager", "ingot"], 3)
    assert ours.problem.startswith("wrong: 1.0e-03 from float64, eager ")


def test_errors_are_means_over_draws_and_leave_the_arguments():
    x = torch.arange(16.0)
    before = x.clone()
    seen = []

    def rounded():
        seen.append(x.clone())
        return (x / 3).bfloat16().float()

    found = accuracy.errors(
        lambda x: x / 3, (x,), {"exact": lambda: x.double() / 3, "rounded": rounded}
    )
    assert found["exact"] == 0 and 1e-4 < found["rounded"] < 4e-3
    assert len(seen) == 5 and torch.equal(x, before)
    assert all(torch.equal(values.sort().values, before) for values in seen) and not torch.equal(
        seen[1], before
    )
    assert accuracy.epsilon((x, x.bfloat16())) == 2**-7 and accuracy.epsilon(x.long()) == 0


def test_how_far_from_float64_is_good_enough():
    eps = 2.0**-23
    assert accuracy.as_good(1.1e-6, 1e-6, eps) and accuracy.as_good(4 * eps, 0.0, eps)
    assert not accuracy.as_good(1.2e-6, 1e-6, eps) and not accuracy.as_good(float("inf"), 0.0, 0.0)
    assert accuracy.as_good(None, 0.0, eps)
