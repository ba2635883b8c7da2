"""CUDA graphs on a GPU: eager, Ingot's default mode, `mode="reduce-overhead"` and torch.compile's, in turns.

    python -m benchmarks.gpu_graphs [--rounds 30] [--only NAME ...] [--compile]

Times are of a call as the caller sees it, many in a row; the ratio is the default mode's time over a peer's, and what
`reduce-overhead` replayed is printed below.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import ingot
from benchmarks.workloads import WORKLOADS, Made
from ingot.explain.measure import interleave, ratio_interval


def chain(device: str) -> Made:
    """Twenty small kernels that cannot be fused: each wants all that the one before writes."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = x.softmax(0).softmax(1) * 3
        return x

    return fn, (torch.randn(64, 64, device=device),)


def training(name: str, device: str) -> Made:
    """Forward, loss, backward and eager SGD of a workload's model."""
    model, args = WORKLOADS[name].make(device)
    assert isinstance(model, torch.nn.Module)
    return Step(model.train().requires_grad_()), args


class Step:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.call = model, model
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-5, foreach=True)

    def compiled(self, compile: Callable[[Any], Any]) -> Step:
        made = Step(self.model)
        made.call = compile(self.model)
        return made

    def __call__(self, *args: Any) -> torch.Tensor:
        self.optimizer.zero_grad()
        out = self.call(*args)
        loss = F.cross_entropy(out.flatten(0, -2).float(), out.detach().flatten(0, -2).argmin(-1))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


ROWS: dict[str, Callable[[str], Made]] = {
    "chain": chain,
    "gpt": WORKLOADS["gpt"].make,
    "resnet50": WORKLOADS["resnet50"].make,
    "bert": WORKLOADS["bert"].make,
    "vit": WORKLOADS["vit"].make,
    "gpt training": partial(training, "gpt"),
}
NEEDS = {name: WORKLOADS[name].missing for name in ROWS if name in WORKLOADS}


def compiled(fn: Any, compile: Callable[..., Any], **options: Any) -> Any:
    wrap = partial(compile, **options)
    return fn.compiled(wrap) if isinstance(fn, Step) else wrap(fn)


def graphs_of(call: Any, args: tuple[Any, ...]) -> list[str]:
    return ingot.explain(call.call if isinstance(call, Step) else call)(*args).cuda_graphs


def row(name: str, rounds: int, with_compile: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    fn, args = ROWS[name]("cuda")
    peers = {
        "eager": fn,
        "default": compiled(fn, ingot.compile),
        "reduce-overhead": compiled(fn, ingot.compile, mode="reduce-overhead"),
    }
    if with_compile:
        peers["torch.compile r.-o."] = compiled(fn, torch.compile, mode="reduce-overhead")
    calls = {peer: partial(call, *args) for peer, call in peers.items()}
    with torch.set_grad_enabled(isinstance(fn, Step)):
        start = time.perf_counter()
        for call in calls.values():
            for _ in range(5):
                call()
        torch.cuda.synchronize()
        seconds = interleave(calls, rounds, device)
        for peer in calls:
            low, middle, high = ratio_interval(seconds["default"], seconds[peer])
            micro = np.median(seconds[peer]) * 1e6
            print(f"{name:14} {peer:20} {micro:10.1f} us {middle:6.2f} ({low:.2f} to {high:.2f})")
        for line in graphs_of(peers["reduce-overhead"], args):
            print(f"{'':14} {line}")
    print(f"{'':14} {time.perf_counter() - start:.1f} s in all", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=[name for name in ROWS if not NEEDS.get(name)])
    parser.add_argument("--compile", action="store_true", help="torch.compile's reduce-overhead as well")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name in options.only:
        row(name, options.rounds, options.compile)


if __name__ == "__main__":
    main()
