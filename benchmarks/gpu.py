"""The small functions on a GPU: eager, torch.compile, Ingot and, where it is installed, jax.jit, in
turns.

    python -m benchmarks.gpu [--rounds 30] [--only NAME ...] [--without-compile]

`host` is the time of a call as the caller sees it, many in a row; `device` is that of the device's
work alone, measured while calls wait in the queue (not of JAX, which has a queue of its own);
`TB/s` is what the inputs and outputs amount to, moved once, in that time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import ingot
from examples.functions import FUNCTIONS
from ingot.explain.measure import interleave, ratio_interval

QUEUED = 100  # calls that wait while their device is kept busy ...
SPIN = 60_000_000  # ... for so many cycles


def device_seconds(call: Callable[[], Any]) -> float:
    """Seconds of the device's work for one call."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN)
    begin.record()
    for _ in range(QUEUED):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / QUEUED / 1e3


def moved_bytes(args: tuple[Any, ...], result: Any) -> int:
    return sum(t.numel() * t.element_size() for t in (*args, result) if isinstance(t, torch.Tensor))


def jax_call(name: str, args: tuple[Any, ...]) -> Callable[[], Any]:
    """The same function by jax.jit, called without waiting for its result."""
    # or it takes most of the device's memory
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    from benchmarks.jax_twins import TWINS, to_jax

    return partial(jax.jit(TWINS[name]), *map(to_jax, args))


def has_jax() -> bool:
    """Whether there is a JAX that knows the device."""
    return all(importlib.util.find_spec(name) for name in ("jax", "jax_plugins"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    print(torch.cuda.get_device_name(device), "torch", torch.__version__)
    titles = (
        f"{'function':24} {'peer':14} {'first s':>8} {'host us':>9} {'device us':>10} {'TB/s':>6}"
    )
    print(titles, " Ingot is faster by (host, 90% interval)")
    for name in options.only:
        fn, args = FUNCTIONS[name].make("cuda")
        peers: dict[str, Callable[..., Any]] = {
            "eager": fn,
            "Ingot": ingot.compile(fn, fullgraph=True),
        }
        if not options.without_compile:
            peers["torch.compile"] = torch.compile(fn)
        calls: dict[str, Callable[[], Any]] = {
            peer: partial(call, *args) for peer, call in peers.items()
        }
        if has_jax():
            calls["jax.jit"] = jax_call(name, args)
        first = {}
        for peer, call in calls.items():
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            first[peer] = time.perf_counter() - start
        seconds = interleave(calls, options.rounds, device)
        moved = moved_bytes(args, calls["eager"]())
        for peer, call in calls.items():
            work = f"{'-':>10} {'-':>6}"
            if peer != "jax.jit":
                busy = device_seconds(call)
                work = f"{busy * 1e6:10.1f} {moved / busy / 1e12:6.2f}"
            low, middle, high = ratio_interval(seconds[peer], seconds["Ingot"])
            print(
                f"{name:24} {peer:14} {first[peer]:8.2f} {np.median(seconds[peer]) * 1e6:9.1f} "
                f"{work} "
                f"{middle:10.2f} ({low:.2f} to {high:.2f})"
            )


if __name__ == "__main__":
    main()
