"""Scripts that show a failure: written, run by themselves, loaded; and INGOT_DISABLE."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot import pipeline
from ingot.debugging import repro
from ingot.debugging.made_inputs import Facts
from ingot.errors import CompilerBug
from tests.debugging.faults import faults, planted

FAULTS = {fault.name: fault for fault in faults()}


def program(x: Tensor, w: Tensor, scale: float) -> Tensor:
    hidden = F.layer_norm(x @ w.t(), (4,))
    return torch.tanh(hidden) * scale


def compiled_program() -> Any:
    compiled = ingot.compile(program)
    compiled(torch.randn(6, 5), torch.randn(5, 4).t().requires_grad_(), 0.5)
    return compiled


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# -- what is written -------------------------------------------------------------------------------


def test_a_script_runs_by_itself(tmp_path: Path) -> None:
    compiled = compiled_program()
    file = ingot.save_repro(tmp_path / "seen.py", compiled)
    text = file.read_text()
    assert "import torch" in text and "torch.tanh(" in text and "test_repro.py:" in text
    assert f"torch {torch.__version__}" in text and f"ingot {ingot.__version__}" in text
    assert "tensor((4, 5), (1, 4), torch.float32, seed=0, requires_grad=True)" in text
    assert not list(tmp_path.glob("*.pt"))
    done = run(file)
    assert done.returncode == 0, done.stderr
    assert "does what eager does" in done.stdout


def test_the_last_compiled_program_is_meant_where_none_is_named(tmp_path: Path) -> None:
    compiled = compiled_program()
    other = ingot.compile(lambda x: x.cos())
    other(torch.randn(3))
    assert "x.cos()" in ingot.save_repro(tmp_path / "last.py").read_text()
    assert "layer_norm" in ingot.save_repro(tmp_path / "named.py", compiled).read_text()


def test_values_lie_beside_the_script(tmp_path: Path) -> None:
    memory = torch.randn(10)
    x, view = memory[::2], memory[4:6]

    @ingot.compile
    def shares(x: Tensor, view: Tensor) -> Tensor:
        return view.sum() + x

    file = ingot.save_repro(tmp_path / "values.py", shares, args=(x, view))
    found = repro.load(file)
    again_view, again = found.made()
    assert torch.equal(again, x) and again.stride() == (2,)
    again_view.fill_(7)  # they share memory as they did
    assert again[2] == 7
    assert torch.equal(x, memory[::2]) and not (memory == 7).any()
    assert repro.failure(repro.load(file)) == repro.Failure()


def test_options_and_modes_are_those_of_the_program(tmp_path: Path) -> None:
    compiled = ingot.compile(lambda x: x @ x, dynamic=True, options={"numerics": "fast"})
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(torch.randn(4, 4))
    found = repro.load(ingot.save_repro(tmp_path / "modes.py", compiled))
    assert found.options == {"dynamic": True, "options": {"numerics": "fast"}}
    assert found.modes == {"grad": False, "autocast": ("cpu", "torch.bfloat16")}
    with repro.in_modes(found.modes):
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        assert found.case(*found.made())[0].dtype is torch.bfloat16
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_made_inputs_have_the_facts_and_are_always_the_same() -> None:
    for dtype in (torch.float16, torch.int64, torch.bool, torch.complex64):
        facts = Facts((3, 4), (1, 3), dtype, seed=5)
        made = facts.make()
        assert (made.shape, made.stride(), made.dtype) == ((3, 4), (1, 3), dtype)
        assert torch.equal(made, facts.make())
    assert set(Facts((64,), (1,), torch.int64, 0).make().tolist()) == {0, 1}
    assert Facts((0, 3), (3, 1), torch.float32, 0).make().shape == (0, 3)
    assert Facts((2, 3), (0, 1), torch.float32, 0).make().stride() == (0, 1)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda path: ingot.save_repro(path, torch.sin), "not what ingot.compile gave"),
        (lambda path: ingot.save_repro(path, ingot.compile(lambda x: x)), "nothing has been"),
        (lambda path: ingot.save_repro("graph.txt", compiled_program()), "ends in .py"),
        (lambda path: repro.load(path), "there is no file"),
        (lambda path: repro.load(Path(__file__)), "is no script of Ingot's"),
    ],
)
def test_mistakes_are_named(call: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ingot.ReproError, match=why):
        call(tmp_path / "none.py")


# -- what fails ------------------------------------------------------------------------------------


def test_a_difference_is_written_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(repro.FOLDER, str(tmp_path / "new"))
    x = torch.randn(6, 4)
    with planted(FAULTS["tanh is scaled"]), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ingot.compile(lambda x: torch.tanh(x) + 1, options={"verify": 1})(x)
        [file] = (tmp_path / "new").glob("*.py")
        assert f"a script that shows it: {file}" in str(caught[0].message)
        found = repro.load(file)
        assert found.shows == "difference" and torch.equal(found.made()[0], x)
        assert repro.failure(found).kind == "difference"
        assert repro.main(str(file)) == 1
    assert "first op that differs: torch.tanh" in capsys.readouterr().out
    assert repro.main(str(file)) == 0  # nothing is planted any more


@pytest.mark.internal_error
def test_an_internal_error_is_written_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: Any) -> None:
        raise CompilerBug("loop verifier", "a loop occurs twice")

    monkeypatch.setattr(pipeline, "verify", bug)
    x = torch.randn(3)
    assert torch.equal(ingot.compile(torch.nn.Softsign())(x), F.softsign(x))
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(repro.FOLDER, str(tmp_path))
    assert torch.equal(ingot.compile(torch.nn.Sigmoid())(x), x.sigmoid())
    [file] = tmp_path.glob("*.py")
    assert f"a script that shows the CompilerBug: {file}" in caplog.text
    found = repro.load(file)
    assert found.shows == "CompilerBug"
    failure = repro.failure(found)
    assert failure.kind == "CompilerBug" and "a loop occurs twice" in failure.what


# -- INGOT_DISABLE ---------------------------------------------------------------------------------


def test_nothing_is_compiled_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_DISABLE", "1")
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    assert ingot.compile(model) is model
    assert ingot.compile(program) is program
    assert ingot.compile(model.forward) == model.forward

    @ingot.compile(fullgraph=True, backend="eager")
    def decorated(x: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return x + float(x.sum())  # which would break the graph

    assert torch.equal(decorated(x), x + float(x.sum()))
    weight = torch.randn(3, requires_grad=True)
    with ingot.compiled_backward():
        (weight * 2).sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown mode"):
        ingot.compile(program, mode="fast")
    assert ingot.explain(lambda x: x.sin())(x).graph_count == 1  # it is asked to compile


@pytest.mark.parametrize("value", ["", "0"])
def test_what_does_not_say_so(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_DISABLE", value)
    assert ingot.compile(program) is not program
