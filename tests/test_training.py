"""Compiled programs whose results carry gradients: the same values, gradients, histories and errors
as eager's."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from examples import gpt2
from ingot.compiler import Compiler
from ingot.explain.measure import error


def wanted(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def is_compiled(compiled: Any) -> bool:
    """Whether all of it was compiled, and with its gradients."""
    compiler = Compiler.of(compiled)
    assert compiler is not None
    for compilation in compiler.compilations:
        compilation.log.complete()
    return all(c.skipped is None and c.break_ is None for c in compiler.compilations) and any(
        c.backward is not None and c.backward.skipped is None for c in compiler.compilations
    )


# -- models ----------------------------------------------------------------------------------------


class Cells(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x[0])
        for step in x[1:]:
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


class First(nn.Module):
    """The first of the results of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def small_gpt() -> nn.Module:
    model = gpt2.gpt2(gpt2.Config(layers=2, heads=2, width=32, positions=16, vocabulary=256))
    return model.train().requires_grad_()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
        lambda: wanted(5, 6),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Softmax(-1)),
        lambda: wanted(5, 6)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
                              nn.Linear(54, 3)),
        lambda: torch.randn(4, 3, 8, 8),
    ),
    "lstm cells": (lambda: Cells(nn.LSTMCell(5, 7)), lambda: wanted(4, 3, 5)),
    "gru cells": (lambda: Cells(nn.GRUCell(5, 7)), lambda: wanted(4, 3, 5)),
    "lstm": (lambda: First(nn.LSTM(5, 7)), lambda: wanted(4, 3, 5)),
    "lstm, batch first": (lambda: First(nn.LSTM(5, 7, 2, batch_first=True)),
        lambda: wanted(4, 3, 5)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        lambda: wanted(5, 3, 8)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4)),
        lambda: torch.randint(9, (3, 5))),
    "gpt": (small_gpt, lambda: gpt2.encode(gpt2.TEXT)[:, :32].view(2, 16)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_models(name: str) -> None:
    make, draw = CASES[name]
    torch.manual_seed(0)
    model, x = make(), draw()
    exact = copy.deepcopy(model).double()
    eager, compiled = copy.deepcopy(model), ingot.compile(model, fullgraph=True)
    weights: list[Tensor] = []
    gradients = []
    for m in (exact, eager, compiled):
        for _ in range(2):  # the second call finds .grad there
            torch.manual_seed(1)
            given = x.detach().to(
                torch.float64 if m is exact and x.is_floating_point() else x.dtype
            )
            given.requires_grad_(x.requires_grad)
            y = m(given)
            weights = weights or [torch.randn(y.shape)]
            (y * weights[0].to(y.dtype)).sum().backward()
        gradients.append([p.grad for p in m.parameters()] + [given.grad] * x.requires_grad)
        assert all(g is not None for g in gradients[-1])
    for a, b in zip(eager.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    if name == "dropout":  # float64 draws other numbers
        torch.testing.assert_close(gradients[1], gradients[2], rtol=1e-4, atol=1e-5)
    else:
        errors = [error(found, gradients[0]) for found in gradients[1:]]
        assert errors[1] <= max(1.2 * errors[0], 4 * torch.finfo(torch.float32).eps), errors
    assert is_compiled(compiled)


# -- autograd's meaning ----------------------------------------------------------------------------


def test_without_gradients_nothing_is_recorded() -> None:
    layer = ingot.compile(nn.Linear(3, 3))
    with torch.no_grad():
        assert not layer(torch.randn(2, 3)).requires_grad
    assert layer(torch.randn(2, 3)).requires_grad


def test_parts_without_gradients() -> None:
    def function(x: Tensor) -> Any:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale, scale, x.detach() * 2, (x > 0).sum(), x.detach()[1:]

    x = wanted(4)
    results, expected = ingot.compile(function, fullgraph=True)(x), function(x)
    assert [r.requires_grad for r in results] == [e.requires_grad for e in expected]
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(*(torch.autograd.grad(r[0].sum(), x) for r in (results, expected)))


def test_windows_know_their_base() -> None:
    def function(x: Tensor) -> Any:
        y = x * 2
        return y, y[1:], x[2:]

    compiled = ingot.compile(function, fullgraph=True)
    gradients = []
    for f in (function, compiled, compiled):
        x = wanted(4)
        y, part, alias = f(x.clone())
        part.mul_(3)  # seen in y
        gradients.append(torch.autograd.grad(y.sum() + alias.sum(), x)[0])
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2])


