"""Training beside eager and torch.compile: `python -m benchmarks.training [MODEL ...] [--columns
...]`.

A module whose result is the loss is compiled, and a step is its call and `.backward()`. The
columns:

- error: the gradients' relative distance from float64, over all parameters together, the mean of
  five draws. A ReLU whose input changes its sign in the last bit adds a thousandth, by chance, to
  either side: where only the mean misses the bound, and not the median, it is marked ? instead of
  !;
- loss: how far the losses of some steps of SGD depart from eager's, beside eager's departure from
  float64; where one training misses the bound, the mean of five with other data, as both are errors
  that add up by chance;
- memory: the most that torch's allocator has handed out during a step after others, weights
  included;
- speed: the time of a step, the peers taking turns;
- first: the first step of a fresh process, forward and backward, imports of the compiler included.

Each figure is measured in a process of its own and kept in a file as soon as it is there; what that
file has of the same code is not measured again.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.cpu_page import about, code, load, say
from benchmarks.training_models import SUBJECTS, drawn, make
from benchmarks.worker import last_line
from ingot.explain.cli import milliseconds, positive

ROOT = Path(__file__).parent.parent
DRAWS = 5
FACTOR, FLOOR = 1.2, 4
"""Gradients' errors up to 1.2 times eager's are as good as eager's, and so is what lies within 4
eps."""
CPU = torch.device("cpu")


def compiled(name: str, model: nn.Module) -> Callable[..., Any]:
    """The model as the peer of that name runs it. It is the same module: parameters are shared."""
    if name == "ingot":
        import ingot

        return ingot.compile(model)
    return torch.compile(model) if name == "inductor" else model


def step(model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...]) -> torch.Tensor:
    """One forward and backward; the loss."""
    for parameter in model.parameters():
        parameter.grad = None
    loss: torch.Tensor = call(*args)
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def widened(args: tuple[Any, ...]) -> tuple[Any, ...]:
    from ingot.explain.measure import in_float64

    return in_float64(args)


def state_of(call: Callable[..., Any]) -> dict[str, Any]:
    """What became of a model under Ingot: graphs, and why parts were left to eager."""
    from ingot.compiler import Compiler
    from ingot.explain.report import Report

    compiler = Compiler.of(call)
    assert compiler is not None
    report = Report.from_compilations(compiler.compilations)
    backward = [c.backward for c in compiler.compilations if c.backward is not None]
    skipped = [str(b.skipped) for b in backward if b.skipped is not None]
    reasons = [f"{b.reason} ({b.file.rpartition('/')[2]}:{b.line})" for b in report.breaks]
    return {"graphs": report.graph_count, "reasons": [*reasons, *skipped]}


# -- the columns, each in a process of its own -----------------------------------------------------


def error(name: str, rounds: int) -> dict[str, Any]:
    from ingot.explain import measure

    model, draw = make(name)
    exact = copy.deepcopy(model).double()
    calls = {peer: compiled(peer, copy.deepcopy(model)) for peer in ("eager", "ingot")}
    errors: dict[str, list[float]] = {peer: [] for peer in calls}
    for seed in range(DRAWS):
        args = drawn(draw, seed)
        torch.manual_seed(seed)
        step(exact, exact, widened(args))
        for peer, call in calls.items():
            torch.manual_seed(seed)
            step(call, call, args)  # type: ignore[arg-type]
            errors[peer].append(measure.error(gradients(call), gradients(exact)))  # type: ignore[arg-type]
    medians = {f"{peer} median": statistics.median(each) for peer, each in errors.items()}
    return (
        {peer: statistics.fmean(each) for peer, each in errors.items()}
        | medians
        | state_of(calls["ingot"])
    )


def loss(name: str, rounds: int) -> dict[str, Any]:
    found = losses(name, [0])
    return found if within(found) else losses(name, range(DRAWS))


def losses(name: str, turns: Sequence[int]) -> dict[str, Any]:
    """The mean of so many trainings from the same weights, each with data of its own."""
    model, draw = make(name)
    modules = {peer: copy.deepcopy(model) for peer in ("float64", "eager", "ingot")}
    modules["float64"].double()
    calls = {peer: compiled(peer, module) for peer, module in modules.items()}
    apart: dict[str, list[float]] = {"ingot": [], "eager": []}
    for turn in turns:
        found = {peer: trained(name, module, calls[peer], model.state_dict(), draw, turn)
                 for peer, module in modules.items()}  # fmt: skip
        size = found["float64"].norm()
        apart["ingot"].append(float((found["ingot"] - found["eager"]).norm() / size))
        apart["eager"].append(float((found["eager"] - found["float64"]).norm() / size))
    ends = {"first": float(found["float64"][0]), "last": float(found["float64"][-1])}
    return {peer: statistics.fmean(each) for peer, each in apart.items()} | ends


def trained(
    name: str,
    module: nn.Module,
    call: Callable[..., Any],
    state: dict[str, Any],
    draw: Any,
    turn: int,
) -> torch.Tensor:
    """The losses of a training, in float64."""
    module.load_state_dict(state)
    optimizer = torch.optim.SGD(module.parameters(), lr=SUBJECTS[name].rate, momentum=0.9)
    wide = next(module.parameters()).dtype is torch.float64
    found = []
    for seed in range(100 * turn, 100 * turn + SUBJECTS[name].steps):
        args = drawn(draw, seed)
        torch.manual_seed(seed)
        found.append(step(module, call, widened(args) if wide else args).double())
        optimizer.step()
    return torch.stack(found)


def within(found: dict[str, Any]) -> bool:
    """Whether losses are as near to eager's as they are to be."""
    # not if NaN
    return bool(found["ingot"] <= max(2 * found["eager"], FLOOR * torch.finfo(torch.float32).eps))


