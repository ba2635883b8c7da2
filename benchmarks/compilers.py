"""The peers: how each turns a workload into a call, and why it cannot where it cannot."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.workloads import Workload

Call = Callable[[], Any]


def eager(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    return partial(function, *args)


def inductor(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    return partial(torch.compile(function), *args)


def reduce_overhead(
    workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]
) -> Call:
    return partial(torch.compile(function, mode="reduce-overhead"), *args)


def ingot(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    import ingot

    return partial(ingot.compile(function), *args)


def ingot_freeze(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """Ingot, told that the weights stay as they are."""
    import ingot

    return partial(ingot.compile(function, options={"freeze": True}), *args)


def knows_freeze() -> str:
    """Why Ingot cannot be told to freeze, "" if it can."""
    from ingot.options import KNOWN_OPTIONS

    return "" if "freeze" in KNOWN_OPTIONS else "this version of Ingot has no option freeze"


def jax(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """Arguments are converted here; the call waits for its result, as a caller who uses it
    would."""
    import jax

    from benchmarks.jax_twins import TWINS, to_jax

    compiled, arrays = jax.jit(TWINS[workload.name]), [to_jax(arg) for arg in args]
    return lambda: jax.block_until_ready(compiled(*arrays))


def onnxruntime(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    from benchmarks import onnx_peers

    return onnx_peers.onnxruntime(function, args)


def openvino(workload: Workload, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    from benchmarks import onnx_peers

    return onnx_peers.openvino(function, args)


def same(result: Any) -> Any:
    return result


def from_jax(result: Any) -> Any:
    from benchmarks.jax_twins import to_torch

    return to_torch(result)


def from_arrays(result: Any) -> Any:
    from benchmarks.onnx_peers import to_torch

    return to_torch(result)


@dataclass(frozen=True)
class Peer:
    """`prepare` gives the call to time. With `preload` the clock starts after the import of
    `package`.

    `lacks` says what else it needs here, "" if nothing.
    """

    name: str
    prepare: Callable[[Workload, Callable[..., Any], tuple[Any, ...]], Call]
    package: str = "torch"
    preload: bool = True
    to_torch: Callable[[Any], Any] = same
    lacks: Callable[[], str] = str

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
        if self.exports and torch.device(device).type != "cpu":
            return "is measured on CPUs only"
        if self.exports and not importlib.util.find_spec("onnxscript"):
            return "the package onnxscript is not installed"
        return self.lacks()

    @property
    def exports(self) -> bool:
        """Whether it is given an ONNX file."""
        return self.to_torch is from_arrays


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("eager", eager),
        Peer("inductor", inductor),
        Peer("reduce-overhead", reduce_overhead),
        Peer("ingot", ingot, package="ingot", preload=False),
        Peer("ingot-freeze", ingot_freeze, package="ingot", preload=False, lacks=knows_freeze),
        Peer("jax", jax, package="jax", to_torch=from_jax),
        Peer("onnxruntime", onnxruntime, package="onnxruntime", to_torch=from_arrays),
        Peer("openvino", openvino, package="openvino", to_torch=from_arrays),
    )
}
