"""Counts of what was compiled, the trace that INGOT_TRACE names, loggers and warnings."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot import events
from ingot.codegen.store import store_in
from ingot.compiler import Compiler

X = torch.linspace(-1, 1, 8)


@pytest.fixture(autouse=True)
def from_zero():
    ingot.reset()
    with torch.no_grad():
        yield
    events.trace_to(None)
    ingot.reset()


@pytest.fixture
def trace(tmp_path):
    """Reads the events that the test has led to."""
    path = tmp_path / "trace"
    events.trace_to(path)
    return lambda: [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def breaking(x):
    y = x.sin()
    if y.sum() > 100:
        return y
    return y.cos()


FIRST = breaking.__code__.co_firstlineno


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in found if event["event"] == kind]


# -- counts ----------------------------------------------------------------------------------------


def test_nothing_yet():
    assert ingot.counters() == {
        "captures": 0,
        "compilations": 0,
        "backwards": 0,
        "found": 0,
        "recompilations": 0,
        "breaks": {},
        "fallbacks": {},
    }


def test_a_function_that_is_compiled_again():
    compiled = ingot.compile(lambda x, flag: x + 1 if flag else x - 1)
    for flag in (True, False, True, False):
        compiled(X, flag)
    counts = ingot.counters()
    assert (counts["compilations"], counts["recompilations"]) == (2, 1)
    assert counts["captures"] >= 2 and counts["breaks"] == {}


def test_breaks_by_their_causes():
    ingot.compile(breaking)(X)
    counts = ingot.counters()
    assert counts["breaks"] == {"data-branch": 1} and counts["compilations"] == 2


def test_backwards():
    compiled = ingot.compile(lambda x: x.sin().sum())
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        result = compiled(x)
        assert ingot.counters()["backwards"] == 0
        result.backward()
    assert ingot.counters()["backwards"] == 1


def test_fallbacks_by_their_causes(monkeypatch, caplog):
    events._warned.clear()
    monkeypatch.setattr(Compiler, "max_entries", 1)
    compiled = ingot.compile(lambda x, k: x * int(k))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in "0123":
            compiled(X, k)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "more than 1 variants" in message and f"{__file__}:" in message
    assert ingot.counters()["fallbacks"] == {"variants": 1}


def test_programs_that_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    store_in.cache_clear()

    def function(x):
        return (x.sin() + x.exp()).sum()

    with torch.enable_grad():
        for found in (0, 2):
            ingot.reset()
            ingot.compile(function)(X.clone().requires_grad_()).backward()
            assert ingot.counters()["found"] == found
    store_in.cache_clear()


def test_reset_begins_anew():
    ingot.compile(breaking)(X)
    ingot.reset()
    assert ingot.counters()["compilations"] == 0 and ingot.counters()["breaks"] == {}


# -- the trace -------------------------------------------------------------------------------------


def test_what_belongs_to_what(trace):
    ingot.compile(breaking)(X)
    found = trace()
    first, second = of_kind(found, "compilation")
    assert first["parent"] is None and second["parent"] == first["id"]
    assert first["function"] == "breaking" and first["where"] == f"{__file__}:{FIRST}"
    [broken] = of_kind(found, "break")
    assert broken["parent"] == first["id"] and broken["where"] == f"{__file__}:{FIRST + 2}"
    assert broken["cause"] == "data-branch" and "torch.where" in broken["hint"]
    captures = {capture["parent"] for capture in of_kind(found, "capture")}
    assert captures == {first["id"], second["id"]}
    ids = [event["id"] for event in found]
    assert len(ids) == len(set(ids))


def test_each_event_has_a_time_and_a_place(trace):
    compiled = ingot.compile(lambda x, flag: x + 1 if flag else x - 1)
    for flag in (True, False):
        compiled(X, flag)
    found = trace()
    for event in found:
        assert event["time"] > 1e9 and event["pid"] == os.getpid() and event["where"]
        assert event["thread"] == threading.get_native_id() and "<lambda>" in event["function"]
    [again] = of_kind(found, "recompilation")
    assert again["changed"].startswith("flag was True, is False")
    assert again["parent"] == of_kind(found, "compilation")[1]["id"]
    for event in of_kind(found, "compilation"):
        assert event["seconds"] > 0 and event["outcome"] == "compiled"


def test_a_backward_belongs_to_its_forward(trace):
    with torch.enable_grad():
        ingot.compile(lambda x: x.sin().sum())(X.clone().requires_grad_()).backward()
    [forward] = of_kind(trace(), "compilation")
    [backward] = of_kind(trace(), "backward")
    assert backward["parent"] == forward["id"] and backward["function"].endswith("backward")


def test_calls_that_entries_serve_leave_nothing(trace):
    compiled = ingot.compile(torch.sin)
    compiled(X)
    before = trace()
    for _ in range(5):
        compiled(X)
    assert trace() == before


def test_threads_write_whole_lines(trace):
    def work(number: int) -> None:
        for k in range(200):
            events.note(events.FOUND, f"function {number}", "f.py:1", text="x" * (37 * (k % 9)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trace()) == 800


def test_what_is_inside_is_known_for_each_thread(trace):
    def other() -> None:
        events.note(events.FOUND, "other", "f.py:2")

    with events.Span(events.COMPILATION, "one", "f.py:1") as span:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        events.note(events.FOUND, "inside", "f.py:1")
    parents = {event["function"]: event["parent"] for event in trace()}
    assert parents == {"other": None, "inside": span.id, "one": None}


def test_an_error_ends_a_span(trace):
    with pytest.raises(KeyError), events.Span(events.CAPTURE, "f", "f.py:1"):
        raise KeyError("weights")
    [event] = trace()
    assert event["error"] == "KeyError"
    events.note(events.FOUND, "g", "g.py:1")
    assert trace()[-1]["parent"] is None


FORKS = """
    import os
    import torch, ingot

    def f(x, k):
        return x * int(k)

    g = ingot.compile(f)
    with torch.no_grad():
        g(torch.ones(3), "0")
        children = []
        for number in "1234":
            child = os.fork()
            if not child:
                g(torch.ones(3), number)
                os._exit(0)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_processes_that_fork(tmp_path):
    """Each writes whole lines, with ids of its own."""
    program, path = tmp_path / "program.py", tmp_path / "trace"
    program.write_text(textwrap.dedent(FORKS))
    environment = {**os.environ, "INGOT_TRACE": str(path)}
    root = str(Path(ingot.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))
    subprocess.run([sys.executable, str(program)], env=environment, check=True, timeout=120)
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    compilations = of_kind(found, "compilation")
    assert len(compilations) == 5 and len({event["pid"] for event in compilations}) == 5
    assert len({event["id"] for event in found}) == len(found)


