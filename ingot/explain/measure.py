"""Fair measurements: peers that take turns, intervals of ratios, errors against float64, peak
memory."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.native import _native
from ingot.torch_private import tree_leaves, tree_map

BATCH_SECONDS = {"cpu": 2e-4, "cuda": 2e-3}
"""How long one timed batch of calls lasts at least: far above the clock's grain, and on a GPU above
its wait."""


def synchronize(device: torch.device) -> None:
    """Wait for the device; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """The result of one call and the seconds it took, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, time.perf_counter() - start


def repetitions(call: Callable[[], Any], device: torch.device) -> int:
    """How many calls fill one timed batch, judged by the faster of two calls."""
    seconds = min(timed(call, device)[1] for _ in range(2))
    return max(1, round(BATCH_SECONDS.get(device.type, 2e-3) / max(seconds, 1e-7)))


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    device: torch.device,
    step: Callable[[], object] = lambda: None,
    pause: float = 0.0,
) -> dict[str, np.ndarray]:
    """Seconds per call of each peer in each round, shape (rounds,).

    The peers take turns within a round and a different one begins each time, so that a slow spell
    of the machine falls on all alike. Every peer is called at least twice beforehand. `step` is
    called after each round.

    A turn begins with `pause` seconds of sleep, for peers with threads of their own, which spin for
    more work a while, and with an untimed call where calls are short: another peer's data in the
    caches would be counted against it.
    """
    names = list(calls)
    numbers = {name: repetitions(call, device) for name, call in calls.items()}
    short = max(numbers.values(), default=1) > 1
    seconds = {name: np.empty(rounds) for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause)
            if short:
                calls[name]()
            seconds[name][turn] = batch_seconds(calls[name], numbers[name], device)
        step()
    return seconds


def batch_seconds(call: Callable[[], Any], number: int, device: torch.device) -> float:
    """Mean seconds of `number` calls in a row."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(number):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / number


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, level: float = 0.9
) -> tuple[float, float, float]:
    """(low, middle, high): median(numerator) / median(denominator) and its interval at `level`.

    By bootstrap over rounds: a resampled round takes both peers' times of that round.
    """
    drawn = np.random.default_rng(0).integers(0, len(numerator), (2000, len(numerator)))
    ratios = np.median(numerator[drawn], axis=1) / np.median(denominator[drawn], axis=1)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(np.median(numerator) / np.median(denominator)), float(high)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested containers, in order."""
    results = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            results.append(leaf)
    return results


def error(result: Any, reference: Any) -> float:
    """Relative L2 distance of all floating tensors of `result` together from those of `reference`,
    taken in float64.

    Elements equal on both sides, infinities included, and NaN on both sides count as no distance;
    integers must be equal and otherwise make the error infinite. Raises ValueError where the two
    trees do not match.
    """
    pairs = list(zip(tensors(result), tensors(reference), strict=True))
    distance = norm = 0.0
    for value, expected in pairs:
        if value.shape != expected.shape:
            raise ValueError(
                f"shape {tuple(value.shape)} where {tuple(expected.shape)} is expected"
            )
        value, expected = value.detach(), expected.detach().to(value.device)
        if not (value.is_floating_point() or value.is_complex()):
            if not torch.equal(value, expected.to(value.dtype)):
                return float("inf")
            continue
        wide = torch.float64
        if value.is_complex():
            wide = torch.complex128
        value, expected = value.to(wide), expected.to(wide)
        same = (value == expected) | (value.isnan() & expected.isnan())
        difference = torch.where(same, torch.zeros_like(value), value - expected).abs()
        distance += float(difference.square().sum())
        norm += float(expected.abs().square().nan_to_num(0.0, 0.0, 0.0).sum())
    if norm and distance == distance:
        return (distance / norm) ** 0.5
    if distance:  # NaN included
        return float("inf")
    return 0.0


def largest_difference(result: Any, reference: Any) -> float:
    """The largest absolute difference between the tensors of two trees of equal shape."""
    largest = 0.0
    for a, b in zip(tensors(result), tensors(reference), strict=True):
        if a.numel():
            difference = (a.detach().double() - b.detach().double()).abs().nan_to_num(0.0)
            largest = max(largest, float(difference.max()))
    return largest


def in_float64(tree: Any) -> Any:
    """A copy of nested containers with every floating tensor in float64."""
    return tree_map(lambda leaf: leaf.double() if is_floating(leaf) else leaf, tree)


def is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def is_narrow(result: Any) -> bool:
    """Whether some floating tensor is of another dtype than float64."""
    return any(is_floating(t) and t.dtype != torch.float64 for t in tensors(result))


def reference64(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any | None:
    """The result in float64: a copy of a module with its weights widened, or the function on
    widened arguments.

    None when that cannot be had: the function raises on float64, or answers in a narrower type all
    the same.
    """
    try:
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).double()
        result = function(*in_float64(args), **in_float64(dict(kwargs)))
    except Exception:  # the user's program may refuse float64 in any way it likes
        return None
    return None if is_narrow(result) else result


def bytes_of(tree: Any) -> int:
    """Bytes of the distinct storages under the tensors of `tree`."""
    by_address = {}
    for tensor in tensors(tree):
        storage = tensor.untyped_storage()
        by_address[storage.data_ptr()] = storage.nbytes()
    return sum(by_address.values())


def peak_bytes(call: Callable[[], Any], inputs: Any, device: torch.device, before: int = 0) -> int:
    """Peak bytes of one call: what `inputs` hold, and the most that torch's allocator has handed
    out beside it.

    What so many calls `before` it have left behind counts as well, and so does what Ingot holds for
    further results.
    """
    for _ in range(before if device.type == "cuda" else 0):
        call()
    if device.type == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        synchronize(device)
        return bytes_of(inputs) + torch.cuda.max_memory_allocated(device) - before
    _native.trim_heap()  # what is held from here on is seen by the profiler
    # the profiler announces itself on stderr otherwise
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        for _ in range(before):
            call()
        with torch.profiler.record_function("the last call"):
            result = call()
    del result
    live = peak = 0
    recorded: Any = profile.profiler
    for event in sorted(recorded.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "the last call":
            peak = live
        elif event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return bytes_of(inputs) + peak
