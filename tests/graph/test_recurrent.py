"""Recurrent layers as a GPU's graphs hold them, with a stand-in for cuDNN on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot import pipeline
from ingot.compiler import Compiler
from ingot.graph import recurrent
from ingot.loops import recurrent_ops
from ingot.loops.recurrent_ops import Settings
from tests.runtime.fake_graphs import FakeGraphs

FUNCTIONS = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
RESERVE = 24


def forward(
    x: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor | None, *settings: Any
) -> tuple[Tensor, ...]:
    to = Settings(*settings)
    assert hx.is_contiguous() and to.reserve == (RESERVE if to.train else 0)
    each = len(weights) // (to.layers * (1 + to.both)) - bool(to.projected)
    states: Any = hx if cx is None else (hx, cx)
    output, *final = FUNCTIONS[to.mode](
        x, states, weights, each == 4, to.layers, 0.0, to.train, to.both, False
    )
    kept = torch.full((to.reserve,), 7, dtype=torch.uint8)
    return output.contiguous(), *final, *([x.new_empty(0)] if cx is None else []), kept


def backward(
    x: Tensor,
    weights: list[Tensor],
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    *rest: Any,
) -> list[Tensor]:
    *tangents, of_weights = rest[:4]
    assert reserve.tolist() == [7] * RESERVE and rest[9]
    inputs = [t.detach().requires_grad_() for t in (x, hx, cx, *weights) if t is not None]
    with torch.enable_grad():
        states = inputs[1:] if cx is None else inputs[1:3]
        found = forward(
            inputs[0],
            inputs[-len(weights) :],
            states[0],
            None if cx is None else states[1],
            *rest[4:],
        )
        given = [(o, t) for o, t in zip(found, tangents) if t is not None]
        gradients = torch.autograd.grad(
            [o for o, _ in given], inputs, [t for _, t in given], allow_unused=True
        )
    gradients = [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, gradients)]
    return gradients if of_weights else gradients[: len(inputs) - len(weights)]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library = torch.library.Library("ingot", "IMPL")
    library.impl("cudnn_rnn", forward, "CPU")
    library.impl("cudnn_rnn_backward", backward, "CPU")
    monkeypatch.setattr(recurrent, "serves", lambda x: True)
    monkeypatch.setattr(recurrent, "reserve_bytes", lambda *args: RESERVE)
    yield
    library._destroy()


LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, both, two layers": (
        nn.LSTM,
        {"bidirectional": True, "num_layers": 2, "batch_first": True},
    ),
    "lstm, projected": (nn.LSTM, {"proj_size": 3}),
    "lstm, no biases": (nn.LSTM, {"bias": False}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "gru, both": (nn.GRU, {"bidirectional": True, "batch_first": True}),
    "tanh": (nn.RNN, {"num_layers": 2}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
}


def flat(tree: Any) -> list[Tensor]:
    return [tree] if isinstance(tree, Tensor) else [t for item in tree for t in flat(item)]


def functions_of(compilation: Any) -> list[str]:
    return [
        str(node.target) for node in compilation.log.aten.graph.nodes if node.op == "call_function"
    ]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("used", ["output", "state", "all"])
def test_training(name: str, used: str) -> None:
    kind, options = LAYERS[name]
    torch.manual_seed(0)
    layer = kind(5, 6, **options)
    x = torch.randn(4, 3, 5, requires_grad=True)

    def gradients(call: Any) -> list[Tensor]:
        output, state = call(x)
        results = {"output": [output], "state": flat(state)[:1], "all": flat((output, state))}[used]
        total = sum((t * t).sum() for t in results)
        return [*results, *torch.autograd.grad(total, [x, *layer.parameters()])]

    compiled = ingot.compile(layer, fullgraph=True)
    for _ in range(2):
        for a, b in zip(gradients(compiled), gradients(layer), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride() or a.shape[0] == 1
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    assert functions_of(compilation).count("ingot.cudnn_rnn.default") == 1
    assert functions_of(compilation.backward).count("ingot.cudnn_rnn_backward.default") == 1


@pytest.mark.parametrize("name", LAYERS)
def test_inference(name: str) -> None:
    kind, options = LAYERS[name]
    layer = kind(5, 6, **options).eval()
    x = torch.randn(4, 3, 5)
    compiled = ingot.compile(layer, fullgraph=True)
    with torch.no_grad():
        for a, b in zip(flat(compiled(x)), flat(layer(x)), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


def test_inference_over_any_batch() -> None:
    layer = nn.LSTM(5, 6).eval()
    compiled = ingot.compile(layer, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, steps in ((3, 4), (7, 4), (2, 9), (5, 6), (8, 3)):
            x = torch.randn(steps, batch, 5)
            for a, b in zip(flat(compiled(x)), flat(layer(x)), strict=True):
                torch.testing.assert_close(a, b)
    compilations = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    assert len(compilations) == 1 and "ingot.cudnn_rnn.default" in functions_of(compilations[0])


def test_a_state_that_is_given_has_a_gradient() -> None:
    layer, x = nn.GRU(5, 6), torch.randn(4, 3, 5)
    hidden = torch.randn(1, 3, 6, requires_grad=True)
    layer.requires_grad_(False)
    compiled = ingot.compile(layer, fullgraph=True)
    found, expected = (
        torch.autograd.grad(call(x, hidden)[0].sum(), hidden)[0] for call in (compiled, layer)
    )
    torch.testing.assert_close(found, expected)


def test_graphs_may_be_kept() -> None:
    layer, x = nn.LSTM(5, 6), torch.randn(4, 3, 5)
    loss = ingot.compile(layer, fullgraph=True)(x)[0].sum()
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(loss, list(layer.parameters()))):
        assert torch.equal(a, b)


REASONS: dict[str, tuple[Any, str]] = {
    "dropout": (lambda: nn.LSTM(5, 6, num_layers=2, dropout=0.5), "dropout between the layers"),
    "evaluation": (lambda: nn.LSTM(5, 6).eval(), "in evaluation mode"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_runs_in_eager(name: str) -> None:
    make, reason = REASONS[name]
    layer, x = make(), torch.randn(4, 3, 5)
    report = ingot.explain(layer)(x)
    assert any(reason in stop.reason for stop in report.breaks)
    compiled = ingot.compile(layer)
    for _ in range(3):
        torch.manual_seed(3)
        found = compiled(x)[0]
        torch.manual_seed(3)
        torch.testing.assert_close(found, layer(x)[0])


def test_second_derivatives_are_eagers() -> None:
    layer, x = nn.LSTM(5, 6), torch.randn(4, 3, 5, requires_grad=True)
    compiled = ingot.compile(layer, fullgraph=True)

    def second(call: Any) -> Tensor:
        (first,) = torch.autograd.grad(call(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(compiled), second(layer))


def test_a_layer_alone_is_worth_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeGraphs()
    monkeypatch.setattr(pipeline, "machine_of", lambda device: machine)
    layer, x = nn.GRU(5, 6), torch.randn(4, 3, 5)
    compiled: Any = ingot.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(6):
        found, expected = (
            torch.autograd.grad(sum(t.square().sum() for t in call(x)), list(layer.parameters()))
            for call in (compiled, layer)
        )
        torch.testing.assert_close(found, expected)
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    assert compilation.log.replayed.replays and compilation.backward.log.replayed.replays


def test_places_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights one after the other, in another order, and with a gap in front."""
    to = Settings(2, 2, 0, 1, False, False, 0)
    shapes = [torch.Size(s) for s in ((8, 3), (8, 2), (8,), (8,))]
    memory = torch.zeros(100)

    def windows(*begins: int) -> list[Tensor]:
        return [memory[b : b + s.numel()].view(s) for b, s in zip(begins, shapes)]

    monkeypatch.setattr(recurrent_ops, "_places", lambda *args: ([0, 96, 160, 192], 56))
    x = torch.zeros(1, 1, 3)
    found = recurrent_ops._flat(x, windows(0, 24, 40, 48), to)
    assert found is not None and found.shape == (56,) and found.data_ptr() == memory.data_ptr()
    assert recurrent_ops._flat(x, windows(0, 24, 48, 40), to) is None
    assert recurrent_ops._flat(x, windows(4, 28, 44, 52), to) is None
    assert recurrent_ops._flat(x, [w.clone() for w in windows(0, 24, 40, 48)], to) is None
