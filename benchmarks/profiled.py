"""`python -m benchmarks.profiled`: which share of compiled calls torch.profiler's events add up to.

Each program is called under the profiler some times. Printed are the milliseconds of the best call,
the share of it that Ingot's events take, without the ones within them, and of how many of the steps
that a call runs there is an event. A training step is a forward with its loss and the backward,
with what autograd does between them. A program that takes more than 5 ms is to reach 0.95.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

import ingot
from examples import gpt2
from ingot.explain.cli import positive

LONG = 5.0
"""Milliseconds from which on a program's events are to add up to it."""

SHARE = 0.95


class Share(NamedTuple):
    """Of one program: milliseconds of a call, the share of events, and the number of kernels and
    library calls that were seen."""

    name: str
    milliseconds: float
    share: float
    steps: int

    @property
    def is_enough(self) -> bool:
        """Whether the events add up to the call, or need not."""
        return self.milliseconds <= LONG or self.share >= SHARE

    def __str__(self) -> str:
        verdict = "" if self.is_enough else f"  less than {SHARE}"
        figures = f"{self.milliseconds:9.2f} ms  {self.share:6.3f}  {self.steps:4d} steps"
        return f"{self.name:30s} {figures}{verdict}"


def share_of(name: str, call: Callable[[], object], rounds: int) -> Share:
    """The best share among some calls, since others may run on the machine."""
    call(), call()
    shares, kept = [], []
    for _ in range(rounds):
        with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("call"):
            kept.append(call())  # to free memory takes time of its own
        shares.append(_share(name, profiled.events()))
    return max(shares, key=lambda share: share.share)


def _share(name: str, events: list[FunctionEvent]) -> Share:
    whole = spent = steps = 0.0
    for event in events:
        microseconds = event.time_range.elapsed_us()
        if event.name == "call":
            whole = microseconds
        elif event.name.startswith("ingot::"):
            spent += microseconds
            steps += event.name not in ("ingot::allocate", "ingot::release")
    return Share(name, whole / 1e3, spent / whole, int(steps))


def programs(small: bool = False) -> dict[str, Callable[[], object]]:
    """Calls of compiled programs, by name; of a GPT-2 of 2 layers if `small`."""
    config = gpt2.Config(layers=2) if small else gpt2.Config()
    tokens = torch.randint(0, config.vocabulary, (1, 128))
    inference, trained = ingot.compile(gpt2.gpt2(config)), gpt2.gpt2(config)
    parameters = list(trained.parameters())
    perceptron = ingot.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)))
    row, matrix = torch.randn(8, 64), torch.randn(1024, 1024)

    def products(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ x).tanh()
        return x

    def loss(tokens: Tensor) -> Tensor:
        return trained(tokens).square().mean()

    compiled, training = ingot.compile(products), ingot.compile(loss)

    def infer() -> object:
        with torch.no_grad():
            return inference(tokens)

    def train() -> object:
        return torch.autograd.grad(training(tokens), parameters)

    return {
        "GPT-2, inference": infer,
        "GPT-2, training": train,
        "products and tanh": lambda: compiled(matrix),
        "a small perceptron": lambda: perceptron(row),
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each program. Returns 1 if the events of one are too few."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=10)
    parser.add_argument("--small", action="store_true", help="a GPT-2 of 2 layers")
    options = parser.parse_args(arguments)
    shares = []
    for name, call in programs(options.small).items():
        shares.append(share_of(name, call, options.rounds))
        print(shares[-1], flush=True)
    return 0 if all(share.is_enough for share in shares) else 1


if __name__ == "__main__":
    raise SystemExit(main())
