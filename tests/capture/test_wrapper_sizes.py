"""Wrapper subclasses whose sizes vary: the second entry serves all further ones. Guards say how the
sizes of an instance follow from those of its inner tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.errors import GraphBreakError
from tests.capture.subclasses import assert_described_alike
from tests.capture.test_nested_tensors import compilations
from tests.capture.wrapper_classes import DirectInt8, Int4, Int8, Pair, Scaled
from tests.oracle import assert_near

SIZES = (4, 5, 7, 3, 8)


def pair(n: int) -> Any:
    return Pair(torch.randn(n, 6), torch.randn(n, 6))


def transposed(n: int) -> Any:
    return Pair(torch.randn(6, n).t(), torch.randn(6, n).t())


def tracked(n: int) -> Any:
    return Pair(torch.randn(n, 6), torch.randn(n, 6), requires_grad=True)


def product(x: Tensor) -> Tensor:
    return F.linear(torch.ones(3, 8), x)


@pytest.mark.parametrize(
    ("fn", "make"),
    [
        (lambda x: x * 2 + 1, pair),
        (lambda x: (x * 2).t(), pair),
        (lambda x: torch.cat([x, x.sin()], 1), pair),
        (lambda x: x.sum(0), pair),
        (lambda x: x.view(-1), pair),
        (lambda x: x.reshape(x.shape[0], 2, 3), pair),
        (lambda x: x.total() * x.size(0), pair),
        (lambda x: x * 2, transposed),
        (lambda x: Pair(x.a * 2, x.b), pair),
        (lambda x: (x * 2.0, x + 1), lambda n: Scaled(torch.randn(n, 8), 3.0)),
        (product, lambda n: Int8.of(torch.randn(n, 8))),
        (product, lambda n: DirectInt8.of(torch.randn(n, 8))),
        (lambda x: Pair(torch.stack([x, x]), torch.stack([x, x])), lambda n: torch.randn(n, 2)),
    ],
)
def test_sizes_vary(fn: Callable[[Any], Any], make: Callable[[int], Any]) -> None:
    compiled = ingot.compile(fn, fullgraph=True)
    for n in SIZES:
        x = make(n)
        assert_described_alike(compiled(x), fn(x))
    assert compilations(compiled) == 2


@pytest.mark.parametrize("fn", [lambda x: x * x + 1, lambda x: x.sin() * x.view(-1).view_as(x)])
def test_gradients(fn: Callable[[Any], Any]) -> None:
    compiled = ingot.compile(fn, fullgraph=True)
    for n in SIZES:
        x, gradients = tracked(n), []
        for run in (compiled, fn):
            y = run(x)
            gradients.append(torch.autograd.grad(y, x, torch.ones_like(y))[0])
        assert_described_alike(gradients[0], gradients[1])
    assert compilations(compiled) == 2


@pytest.mark.parametrize("fn", [lambda x: x * x * 2j, lambda x: x * x.conj(), lambda x: x + x])
def test_complex_inner_tensors(fn: Callable[[Any], Any]) -> None:
    a, b = torch.randn(4, 3, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    x = Pair(a, b)
    assert_described_alike(ingot.compile(fn)(x), fn(x))
    x, gradients = Pair(a, b, requires_grad=True), []
    for run in (ingot.compile(fn), fn):
        y = run(x)
        gradients.append(torch.autograd.grad(y, x, torch.ones_like(y))[0])
    assert_described_alike(gradients[0], gradients[1])


class WithPlain(Pair):
    """One that takes plain tensors beside it."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def side(name: str) -> Any:
            return func(*[getattr(x, name) if isinstance(x, cls) else x for x in args])

        return cls(side("a"), side("b"))


def test_a_gradient_of_another_kind_breaks() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    x = WithPlain(torch.randn(4, 3), torch.randn(4, 3))
    w = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(GraphBreakError, match="the gradient of a plain tensor is a WithPlain"):
        ingot.compile(fn, fullgraph=True)(x, w)
    gradients = []
    for run in (ingot.compile(fn), fn):
        y = run(x, w)
        gradients.append(torch.autograd.grad(y, w, torch.ones_like(y))[0])
    assert_described_alike(gradients[0], gradients[1])


def test_a_size_that_the_class_keeps_is_compiled_for() -> None:
    def fn(w: Tensor) -> Tensor:
        return w + 1

    compiled = ingot.compile(fn, fullgraph=True)
    for count, n in enumerate((4, 5, 7, 5, 4)):
        w = Int4.of(torch.randn(n, 8))
        assert_near(compiled(w), fn(w))
        assert compilations(compiled) == min(count, 2) + 1


class Doubled(Pair):
    """One that is twice as long as its inner tensors, or as long as it is told to be."""

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor, rows: int) -> Any:
        made = Tensor._make_wrapper_subclass(cls, (rows, a.shape[1]), dtype=a.dtype)
        return made

    def __init__(self, a: Tensor, b: Tensor, rows: int) -> None:
        super().__init__(a, b)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, sizes: Any, strides: Any) -> Any:
        return cls(inner["a"], inner["b"], sizes[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0]
        return func(torch.cat([x.a, x.b])[: x.shape[0]], *args[1:], **(kwargs or {}))


def test_a_size_follows_only_where_it_does() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2

    compiled = ingot.compile(fn, fullgraph=True)
    for n, rows in ((3, 6), (4, 8), (5, 10), (5, 9), (6, 9), (6, 6), (7, 7), (7, 14), (3, 6)):
        x = Doubled(torch.randn(n, 2), torch.randn(n, 2), rows)
        assert_near(compiled(x), fn(x))
