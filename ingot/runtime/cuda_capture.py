"""The part of CUDA graphs that needs a GPU: recording on a stream of its own, and replaying."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from ingot.collection import paused_collection
from ingot.native import _native
from ingot.runtime.cuda_graphs import Costs, Machine
from ingot.torch_private import (
    CUDAGraph,
    cuda_end_allocate_to_pool,
    cuda_get_current_raw_stream,
    cuda_get_device,
    cuda_is_current_stream_capturing,
)


class Replay:
    """Replays a graph.

    One that dies while another is recorded, as garbage or with its function, is kept until the
    next recording: to destroy it then would spoil that.
    """

    kept: ClassVar[list[torch.cuda.CUDAGraph]] = []

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.graph = graph

    def __call__(self) -> None:
        CUDAGraph.replay(self.graph)

    def __del__(
        self, is_recording: Callable[[], bool] = torch.cuda.is_current_stream_capturing
    ) -> None:
        if is_recording():
            self.kept.append(self.graph)


class Cuda:
    """`cuda_graphs.Machine` of one device. Its streams and pools are few, and never freed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.costs = Costs()
        self._side: torch.cuda.Stream | None = None

    def stream(self) -> int | None:
        index = self.device.index
        if cuda_get_device() != index or cuda_is_current_stream_capturing():
            return None
        return cuda_get_current_raw_stream(index)

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(
        self, run: Callable[[], Sequence[Any]], pool: Any
    ) -> tuple[Callable[[], None], Sequence[Any]]:
        Replay.kept.clear()
        # one for all: memory of a pool serves the stream that it was allocated on
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        graph, side = torch.cuda.CUDAGraph(), self._side
        current = torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side), paused_collection():
            # Other threads may go on meanwhile, also with what must not be recorded.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            _native.record_for_itself(True)
            try:
                outputs = run()
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                self._mend(pool)
                raise
            finally:
                _native.record_for_itself(False)
            try:
                graph.capture_end()
            except Exception:
                self._mend(pool)
                raise
        current.wait_stream(side)
        return Replay(graph), outputs

    def _mend(self, pool: Any) -> None:
        """End what a recording that failed has begun.

        It leaves the allocator waiting for its end, and the random numbers' state marked as being
        recorded; a copy of the state is not.
        """
        with contextlib.suppress(Exception):
            cuda_end_allocate_to_pool(self.device.index, pool)
        generator = torch.cuda.default_generators[self.device.index]
        with contextlib.suppress(Exception):
            generator.graphsafe_set_state(generator.clone_state())


@functools.cache
def machine_of(device: torch.device) -> Machine | None:
    """What records on a device; None where nothing does."""
    if device.type == "cuda":
        return Cuda(device)
    return None
