"""The page of a report of a program on a GPU: its timeline has the streams."""

from __future__ import annotations

import torch
from torch import nn

import ingot
from ingot.explain.page.recording import document_of


def test_kernels_on_a_stream_are_steps_of_the_program() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.LayerNorm(256)).cuda()
    x = torch.randn(64, 256, device="cuda")
    compiled = ingot.compile(model)
    with torch.no_grad():
        compiled(x)
        report = ingot.explain(compiled)(x)
        data = document_of(report, lambda: compiled(x), lambda: model(x))
    for shown in data["timelines"]:
        streams = [lane for lane in shown["lanes"] if lane["gpu"]]
        assert streams and all(lane["name"].startswith("GPU ") for lane in streams)
        events = [event for lane in streams for event in lane["events"]]
        modules = {event["module"] for event in events}
        if shown["name"] == "Ingot":  # the kernel of activation and norm has the first one's module
            assert modules == {"self[0]", "self[1]"}
            assert {event["kernel"] for event in events} == {0, 1}
        else:
            assert modules == {"self[0]", "self[1]", "self[2]"}
    assert data["limits"]["device"] == torch.cuda.get_device_name()
