"""`python -m ingot try` of programs that change their own state: right ones pass, wrong ones do
not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.explain.cli import main

COMMON = """
import collections, dataclasses, functools, itertools, random
import torch
from torch import nn

@dataclasses.dataclass
class Out:
    y: torch.Tensor

Pair = collections.namedtuple("Pair", "a b")

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.calls = 0

    def forward(self, x):
        self.count += 1
        self.calls += 1
        self.mean.lerp_(x.mean(0), 0.1)
        return x * self.count + self.mean

def parts():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)

total = torch.zeros(3)
calls = []
shared, shared_optimizer = parts()
"""
# Bodies of `make()`, and whether they need gradients.
PROGRAMS: dict[str, tuple[str, bool]] = {
    "counter": ("return Counter(), (torch.randn(5, 3),)", False),
    "counter in training": ("return Counter(), (torch.randn(5, 3),)", True),
    "batch norm": ("return nn.BatchNorm1d(3), (torch.randn(5, 3),)", False),
    "batch norm in training": ("return nn.BatchNorm1d(3), (torch.randn(5, 3),)", True),
    "dropout": ("return nn.Dropout(), (torch.ones(50, 3),)", False),
    "step in a closure": ("""
        model, optimizer = parts()
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step, (torch.randn(5, 3),)""", True),
    "step of arguments": ("""
        def step(model, optimizer, x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step, (*parts(), torch.randn(5, 3))""", True),
    "step of globals": ("""
        def step(x):
            loss = shared(x).square().mean()
            loss.backward()
            shared_optimizer.step()
            return loss.detach()
        return step, (torch.randn(5, 3),)""", True),
    "loss": ("""
        model, _ = parts()
        x = torch.randn(5, 3, requires_grad=True)
        return (lambda x: model(x).square().mean()), (x,)""", True),
    "argument written": ("return (lambda x: x.add_(1).sin()), (torch.randn(3),)", False),
    "list appended": ("""
        def f(x, seen):
            seen.append(x.sin())
            return len(seen)
        return f, (torch.randn(3), [])""", False),
    "dict of tensors": ("""
        def f(x, *, state):
            state["sum"] = state["sum"] + x
            state["n"] += 1
            return state["sum"] / state["n"]
        return f, (torch.randn(3),), {"state": {"sum": torch.zeros(3), "n": 0}}""", False),
    "global tensor": ("""
        def f(x):
            total.add_(x)
            calls.append(len(calls))
            return total * len(calls)
        return f, (torch.randn(3),)""", False),
    "iterator": ("""
        numbers = itertools.count(1)
        return (lambda x: x * next(numbers)), (torch.randn(3),)""", False),
    "generator object": ("""
        numbers = (k * 2 for k in range(10**6))
        return (lambda x: x + next(numbers)), (torch.randn(3),)""", False),
    "random numbers of Python": ("return (lambda x: x * random.random()), (torch.randn(3),)",
        False),
    "generator of torch": ("""
        g = torch.Generator().manual_seed(3)
        return (lambda x: x + torch.rand(3, generator=g)), (torch.randn(3),)""", False),
    "partial": ("""
        def f(state, x):
            state.add_(1)
            return x * state
        return functools.partial(f, torch.zeros(3)), (torch.randn(3),)""", False),
    "method": ("return Counter().forward, (torch.randn(5, 3),)", False),
    "nonlocal": ("""
        n = 0
        def f(x):
            nonlocal n
            n += 1
            return x * n
        return f, (torch.randn(3),)""", False),
    "result of a class": ("return (lambda x: Out(x.sin())), (torch.randn(3),)", False),
    "named tuple": ("return (lambda x: Pair(x.sin(), x)), (torch.randn(3),)", False),
}  # fmt: skip


def written(folder: Path, body: str) -> str:
    file = folder / "program.py"
    made = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    file.write_text(f"{COMMON}\ndef make():\n{made}\n", encoding="utf-8")
    return str(file)


def tried(file: str, trains: bool, compile: Callable[..., Any] = ingot.compile) -> int:
    flags = ["--train"] if trains else []
    return main(compile, ingot.explain, ["try", file, "--rounds", "1", *flags])


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, trains = PROGRAMS[name]
    status = tried(written(tmp_path, body), trains)
    out = capsys.readouterr()
    assert status == 0, out
    assert "The result is eager's" in out.out
    assert ("with gradients" in out.out) == trains


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrong compiler: what the program changes is changed twice."""

    def called(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return called


CHANGES = ["counter", "batch norm", "step in a closure", "step of arguments", "step of globals"]
CHANGES += ["loss", "argument written", "list appended", "dict of tensors", "global tensor"]
CHANGES += ["generator of torch", "partial", "nonlocal"]


@pytest.mark.parametrize("name", CHANGES)
def test_wrong_compilers_are_seen(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, trains = PROGRAMS[name]
    wrong: Any = twice
    if name == "loss":  # which changes nothing but gradients
        wrong = lambda function: lambda x: function(x * 1.01) / 1.0201  # noqa: E731
    explain = lambda function: lambda *args, **kwargs: ingot.Report("f")  # noqa: E731
    flags = ["--train"] if trains else []
    status = main(wrong, explain, ["try", written(tmp_path, body), "--rounds", "1", *flags])
    assert status == 1 and "differs from eager" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["", "--train"])
def test_a_file_that_runs_once(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be made again is copied."""
    file = tmp_path / "once.py"
    file.write_text(
        "import os, torch\nimport pathlib\nhere = pathlib.Path(__file__).with_suffix('.ran')\n"
        "here.touch(exist_ok=False)\n"
        "def make():\n    return torch.nn.BatchNorm1d(3), (torch.randn(4, 3),)\n"
    )
    arguments = ["try", str(file), "--rounds", "1", *([flag] if flag else [])]
    assert main(ingot.compile, ingot.explain, arguments) == 0, capsys.readouterr()


def test_a_step_without_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, _ = PROGRAMS["step in a closure"]
    assert tried(written(tmp_path, body), False) == 1
    assert "add --train" in capsys.readouterr().err
