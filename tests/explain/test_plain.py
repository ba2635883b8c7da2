"""Reports as plain data: each field is on docs/report.md, and `--json` prints one document."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

import ingot
from ingot.explain import records
from ingot.explain.cli import main
from ingot.explain.programs import ProgramReport
from ingot.explain.records import as_plain, plain_fields
from ingot.explain.report import PROPERTIES, Report
from ingot.explain.trial import Comparison, Peer

PAGE = Path(__file__).parents[2] / "docs" / "report.md"

RECORDS = {
    "Report": Report,
    "Break": records.Break,
    "Call": records.Call,
    "Cause": records.Cause,
    "CodeLine": records.CodeLine,
    "Program": ProgramReport,
    "Kernel": records.KernelReport,
    "Node": records.NodeReport,
    "Buffer": records.BufferReport,
    "Value": records.ValueReport,
    "Compilation": records.HistoryEntry,
    "Comparison": Comparison,
    "Peer": Peer,
    "Stage": records.StageReport,
}
"""The record of each section of the page."""

PROGRAM = """
    import torch

    print("loaded")

    def loss(x, w):
        hidden = torch.tanh(x @ w)
        print("called")
        return hidden.square().sum()

    def make():
        x, w = torch.ones(8, 8, requires_grad=True), torch.ones(8, 8, requires_grad=True)
        return loss, (x, w)

    def make_error():
        raise KeyError("weights")
"""


def sections() -> dict[str, set[str]]:
    """The fields that each section of the page has."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.M)[1:]:
        name, _, text = part.partition("\n")
        cells = re.findall(r"^\| (`[^|]*) \|", text, re.M)
        found[name.strip()] = set(re.findall(r"`(\w+)`", " ".join(cells)))
    return found


def test_the_page_has_each_record():
    assert sections().keys() == {*RECORDS, "Trial", "Cache"}


@pytest.mark.parametrize("name", RECORDS)
def test_the_page_has_each_field_and_no_other(name):
    fields = set(plain_fields(RECORDS[name], PROPERTIES))
    if name == "Report":
        fields |= {"schema", "ingot"}
    assert sections()[name] == fields


def branch(x):
    y = x.sin()
    if y.sum() > 100:
        return y
    return y.cos()


def loss(x, w):
    return torch.tanh(x @ w).square().sum()


@pytest.fixture(scope="module")
def data():
    x, w = (torch.rand(16, 16, requires_grad=True) for _ in range(2))
    return ingot.explain(loss)(x, w).to_dict()


def test_it_is_plain(data):
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data.keys() == sections()["Report"]
    assert data["schema"] == 1 and data["ingot"] == ingot.__version__


def test_kernels_name_nodes_and_memory_that_are_there(data):
    for program in data["programs"]:
        nodes = {node["name"] for node in program["nodes"]}
        buffers = {buffer["name"]: buffer for buffer in program["buffers"]}
        assert program["kernels"] and nodes
        for number, kernel in enumerate(program["kernels"]):
            assert set(kernel["nodes"]) <= nodes and kernel["lines"] and kernel["source"]
            assert kernel["loops"].count("# ") >= 1
            for name in kernel["buffers_read"] + kernel["buffers_written"]:
                assert buffers[name]["first"] <= number <= buffers[name]["last"]
        for buffer in program["buffers"]:
            assert buffer["bytes"] > 0 and buffer["last"] < len(program["kernels"])


def test_texts_are_those_of_the_stages(data):
    forward, backward = data["programs"]
    assert forward["texts"].keys() == {
        "capture", "joint", "partition", "aten", "loops", "schedule", "llvm"
    }  # fmt: skip
    assert backward["texts"].keys() == {"aten", "loops", "schedule", "llvm"}
    assert "aten.tanh" in forward["texts"]["joint"]


def test_breaks_have_their_lines_around_them():
    with torch.no_grad():
        data = ingot.explain(branch)(torch.rand(8)).to_dict()
    [found] = data["breaks"]
    first = branch.__code__.co_firstlineno
    assert (found["id"], found["line"]) == ("data-branch", first + 2)
    assert [line["line"] for line in found["code"]] == list(range(first, first + 5))
    assert found["code"][2]["text"] == "    if y.sum() > 100:"
    assert [program["region"] for program in data["programs"]] == [0, 1]


def test_the_history_says_which_fact_changed():
    compiled = ingot.compile(lambda x, flag: x + 1 if flag else x - 1)
    with torch.no_grad():
        for flag in (True, False):
            compiled(torch.ones(3), flag)
        history = ingot.explain(compiled)(torch.ones(3), False).to_dict()["history"]
    assert [entry["outcome"] for entry in history] == ["compiled", "compiled"]
    first, second = (entry["changed"] for entry in history)
    assert first == "" and second.startswith("flag was True, is False")
    assert all(entry["first_call"] > 0 < entry["seconds"] for entry in history)


def test_numbers_that_json_has_not():
    assert as_plain({"a": float("nan"), 1: (float("inf"), 2.5)}) == {"a": None, "1": [None, 2.5]}


# -- the command line ------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def run(*argv):
    return main(ingot.compile, ingot.explain, [str(a) for a in argv])


def document(capsys) -> dict:
    """The one document on stdout. What the program prints is on stderr."""
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    return json.loads(captured.out)


def test_explain(file, capsys):
    assert run("explain", file, "--json") == 0
    found = document(capsys)
    assert found["name"] == "loss" and [p["kind"] for p in found["programs"]] == ["forward"]
    assert run("explain", file, "--json", "--train") == 0
    found = document(capsys)
    assert [p["kind"] for p in found["programs"]] == ["forward", "backward"]


def test_what_the_program_prints_is_elsewhere(file, capsys):
    assert run("explain", file, "--json", "--train") == 0
    captured = capsys.readouterr()
    assert "loaded" not in captured.out and {"loaded", "called"} <= set(captured.err.split())


def test_try(file, capsys):
    assert run("try", file, "--json", "--train", "--rounds", 2) == 0
    found = document(capsys)
    assert found.keys() == sections()["Trial"]
    assert found["gradients"] and len(found["eager_seconds"]) == 2
    assert found["comparison"].keys() == sections()["Comparison"]
    kernels = [kernel for program in found["report"]["programs"] for kernel in program["kernels"]]
    assert all(kernel["seconds"] > 0 for kernel in kernels)


def test_stages(file, capsys):
    assert run("stages", file, "--json", "--train", "--stage", "schedule") == 0
    found = document(capsys)
    programs = [stage["program"] for stage in found["stages"]]
    assert programs == ["loss", "loss, backward"] and found["schema"] == 1
    assert run("stages", file, "--json") == 0
    assert "joint" not in {stage["stage"] for stage in document(capsys)["stages"]}


def test_errors_are_as_before(file, capsys):
    assert run("explain", f"{file}:make_error", "--json") == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "KeyError: 'weights'" in captured.err


def test_the_screen_with_gradients(file, capsys):
    assert run("explain", file, "--train") == 0
    out = capsys.readouterr().out
    assert "\n  backward: " in out and "saved for the backward" in out
    assert run("try", file, "--train", "--rounds", 1) == 0
    out = capsys.readouterr().out
    for text in ("saved for it", "its peak memory", "\nforward\n", "\nbackward\n"):
        assert text in out
    assert run("stages", file, "--train", "--stage", "partition") == 0
    assert "it is an argument, which is there anyway" in capsys.readouterr().out