def memory(name: str, rounds: int) -> dict[str, Any]:
    return {peer: peak_bytes(name, peer) for peer in ("eager", "ingot")}


def peak_bytes(name: str, peer: str) -> int:
    """The peak of the third step."""
    from ingot.explain import measure

    model, draw = make(name)
    args, call = drawn(draw, 0), compiled(peer, model)
    peak = measure.peak_bytes(
        partial(step, model, call, args), (args, list(model.parameters())), CPU, before=2
    )
    del model, args, call
    gc.collect()
    return peak


def speed(
    name: str, rounds: int, peers: Sequence[str] = ("eager", "inductor", "ingot")
) -> dict[str, Any]:
    from ingot.explain import measure

    calls, found = {}, {}
    for peer in peers:
        model, draw = make(name)
        args = drawn(draw, 0)
        call = partial(step, model, compiled(peer, model), args)
        try:
            call()
            calls[peer] = call
        except Exception as problem:
            found[f"{peer} problem"] = last_line(problem)
    turns = measure.interleave(calls, rounds, CPU)
    found |= {peer: float(statistics.median(seconds)) for peer, seconds in turns.items()}
    for other in calls:
        if other != "ingot" and "ingot" in calls:
            found[f"over {other}"] = measure.ratio_interval(turns[other], turns["ingot"])
    return found


def first(name: str, rounds: int, peer: str = "ingot") -> dict[str, Any]:
    """Nothing of Ingot's may be imported here: its imports are part of its first call."""
    model, draw = make(name)
    args = drawn(draw, 0)
    start = time.perf_counter()
    call = compiled(peer, model)
    step(model, call, args)
    return {peer: time.perf_counter() - start}


COLUMNS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "error": error,
    "loss": loss,
    "memory": memory,
    "speed": speed,
    "speed_eager": partial(speed, peers=("eager", "ingot")),
    "first": first,
    "first_inductor": partial(first, peer="inductor"),
}
PROCESSES = {"first": 5}
"""How many processes each figure is the median of, where it is not one."""


# -- from the process that was asked ---------------------------------------------------------------


def measured(name: str, column: str, rounds: int, timeout: float) -> dict[str, Any]:
    """What the processes of one column found about one model."""
    if SUBJECTS[name].missing:
        return {"problem": SUBJECTS[name].missing}
    runs = [run_worker(name, column, rounds, timeout) for _ in range(PROCESSES.get(column, 1))]
    problem = next((run["problem"] for run in runs if "problem" in run), None)
    if problem is not None or len(runs) == 1:
        return runs[0] if problem is None else {"problem": problem}
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def run_worker(name: str, column: str, rounds: int, timeout: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ingot-training-") as folder:
        output, errors = Path(folder, "found.json"), Path(folder, "errors.txt")
        command = [sys.executable, "-m", "benchmarks.training", "--worker", str(output)]
        command += [name, "--columns", column, "--rounds", str(rounds)]
        caches = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "INGOT_CACHE_DIR"), folder)
        environment = os.environ | {"HF_HUB_OFFLINE": "1"} | caches
        with errors.open("w") as sink:
            try:
                subprocess.run(
                    command, stdout=sink, stderr=sink, timeout=timeout, env=environment, cwd=ROOT
                )
            except subprocess.TimeoutExpired:
                return {"problem": f"no result after {timeout:.0f} s"}
        if output.exists():
            return json.loads(output.read_text())
        lines = errors.read_text(errors="replace").strip().splitlines()
        return {"problem": lines[-1][:240] if lines else "no output"}


