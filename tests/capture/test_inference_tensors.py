"""Inference mode around compiled functions, and tensors that were made in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from tests.capture.test_modes import LINEAR, X, modes_as_before  # noqa: F401  (a fixture)
from tests.oracle import assert_near


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_inference_tensors(backend: str) -> None:
    @torch.inference_mode()
    def fn(x: Tensor) -> Tensor:
        return LINEAR(x).relu() + 1

    compiled = ingot.compile(fn, backend=backend)
    for _ in range(2):
        assert_near(compiled(X), fn(X))
        assert compiled(X).is_inference() and not torch.is_inference_mode_enabled()
    with torch.inference_mode():
        inside = ingot.compile(lambda x: x * 2, backend=backend)
        assert inside(X).is_inference() and inside(inside(X)).is_inference()
    with torch.no_grad():
        assert not inside(X).is_inference()


WEIGHT = nn.Parameter(torch.randn(3, 4))
OF_INFERENCE = torch.inference_mode()(torch.randn)(3, 4)


def target_of_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = LINEAR(x)
    return F.mse_loss(LINEAR(x), target.clone())


def target_that_nothing_keeps(x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = LINEAR(x).relu()
    return (WEIGHT * 2 - target).sin().sum()


def in_part(x: Tensor) -> Tensor:
    y = LINEAR(x)
    with torch.inference_mode():
        scale = y.abs().max() + y.detach().sum()
    return (y - scale).square().sum()


@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("fn", [target_of_inference, target_that_nothing_keeps, in_part])
def test_gradients_around_inference_mode(fn: Any, backend: str) -> None:
    compiled = ingot.compile(fn, backend=backend, fullgraph=True)
    parameters = [WEIGHT, *LINEAR.parameters()]
    for _ in range(2):
        loss, expected = compiled(X), fn(X)
        assert_near(loss, expected)
        found = [torch.autograd.grad(t, parameters, allow_unused=True) for t in (loss, expected)]
        assert_near(*found)


def keeps(x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = LINEAR(x)
    return F.mse_loss(LINEAR(x), target)


def writes(x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = LINEAR(x)
    return target.add_(1)


def requires(x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = LINEAR(x)
    return target.requires_grad_()


@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("fn", [keeps, writes, requires])
def test_what_eager_refuses_of_inference_tensors(fn: Any, backend: str) -> None:
    compiled = ingot.compile(fn, backend=backend)
    for _ in range(2):
        for function in (fn, compiled):
            with pytest.raises(RuntimeError, match="(?i)inference"):
                function(X)
        assert not torch.is_inference_mode_enabled()


@pytest.mark.filterwarnings("error")
def test_arguments_of_inference_mode_where_gradients_are_wanted() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2 + WEIGHT).sin().sum()

    compiled = ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        found = [torch.autograd.grad(f(OF_INFERENCE), WEIGHT)[0] for f in (compiled, fn)]
        assert_near(*found)
    with pytest.raises(RuntimeError, match="second derivatives.*inference"):
        torch.autograd.grad(compiled(OF_INFERENCE), WEIGHT, create_graph=True)
    kept = ingot.compile(lambda x: x * WEIGHT)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="saved for backward"):
            kept(OF_INFERENCE)


def lookup_in_inference_mode(x: Tensor, positions: Tensor) -> Tensor:
    with torch.inference_mode():
        return F.embedding(positions, x) + 1


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_an_error_of_the_graph_leaves_inference_mode(backend: str) -> None:
    compiled = ingot.compile(lookup_in_inference_mode, backend=backend)
    for position in (1, 7, 1, 7):
        try:
            assert compiled(X, torch.tensor([position])).is_inference()
        except IndexError:
            assert position == 7
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
        assert not (X + 1).is_inference()


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_inference_mode_that_is_not_left(backend: str) -> None:
    def fn(x: Tensor) -> Any:
        context = torch.inference_mode()
        context.__enter__()
        return x + 1, context

    compiled = ingot.compile(fn, backend=backend)
    for _ in range(3):
        result, context = compiled(X)
        assert torch.is_inference_mode_enabled() and result.is_inference()
        context.__exit__(None, None, None)
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


@pytest.mark.skipif(
    torch.backends.cudnn.is_available(), reason="a graph break where there is cuDNN"
)
def test_flags_of_a_library_that_is_not_there():
    """Around the loss of transformers' speech models."""

    def fn(x):
        with torch.backends.cudnn.flags(enabled=False):
            y = x.abs()
        return y * 2

    x = torch.randn(4)
    assert torch.equal(ingot.compile(fn, fullgraph=True)(x), fn(x))
