"""The table of models: what it counts, what it takes for a wrong result; and the models themselves,
where `transformers` is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn

import ingot
from benchmarks import model_zoo, models
from benchmarks.model_worker import Case, Counting, count, difference, ingot_breaks, own_backend
from benchmarks.models import markdown, passes, ratio, row
from tests.long import long


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = self.linear(x).split(2, dim=-1)
        return {"sum": parts[0] + parts[1], "size": x.new_tensor(x.shape[0])}


class Breaks(Small):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.sum() > 1e6:
            x = x + 1
        return super().forward(x)


class Cache:
    def __init__(self, keys: list[torch.Tensor]) -> None:
        self.keys = keys


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Small, Breaks):
        monkeypatch.setitem(
            model_zoo.MODELS, cls.__name__, lambda cls=cls: (cls(), {"x": torch.rand(3, 4)})
        )


@pytest.mark.usefixtures("small")
def test_a_model_is_counted() -> None:
    with torch.no_grad():
        case = Case.of("Small")
        counts = count(ingot.compile, ingot_breaks, case)
        assert (counts.graphs, counts.again, counts.difference, counts.breaks) == (
            1,
            0,
            "exact",
            [],
        )
        # linear, split, add, new_tensor: taking the split apart is not counted
        assert counts.nodes == 4
        assert counts.aten >= 4 and counts.problem == ""
        assert own_backend(case) == "exact" or float(own_backend(case)) < 1e-6
        assert not torch.equal(case.calls[0]["x"], case.calls[1]["x"])


@pytest.mark.usefixtures("small")
def test_breaks_are_counted() -> None:
    with torch.no_grad():
        counts = count(ingot.compile, ingot_breaks, Case.of("Breaks"))
    assert counts.graphs == 2 and counts.difference == "exact" and counts.again == 0
    assert len(counts.breaks) == 1 and "test_models.py" in counts.breaks[0]


def test_an_error_is_a_problem_of_the_row() -> None:
    def fails(model: Any, backend: Any) -> Any:
        raise RuntimeError("no such thing\nand more")

    counts = count(fails, ingot_breaks, Case(nn.Identity(), [{}], [None]))
    assert counts.problem == "RuntimeError: no such thing"


def test_differences() -> None:
    x = torch.rand(3)
    assert difference({"a": x, "b": [x]}, {"a": x.clone(), "b": [x]}) == "exact"
    assert difference({"a": x + 1e-6}, {"a": x}).startswith(("9e", "1e"))
    for wrong in ({"a": x + 1}, {"a": x[:2]}, {"a": x.double()}, {"b": x}, {"a": x, "b": x}, [x]):
        assert difference(wrong, {"a": x}).startswith("WRONG")
    cache, changed = Cache([x, x]), Cache([x, x + 1])
    assert difference(cache, cache) == "exact" and difference(changed, cache).startswith("WRONG")


def found(**changes: Any) -> dict[str, Any]:
    counts = {
        "graphs": 1,
        "nodes": 100,
        "aten": 200,
        "again": 0,
        "difference": "exact",
        "breaks": [],
        "problem": "",
    }
    return {
        "model": "M",
        "eager": 200,
        "compiled": "1e-7",
        "torch": counts,
        "ingot": {**counts, **changes},
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"nodes": 99, "aten": 199}, True),
        ({"nodes": 98}, False),
        ({"aten": 197}, False),
        ({"graphs": 2}, False),
        ({"graphs": 0, "nodes": 0, "aten": 0}, False),
        ({"again": 1}, False),
        ({"difference": "2e-06"}, True),
        ({"difference": "WRONG: off by 1.0e+00"}, False),
        ({"difference": ""}, False),
        ({"problem": "RuntimeError: no"}, False),
    ],
)
def test_what_passes(changes: dict[str, Any], expected: bool) -> None:
    assert passes(found(**changes)) is expected


def test_a_row_of_the_table() -> None:
    assert row(found(nodes=99))[0] == "M" and "0.990" in row(found(nodes=99))
    assert ratio({"model": "crashed", "problem": "SIGSEGV"}) == 0.0
    crashed = row({"model": "crashed", "problem": "SIGSEGV: no output"})
    assert crashed[-1] == "SIGSEGV: no output" and not passes({"model": "crashed"})
    lines = markdown([row(found()), crashed]).splitlines()
    assert len(lines) == 4 and all(line.count("|") == lines[0].count("|") for line in lines)


def test_a_process_that_dies_loses_one_row() -> None:
    result = models.measure("no such model", timeout=60)
    assert result["model"] == "no such model" and "KeyError" in result["problem"]


def test_counting_runs_the_graph() -> None:
    backend = Counting()
    with torch.no_grad():
        compiled = ingot.compile(lambda x: x.relu() + 1, backend=backend)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert (backend.counts.graphs, backend.counts.nodes, backend.counts.aten) == (1, 2, 2)


def has_the_models() -> bool:
    """Whether the release is there that docs/models.md was written with, or a later one, as models
    differ between them, and scipy, which one of them needs."""
    if (
        importlib.util.find_spec("transformers") is None
        or importlib.util.find_spec("scipy") is None
    ):
        return False
    return Version(importlib.metadata.version("transformers")) >= Version("5.23")


@pytest.mark.skipif(
    not has_the_models(), reason="transformers 5.23 or newer, or scipy, is not installed"
)
def test_the_models_are_captured_whole() -> None:
    broken = {}
    with torch.no_grad():
        for name in model_zoo.MODELS:
            counts = count(ingot.compile, ingot_breaks, Case.of(name))
            if (counts.graphs, counts.again, counts.problem) != (
                1,
                0,
                "",
            ) or "WRONG" in counts.difference:
                broken[name] = counts
    assert not broken


@long
@pytest.mark.skipif(
    not has_the_models(), reason="transformers 5.23 or newer, or scipy, is not installed"
)
def test_nothing_of_the_models_is_left_to_eager() -> None:
    with torch.no_grad():
        found = {name: own_backend(Case.of(name)) for name in model_zoo.MODELS}
    assert {name: text for name, text in found.items() if not _is_right(text)} == {}


def _is_right(text: str) -> bool:
    return text == "exact" or re.fullmatch(r"\de-\d+", text) is not None