def table(figures: dict[str, Any], names: Sequence[str]) -> Table:
    shown = Table(title="Training steps beside eager's; what misses its bound is marked !")
    headings = (
        "error",
        "eager",
        "loss",
        "eager",
        "graphs",
        "MB",
        "eager",
        "ms",
        "x eager",
        "x torch.compile",
        "first",
    )
    shown.add_column("model", no_wrap=True)
    for heading in headings:
        shown.add_column(heading, justify="right")
    for name in names:
        found = {column: figures.get(f"{name}/{column}", {}).get("found", {}) for column in COLUMNS}
        shown.add_row(name, *cells(found))
    problems = [f"{piece}: {text}" for piece, text in said(figures, names)]
    shown.caption, shown.caption_justify = "\n".join(problems), "left"
    return shown


def cells(found: dict[str, dict[str, Any]]) -> list[str]:
    errors, losses, held = found["error"], found["loss"], found["memory"]
    times = found["speed"] or found["speed_eager"]
    eps = torch.finfo(torch.float32).eps
    worse, always = (
        f"ingot{kind}" in errors
        and errors[f"ingot{kind}"] > max(FACTOR * errors[f"eager{kind}"], FLOOR * eps)
        for kind in ("", " median")
    )
    apart = "ingot" in losses and not within(losses)
    return [
        figure(errors, "ingot", "{:.1e}", worse and always) + "?" * (worse and not always),
        figure(errors, "eager", "{:.1e}"),
        figure(losses, "ingot", "{:.1e}", apart),
        figure(losses, "eager", "{:.1e}"),
        figure(errors, "graphs", "{}", bool(errors.get("reasons"))),
        figure({k: v / 1e6 for k, v in held.items() if k != "problem"}, "ingot", "{:.2f}",
               "ingot" in held and held["ingot"] > held["eager"]),
        figure({k: v / 1e6 for k, v in held.items() if k != "problem"}, "eager", "{:.2f}"),
        milliseconds(times["ingot"]) if "ingot" in times else "-",
        *(f"{times[key][1]:.2f}" if key in times else "-"
          for key in ("over eager", "over inductor")),
        figure(found["first"], "ingot", "{:.2f}"),
    ]  # fmt: skip


def figure(found: dict[str, Any], key: str, form: str, missed: bool = False) -> str:
    return (form.format(found[key]) + "!" * missed) if key in found else "-"


def said(figures: dict[str, Any], names: Sequence[str]) -> list[tuple[str, str]]:
    """Problems and reasons, with the piece that they belong to."""
    lines = []
    for piece, entry in figures.items():
        if piece.split("/")[0] in names:
            lines += [(piece, str(v)[:200]) for k, v in entry["found"].items() if "problem" in k]
            lines += [(piece, reason[:200]) for reason in entry["found"].get("reasons", ())]
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="MODEL", help=f"of {', '.join(SUBJECTS)}; all if none is named"
    )
    parser.add_argument(
        "--columns", default="error,loss,memory,speed,first", help=f"of {', '.join(COLUMNS)}"
    )
    parser.add_argument(
        "--rounds", type=positive, default=30, help="rounds of taking turns (%(default)s)"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure what is named again, though it is there"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for each figure (%(default)s)"
    )
    parser.add_argument(
        "--figures", type=Path, default=ROOT / "build" / "training.json", metavar="FILE"
    )
    parser.add_argument("--worker", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    names, columns = arguments.names or list(SUBJECTS), arguments.columns.split(",")
    unknown = [n for n in names if n not in SUBJECTS] + [c for c in columns if c not in COLUMNS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if arguments.worker:
        try:
            found = COLUMNS[columns[0]](names[0], arguments.rounds)
        except Exception as problem:
            found = {"problem": last_line(problem)}
        arguments.worker.write_text(json.dumps(found))
        return 0
    arguments.figures.parent.mkdir(exist_ok=True)
    figures, version = load(arguments.figures), code()
    for name in names:
        for column in columns:
            piece = f"{name}/{column}"
            if (
                arguments.again
                or version == "changed"
                or figures.get(piece, {}).get("code") != version
            ):
                say(piece)
                found = measured(name, column, arguments.rounds, arguments.timeout)
                figures[piece] = {"code": version, "about": about(), "found": found}
                arguments.figures.write_text(json.dumps(figures) + "\n")
    Console(width=None if sys.stdout.isatty() else 200).print(table(figures, names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
