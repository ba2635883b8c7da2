"""Backward programs as numbers: how many kernels, and what is called in ATen. Nothing here depends
on the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.compilation import Compilation
from ingot.compiler import Compiler
from ingot.explain.measure import error
from ingot.schedule.plan import LibraryStep


def programs(function: Callable[..., Tensor], *inputs: Any) -> tuple[Compilation, Compilation]:
    """The forward and the backward of a call, whose gradients are eager's."""
    compiled = ingot.compile(function, fullgraph=True)
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    leaves = [t for t in (*inputs, *parameters) if isinstance(t, Tensor) and t.requires_grad]
    found = torch.autograd.grad(compiled(*inputs).sin().sum(), leaves)
    assert error(found, torch.autograd.grad(function(*inputs).sin().sum(), leaves)) < 1e-5
    compiler = Compiler.of(compiled)
    assert compiler is not None
    forward = compiler.compilations[-1]
    assert forward.backward is not None and forward.backward.skipped is None
    return forward, forward.backward


def called(compilation: Compilation) -> list[str]:
    """The ops that a library computes."""
    return [
        op
        for step in compilation.log.plan.steps
        if isinstance(step, LibraryStep)
        for op in step.node.origin.ops
    ]


def kernels(compilation: Compilation) -> int:
    assert called(compilation) == []
    return len(compilation.log.plan.kernels)


def wanted(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


ACTIVATIONS = [
    F.relu, F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.leaky_relu, F.softplus, F.logsigmoid,
    F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6, F.hardshrink, F.softshrink, F.tanhshrink,
    F.softsign, F.glu, torch.sigmoid,
    torch.tanh,
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda f: f.__name__)
def test_an_activation_is_one_kernel(activation: Callable[[Tensor], Tensor]) -> None:
    _, backward = programs(lambda x: activation(x * 2), wanted(64, 32))
    assert kernels(backward) == 1


@pytest.mark.parametrize("softmax", [torch.softmax, torch.log_softmax])
def test_softmax_is_one_kernel(softmax: Callable[..., Tensor]) -> None:
    _, backward = programs(lambda x: softmax(x, -1), wanted(64, 32))
    assert kernels(backward) == 1


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss])
def test_a_loss_is_one_kernel(loss: Callable[..., Tensor]) -> None:
    _, backward = programs(lambda x, y: loss(x.sin(), y), wanted(64, 32), torch.randn(64, 32))
    assert kernels(backward) == 1


def test_cross_entropy_keeps_the_scores_alone() -> None:
    """Neither the logarithms of the softmax nor their gradient's one-hot vectors are in memory:
    beside the scores there is the gradient, and a number or two for each row."""
    rows, classes = 64, 256
    target = torch.randint(classes, (rows,))
    forward, backward = programs(
        lambda x, w: F.cross_entropy(x @ w, target), wanted(rows, 8), wanted(8, classes)
    )
    assert (
        called(forward) == [] and len(forward.log.plan.kernels) == 3
    )  # the product, rows, their mean
    for plan, most in ((forward.log.plan, 1), (backward.log.plan, 2)):
        large = {b.name for b in plan.graph.buffers.values() if b.length.constant == rows * classes}
        assert len(large.intersection(plan.places)) <= most
    assert len(backward.log.plan.kernels) == 4  # two products, the loss's own gradient, rows


def test_layer_norm() -> None:
    """One kernel over rows for the input's gradient, one over columns for the parameters'."""
    _, backward = programs(nn.LayerNorm(32), wanted(64, 32))
    assert kernels(backward) == 2
    _, backward = programs(nn.LayerNorm(32, elementwise_affine=False), wanted(64, 32))
    assert kernels(backward) == 1


def test_gradients_that_nobody_wants_take_no_kernel() -> None:
    _, backward = programs(nn.LayerNorm(32).requires_grad_(False), wanted(64, 32))
    assert kernels(backward) == 1
    _, backward = programs(nn.LayerNorm(32), torch.randn(64, 32))
    assert kernels(backward) == 1


def test_a_bias_of_full_size_takes_no_sum() -> None:
    def sums(*shape: int) -> int:
        _, backward = programs(lambda x, b: F.gelu(x + b), wanted(16, 8), wanted(*shape))
        return sum("sum" in op for kernel in backward.log.plan.kernels for op in kernel.origin.ops)

    assert sums(16, 8) == 0 and sums(8) == 1


