"""The peers: how each turns a workload into a call, and why it cannot where it cannot."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.workloads import Workload

Call = Callable[[], Any]


def eager(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    return lambda: function(*args)


def inductor(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    compiled = torch.compile(function)
    return lambda: compiled(*args)


def reduce_overhead(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    compiled = torch.compile(function, mode="reduce-overhead")
    return lambda: compiled(*args)


def ingot(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    import ingot

    compiled = ingot.compile(function)
    return lambda: compiled(*args)


def jax(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """Arguments are converted here; the call waits for its result, as a caller who uses it would."""
    import jax

    from benchmarks.jax_twins import TWINS, to_jax

    compiled, arrays = jax.jit(TWINS[workload.name]), [to_jax(arg) for arg in args]
    return lambda: jax.block_until_ready(compiled(*arrays))


def same(result: Any) -> Any:
    return result


def from_jax(result: Any) -> Any:
    from benchmarks.jax_twins import to_torch

    return to_torch(result)


@dataclass(frozen=True)
class Peer:
    """`prepare` gives the call to time. With `preload` the clock starts after the import of `package`."""

    name: str
    prepare: Callable[[Workload, Callable[..., Any], tuple[Any, ...]], Call]
    package: str = "torch"
    preload: bool = True
    to_torch: Callable[[Any], Any] = same

    def missing(self, workload: Workload, device: str) -> str:
        """Why it cannot run this workload here, "" if it can."""
        if workload.missing:
            return workload.missing
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            return "there is no CUDA device"
        if not importlib.util.find_spec(self.package):
            return f"the package {self.package} is not installed"
        if self.name == "jax" and not workload.twin:
            return "no JAX twin of this workload"
        return ""


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("eager", eager),
        Peer("inductor", inductor),
        Peer("reduce-overhead", reduce_overhead),
        Peer("ingot", ingot, package="ingot", preload=False),
        Peer("jax", jax, package="jax", to_torch=from_jax),
    )
}
