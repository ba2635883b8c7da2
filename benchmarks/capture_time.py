"""How long capture takes, beside torch.compile: `python -m benchmarks.capture_time`.

A fresh process each time: torch is imported, the model is built (random weights) and called once in
eager; then the clock runs from importing the compiler to the end of the first compiled call. The
backend runs the captured graph as it is, so that nothing but capture is measured; the time of a
later call is taken off. Each row is the median of several processes, the two compilers taking
turns. Models of `transformers` need that package (see `benchmarks.models`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

COMPILERS = ("ingot", "torch.compile")


def _example_gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    from examples.gpt2 import Config, Gpt

    return Gpt(Config()), {"tokens": torch.randint(0, 256, (1, 16))}


def _gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), {"input_ids": torch.randint(0, 256, (1, 16))}


def _bert() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    tokens = torch.randint(0, 256, (1, 16))
    return BertModel(BertConfig()), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, Any]]]] = {
    "GPT-2 124M, examples/gpt2.py": _example_gpt2,
    "GPT-2 124M, transformers": _gpt2,
    "BERT-base, transformers": _bert,
}


def _as_it_is(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    return gm.forward


def _compile(compiler: str) -> Callable[..., Any]:
    """The compiler's own `compile`; what it imports is imported now, or at the first call."""
    if compiler == "ingot":
        import ingot

        return ingot.compile
    return torch.compile


def measure(name: str, compiler: str) -> dict[str, Any]:
    """One process's finding: seconds of capture, and what was captured."""
    model, inputs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        expected = model(**inputs)
        start = time.perf_counter()
        compiled = _compile(compiler)(model, backend=_as_it_is)
        result = compiled(**inputs)
        first = time.perf_counter() - start
        laters = []
        for _ in range(3):
            start = time.perf_counter()
            compiled(**inputs)
            laters.append(time.perf_counter() - start)
    expected, result = (r if isinstance(r, torch.Tensor) else r[0] for r in (expected, result))
    assert torch.equal(result, expected), "the captured graph gives another result than eager"
    parameters = sum(p.numel() for p in model.parameters())
    return {"seconds": first - statistics.median(laters), "parameters": parameters}


def in_fresh_process(name: str, compiler: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.capture_time", "--measure", name, compiler]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    output = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if output.returncode != 0:
        raise RuntimeError(f"{name}, {compiler}: {output.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capture_time", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--processes", type=int, default=5, help="fresh processes for each figure (%(default)s)"
    )
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "COMPILER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return 0
    print(f"{'model':30} {'parameters':>12} {'ingot':>9} {'torch.compile':>14} {'ratio':>7}")
    for name in MODELS:
        if "transformers" in name and importlib.util.find_spec("transformers") is None:
            print(f"{name:30} transformers is not installed")
            continue
        seconds: dict[str, list[float]] = {compiler: [] for compiler in COMPILERS}
        for _ in range(arguments.processes):
            for compiler in COMPILERS:
                found = in_fresh_process(name, compiler)
                seconds[compiler].append(found["seconds"])
        ours, theirs = (statistics.median(seconds[compiler]) for compiler in COMPILERS)
        print(
            f"{name:30} {found['parameters']:12,} {ours:7.3f} s {theirs:12.3f} s "
            f"{ours / theirs:6.2f}x",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
