"""Donated arguments on the device: memory is taken from torch's caching allocator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ingot

SIDE = 1024


def made() -> Tensor:
    return torch.linspace(-2, 2, SIDE * SIDE, device="cuda").reshape(SIDE, SIDE).clone()


def scaled(x: Tensor) -> Tensor:
    return torch.relu(x) * 2 + 1


@torch.no_grad()
def test_the_result_lies_where_the_argument_lay() -> None:
    compiled = ingot.compile(scaled, options={"donate": ("x",)})
    for _ in range(3):
        x = made()
        expected, place = scaled(x), x.data_ptr()
        del expected
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = compiled(x)
        assert result.data_ptr() == place and torch.cuda.max_memory_allocated() < before + 4096
        torch.testing.assert_close(result, scaled(made()))
        with pytest.raises(ingot.DonationError, match="argument 'x' of scaled"):
            x.sum()


@torch.no_grad()
def test_what_a_replay_reads_stays() -> None:
    compiled = ingot.compile(scaled, options={"donate": ("x",)}, mode="reduce-overhead")
    for _ in range(4):
        x = made()
        torch.testing.assert_close(compiled(x), scaled(x))
    [line] = ingot.explain(compiled)(x).donations
    assert "stays: the program is replayed as a CUDA graph" in line


@torch.no_grad()
def test_what_is_recorded_stays() -> None:
    compiled, x = ingot.compile(scaled, options={"donate": ("x",)}), made()
    compiled(x.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    graph.replay()
    torch.testing.assert_close(result, scaled(x))
