"""One process for the rows of one model: `python -m benchmarks.suites.worker MODEL DEVICE`.

It reads lines and answers each with a line of JSON: a row's name (as JSON of its fields) is
answered by {"need": bytes}, what the row may take of the card; any line, by {"ready": true} once
all is compiled and compared; any line, by the row's figures. A problem ends a row at any of these
with {"problem": ...}. What compilers print goes to stderr.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn

import ingot
from benchmarks.suites import judged
from benchmarks.suites.models import Row, floating, made
from benchmarks.training import state_of
from benchmarks.worker import last_line, report
from ingot.explain.measure import (
    BATCH_SECONDS,
    in_float64,
    interleave,
    peak_bytes,
    synchronize,
    timed,
)

COMPILERS: Mapping[str, Callable[..., Any]] = {
    "torch.compile": torch.compile,
    "Ingot": ingot.compile,
}
STOPPED = "INGOT_SUITES_STOPPED"
"""The variable of the environment that names the file of `stopped`."""
MEASURED = 1.0  # seconds of taking turns ...
ROUNDS = (5, 25)  # ... in at least and at most so many rounds
WARM = 4
"""Calls after the first one: CUDA graphs are recorded in the second or third."""
SHARE = 2.5
"""How often a row needs what eager's step holds at most: the step, and what both compilers hold for
theirs, which is less than eager's; the reference comes before these, and needs twice as much."""


class Calls:
    """A row's calls: the same module, arguments and parameters for each peer."""

    def __init__(self, row: Row, module: nn.Module, draw: Callable[[int], tuple[Tensor, ...]]):
        self.row, self.module, self.draw = row, module, draw
        self.args = draw(0)
        self.leaves = list(module.parameters())
        self.device = self.args[0].device
        self.training = row.direction == "training"

    def autocast(self) -> AbstractContextManager[Any]:
        if self.row.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.row.dtype))

    def step(self, fn: Callable[..., Any]) -> Any:
        """A call, or a forward and a backward. What it returns is what the caller gets."""
        if not self.training:
            with torch.no_grad(), self.autocast():
                return fn(*self.args)
        for leaf in self.leaves:
            leaf.grad = None
        with self.autocast():
            loss = fn(*self.args)
        loss.backward()
        return loss.detach()

    def compared(self, fn: Callable[..., Any]) -> list[Tensor]:
        """What is compared of one step: the results, or the loss and the gradients."""
        torch.manual_seed(0)
        result = floating(self.step(fn))
        return result + gradients(self.leaves) if self.training else result

    def place(self, seed: int) -> None:
        """Other numbers into the same arguments."""
        for mine, other in zip(self.args, self.draw(seed), strict=True):
            mine.copy_(other)

    def reference(self) -> list[Tensor]:
        """What a more precise eager has in place of a step's results."""
        module = copy.deepcopy(self.module)
        args = self.args
        if self.row.dtype == "float32":
            module, args = module.double(), in_float64(self.args)
        module.zero_grad()
        torch.manual_seed(0)
        with torch.set_grad_enabled(self.training), without_tf32():
            result = module(*args)
            if not self.training:
                return floating(result)
            result.backward()
        return [result.detach(), *gradients(list(module.parameters()))]


def gradients(leaves: list[Tensor]) -> list[Tensor]:
    """Of all parameters; of one that has none, a tensor of no elements."""
    return [p.new_empty(0) if p.grad is None else p.grad for p in leaves]


@contextmanager
def without_tf32() -> Iterator[None]:
    flags = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [flag.allow_tf32 for flag in flags]
    for flag in flags:
        flag.allow_tf32 = False
    try:
        yield
    finally:
        for flag, value in zip(flags, before):
            flag.allow_tf32 = value