@pytest.mark.parametrize(
    "window", ["x[3:]", "x[1:1]", "x[:, 2:2]", "x.view(3, 4)[:, 4:].view(0, 7)"]
)
def test_a_window_of_nothing_has_a_history(window: str) -> None:
    function = eval(f"lambda x: {window}")
    found = []
    for f in (function, ingot.compile(function, fullgraph=True)):
        x = wanted(3, 4)
        y = f(x)
        tangent = torch.ones_like(y, requires_grad=True)
        (first,) = torch.autograd.grad(y, x, tangent, create_graph=True)
        second = torch.autograd.grad(first.sum(), tangent, allow_unused=True)
        found.append((y, y.stride(), y.storage_offset(), first, first.requires_grad, second))
    torch.testing.assert_close(found[0], found[1])


def test_views_of_all_of_a_result_are_objects_of_their_own() -> None:
    def function(x: Tensor) -> Any:
        y = x.sin()
        return y.view_as(y), y, y

    first, second, third = ingot.compile(function, fullgraph=True)(wanted(4))
    assert first is not second and second is third and first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("window", ["x[3:]", "x.view_as(x)", "(x[1:3], x)", "x[:, 1:]"])
def test_windows_on_a_tensor_whose_elements_share_memory(window: str) -> None:
    function = eval(f"lambda x: {window}")
    found = []
    for f in (function, ingot.compile(function)):
        x = torch.randn(1, 4).expand(6, 4).requires_grad_()
        y = f(x)
        heads = y if isinstance(y, tuple) else (y,)
        tangents = [torch.arange(1.0 * h.numel()).reshape(h.shape) for h in heads]
        found.append(torch.autograd.grad(heads, x, tangents))
    torch.testing.assert_close(*found)


def test_an_output_that_nobody_used() -> None:
    function = ingot.compile(lambda x, w: (x.sin(), w.exp()), fullgraph=True)
    x, w = wanted(3), wanted(3)
    first, _ = function(x, w)
    gradients = torch.autograd.grad(first.sum(), (x, w), allow_unused=True)
    torch.testing.assert_close(gradients[0], x.cos().detach())
    assert gradients[1] is None or not gradients[1].any()


@pytest.mark.parametrize("tangent", ["expanded", "transposed", "other order", "half of it"])
def test_tangents_of_any_layout(tangent: str) -> None:
    x = wanted(4, 4)
    given = {
        "expanded": torch.ones(()).expand(4, 4),
        "transposed": torch.randn(4, 4).t(),
        "other order": torch.randn(4, 8)[:, ::2],
        "half of it": torch.randn(8, 4)[4:],
    }[tangent]
    compiled = ingot.compile(lambda x: (x * 2).exp(), fullgraph=True)
    found = torch.autograd.grad(compiled(x), x, given)
    torch.testing.assert_close(found, torch.autograd.grad((x * 2).exp(), x, given))


def test_the_graph_is_kept_when_asked_for() -> None:
    x = wanted(3)
    y = ingot.compile(lambda x: (x.sin() * x).exp(), fullgraph=True)(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_second_derivatives() -> None:
    x = wanted(5, dtype=torch.float64)
    compiled = ingot.compile(lambda x: (x.sin() ** 2).sum(), fullgraph=True)
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 2 * torch.cos(2 * x).detach())
    torch.autograd.gradgradcheck(ingot.compile(lambda x, w: torch.tanh(x @ w)),
        (wanted(2, 3, dtype=torch.float64),
                                 wanted(3, 2, dtype=torch.float64)))  # fmt: skip


def test_second_derivatives_know_what_was_detached() -> None:
    def function(x: Tensor) -> Any:
        with torch.no_grad():
            scale = x.square().sum()
        y = x * scale * x.detach().exp()
        return y, y[1:], y.sin()

    x = wanted(4, dtype=torch.float64)
    found = []
    for f in (function, ingot.compile(function, fullgraph=True)):
        heads = f(x)
        (first,) = torch.autograd.grad([h.sum() for h in heads], x, create_graph=True)
        found.append((first, torch.autograd.grad(first.sum(), x)))
    torch.testing.assert_close(found[0], found[1])


