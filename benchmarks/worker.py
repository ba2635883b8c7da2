"""One measuring process: `python -m benchmarks.worker OUTPUT.json first|peers WORKLOAD DEVICE
COMPILERS ROUNDS`.

It writes what it found to a file, since compilers print what they like.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import PEERS, Call
from benchmarks.workloads import ALL, Workload

PAUSE = 5e-3
"""Seconds for which engines with threads of their own are let go to sleep before another has its
turn."""


def first_call(workload: Workload, device: str, names: list[str], rounds: int) -> dict[str, Any]:
    """Seconds from having the function and its arguments to its first result, the imports of the
    compiler included.

    Nothing of Ingot's may be imported here: its imports are part of its first call.
    """
    (name,) = names
    peer = PEERS[name]
    if peer.preload:
        importlib.import_module(peer.package)
    function, args = workload.make(device)
    synchronize = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    peer.prepare(workload, function, args)()
    synchronize()
    return {"seconds": time.perf_counter() - start}


def peers(workload: Workload, device: str, names: list[str], rounds: int) -> dict[str, Any]:
    """Per compiler: seconds of each round, error against float64, graphs, peak bytes; or the
    problem that it has."""
    from benchmarks import accuracy
    from ingot.explain import measure

    function, args = workload.make(device)
    calls: dict[str, Call] = {}
    found: dict[str, Any] = {}
    for name in names:
        try:
            call = PEERS[name].prepare(workload, function, args)
            call()
            calls[name] = call
            found[name] = {"graphs": graphs(name, call)}
        except Exception as problem:
            found[name] = {"problem": last_line(problem)}
    converted = {name: partial(answer, name, call) for name, call in calls.items()}
    for name, error in accuracy.errors(function, args, converted, copied={"jax"}).items():
        found[name]["error"] = error
    foreign = any(PEERS[name].package not in ("torch", "ingot") for name in calls)
    turns = measure.interleave(calls, rounds, torch.device(device), pause=PAUSE if foreign else 0.0)
    for name, seconds in turns.items():
        found[name]["seconds"] = seconds.tolist()
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    for name, call in calls.items():
        found[name]["peak_bytes"] = peak_bytes(name, call, (args, parameters), torch.device(device))
    return found


def answer(name: str, call: Call) -> Any:
    """A peer's result as tensors."""
    return PEERS[name].to_torch(call())


def graphs(name: str, call: Any) -> int | None:
    """How many graphs the call's compiled function was captured in; None where the peer does not
    say."""
    if name.startswith("ingot"):
        return report(call).graph_count
    if name == "inductor":
        from torch._dynamo.utils import counters

        return counters["stats"]["unique_graphs"]
    return None


def report(call: Any) -> Any:
    """What Ingot says of the function that the call (a `functools.partial`) calls."""
    from ingot.compiler import Compiler
    from ingot.explain.report import Report

    compiler = Compiler.of(call.func)
    assert compiler is not None
    return Report.from_compilations(compiler.compilations)


def peak_bytes(name: str, call: Call, inputs: Any, device: torch.device) -> int | None:
    """Peak memory of a call; Ingot's arena is not torch's, so its plan is asked. Engines with an
    allocator of their own that cannot be asked have none."""
    if name not in ("eager", "inductor", "reduce-overhead", "ingot", "ingot-freeze"):
        return None
    if name.startswith("ingot") and device.type == "cpu":
        return report(call).peak_bytes
    from ingot.explain import measure

    return measure.peak_bytes(call, inputs, device)


def last_line(problem: BaseException) -> str:
    """A problem's message in one line."""
    return " ".join(traceback.format_exception_only(problem)[-1].split())[:240]


MODES = {"first": first_call, "peers": peers}


def main(output: str, mode: str, workload: str, device: str, compilers: str, rounds: str) -> None:
    with torch.no_grad():
        try:
            found = MODES[mode](ALL[workload], device, compilers.split(","), int(rounds))
        except Exception as problem:
            traceback.print_exc()
            found = {"problem": last_line(problem)}
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