def forget(device: torch.device) -> None:
    """All that the row before has left."""
    ingot.reset()
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def graph_count() -> int:
    """How many graphs torch.compile has captured in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def conditions(device: torch.device) -> dict[str, str]:
    """With what a row is measured."""
    from benchmarks.cpu_page import machine
    from ingot.explain.cli import package_version

    packages = ("torch", "triton", "transformers", "timm", "torchvision", "torch_geometric")
    found = {"device": machine()}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    found["python"] = sys.version.split()[0]
    for name in packages:
        if version := package_version(name):
            found[name] = version
    return found


# -- one row ---------------------------------------------------------------------------------------


def measured(row: Row, model: Any, device: torch.device, first: bool) -> Iterator[dict[str, Any]]:
    """What the process answers, answer by answer."""
    forget(device)
    calls = Calls(row, *made(model, row, device))
    peers: dict[str, dict[str, Any]] = {"eager": {}}
    eager = partial(calls.step, calls.module)
    peers["eager"]["first"] = first_seconds(eager, device)
    peak = peak_bytes(eager, [*calls.args, *calls.leaves], device, before=1)
    peers["eager"]["peak"] = peak
    if device.type == "cuda":
        torch.cuda.empty_cache()
    yield {"need": int(peak * SHARE)}
    reference = calls.reference()
    theirs = judged.parts(calls.compared(calls.module), reference)
    peers["eager"]["departures"] = [judged.departure(theirs)]
    compiled: dict[str, Any] = {"eager": calls.module}
    for name, compiler in COMPILERS.items():
        peers[name] = {"cold": first}
        try:
            compiled[name] = compiler(calls.module, mode=mode_of(row))
            prepare(calls, compiled[name], peers[name], reference, theirs)
        except Exception as problem:
            if lacks_memory(problem):
                raise
            traceback.print_exc()
            peers[name]["problem"] = last_line(problem)
            compiled.pop(name, None)
    del reference
    again(calls, compiled, peers)
    if "Ingot" in compiled:
        peers["Ingot"] |= state(compiled["Ingot"])
    for name, fn in compiled.items():
        step = partial(calls.step, fn)
        peers[name]["peak"] = peak_bytes(step, [*calls.args, *calls.leaves], device, before=2)
    yield {"ready": True}
    steps = {name: partial(calls.step, fn) for name, fn in compiled.items()}
    for name, seconds in interleave(steps, rounds_of(steps, device), device).items():
        peers[name]["seconds"] = seconds.tolist()
    yield {"peers": peers, "about": conditions(device)}


def state(fn: Callable[..., Any]) -> dict[str, Any]:
    """What became of a model under Ingot: graphs, why parts were left to eager, and what is
    replayed."""
    return state_of(fn) | {"cuda graphs": report(partial(fn)).cuda_graphs}


def mode_of(row: Row) -> str | None:
    return None if row.mode == "default" else row.mode


def prepare(
    calls: Calls,
    fn: Callable[..., Any],
    found: dict[str, Any],
    reference: list[Tensor],
    theirs: judged.Parts,
) -> None:
    """The first calls of a compiled function, and what they are worth."""
    graphs, held = graph_count(), reserved(calls)
    found["first"] = first_seconds(partial(calls.step, fn), calls.device)
    for _ in range(WARM):
        calls.step(fn)
    found["held"] = reserved(calls) - held
    mine = judged.parts(calls.compared(fn), reference)
    found["graphs"] = graph_count() - graphs
    found["departures"] = [judged.departure(mine)]
    found["lost"] = judged.lost(mine, theirs) if calls.training else []


def reserved(calls: Calls) -> int:
    """Bytes that the process holds of the card between calls: the memory of CUDA graphs too, which
    no peak of a call counts."""
    for leaf in calls.leaves:
        leaf.grad = None
    if calls.device.type != "cuda":
        return 0
    synchronize(calls.device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(calls.device)


def stopped() -> float:
    """Seconds for which the process was stopped while others were measured."""
    path = os.environ.get(STOPPED)
    return float(Path(path).read_text() or 0) if path else 0.0


def first_seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the first call, without those in which the process was stopped."""
    before = stopped()
    seconds = timed(call, device)[1]
    return seconds - (stopped() - before)


def lacks_memory(problem: BaseException) -> bool:
    """Whether that is why, also where a compiler wraps it in an error of its own."""
    return isinstance(problem, torch.OutOfMemoryError) or "out of memory" in str(problem).lower()


def again(calls: Calls, compiled: dict[str, Any], peers: dict[str, dict[str, Any]]) -> None:
    """More draws of the inputs, where the first one leaves doubt."""
    eager = peers["eager"]["departures"]
    doubtful = False
    for name in COMPILERS:
        if name in compiled:
            doubtful |= not judged.is_near(peers[name]["departures"], eager)
    for seed in range(1, judged.DRAWS if doubtful else 1):
        calls.place(seed)
        reference = calls.reference()
        for name, fn in compiled.items():
            found = judged.parts(calls.compared(fn), reference)
            peers[name]["departures"].append(judged.departure(found))
        del reference
    for name in COMPILERS:
        if name in compiled:
            near = judged.is_near(peers[name]["departures"], eager)
            peers[name]["right"] = near and not peers[name]["lost"]


def rounds_of(steps: Mapping[str, Callable[[], Any]], device: torch.device) -> int:
    """How many rounds of taking turns take about a second."""
    turn = 0.0
    for step in steps.values():
        step()
        turn += max(timed(step, device)[1], 2 * BATCH_SECONDS[device.type])
    return int(np.clip(MEASURED / turn, *ROUNDS))


# -- the process -----------------------------------------------------------------------------------


def answers(row: Row, model: Any, device: torch.device, first: bool) -> Iterator[dict[str, Any]]:
    """As `measured` has them; a problem is the last one."""
    try:
        yield from measured(row, model, device, first)
    except Exception as problem:
        traceback.print_exc()
        yield {"problem": last_line(problem), "memory": lacks_memory(problem)}


def serve(name: str, device: torch.device, lines: TextIO, say: Callable[[Any], None]) -> None:
    """Answer lines until there are no more."""
    from benchmarks.suites.listed import MODELS

    first = True
    while line := lines.readline():
        steps = answers(Row(**json.loads(line)), MODELS[name], device, first)
        for answer in steps:
            say(answer)
            if "peers" in answer or "problem" in answer or not lines.readline():
                break
        steps.close()
        first = False


def main() -> None:
    name, device = sys.argv[1:]
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed

    def say(answer: Any) -> None:
        channel.write(json.dumps(answer) + "\n")
        channel.flush()

    chosen = torch.device(device)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", torch.cuda.current_device())
        synchronize(chosen)
    serve(name, chosen, sys.stdin, say)


if __name__ == "__main__":
    main()
