"""Gradients at sizes that vary, and what is written there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near
from tests.test_dynamic_shapes import Cache, counts
from tests.tracked import Tracked

# -- gradients -------------------------------------------------------------------------------------


def twice_differentiated(x: Tensor) -> Tensor:
    return (x @ x.t()).sin() + x.mean()


WITH_GRADIENTS = {
    "a network": (nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 3)),
        ((4, 6), (6, 6), (9, 6), (3, 6), (2, 6))),
    "norms": (nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Softmax(-1)),
        ((4, 6), (6, 6), (9, 6), (3, 6))),
    "losses": (lambda x: F.mse_loss(x, x.sin()) + F.smooth_l1_loss(x, x.cos()),
        ((4, 6), (7, 8), (3, 5))),
    "products": (twice_differentiated, ((4, 6), (7, 8), (3, 5), (16, 2))),
    "windows": (lambda x: (x[1:], x.view(-1), x.sin(), x.shape[0] * x),
        ((4, 6), (7, 8), (3, 5), (16, 2))),
    "outputs that share memory": (lambda x: (lambda y: (y, y[0], y.t()))(x.sin()),
        ((4, 6), (7, 8), (3, 5), (6, 2))),
    "indices": (lambda x: x[torch.arange(x.shape[0]).flip(0)] * x.amax(), ((4, 6), (7, 8), (3, 5))),
    "broadcast": (lambda x: x[:, None].expand(-1, 3, -1).flatten(0, 1) * x.repeat(3, 1),
        ((4, 6), (7, 8), (3, 5))),
    "in place": (lambda x: (x * 2).add_(1).mul_(x).relu_(), ((4, 6), (7, 8), (3, 5))),
    "an integer": (lambda x: x * x.numel() - x.shape[0], ((4, 6), (7, 8), (3, 5))),
}  # fmt: skip


def differentiated(function: Any, shape: tuple[int, ...], order: int) -> list[Tensor]:
    """The results of a call, and all its gradients up to some order."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).requires_grad_()
    inputs = [x, *(function.parameters() if isinstance(function, nn.Module) else ())]
    found = heads = list(tree_flatten(function(x))[0])
    for step in range(order):
        tangents = [torch.randn(h.shape, generator=generator) for h in heads]
        gradients = torch.autograd.grad(
            heads, inputs, tangents, create_graph=step + 1 < order, allow_unused=True
        )
        found = [*found, *(g for g in gradients if g is not None)]
        heads = [g for g in gradients if g is not None and g.requires_grad]
    return found


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_with_gradients(name: str, order: int) -> None:
    function, shapes = WITH_GRADIENTS[name]
    compiled = ingot.compile(function, fullgraph=True)
    compiler = Compiler.of(compiled)
    counts = []
    for shape in (*shapes, shapes[0]):
        before = len(compiler.compilations)
        assert_near(
            differentiated(compiled, shape, order), differentiated(function, shape, order), 1e-4
        )
        counts.append(len(compiler.compilations) - before)
    assert sum(counts) == 2 and sum(counts[2:]) == 0
    for compilation in compiler.compilations:
        compilation.log.complete()
    backwards = [c.backward for c in compiler.compilations]
    assert all(b is not None and b.skipped is None for b in backwards)
    # whose second derivatives ask more of the sizes, when the entry is in use
    if order > 1 and name != "norms":
        assert all(b.backward is None or b.backward.skipped is None for b in backwards)


class Block(nn.Module):
    """A transformer's layer, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.projections, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.projections(self.norm(x)).split(width, -1)
        q, k, v = (p.view(batch, length, 2, 4).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Cells(nn.Module):
    """An LSTM from cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 5), x.new_zeros(x.shape[0], 5)
        for step in range(3):
            state = self.cell(x + step, state)
        return torch.cat(state)