def test_an_embedding_is_filled_and_written() -> None:
    _, backward = programs(nn.Embedding(50, 8), torch.randint(50, (6, 7)))
    assert kernels(backward) == 2


def test_batch_norm_and_relu() -> None:
    """A channel's statistics, its values and what follows are one kernel each way; another counts
    the batches."""
    model = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU())
    forward, backward = programs(model, wanted(4, 16, 6, 6))
    assert kernels(forward) == 2
    assert kernels(backward) == 1


def test_group_norm() -> None:
    forward, backward = programs(nn.GroupNorm(4, 16), wanted(4, 16, 6, 6))
    assert kernels(forward) == 1
    assert kernels(backward) <= 2


def test_a_convolution_that_the_library_computes_is_all_that_is_called() -> None:
    """The gradients of the images and those of the weight and the bias, apart."""
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    )
    _, backward = programs(model, wanted(2, 4, 10, 10))
    assert called(backward) == 2 * ["aten.convolution_backward.default"]


def test_the_gradients_of_convolutions_are_generated() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()
    )
    _, backward = programs(model, torch.randn(2, 3, 14, 14))
    assert called(backward) == []


def test_an_mlp_with_gelu() -> None:
    """Four products, what they need of the activation, and the sums for the biases; the
    activation's own gradient is computed on the tiles of the product that it follows."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    forward, backward = programs(model, wanted(32, 16))
    assert kernels(forward) == 2
    products = [k for k in backward.log.plan.kernels if any("mm" in op for op in k.origin.ops)]
    assert called(backward) == [] and len(products) == 4
    assert any("erf" in op for op in products[0].origin.ops + products[1].origin.ops)
    assert len(backward.log.plan.kernels) <= 7


def test_the_steps_of_a_recurrence_share_the_products_for_its_weights() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x.unbind():
                state = self.cell(step, state)
            return state[0]

    _, backward = programs(Cells(), torch.randn(6, 4, 16))
    products = sum(any("mm" in op for op in k.origin.ops) for k in backward.log.plan.kernels)
    assert products == 5 + 2  # one for each state but the first, one for each weight


def test_sums_over_rows_and_columns_go_along_memory() -> None:
    """The gradient of LayerNorm's input goes over rows, that of its parameters over columns, and
    each kernel's vectors lie along memory."""
    _, backward = programs(nn.LayerNorm(256), wanted(512, 256))
    rows = [k for k in backward.log.plan.kernels if k.loops[0].extent.constant == 512]
    columns = [
        k for k in backward.log.plan.kernels if k.loops[-1].extent.constant == 256 and k not in rows
    ]
    assert len(rows) == 1 and rows[0].vector is None
    assert columns and all(k.vector is k.loops[-1] for k in columns)


def attention(causal: bool) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (t.unflatten(2, (2, 16)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2).flatten(2)

    return attend


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [40, 65])
def test_the_backward_of_attention_is_one_kernel(causal: bool, keys: int) -> None:
    """Over many keys as well."""
    inputs = [wanted(3, rows, 32) for rows in (21, keys, keys)]
    forward, backward = programs(attention(causal), *inputs)
    assert kernels(forward) == 2  # and a copy of the result, which is kept
    assert kernels(backward) == 1


