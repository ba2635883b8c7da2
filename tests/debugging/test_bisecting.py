"""Which pass or kernel is at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot import pipeline, schedule
from ingot.debugging import bisecting, repro
from ingot.debugging.bisecting import bisect
from ingot.debugging.cases import case_from
from ingot.debugging.commands import add_debugging
from ingot.debugging.repro import Repro
from ingot.errors import CompilerBug
from ingot.explain.cli import main
from ingot.graph.passes import no_ops
from ingot.loops.ir import Pointwise
from ingot.torch_private import aten
from tests.debugging.faults import faults, planted
from tests.debugging.random_graphs import random_graph

FAULTS = {fault.name: fault for fault in faults()}

TEXT = """
import torch
def graph(x, y):
    a = torch.sin(x)  # model.py:3
    b = torch.softmax(a, -1)  # model.py:4
    c = b - y  # model.py:5
    d = c.abs()  # model.py:6
    e = torch.tanh(d)  # model.py:7
    f = e @ y  # model.py:8
    return (f, d)
"""


def script(gradients: bool = False) -> Repro:
    torch.manual_seed(0)
    x, y = torch.randn(6, 6), torch.randn(6, 6)
    return Repro(case_from(TEXT), (x.requires_grad_(gradients), y.requires_grad_(gradients)))


@pytest.mark.parametrize(
    ("name", "gradients", "step", "op"),
    [
        ("tanh is scaled", False, "lowering", "torch.tanh  model.py:7"),
        ("tanh is scaled", True, "lowering", "torch.tanh  model.py:7"),
        ("of tanh", True, "tracing, or a decomposition", "torch.tanh  model.py:7"),
        ("a sine's code", False, "the code of the kernel", "torch.sin  model.py:3"),
        ("a sine's code", True, "the code of the kernel", "torch.sin  model.py:3"),
    ],
)
def test_the_step_and_the_op_are_named(name: str, gradients: bool, step: str, op: str) -> None:
    with planted(FAULTS[name]):
        verdict = bisect(script(gradients))
    assert verdict.step.startswith(step)
    assert f"op: {op}" in str(verdict)


def test_a_pass_is_named_with_its_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(no_ops._CANDIDATES, aten.abs.default, lambda node: True)
    seen: list[str] = []
    verdict = bisect(script(), seen.append)
    assert verdict.step == "the pass 'remove no-ops'"
    assert any("- abs" in line and "aten.abs" in line for line in verdict.details)
    assert "tracing, or a decomposition is right" in seen


def test_fusion_is_named_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., Any] = schedule.inlined

    def wrong(*arguments: Any) -> list[Any]:
        nodes = []
        for node in right(*arguments):
            if isinstance(node, Pointwise):
                changed = []
                for i in node.body.instructions:
                    changed.append(i._replace(op="add") if i.op == "sub" else i)
                node = replace(node, body=node.body._replace(instructions=tuple(changed)))
            nodes.append(node)
        return nodes

    monkeypatch.setattr(schedule, "inlined", wrong)
    verdict = bisect(script())
    assert verdict.step == "the schedule"
    assert "with a kernel for each loop nest it is right: fusion is at fault" in verdict.details
    [kernel] = [line for line in verdict.details if line.startswith("kernel ")]
    assert "aten.sub.Tensor" in kernel


@pytest.mark.internal_error
def test_the_step_that_raises_an_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: Any) -> None:
        raise CompilerBug("loop verifier", "a loop occurs twice")

    monkeypatch.setattr(pipeline, "verify", bug)
    monkeypatch.setattr(bisecting, "verify", bug)
    verdict = bisect(script())
    assert verdict.step == "the verifier of loop IR"
    assert "a loop occurs twice" in verdict.details[0]


def test_nothing_is_at_fault() -> None:
    with pytest.raises(ingot.ReproError, match="does not fail"):
        bisect(script())


def test_right_programs_are_right_at_each_step() -> None:
    """What is said to be at fault is not what NumPy or the passes round."""
    for seed in range(6):
        graph = random_graph(seed, 40, size=8)
        walk = bisecting._Walk(graph, graph.made(), lambda text: None)
        with torch.no_grad():
            walk.go()
        assert walk.step.startswith("what follows")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = repro.write(tmp_path / "wrong.py", script())

    def run() -> int:
        return main(ingot.compile, ingot.explain, ["bisect", str(file)], further=add_debugging)

    assert run() == 2
    with planted(FAULTS["tanh is scaled"]):
        assert run() == 0
    shown = capsys.readouterr()
    assert "does not fail" in shown.err
    assert "at fault: lowering" in shown.out and "op: torch.tanh  model.py:7" in shown.out