class Last(nn.Module):
    """What a recurrent layer gives."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, state = self.layer(x)
        return (output, *state) if isinstance(state, tuple) else (output, state)


def convolutions() -> nn.Module:
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    first = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    return nn.Sequential(
        first, nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), last
    )


IMAGES = ((4, 8, 6, 6), (6, 8, 6, 6), (3, 8, 6, 6), (9, 8, 6, 6))
OF_ALL_SIZES = ((4, 8, 6, 7), (6, 8, 9, 8), (3, 8, 8, 6), (2, 8, 5, 9))

HEADS = ((2, 3, 5, 4), (3, 3, 7, 4), (4, 3, 9, 4))

OF_LIBRARIES = {
    "a transformer's layer": (Block, ((2, 5, 8), (3, 7, 8), (4, 9, 8), (2, 3, 8))),
    "attention": (lambda: lambda x: F.scaled_dot_product_attention(x, x * 2, x), HEADS),
    "an LSTM from cells": (Cells, ((4, 6), (7, 6), (3, 6))),
    "an LSTM": (lambda: Last(nn.LSTM(6, 5)), ((4, 3, 6), (7, 2, 6), (3, 3, 6), (2, 5, 6))),
    "both ways": (
        lambda: Last(nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)),
        ((4, 5, 6), (4, 7, 6), (4, 4, 6), (4, 3, 6)),
    ),
    "without biases": (lambda: Last(nn.LSTM(6, 5, bias=False)), ((4, 3, 6), (7, 2, 6), (3, 3, 6))),
    "a GRU": (lambda: Last(nn.GRU(6, 5, 2, bidirectional=True)), ((4, 3, 6), (4, 7, 6), (4, 2, 6))),
    "a plain RNN": (lambda: Last(nn.RNN(6, 5, batch_first=True)),
        ((3, 4, 6), (7, 4, 6), (2, 4, 6))),
    "other cells": (lambda: nn.Sequential(nn.GRUCell(6, 6), nn.RNNCell(6, 6)),
        ((4, 6), (7, 6), (3, 6))),
    "a convolutional network": (convolutions, ((4, 3, 16, 16), (6, 3, 16, 16), (3, 3, 16, 16))),
    "many channels": (lambda: nn.Conv2d(8, 16, 3, padding=1), IMAGES),
    "a window of one element": (lambda: nn.Conv2d(8, 16, 1), OF_ALL_SIZES),
    "in groups": (lambda: nn.Conv2d(8, 8, 3, groups=2), IMAGES),
    "of each channel": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), IMAGES),
    "transposed": (lambda: nn.ConvTranspose2d(8, 4, 2, stride=2), IMAGES),
    "of rows": (lambda: nn.Conv1d(8, 4, 3, padding=1), ((4, 8, 6), (6, 8, 9), (3, 8, 5))),
    "group norm": (lambda: nn.GroupNorm(2, 8), OF_ALL_SIZES),
    "instance norm": (lambda: nn.InstanceNorm2d(8, affine=True), OF_ALL_SIZES),
    "max pooling": (lambda: nn.MaxPool2d(2), OF_ALL_SIZES),
    "max pooling with padding": (lambda: nn.MaxPool2d(3, 2, 1), OF_ALL_SIZES),
    "average pooling": (lambda: nn.AvgPool2d(3, 2, 1), OF_ALL_SIZES),
    "adaptive average": (lambda: nn.AdaptiveAvgPool2d((3, 2)), IMAGES),
    "adaptive maximum": (lambda: nn.AdaptiveMaxPool2d(2), IMAGES),
    "deviation": (lambda: lambda x: x.std(-1) + x.var(0).sum(-1) + x.std(),
        ((4, 6, 5), (7, 8, 9), (3, 5, 6))),
    "mean and variance": (lambda: lambda x: torch.var_mean(x, 1, correction=0),
        ((4, 6), (7, 8), (3, 5))),
    "resampled": (lambda: lambda x: F.interpolate(x, scale_factor=2), OF_ALL_SIZES),
    "between pixels": (lambda: lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"), IMAGES),
    "sorted": (lambda: lambda x: x.sort(-1)[0] * x.topk(2, -1)[0].sum(-1, True),
        ((4, 6), (7, 8), (3, 5))),
    "padded": (
        lambda: lambda x: F.pad(x, (1, 2), mode="reflect") + F.pad(x, (2, 1), mode="replicate"),
        ((4, 6), (7, 8), (3, 5)),
    ),
    "gates": (lambda: lambda x: F.glu(x, 0) + F.elu(x).amax(), ((4, 6), (8, 5), (6, 7))),
    "a loss": (lambda: lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid()),
        ((4, 6), (7, 8), (3, 5))),
    "windows side by side": (lambda: lambda x: x.unfold(1, 2, 1).sum(-1) * x.diagonal()[0],
        ((4, 6), (7, 8), (5, 7))),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_gradients_of_what_libraries_have_kernels_for(name: str) -> None:
    make, shapes = OF_LIBRARIES[name]
    function = make()
    compiled = ingot.compile(function, fullgraph=True)
    for shape in (*shapes, shapes[0]):
        assert_near(differentiated(compiled, shape, 1), differentiated(function, shape, 1), 1e-4)
    made = Compiler.of(compiled).compilations
    for compilation in made:
        compilation.log.complete()
    assert len(made) == 2 and all(c.backward.skipped is None for c in made)


@pytest.mark.parametrize("train", (False, True))
@pytest.mark.parametrize(
    "settings", ({}, {"num_layers": 2, "batch_first": True, "bidirectional": True}), ids=str
)
def test_recurrent_layers_without_gradients(settings: dict[str, Any], train: bool) -> None:
    layer = nn.LSTM(6, 5, **settings).train(train)
    compiled = ingot.compile(layer, fullgraph=True)
    with torch.no_grad():
        for shape in ((4, 3, 6), (7, 2, 6), (2, 5, 6)):
            x = torch.randn(shape)
            assert_near(compiled(x), layer(x), 1e-5)
    made = Compiler.of(compiled).compilations
    assert (train or len(made) == 2) and all(c.skipped is None for c in made)


def test_gradients_of_some_outputs() -> None:
    function = lambda x: (x.sin(), x.cos() * x.shape[0])  # noqa: E731
    compiled = ingot.compile(function, fullgraph=True)
    for k, n in enumerate((4, 7, 9, 5, 8)):
        x = torch.randn(n, 3, requires_grad=True)
        found = [torch.autograd.grad(f(x)[k % 2].sum(), x)[0] for f in (compiled, function)]
        torch.testing.assert_close(*found)
    assert len(Compiler.of(compiled).compilations) == 2


@pytest.mark.usefixtures("nothing_is_kept")
def test_a_bias_is_summed_where_it_was_broadcast() -> None:
    weight, bias = torch.randn(6, 7, requires_grad=True), torch.randn(7, requires_grad=True)
    sums = []
    for shape in ((7,), (1, 7), (4, 7)):
        compiled = ingot.compile(
            lambda x, bias: (x @ weight + bias).relu(), dynamic=True, fullgraph=True
        )
        compiled(
            torch.randn(4, 6), bias.detach().expand(shape).clone().requires_grad_()
        ).sum().backward()
        (made,) = Compiler.of(compiled).compilations
        assert ", size_s" in str(made.backward.log.aten)
        sums.append(str(made.backward.log.aten).count("aten.sum"))
    assert sums == [1, 1, 0]


def test_a_state_that_grows():
    eager, model = Cache(), Cache()
    compiled = ingot.compile(model)
    with torch.no_grad():
        for step in range(6):
            x = torch.randn(1, 3)
            torch.testing.assert_close(compiled(x), eager(x))
            torch.testing.assert_close(model.kept, eager.kept)
            if step == 1:
                known = len(ingot.explain(compiled)(x).compilations)
                eager.kept = model.kept.clone()
        assert len(ingot.explain(compiled)(x).compilations) == known


@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x[1:].add_(x.shape[0])])
def test_writes(write):
    assert counts(Tracked(lambda x: write(x).sum()), (4, 6), (7, 6), (9, 6)) == [1, 1, 0]


def test_views_of_one_storage_are_compiled_for_their_sizes():
    tracked = Tracked(lambda x, y: x + y)
    with torch.no_grad():
        for n in (4, 7, 9):
            base = torch.randn(n, 6)
            tracked(base, base[:, :1])
    assert tracked.skips == []


def test_views_of_one_storage_of_which_one_is_asked_for_late() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return y.sum() + x.sin()

    tracked = Tracked(function, fullgraph=True)
    with torch.no_grad():
        for n in (4, 7):
            tracked(base := torch.randn(n, 6), base.flatten()[:2])