def test_second_derivatives_through_batch_norm() -> None:
    found = []
    for wrap in (lambda m: m, lambda m: ingot.compile(m, fullgraph=True)):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()))
        x = wanted(6, 3)
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        first.square().sum().backward()
        found.append([first, x.grad, *model.buffers()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_second_derivatives_through_dropout() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x, 0.3).detach() + x, 0.5).pow(3)

    found = []
    for f in (function, ingot.compile(function, fullgraph=True)):
        torch.manual_seed(0)
        x = torch.linspace(0, 1, 50, requires_grad=True)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        found.append((first, torch.autograd.grad(first.sum(), x), torch.rand(2)))
    torch.testing.assert_close(found[0], found[1])


def test_what_is_written_in_between() -> None:
    """Eager refuses to run a backward whose saved tensors were written, and only then."""

    def outcome(f: Callable[..., Tensor], changed: int) -> str:
        inputs = [torch.randn(3), wanted(3), wanted(3)]
        y = f(*inputs)
        with torch.no_grad():
            inputs[changed].add_(1)
        try:
            y.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return "refused"
        return "ran"

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (x * w + b).sin()

    compiled = ingot.compile(function, fullgraph=True)
    for changed in range(3):
        assert outcome(compiled, changed) == outcome(function, changed), changed


def test_an_output_may_be_written() -> None:
    gradients = []
    for f in (torch.sin, ingot.compile(lambda x: x.sin(), fullgraph=True)):
        x = torch.linspace(0, 1, 4, requires_grad=True)
        y = f(x)
        y.add_(1)
        gradients.append(torch.autograd.grad((y * y).sum(), x)[0])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_what_a_graph_keeps_dies_with_it() -> None:
    compiled = ingot.compile(lambda x: (x.exp() @ x.exp()).relu(), fullgraph=True)
    alive = []

    def pack(t: Tensor) -> Tensor:
        alive.append(weakref.ref(t))
        return t

    x = wanted(4, 4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = compiled(x)
    assert alive
    y.sum().backward()
    assert all(type(ref()) in (Tensor, type(None)) for ref in alive)  # never a stand-in
    del y
    gc.collect()
    assert [ref() for ref in alive if ref() is not None and ref() is not x] == []


def test_autocast_does_not_reach_into_the_backward() -> None:
    layer = nn.Linear(8, 8)
    compiled = ingot.compile(layer, fullgraph=True)
    x = wanted(4, 8)
    found = []
    for f in (layer, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            y = f(x)
        assert y.dtype is torch.bfloat16
        found.append(torch.autograd.grad(y.float().square().sum(), (x, layer.weight)))
    torch.testing.assert_close(found[0], found[1], rtol=2e-2, atol=2e-2)


def test_random_numbers_are_eagers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
    compiled = ingot.compile(copy.deepcopy(model), fullgraph=True)
    states = []
    for m in (model, compiled):
        torch.manual_seed(3)
        for _ in range(3):
            m(torch.ones(2, 4)).sum().backward()
        states.append((torch.get_rng_state(), [p.grad for p in m.parameters()]))
    assert torch.equal(states[0][0], states[1][0])
    torch.testing.assert_close(states[0][1], states[1][1])


def test_threads() -> None:
    layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    compiled = ingot.compile(layer, fullgraph=True)
    inputs = [wanted(3, 6) for _ in range(4)]
    found: list[Any] = [None] * 4

    def work(k: int) -> None:
        for _ in range(20):
            found[k] = torch.autograd.grad(compiled(inputs[k]).sum(), inputs[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, gradient in zip(inputs, found):
        torch.testing.assert_close(gradient, torch.autograd.grad(layer(x).sum(), x))


def test_an_optimizer_loop() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(32, 4), torch.randn(32, 1)
    losses = []
    for wrap in (lambda m: m, lambda m: ingot.compile(m, fullgraph=True)):
        torch.manual_seed(1)
        model = wrap(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1])


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "silu", "elu"])
def test_gradients_that_lie_otherwise_than_what_they_are_multiplied_by(name: str) -> None:
    """Of these operands some kernels ask the gradient first how their result lies, others ask the
    other."""

    def f(x: Tensor) -> Tensor:
        return getattr(torch.nn.functional, name)(x.t())[:, 2:]

    x = wanted(19, 4)
    found, expected = (
        torch.autograd.grad(g(x).sum(), x)[0] for g in (ingot.compile(f, fullgraph=True), f)
    )
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
