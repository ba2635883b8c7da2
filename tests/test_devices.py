"""Which devices a graph is compiled for."""

from __future__ import annotations

import pytest
import torch

from ingot.errors import Unsupported
from ingot.graph.fakes import FakeTensor
from ingot.loops.sides import moves, on_host
from ingot.pipeline import _device


def graph_on(*devices: str) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    for k, device in enumerate(devices):
        graph.placeholder(f"x{k}").meta["val"] = FakeTensor(
            torch.empty(3, device="meta"), torch.device(device)
        )
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


def test_numbers_on_the_cpu_go_along_with_a_gpu() -> None:
    graph = graph_on("cpu", "cuda:1")
    x, y = graph.nodes
    assert _device(graph) == torch.device("cuda:1") and on_host(graph) == {x}
    copy = graph.call_function(
        torch.ops.aten._to_copy.default, (x,), {"device": y.meta["val"].device}
    )
    copy.meta["val"] = y.meta["val"]
    assert on_host(graph) == {x} and moves(copy, on_host(graph))
    for of, refused in ((x, True), (y, False)):
        used = graph.call_function(torch.ops.aten.neg.default, (of,))
        used.meta["val"] = of.meta["val"]
        if refused:
            with pytest.raises(
                Unsupported, match="neg of tensors on the CPU, beside those on cuda:1"
            ):
                on_host(graph)
            graph.erase_node(used)
    assert on_host(graph) == {x}


@pytest.mark.parametrize("devices", [("cpu", "xpu:0"), ("cuda:0", "cuda:1"), ("xpu:0",)], ids=str)
def test_what_is_left_to_eager(devices: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported, match="device"):
        _device(graph_on(*devices))