def test_a_file_that_cannot_be_opened(tmp_path, caplog):
    events._warned.clear()
    events.trace_to(tmp_path / "nowhere" / "trace")
    assert re.search("INGOT_TRACE: .* cannot be opened", caplog.text)
    assert torch.equal(ingot.compile(torch.sin)(X), X.sin())


# -- loggers and warnings --------------------------------------------------------------------------


def test_a_logger_for_each_stage(caplog):
    with caplog.at_level(logging.DEBUG, "ingot"):
        ingot.compile(breaking)(X)
    names = {record.name for record in caplog.records}
    stages = {"capture", "trace", "lower", "schedule", "codegen", "load", "guards"}
    assert {f"ingot.{name}" for name in (*stages, "compile", "break")} <= names
    [text] = [record.getMessage() for record in caplog.records if record.name == "ingot.break"]
    assert f"{__file__}:{FIRST + 2}" in text and "torch.where" in text


def test_one_logger_alone(caplog):
    with caplog.at_level(logging.DEBUG, "ingot.break"):
        ingot.compile(breaking)(X)
    assert {record.name for record in caplog.records} == {"ingot.break"}


def test_a_warning_comes_once_for_each_cause_and_place(caplog):
    events._warned.clear()
    for _ in range(3):
        events.warn("a cause", "said once", f"{__file__}:7")
    events.warn("another cause", "said as well", f"{__file__}:7")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"{__file__}:7: said once", f"{__file__}:7: said as well"]
