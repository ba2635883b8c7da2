"""Scripts made smaller, with what fails in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import ingot
from ingot.debugging import repro
from ingot.debugging.cases import case_from
from ingot.debugging.commands import add_debugging
from ingot.debugging.made_inputs import Facts
from ingot.debugging.minimizing import minimize
from ingot.debugging.repro import Failure, Repro
from ingot.debugging.worker import Worker
from ingot.explain.cli import main
from tests.debugging.faults import faults, planted
from tests.debugging.random_graphs import random_graph

FAULTS = {fault.name: fault for fault in faults()}


class Planted(NamedTuple):
    """A fault, the form of the op that shows it, and how many ops there are around it."""

    fault: str
    form: str
    ops: int


PLANTED = [
    Planted("no relu", "torch.relu({a})", 300),
    Planted("a missing clamp", "{a}.clamp(-0.5, 0.5)", 320),
    Planted("a constant of gelu", "torch.nn.functional.gelu({a}, approximate='tanh')", 340),
    Planted("a mean along the wrong dimension", "({a} - {a}.mean(0))", 360),
    Planted("the smallest for the largest", "({a}.amax(1, keepdim=True) + {a})", 380),
    Planted("minimum for maximum", "torch.maximum({a}, {b})", 400),
    Planted("tanh is scaled", "torch.tanh({a})", 420),
    Planted("a product for a running sum", "{a}.cumsum(0)", 440),
    Planted("floor for ceil", "({a} + {b}).ceil()", 460),
    Planted("a square root's code", "{a}.abs().sqrt()", 480),
    Planted("of tanh", "torch.tanh({a})", 500),
]


@pytest.mark.parametrize("seed", range(len(PLANTED)))
def test_a_planted_fault_is_brought_to_few_ops(seed: int) -> None:
    fault, form, ops = PLANTED[seed]
    whole = random_graph(seed, ops, form)
    if FAULTS[fault].gradient:
        for value in whole.inputs:
            value.requires_grad_()
    with planted(FAULTS[fault]):
        start = time.monotonic()
        small = minimize(whole, repro.failure)
        seconds = time.monotonic() - start
        assert repro.failure(small).kind == small.shows == "difference"
    assert seconds < 60 and len(small.case.statements) <= 10
    assert repro.failure(small) == Failure()
    [place] = [k for k, s in enumerate(whole.case.statements) if s.where in _places(small)]
    assert ops // 4 <= place < 3 * ops // 4
    assert all(isinstance(value, Facts) for value in small.inputs)


def _places(small: Repro) -> list[str]:
    return [s.where for s in small.case.statements]


# -- how it is done --------------------------------------------------------------------------------

TEXT = """
import torch
def graph(x, y):
    a = x.sin()
    b = a + y
    c = b.exp()
    d = torch.max(c, -1)
    e = d[0]
    f = e.cos()
    g = f * 2
    return (b, g)
"""


def small_graph() -> Repro:
    return Repro(case_from(TEXT), (torch.randn(8, 6), torch.randn(8, 6)))


def fails_with(*words: str) -> Callable[[Repro], Failure]:
    """A check that all scripts fail which have these words."""

    def check(candidate: Repro) -> Failure:
        candidate.case(*candidate.made())  # which must run in eager
        has_all = all(word in candidate.case.source() for word in words)
        return Failure("difference" if has_all else "")

    return check


@pytest.mark.parametrize("words", [(".sin(", ".cos("), (".exp(",), ("max(", "[0]", "f * 2")])
def test_only_what_is_needed_is_left(words: tuple[str, ...]) -> None:
    small = minimize(small_graph(), fails_with(*words))
    assert len(small.case.statements) == len(words)
    assert len(small.case.results) <= 2
    assert small.shows == "difference"


def test_sizes_shrink_as_far_as_the_failure_allows() -> None:
    def check(candidate: Repro) -> Failure:
        is_wide = any(value.shape[0] >= 3 for value in candidate.made())
        return Failure("crash" if is_wide and ".sin(" in candidate.case.source() else "")

    small = minimize(small_graph(), check)
    [facts] = small.inputs
    assert facts.shape == (3, 2) and small.case.parameters == ("x",)


def test_values_stay_where_they_matter() -> None:
    def check(candidate: Repro) -> Failure:
        values = [value for value in candidate.made() if isinstance(value, torch.Tensor)]
        return Failure("difference" if all((value == 7).all() for value in values) else "")

    whole = Repro(case_from(TEXT).part(["a"]), (torch.full((4, 4), 7.0),))
    small = minimize(whole, check)
    [value] = small.inputs
    assert value.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_what_is_found_in_time_is_taken() -> None:
    small = minimize(small_graph(), fails_with(".sin("), seconds=0.0)
    assert small.case == small_graph().case


def test_a_script_that_does_not_fail_is_refused() -> None:
    with pytest.raises(ingot.ReproError, match="does not fail"):
        minimize(small_graph(), repro.failure)


# -- processes and the command line ----------------------------------------------------------------


def test_a_crash_and_a_hang_are_failures(tmp_path: Path) -> None:
    text = repro.write(tmp_path / "right.py", small_graph()).read_text()
    for name, line in (("crash", "os.kill(os.getpid(), 11)"), ("hang", "time.sleep(60)")):
        imports = f"import os, sys, time\n{line}"
        (tmp_path / f"{name}.py").write_text(text.replace("import sys", imports, 1))
    with Worker() as worker:
        assert worker.of_file(tmp_path / "right.py") == Failure()
        assert worker.of_file(tmp_path / "crash.py") == Failure("crash", "SIGSEGV")
        worker.limit = 0.3
        assert worker.of_file(tmp_path / "hang.py") == Failure("hang", "no answer in 0.3 s")
        worker.limit = 30
        with pytest.raises(ingot.ReproError, match="there is no file"):
            worker.of_file(tmp_path / "none.py")


def run(*arguments: str) -> int:
    return main(ingot.compile, ingot.explain, arguments, further=add_debugging)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = repro.write(tmp_path / "wrong.py", random_graph(6, 30, "torch.tanh({a})"))
    assert run("minimize", str(file), "--here") == 2
    assert "the script does not fail" in capsys.readouterr().err
    with planted(FAULTS["tanh is scaled"]):
        assert run("minimize", str(file), "--here", "-o", str(tmp_path / "small.py")) == 0
        shown = capsys.readouterr().out
        small = repro.load(tmp_path / "small.py")
        assert repro.failure(small).kind == small.shows == "difference"
    assert [s.callee for s in small.case.statements] == ["torch.tanh"]
    assert "30 ops" in shown and "small.py: 1 ops" in shown
    assert run("minimize", str(tmp_path / "none.py"), "--here") == 2
