"""What a training step holds: at most what eager's holds. (What is held between steps: tests/native/test_heap.py.)"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from examples import gpt2
from ingot.compiler import Compiler
from ingot.explain.measure import peak_bytes

CPU = torch.device("cpu")


def perceptron() -> tuple[nn.Module, Tensor]:
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(2048, 64)


def images() -> tuple[nn.Module, Tensor]:
    layers = [part for _ in range(3) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(4, 8, 32, 32)


def language() -> tuple[nn.Module, Tensor]:
    model = gpt2.gpt2(gpt2.Config(layers=3, heads=2, width=64, positions=64, vocabulary=256))
    return model.requires_grad_(), torch.randint(256, (4, 64))


class Recurrence(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for part in x.unbind():
            state = self.cell(part, state)
        return state[0] if isinstance(state, tuple) else state


def lstm() -> tuple[nn.Module, Tensor]:
    return Recurrence(nn.LSTMCell(64, 64)), torch.randn(8, 32, 64)


def gru() -> tuple[nn.Module, Tensor]:
    return Recurrence(nn.GRUCell(64, 64)), torch.randn(16, 32, 64)


class Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight / 3 * x).exp() / x.shape[0]


def step(model: Callable[..., Tensor], parameters: list[Tensor], x: Tensor) -> None:
    for parameter in parameters:
        parameter.grad = None
    model(x).square().mean().backward()


@pytest.mark.parametrize("make", [perceptron, images, language, lstm, gru])
def test_a_step_holds_no_more_than_eagers(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    parameters = list(model.parameters())
    eager = peak_bytes(partial(step, model, parameters, x), (parameters, x), CPU, before=1)
    compiled = ingot.compile(model, fullgraph=True)
    assert peak_bytes(partial(step, compiled, parameters, x), (parameters, x), CPU, before=2) <= eager


def test_what_is_kept_dies_with_its_last_use() -> None:
    """The plan of the backward lets each kept tensor go."""
    model, x = perceptron()
    compiled: Any = ingot.compile(model, fullgraph=True)
    step(compiled, list(model.parameters()), x)
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    plan = compilation.backward.plan
    dead_after = {name: k for k, names in plan.last_use.items() for name in names}
    kept = [name for name in plan.graph.inputs if name in dead_after]
    assert len({dead_after[name] for name in kept}) >= 6
    assert plan.frugal and plan.arena_bytes.constant == 0
    assert plan.peak_bytes.constant < sum(
        plan.graph.buffers[name].length.constant * 4 for name in {*plan.graph.inputs, *plan.graph.buffers}
    )


def test_histories_of_the_compilation_are_forgotten() -> None:
    """Autograd's nodes of a capture would hold its fakes and numbers for good."""
    compiled: Any = ingot.compile(Divided(), fullgraph=True)
    x = torch.randn(16)
    compiled(x).sum().backward()
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    nodes = compilation.captured.graph_module.graph.nodes
    assert [n.meta["val"].shape for n in nodes if n.target in (torch.exp, "exp")] == [x.shape]
    assert not [n for n in nodes if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].grad_fn is not None]
    (loss,) = torch.autograd.grad(compiled(x).sum(), compiled.weight, create_graph=True)
    expected = (compiled.weight / 3 * x).exp() * x * x / 9 / 16
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), compiled.weight)[0], expected)


def test_the_graph_may_be_kept_and_used_again() -> None:
    model, x = perceptron()
    compiled = ingot.compile(model, fullgraph=True)
    loss = compiled(x).square().mean()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs huge pages")
def test_large_results_of_training_ask_for_huge_pages() -> None:
    """Their memory is new in every step; 36 MB are more than the C library keeps."""
    result = ingot.compile(torch.exp)(torch.zeros(3000, 3000, requires_grad=True))
    middle, flags, inside = result.data_ptr() + result.nbytes // 2, "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= middle < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            flags = line
    assert "hg" in flags.split()
