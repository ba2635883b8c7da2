"""What profilers see of launches on a GPU."""

from __future__ import annotations

import torch
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
