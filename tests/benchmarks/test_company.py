"""Models that are measured while other processes run."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from benchmarks import company
from benchmarks.workloads import Workload
from tests.long import long


def test_a_worker_runs_for_as_long_as_it_is_told(monkeypatch, capsys):
    calls = []
    workload = Workload("counted", lambda device: (lambda: calls.append(device), ()))
    monkeypatch.setitem(company.MODELS, "counted", workload)
    monkeypatch.setattr(sys, "stdin", io.StringIO("0.01\n0.02\n"))
    company.work("counted", "eager")
    ready, *times = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == "ready" and len(times) == 2 and all(0 < t < 0.01 for t in times)
    assert set(calls) == {"cpu"} and len(calls) > 5


def test_a_worker_that_ends_is_an_error():
    worker = company.Worker("no such model", "eager")
    with pytest.raises(RuntimeError, match="ended"):
        worker.answer()
    assert worker.child.wait() != 0


def test_the_table():
    row = company.Row("bert", "ingot", 0.02, {2: [1.5, 2.0, 2.5], 4: [4.0]}, [2.0])
    console = Console(width=120, file=io.StringIO())
    console.print(company.table([row], [2, 4]))
    printed = console.file.getvalue()
    assert "20.00" in printed and "2.00 (1.50-2.50)" in printed and "4 at once" in printed


@long
def test_two_processes(capsys):
    arguments = ["gpt2_token", "--processes", "2", "--seconds", "0.2", "--rounds", "1"]
    assert company.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "gpt2_token" in printed and "ingot" in printed and "eager" in printed
