"""The first call in a second process: Ingot and torch.compile, each with its own warm cache.

    python -m benchmarks.warm_start [NAME ...] [--device cpu] [--rounds 3] [--without-compile]

Each figure is of a fresh process that has imported torch and the compiler, and has run the model
once in eager: seconds of the first call less the least of three later ones. Of the first process
the cache is empty ("cold"), of `--rounds` further ones, whose median is given, it is what the first
one left ("warm"). Training is a forward and a backward. On a CPU one thread is used. Models of
`transformers` need that package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.training_models import Classified, trained
from benchmarks.workloads import WORKLOADS, make_gpt2, on_cuda
from examples.functions import FUNCTIONS

COMPILERS = ("Ingot", "torch.compile")
Call = Callable[[Callable[..., Any]], Any]


def inference(name: str, device: str) -> tuple[Callable[..., Any], Call]:
    function, args = WORKLOADS[name].make(device)

    def call(function: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return function(*args)

    return function, call


def transformers_gpt2(device: str) -> tuple[Callable[..., Any], Call]:
    """That of transformers, with a cache of keys and values among its results, 1 x 128."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).eval().to(device)
    tokens = torch.randint(50257, (1, 128), device=device)

    def call(function: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return function(tokens)

    return model, call


def gpt2_training(device: str) -> tuple[Callable[..., Any], Call]:
    """GPT-2 124M, batch 1 x 128."""
    network, (tokens,) = make_gpt2(device)
    model = Classified(trained(network)).to(device)
    tokens = tokens[:1, :128].to(device)

    def call(function: Callable[..., Any]) -> Tensor:
        loss: Tensor = function(tokens, tokens)
        loss.backward()
        model.zero_grad()
        return loss

    return model, call


SUBJECTS: dict[str, Callable[[str], tuple[Callable[..., Any], Call]]] = {
    **{name: partial(inference, name) for name in (*FUNCTIONS, "gpt2", "resnet50", "vit", "bert")},
    "gpt2 of transformers": transformers_gpt2,
    "gpt2 training": gpt2_training,
}


def missing(name: str) -> bool:
    needs = "transformers" if name.endswith("transformers") else ""
    if name in WORKLOADS:
        needs = WORKLOADS[name].needs
    return bool(needs) and importlib.util.find_spec(needs) is None


def compiled(compiler: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if compiler == "Ingot":
        import ingot

        return ingot.compile(function)
    return torch.compile(function)


def finish(device: str) -> None:
    """Wait for the device's work."""
    if on_cuda(device):
        torch.cuda.synchronize()


def measure(name: str, compiler: str, device: str) -> float:
    """Of this process."""
    if not on_cuda(device):
        torch.set_num_threads(1)
    function, call = SUBJECTS[name](device)
    call(function)
    fast, seconds = compiled(compiler, function), []
    for _ in range(4):
        finish(device)
        start = time.perf_counter()
        call(fast)
        finish(device)
        seconds.append(time.perf_counter() - start)
    return seconds[0] - min(seconds[1:])


def in_a_process(name: str, compiler: str, device: str, folder: str) -> float:
    caches = {"INGOT_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    environment = os.environ | caches | {"TRITON_CACHE_DIR": f"{folder}/triton"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    command = [sys.executable, "-m", "benchmarks.warm_start", "--worker", compiler, name]
    command += ["--device", device]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{compiler}, {name}:\n{process.stderr[-2000:]}")
    found: float = json.loads(process.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_start")
    parser.add_argument("names", nargs="*", choices=[[], *SUBJECTS], default=[])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-compile", action="store_true")
    parser.add_argument("--worker", choices=COMPILERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        (name,) = arguments.names
        print(json.dumps(measure(name, arguments.worker, arguments.device)))
        return
    from ingot.explain.cli import console

    compilers = COMPILERS[:1] if arguments.without_compile else COMPILERS
    table = Table("first call less a later one, s", title=arguments.device)
    for compiler in compilers:
        table.add_column(f"{compiler}, cold")
        table.add_column("warm")
    for name in arguments.names or SUBJECTS:
        if missing(name):
            continue
        row = []
        for compiler in compilers:
            with tempfile.TemporaryDirectory() as folder:
                once = partial(in_a_process, name, compiler, arguments.device, folder)
                cold, warm = once(), statistics.median([once() for _ in range(arguments.rounds)])
            row += [f"{cold:.3f}", f"{warm:.3f}"]
        print(name, *row, flush=True)
        table.add_row(name, *row)
    console().print(table)


if __name__ == "__main__":
    main()
