"""A stand-in for CUDA graphs on a CPU: a replay runs the program on the memory that it was recorded
with, writes its results where they were, and spoils all that a replay may overwrite."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.native import _native
from ingot.runtime.cuda_graphs import Costs


def in_place(value: Any) -> Any:
    """What is in the memory of a tensor, which it does not own: the tensor may go, and another take
    its place."""
    if not isinstance(value, Tensor):
        return value
    if value.numel() == 0:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    length = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride())) + 1
    memory = (ctypes.c_char * (length * value.itemsize)).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=value.dtype).as_strided(value.shape, value.stride())


def storage(t: Tensor) -> int:
    return _native.storages([t])[0]


def memory(t: Tensor) -> Tensor:
    """The bytes from the first element of a tensor to its last, whatever its version says of writes
    to them."""
    length = (
        sum((size - 1) * stride for size, stride in zip(t.shape, t.stride())) + 1
        if t.numel()
        else 0
    )
    nothing = torch.empty(0, dtype=torch.uint8)
    if not length or not t.data_ptr():
        return nothing
    return torch.frombuffer(
        (ctypes.c_char * (length * t.itemsize)).from_address(t.data_ptr()), dtype=torch.uint8
    )


class Graph:
    def __init__(self, machine: FakeGraphs, run: Any, pool: Any, results: Sequence[Any]) -> None:
        self.machine, self.program, self.args = machine, run.func, [in_place(t) for t in run.args]
        given = {storage(t) for t in run.args if isinstance(t, Tensor)}
        self.results = [
            t if isinstance(t, Tensor) and storage(t) not in given else None for t in results
        ]
        self.neighbours = machine.pools[pool]
        self.neighbours.append(self)

    def replay(self) -> None:
        self.machine.replays += 1
        with torch.no_grad():
            for place, fresh in zip(self.results, self.program(*self.args)):
                if place is not None:
                    memory(place).copy_(memory(fresh))
            for later in self.neighbours[self.neighbours.index(self) + 1 :]:
                later.spoil()

    def spoil(self) -> None:
        for t in self.results:
            if t is not None:
                memory(t).fill_(255)


class FakeGraphs:
    """`cuda_graphs.Machine`, on which all replays pay. `current` is the stream."""

    def __init__(self) -> None:
        self.costs = Costs(launch_seconds=1.0, least_launches=1, waiting=("nonzero",))
        self.pools: dict[Any, list[Graph]] = {}
        self.captures, self.replays = 0, 0
        self.current: int | None = 0
        self.error: Exception | None = None

    def stream(self) -> int | None:
        return self.current

    def pool(self) -> int:
        self.pools[len(self.pools)] = []
        return len(self.pools) - 1

    def capture(self, run: Any, pool: Any) -> tuple[Callable[[], None], Sequence[Any]]:
        if self.error is not None:
            raise self.error
        self.captures += 1
        before = [t.detach().clone() if isinstance(t, Tensor) else t for t in run.args]
        results = run()
        for t, old in zip(run.args, before):  # nothing ran
            if isinstance(t, Tensor) and t.numel():
                in_place(t).copy_(old)
        graph = Graph(self, run, pool, results)
        graph.spoil()
        return graph.replay, results
