"""One measuring process: `python -m benchmarks.worker OUTPUT.json first|peers WORKLOAD DEVICE COMPILERS ROUNDS`.

It writes what it found to a file, since compilers print what they like.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import PEERS, Call
from benchmarks.workloads import WORKLOADS, Workload


def first_call(workload: Workload, device: str, names: list[str], rounds: int) -> dict[str, Any]:
    """Seconds from having the function and its arguments to its first result, the imports of the compiler included.

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
    """Per compiler: seconds of each round, error against float64, peak bytes; or the problem that it has."""
    from ingot.explain import measure

    function, args = workload.make(device)
    calls: dict[str, Call] = {}
    found: dict[str, Any] = {}
    for name in names:
        try:
            call = PEERS[name].prepare(workload, function, args)
            result = PEERS[name].to_torch(call())
            calls[name] = call
            found[name] = {"result": result}
        except Exception as problem:
            found[name] = {"problem": last_line(problem)}
    exact = measure.reference64(function, args, {})
    for name in calls:
        result = found[name].pop("result")
        found[name]["error"] = None if exact is None else measure.error(result, exact)
    for name, seconds in measure.interleave(calls, rounds, torch.device(device)).items():
        found[name]["seconds"] = seconds.tolist()
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    for name, call in calls.items():
        found[name]["peak_bytes"] = peak_bytes(name, call, (args, parameters), function, torch.device(device))
    return found


def peak_bytes(name: str, call: Call, inputs: Any, function: Any, device: torch.device) -> int | None:
    """Peak memory of a call. JAX's allocator cannot be asked; Ingot's arena is not torch's, so its plan is asked."""
    if name == "jax":
        return None
    if name == "ingot" and device.type == "cpu":
        import ingot

        return ingot.explain(function)(*inputs[0]).peak_bytes
    from ingot.explain import measure

    return measure.peak_bytes(call, inputs, device)


def last_line(problem: BaseException) -> str:
    return traceback.format_exception_only(problem)[-1].strip().splitlines()[0][:200]


MODES = {"first": first_call, "peers": peers}


def main(output: str, mode: str, workload: str, device: str, compilers: str, rounds: str) -> None:
    with torch.no_grad():
        try:
            found = MODES[mode](WORKLOADS[workload], device, compilers.split(","), int(rounds))
        except Exception as problem:
            traceback.print_exc()
            found = {"problem": last_line(problem)}
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
