"""Which devices a graph is compiled for."""

from __future__ import annotations

import pytest
import torch

from ingot.errors import Unsupported
from ingot.graph.fakes import FakeTensor
from ingot.pipeline import _device


def graph_on(*devices: str) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    for k, device in enumerate(devices):
        graph.placeholder(f"x{k}").meta["val"] = FakeTensor(torch.empty(3, device="meta"), torch.device(device))
    return graph


def test_gpus_are_compiled_for_unless_the_user_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_on("cuda:1", "cuda:1")
    for given in (None, "", "1"):
        if given is None:
            monkeypatch.delenv("INGOT_CUDA", raising=False)
        else:
            monkeypatch.setenv("INGOT_CUDA", given)
        assert _device(graph) == torch.device("cuda:1")
    monkeypatch.setenv("INGOT_CUDA", "0")
    with pytest.raises(Unsupported, match="a tensor on the device 'cuda:1'"):
        _device(graph)
    assert _device(graph_on("cpu")) == _device(graph_on()) == torch.device("cpu")


@pytest.mark.parametrize("devices", [("cuda:0", "cpu"), ("cuda:0", "cuda:1"), ("xpu:0",)], ids=str)
def test_what_is_left_to_eager(devices: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported, match="device"):
        _device(graph_on(*devices))
