"""The benchmark of several ranks: what it reads out of traces, and that it runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from benchmarks import distributed
from tests.long import long


def _event(name: str, start: int, end: int, device: str = "DeviceType.CPU") -> SimpleNamespace:
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device
    )


def test_intervals():
    assert distributed.joined([(5, 7), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 7)]
    assert distributed.uncovered([(0, 10)], []) == 10
    assert distributed.uncovered([(0, 10), (5, 12)], [(2, 4), (3, 6), (11, 20)]) == 7
    assert distributed.uncovered([(2, 3)], [(0, 10)]) == 0


def test_communication_is_exposed_where_nothing_is_computed():
    events = [
        _event("gloo:all_reduce", 0, 10),
        _event("ingot::linear backward model.py:3 [mm]", 2, 5),
        _event("aten::addmm", 4, 6),
        _event("ingot::wait_tensor", 6, 10),  # it waits
        _event("autograd::engine", 0, 10),
    ]
    assert distributed.exposed_communication(events) == (10, 6)
    on_device = [
        _event("ncclDevKernel_AllReduce_Sum_f32", 0, 8, "DeviceType.CUDA"),
        _event("triton_poi_fused", 3, 5, "DeviceType.CUDA"),
        _event("aten::addmm", 0, 8),
        _event("FSDP::post_backward", 0, 8),
        _event("FSDP::post_backward", 0, 8, "DeviceType.CUDA"),  # what it queues, which is no work
    ]
    assert distributed.exposed_communication(on_device) == (8, 6)


def test_steps_in_the_middle_are_averaged():
    events = []
    for number, length in enumerate((90, 10, 20, 30, 90)):
        start = 100 * number
        events.append(_event(f"traced step {number}", start, start + length))
        events.append(_event("gloo:all_reduce", start + 1, start + length))
        events.append(_event("aten::addmm", start + 5, start + length))
    assert distributed._of_middle_steps(events) == (19, 4)


def test_plans_are_printed(capsys):
    distributed.main(["--simulate", "--blocks", "4", "--width", "512"])
    printed = capsys.readouterr().out
    assert "4 blocks of 512" in printed and printed.count("FSDP2 of blocks") == 5


@long
@pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)
def test_ranks_are_measured(capsys):
    small = ["--blocks", "2", "--width", "32", "--batch", "8", "--rounds", "2"]
    distributed.main([*small, "--backend", "gloo", "--peers", "eager", "ingot"])
    printed = capsys.readouterr().out
    for way in distributed.WAYS:
        assert printed.count(f" {way} ") == 2
