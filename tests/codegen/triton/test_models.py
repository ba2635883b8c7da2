"""The kernels of small networks, forward and backward, compiled for devices that need not be
there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from examples import gpt2
from ingot.codegen.triton import Gpu, compile_kernels, supported
from ingot.codegen.triton.module import available
from ingot.compiler import Compiler
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.schedule import schedule
from ingot.schedule.plan import KernelStep

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

DEVICES = [Gpu("cuda", 80), Gpu("cuda", 90), Gpu("cuda", 100), Gpu("hip", "gfx942")]


def language() -> tuple[nn.Module, torch.Tensor]:
    model = gpt2.gpt2(gpt2.Config(layers=2, heads=2, width=64, positions=64, vocabulary=256))
    return model.requires_grad_(), torch.randint(256, (2, 64))


def images() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 8),
    ]
    return nn.Sequential(
        *layers, nn.SiLU(), nn.Upsample(scale_factor=2), nn.Softmax(1)
    ), torch.randn(2, 8, 16, 16)


def steps(model: nn.Module, x: torch.Tensor) -> list[KernelStep]:
    """The launches of a model's forward and backward on a GPU, from the graphs that a CPU's
    compilation left."""
    compiled: Any = ingot.compile(model, fullgraph=True)
    compiled(x).sum().backward()
    compilation = Compiler.of(compiled).compilations[-1]  # type: ignore[union-attr]
    assert compilation.backward is not None
    graphs = [compilation.log.aten, compilation.backward.log.aten]
    plans = [schedule(lower(graph, supported, target=GPU), target=GPU) for graph in graphs]
    found = [[step for step in plan.steps if isinstance(step, KernelStep)] for plan in plans]
    assert all(found)
    return sum(found, [])


@pytest.fixture(scope="module")
def launches() -> list[KernelStep]:
    return [step for made in (language(), images()) for step in steps(*made)]


@pytest.mark.parametrize("gpu", DEVICES, ids=str)
def test_networks_compile(launches: list[KernelStep], gpu: Gpu) -> None:
    compiled = compile_kernels(launches, gpu)
    assert 10 < compiled.function_count < len(launches)
    for step in launches:
        binary = compiled.binary(step.kernel)
        assert binary.image[:4] == b"\x7fELF" and binary.threads <= 1024
        assert binary.shared <= 64 << 10  # the least that one of these devices gives a block
