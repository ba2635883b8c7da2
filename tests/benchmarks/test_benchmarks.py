"""The benchmark's plumbing: rows for what cannot run, for crashes and timeouts; the table, JSON and
the arguments."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from rich.console import Console

import ingot
from benchmarks import nets, runner, show, worker
from benchmarks.__main__ import main, parse
from benchmarks.compilers import PEERS
from benchmarks.runner import Row, Settings, measure_workload
from benchmarks.workloads import ALL, WORKLOADS, make_gpt
from ingot.options import KNOWN_OPTIONS
from tests.long import long

SETTINGS = Settings("cpu", ["eager"], rounds=3, first_calls=1, timeout=60)


def text(table):
    console = Console(width=130, record=True, file=open("/dev/null", "w"))
    console.print(table)
    return console.export_text()


@long
def test_a_pair_is_measured_in_processes_of_its_own():
    steps = []
    (row,) = measure_workload("eight_elements", SETTINGS, steps.append)
    assert row.problem == "" and len(row.first_calls) == 1 and len(row.seconds) == 3
    assert row.over_eager == (1, 1, 1) and row.over_inductor is None
    assert row.error < 1e-6 and row.peak_bytes >= 96
    assert steps == ["eight_elements: first call of eager", "eight_elements: taking turns"]
    assert "1.00 (1.00-1.00)" in text(show.table([row], SETTINGS))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit('no luck')", "status 1: no luck"),
        ("import time; time.sleep(60)", "no result after 1 s"),
    ],
)
def test_a_crash_or_a_timeout_is_a_row(script, says, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(python))
    (row,) = measure_workload("eight_elements", replace(SETTINGS, timeout=1), lambda what: None)
    assert says in row.problem and row.median is None and row.first_call is None
    assert says in text(show.table([row], SETTINGS))


def test_a_peer_that_ends_the_process_leaves_the_others(monkeypatch, tmp_path):
    calls = []

    def run_worker(mode, workload, compilers, settings, caches):
        calls.append((compilers, settings.rounds))
        if "openvino" in compilers:
            return {"problem": "process ended with SIGSEGV: no output"}
        return {name: {"seconds": [1.0] * settings.rounds} for name in compilers}

    monkeypatch.setattr(runner, "run_worker", run_worker)
    found = runner.take_turns(
        "vit", ["eager", "openvino", "ingot"], SETTINGS, tmp_path, lambda what: None
    )
    assert found["openvino"] == {"problem": "process ended with SIGSEGV: no output"}
    assert [len(found[name]["seconds"]) for name in ("eager", "ingot")] == [3, 3]
    assert calls[0] == (["eager", "openvino", "ingot"], 3) and calls[-1] == (["eager", "ingot"], 3)
    assert [rounds for _, rounds in calls[1:-1]] == [1, 1, 1]
    found = runner.take_turns("vit", ["openvino"], SETTINGS, tmp_path, lambda what: None)
    assert "SIGSEGV" in found["openvino"]["problem"]


def test_one_peer_that_fails_leaves_the_others(monkeypatch):
    def refuse(workload, function, args):
        raise RuntimeError("cannot compile this\nsecond line")

    monkeypatch.setitem(PEERS, "inductor", replace(PEERS["inductor"], prepare=refuse))
    found = worker.peers(WORKLOADS["eight_elements"], "cpu", ["eager", "inductor"], 2)
    assert found["inductor"] == {"problem": "RuntimeError: cannot compile this second line"}
    assert len(found["eager"]["seconds"]) == 2


def test_what_is_missing_says_why(monkeypatch):
    absent = lambda name: None  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    assert PEERS["jax"].missing(WORKLOADS["tanh_gelu"], "cpu") == "the package jax is not installed"
    assert PEERS["eager"].missing(WORKLOADS["vit"], "cpu") == "needs the package transformers"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    assert PEERS["jax"].missing(WORKLOADS["gpt2"], "cpu") == "no JAX twin of this workload"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert PEERS["eager"].missing(WORKLOADS["gpt2"], "cuda") == "there is no CUDA device"


@long
def test_first_calls_of_ingot_include_its_imports():
    code = (
        "import benchmarks.worker, sys; sys.exit(any(m.split('.')[0] == 'ingot' for m in "
        "sys.modules))"
    )
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@torch.no_grad()
def test_gpt_workload():
    model, (tokens,) = make_gpt("cpu")
    assert tokens.shape == (4, 128) and model(tokens).shape == (4, 128, 256)


def test_table_json_and_geometric_mean(tmp_path):
    rows = [
        Row("a", "eager", [0.1], [2.0, 2.0], (1, 1, 1)),
        Row(
            "a",
            "ingot",
            [0.2, 0.4, 0.3],
            [1.0, 1.0],
            (3.9, 4.0, 4.1),
            error=1e-8,
            peak_bytes=1 << 20,
        ),
        Row("b", "ingot", [0.2], [1.0], (0.9, 1.0, 1.1)),
        Row("b", "jax", problem="no [bold]JAX[/bold] twin"),
    ]
    shown = text(show.table(rows, SETTINGS))
    assert (
        "4.00 (3.90-4.10)" in shown
        and "b, jax: no [bold]JAX[/bold] twin" in shown
        and "0.30" in shown
    )
    assert show.geometric_mean(
        row.over_eager for row in rows if row.compiler == "ingot"
    ) == pytest.approx(2.0)
    show.write_json(rows, SETTINGS, tmp_path / "rows.json")
    read = json.loads((tmp_path / "rows.json").read_text())
    assert read["rows"][1]["error"] == 1e-8 and read["about"]["versions"]["torch"] == version(
        "torch"
    )


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    show.plot([Row("a", "ingot", [], [1.0], (0.9, 1.0, 1.1))], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--only", "nothing"], "no workload nothing; there are complex_activation"),
        (["--compilers", "eager,gcc"], "no compiler gcc"),
        (["--rounds", "0"], "no positive whole number"),
        (["--only", ","], "no workload"),
    ],
)
def test_bad_arguments(argv, says, capsys):
    with pytest.raises(SystemExit):
        parse(argv)
    assert says in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_measuring(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        parse(["--plot", "x.png"])
    assert "needs the package matplotlib" in capsys.readouterr().err


def test_an_interrupt_still_shows_what_there_is(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("signal.signal", lambda *args: None)

    def interrupted(name, settings, step):
        if name == "tanh_gelu":
            raise KeyboardInterrupt
        return [Row(name, "eager", [0.1], [1.0])]

    monkeypatch.setattr("benchmarks.__main__.measure_workload", interrupted)
    assert (
        main(["--only", "eight_elements,tanh_gelu", "--json", str(tmp_path / "rows.json")]) == 130
    )
    captured = capsys.readouterr()
    assert "eight_elements" in captured.out and "interrupted" in captured.err
    assert [
        row["workload"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"]
    ] == ["eight_elements"]


@long
def test_dispatch_is_measured_beside_torch_compile(tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.dispatch", "--rounds", "5", "--json", str(figures)]
    printed = subprocess.run(
        [*command, "--only", "8 elements"], capture_output=True, text=True, check=True
    ).stdout
    (found,) = json.loads(figures.read_text())
    assert found["graph_inputs"] == 2 and len(found["ingot"]) == len(found["torch_compile"]) == 5
    assert found["ratio"][1] == statistics.median(found["ingot"]) / statistics.median(
        found["torch_compile"]
    )
    assert "8 elements" in printed and "kept" in printed


@pytest.mark.parametrize("name", list(nets.NETS))
@torch.no_grad()
def test_networks_are_one_graph(name):
    model, args = nets.make(name, "cpu")
    small = tuple(
        arg[:, :2, :1] if arg.dim() == 3 and not arg.is_floating_point() else arg[:2]
        for arg in args
    )
    if name == "unet":
        small = (small[0][..., :32, :32],)
    compiled = ingot.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(*small), model(*small), rtol=1e-4, atol=1e-4)


def test_exported_peers_agree_with_eager():
    pytest.importorskip("onnxscript")
    workload = ALL["rms_norm_rotary"]
    function, args = workload.make("cpu")
    for name in ("onnxruntime", "openvino"):
        if not PEERS[name].missing(workload, "cpu"):
            call = PEERS[name].prepare(workload, function, args)
            torch.testing.assert_close(
                PEERS[name].to_torch(call())[0], function(*args), rtol=1e-4, atol=1e-5
            )


def test_freeze_is_a_peer_once_ingot_has_it():
    lacks = PEERS["ingot-freeze"].missing(WORKLOADS["gpt"], "cpu")
    assert lacks == (
        "" if "freeze" in KNOWN_OPTIONS else "this version of Ingot has no option freeze"
    )