MASKS = {
    "boolean": lambda: torch.rand(3, 1, 21, 40) > 0.3,
    "boolean, of queries that see nothing": lambda: (
        (torch.rand(21, 40) > 0.3) & (torch.arange(21) % 5 > 0)[:, None]
    ),
    "added": lambda: torch.randn(21, 40),
    "of padding": lambda: torch.arange(40) < torch.tensor([40, 7, 13]).view(3, 1, 1, 1),
    "of heads": lambda: torch.randn(1, 2, 21, 40),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_with_a_mask_is_a_kernel_each_way(name: str) -> None:
    mask = MASKS[name]()

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        heads = (t.unflatten(2, (2, 16)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(*heads, mask).transpose(1, 2).flatten(2)

    forward, backward = programs(attend, *(wanted(3, rows, 32) for rows in (21, 40, 40)), mask)
    assert (
        not called(forward) and [k.name for k in forward.log.plan.kernels].count("attention") == 1
    )
    assert (
        not called(backward)
        and [k.name for k in backward.log.plan.kernels].count("attention_backward") == 1
    )


GRADIENTS = [
    (2, 2, 64, 64, 16, 16), (1, 3, 33, 47, 20, 20), (2, 1, 130, 70, 64, 64), (1, 2, 31, 300, 8, 24),
    (1, 2, 200, 200, 32, 32),
]  # fmt: skip


@pytest.mark.parametrize("sizes", GRADIENTS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_go_no_further_from_float64_than_eagers(
    sizes: tuple[int, ...], causal: bool
) -> None:
    """Also of heads that are views of one projection, of keys beyond the queries, and of odd
    sizes."""
    torch.manual_seed(0)
    batch, heads, queries, keys, width, value_width = sizes
    widths = [heads * n for n in (width, width, value_width)]
    inputs = [wanted(batch, max(queries, keys), sum(widths))]
    weight = torch.randn(batch, queries, heads * value_width)

    def attend(x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in x.split(widths, 2))
        q, k, v = q[:, :, :queries], k[:, :, :keys], v[:, :, :keys]
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)

    exact = [t.detach().double().requires_grad_() for t in inputs]
    best = torch.autograd.grad(attend(*exact), exact, weight.double())
    found, eager = (
        torch.autograd.grad(f(*inputs), inputs, weight) for f in (ingot.compile(attend), attend)
    )
    assert [t.stride() for t in found] == [t.stride() for t in eager]
    assert error(found, best) <= max(1.1 * error(eager, best), 4 * torch.finfo(torch.float32).eps)


def test_one_backward_of_attention_serves_all_lengths() -> None:
    def attend(x: Tensor, context: Tensor) -> Tensor:
        return attention(True)(x, *context.chunk(2, 2))

    compiled = ingot.compile(attend, fullgraph=True)
    for batch, queries, keys in ((2, 33, 40), (3, 70, 130), (5, 6, 3), (2, 129, 64)):
        inputs = [wanted(batch, queries, 32), wanted(batch, keys, 64)]
        for tensor in inputs:
            ingot.mark_dynamic(tensor, 0)
            ingot.mark_dynamic(tensor, 1)
        found, eager = (
            torch.autograd.grad(f(*inputs).sin().sum(), inputs) for f in (compiled, attend)
        )
        assert error(found, eager) < 1e-5
    (forward,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    assert forward.backward is not None and not called(forward.backward)
    assert "attention_backward" in [k.name for k in forward.backward.log.plan.kernels]


def lstm_cell(
    x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """One step, written out."""
    i, f, g, o = (x @ w + h @ u + b).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def test_what_an_lstm_cell_does_to_elements_is_one_kernel_each_way() -> None:
    """For any batch: beside the products, and the sum for the bias. The gradients of the gates are
    pieces of one tensor, which one kernel writes."""
    compiled = ingot.compile(lstm_cell, fullgraph=True)
    parameters = [wanted(32, 256), wanted(64, 256), wanted(256)]
    for n in (8, 5, 1, 33):
        inputs = [wanted(n, 32), wanted(n, 64), wanted(n, 64), *parameters]
        tangents = torch.randn(n, 64), torch.randn(n, 64)
        found, expected = (
            torch.autograd.grad(f(*inputs), inputs, tangents) for f in (compiled, lstm_cell)
        )
        assert error(found, expected) < 1e-5
    compiler = Compiler.of(compiled)
    assert compiler is not None
    first, general = compiler.compilations
    for forward in (first, general):
        assert forward.backward is not None and called(forward) == called(forward.backward) == []
        ops = [[k.origin.ops for k in c.log.plan.kernels] for c in (forward, forward.backward)]
        products = {"aten.mm.default", "aten.linear.default"}
        pointwise, gradients = ([o for o in each if products.isdisjoint(o)] for each in ops)
        assert len(pointwise) == 1 and [o[0] for o in gradients] == [
            "aten.mul.Tensor",
            "aten.sum.dim_IntList",
        ]
    assert general.captured.guards.symbols and not first.captured.guards.symbols


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_pieces_of_what_is_put_together_are_one_kernel(dim: int) -> None:
    compiled = ingot.compile(
        lambda x: torch.cat([x.sin(), x * 2, (x + 1).cos()], dim), fullgraph=True
    )
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(compiled(x), torch.cat([x.sin(), x * 2, (x + 1).cos()], dim))
    (made,) = Compiler.of(compiled).compilations
    assert kernels(made) == 1
