"""What profilers see of launches on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import ingot


def test_launches_and_the_kernels_that_they_start() -> None:
    compiled = ingot.compile(lambda x: torch.relu(x @ x + 1).sum(-1))
    x = torch.randn(256, 256, device="cuda")
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        compiled(x)
        torch.cuda.synchronize()
    launches = [event for event in profiled.events() if event.name.startswith("ingot::")]
    assert any("sum" in event.name and "test_profiler.py" in event.name for event in launches)
    # torch lays what runs on the device to the innermost event of the thread that launched it
    assert sum(event.device_time_total for event in launches) > 0


@pytest.mark.skipif(
    not hasattr(torch.cuda.memory, "_set_memory_metadata"), reason="this torch has no such text"
)
@torch.no_grad()
def test_snapshots_of_memory_name_steps() -> None:
    def summed(x: Tensor) -> Tensor:
        return torch.relu(x) + 1

    compiled, x = ingot.compile(summed), torch.ones(1 << 20, device="cuda")
    compiled(x)
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory._set_memory_metadata("the user's")
    try:
        compiled(x)
        assert torch.cuda.memory._get_memory_metadata() == "the user's"
        traces = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._set_memory_metadata("")
        torch.cuda.memory._record_memory_history(None)
    texts = [entry.get("user_metadata", "") for entry in traces if entry["action"] == "alloc"]
    assert any("ingot::relu" in text and "test_profiler.py" in text for text in texts), texts
