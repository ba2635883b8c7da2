"""The backward ops as simpler ops: eager's gradients, no further from float64 than eager's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ingot
from ingot.compiler import Compiler
from ingot.graph import AtenGraph
from ingot.schedule.kernel import Kernel
from tests.graph.tracing import traced
from tests.oracle import AgainstFloat64, assert_call

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# values at which the formulas change, and beyond
EDGES = [-100.0, -20.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 100.0]


def numbers(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
    drawn.view(-1)[: len(EDGES)] = torch.tensor(EDGES, dtype=torch.float64)[: drawn.numel()]
    return drawn


def results(found: Any) -> list[Tensor]:
    return [t for t in (found if isinstance(found, (tuple, list)) else (found,)) if t is not None]


def unpacked(found: Any, count: int) -> list[Any]:
    """The results of an op; while it is traced nobody knows how many there are."""
    return [found[k] for k in range(count)]


def asked_for(found: Any, mask: tuple[bool, ...]) -> list[Any]:
    return [found[k] for k, wanted in enumerate(mask) if wanted]


def assert_decomposed(
    function: Callable[..., Any], *inputs: Tensor, dtype: torch.dtype
) -> AtenGraph:
    """The graph of `function` of its inputs, the floating ones in `dtype`."""
    given = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
    graph = traced(function, *given)
    assert not [n for n in graph.graph.nodes if "backward" in str(n.target)]
    # in float64 the oracle is eager's own result
    numbers = AgainstFloat64(epsilons=64 if dtype is torch.float64 else 4)
    assert_call(graph.function(), function, *given, numbers=numbers, structure=False)
    return graph


# -- one element at a time -------------------------------------------------------------------------

POINTWISE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "relu": lambda g, x: aten.threshold_backward(g, x, 0),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.5),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1.0, 0.5),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, x.abs().mean().expand(x.shape)),
    "elu": lambda g, x: aten.elu_backward(g, 1.5, 1.25, 0.5, False, x),
    "elu of the result": lambda g, x: aten.elu_backward(g, 1.5, 1.0, 1.0, True, x),
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x),
    "tanh": lambda g, x: aten.tanh_backward(g, x),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "mish": lambda g, x: aten.mish_backward(g, x),
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu by tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0),
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "glu": lambda g, x: aten.glu_backward(g[:, :4], x, 1),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0, 1.25),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, dtype: torch.dtype) -> None:
    assert_decomposed(POINTWISE[name], numbers(0, 40, 8).roll(5), numbers(1, 40, 8), dtype=dtype)


@pytest.mark.parametrize("name", ["relu", "tanh", "leaky_relu", "hardswish", "glu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_round_where_eager_rounds(name: str, dtype: torch.dtype) -> None:
    g, x = (numbers(k, 64, 8).to(dtype) for k in range(2))
    (found,) = traced(POINTWISE[name], g, x).function()(g, x)
    expected = POINTWISE[name](g, x)
    assert (found == expected).float().mean() > 0.99  # but for float32's last place


def test_gelu_computed_again_and_its_gradient_take_one_tanh() -> None:
    @ingot.compile
    def function(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return (F.gelu(x @ up, approximate="tanh") @ down).sum()

    function(*(torch.randn(64, 64, requires_grad=True) for _ in range(3))).backward()
    compiler = Compiler.of(function)
    assert compiler is not None
    backward = compiler.compilations[0].backward
    assert backward is not None and backward.log.plan is not None
    stages = [
        stage
        for kernel in backward.log.plan.kernels
        if isinstance(kernel, Kernel)
        for stage in kernel.stages
    ]
    assert [i.op for stage in stages for i in stage.body.instructions].count("tanh") == 1


def test_a_masked_gradient_stays_zero() -> None:
    """Whatever comes in where the forward was constant."""
    g, x = torch.full((4,), torch.nan), torch.tensor([-1.0, 0.0, 2.0, torch.nan])
    (found,) = traced(POINTWISE["relu"], g, x).function()(g, x)
    torch.testing.assert_close(found, aten.threshold_backward(g, x, 0), equal_nan=True)


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int, dtype: torch.dtype) -> None:
    def soft(g: Tensor, x: Tensor) -> Any:
        y, logs = torch.softmax(x, dim), torch.log_softmax(x, dim)
        return aten._softmax_backward_data(g, y, dim, x.dtype), aten._log_softmax_backward_data(
            g, logs, dim, x.dtype
        )

    assert_decomposed(soft, numbers(0, 6, 5, 7), numbers(1, 6, 5, 7) / 10, dtype=dtype)


# -- norms -----------------------------------------------------------------------------------------

MASKS = [(True, True, True), (True, False, False), (False, True, True)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask", MASKS)
def test_layer_norm(mask: tuple[bool, ...], dtype: torch.dtype) -> None:
    def norm(g: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Any:
        _, mean, scale = unpacked(aten.native_layer_norm(x, [3, 8], w, b, 1e-5), 3)
        found = aten.native_layer_norm_backward(g, x, [3, 8], mean, scale, w, b, mask)
        return asked_for(found, mask)

    assert_decomposed(
        norm,
        numbers(0, 4, 5, 3, 8),
        numbers(1, 4, 5, 3, 8) / 10,
        numbers(2, 3, 8),
        numbers(3, 3, 8),
        dtype=dtype,
    )


def test_layer_norm_without_parameters_or_rows() -> None:
    def norm(g: Tensor, x: Tensor) -> Any:
        _, mean, scale = unpacked(aten.native_layer_norm(x, [16], None, None, 1e-5), 3)
        return aten.native_layer_norm_backward(
            g, x, [16], mean, scale, None, None, (True, False, False)
        )[0]

    assert_decomposed(norm, numbers(0, 4, 16), numbers(1, 4, 16).flip(1), dtype=torch.float32)
    assert_decomposed(
        norm, torch.linspace(0, 1, 16).sin(), torch.linspace(0, 3, 16).cos(), dtype=torch.float32
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weighted", [True, False])
def test_group_norm(weighted: bool, mask: tuple[bool, ...]) -> None:
    if not weighted:
        mask = (mask[0], False, False)

    def norm(g: Tensor, x: Tensor, w: Tensor) -> Any:
        weight = w if weighted else None
        _, mean, scale = unpacked(aten.native_group_norm(x, weight, None, 4, 6, 10, 3, 1e-5), 3)
        return asked_for(
            aten.native_group_norm_backward(g, x, mean, scale, weight, 4, 6, 10, 3, mask), mask
        )

    assert_decomposed(
        norm,
        numbers(0, 4, 6, 2, 5),
        numbers(1, 4, 6, 2, 5) / 10,
        numbers(2, 6),
        dtype=torch.float32,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_batch_norm(mask: tuple[bool, ...], train: bool, dtype: torch.dtype) -> None:
    def norm(g: Tensor, x: Tensor, w: Tensor) -> Any:
        dims = (0, 2, 3)
        mean, scale = x.double().mean(dims), x.double().var(dims, unbiased=False).add(1e-5).rsqrt()
        saved = (mean.to(x.dtype), scale.to(x.dtype)) if train else (None, None)
        found = aten.native_batch_norm_backward(
            g, x, w, w + 1, w.abs() + 1, *saved, train, 1e-5, mask
        )
        return asked_for(found, mask)

    assert_decomposed(
        norm, numbers(0, 4, 6, 2, 5), numbers(1, 4, 6, 2, 5) / 10, numbers(2, 6), dtype=dtype
    )


# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding(padding: int, dtype: torch.dtype) -> None:
    places = torch.tensor([[1, 2, 1], [4, 4, 4]])
    assert_decomposed(
        lambda g, i: aten.embedding_dense_backward(g, i, 6, padding, False),
        numbers(0, 2, 3, 5),
        places,
        dtype=dtype,
    )


def test_parts() -> None:
    assert_decomposed(
        lambda g: aten.select_backward(g, [3, 4, 5], 1, -1), numbers(0, 3, 5), dtype=torch.float32
    )
    assert_decomposed(
        lambda g: aten.slice_backward(g, [3, 9, 5], 1, 1, 8, 2),
        numbers(0, 3, 4, 5),
        dtype=torch.float32,
    )
    assert_decomposed(
        lambda g: aten.diagonal_backward(g, [3, 4, 5], 1, 1, 2),
        numbers(0, 3, 4),
        dtype=torch.float32,
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_max_pool(layout: torch.memory_format) -> None:
    def pool(x: Tensor, g: Tensor) -> Any:
        y, places = unpacked(aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), 2)
        z, others = unpacked(aten.adaptive_max_pool2d(x, [3, 4]), 2)
        return (
            aten.max_pool2d_with_indices_backward(
                y * 2, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places
            ),
            aten.adaptive_max_pool2d_backward(z * 2, x, others),
        )

    x = numbers(0, 2, 3, 9, 10).to(memory_format=layout)
    assert_decomposed(pool, x, numbers(1, 1), dtype=torch.float32)
