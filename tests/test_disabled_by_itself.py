"""`torch.compiler.disable(recursive=False)`: the function runs in eager, what it calls may be
compiled. And the other ways to disable something, beside torch.compile."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import ingot

C = torch.compiler
X = torch.zeros(2)
INNER, OUTER = 1, 10
alone = functools.partial(C.disable, recursive=False)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inner(x):
    return x.cos() - 1 + (INNER if C.is_compiling() else 0)


def outer(x):
    return inner(x) + (OUTER if C.is_compiling() else 0)


flat = alone(outer)
deep = C.disable(outer)


@alone(reason="it draws")
def countdown(x, n=2):
    rest = countdown(x, n - 1) if n else 0
    return inner(x) + rest + (OUTER if C.is_compiling() else 0)


class Methods:
    @alone
    def method(self, x):
        return outer(x)

    @staticmethod
    @alone
    def static(x):
        return outer(x)

    @classmethod
    @alone
    def of_class(cls, x):
        return outer(x)

    @property
    @alone
    def value(self):
        return inner(X)


@C.disable
class Plain:
    def __init__(self, k):
        self.k = k

    def f(self, x):
        return inner(x) + self.k


class Layer(nn.Module):
    def forward(self, x):
        return outer(x)


class PartOfLayer(nn.Module):
    @alone
    def forward(self, x):
        return inner(x)


def with_arguments(x):
    @alone
    def g(t, *args, k=3, **kwargs):
        return inner(t) * k + len(args) + len(kwargs)

    return g(x, 1, 2, k=4, z=1)


def with_an_error(x):
    @alone
    def bad(t):
        raise ValueError(float(inner(t).sum()))

    try:
        return bad(x)
    except ValueError as error:
        return inner(x) * error.args[0]


@alone
def doubled_by_parts(x):
    for k in range(2):
        yield inner(x) * k


@alone
def calls_what_is_disabled(x):
    return deep(x) + inner(x)


METHODS, LAYER, PART, PLAIN = Methods(), Layer(), PartOfLayer(), Plain(2)
OF_MODULE, ALONE_OF_MODULE = C.disable(Layer()), alone(Layer())
SINE, PARTIAL = alone(torch.sin), C.disable(functools.partial(inner))
BOUND = alone(METHODS.method)

PROGRAMS = {
    "alone": lambda x: flat(x * 1) + 1,
    "with all it calls": lambda x: deep(x * 1) + 1,
    "recursion": lambda x: countdown(x * 1),
    "method": lambda x: METHODS.method(x * 1),
    "static method": lambda x: METHODS.static(x * 1),
    "class method": lambda x: METHODS.of_class(x * 1),
    "property": lambda x: METHODS.value + x,
    "bound method": lambda x: BOUND(x * 1),
    "class": lambda x: PLAIN.f(x * 1),
    "module": lambda x: OF_MODULE(x * 1),
    "module alone": lambda x: ALONE_OF_MODULE(x * 1),
    "forward alone": lambda x: PART(x * 1),
    "built-in": lambda x: SINE(x * 1),
    "partial": lambda x: PARTIAL(x * 1),
    "arguments": with_arguments,
    "error": with_an_error,
    "generator": lambda x: sum(doubled_by_parts(x * 1)),
    "disabled inside": lambda x: calls_what_is_disabled(x * 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_compiled_is_what_torch_compile_compiles(name: str) -> None:
    fn = PROGRAMS[name]
    by_torch, compiled = torch.compile(fn, backend="eager"), ingot.compile(fn)
    expected = by_torch(X)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), expected)


def test_a_function_alone_that_is_compiled_itself() -> None:
    compiled = ingot.compile(flat)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), X + INNER)


def test_the_reason_and_an_error() -> None:
    fn: Any = PROGRAMS["recursion"]
    report = ingot.explain(fn)(X)
    assert "countdown() is disabled by torch.compiler.disable: it draws" in str(report)
    assert report.graph_count >= 2  # before the call, and in what it calls
    with pytest.raises(ingot.GraphBreakError, match="it draws"):
        ingot.compile(fn, fullgraph=True)(X)


def test_gradients_pass_through() -> None:
    weight = torch.linspace(-1, 1, 4, requires_grad=True)

    def layer(x):
        return torch.tanh(x * weight)

    @alone
    def middle(x):
        return layer(x) + 1

    def fn(x):
        return (middle(x * 2) * x).sum()

    results = []
    for f in (fn, ingot.compile(fn)):
        x = torch.linspace(0, 1, 4, requires_grad=True)
        results.append(torch.autograd.grad(f(x), [x, weight]))
    torch.testing.assert_close(results[0], results[1])


def test_under_ingot_disable_nothing_is_compiled() -> None:
    guarded = ingot.disable(lambda x: flat(x))
    compiled = ingot.compile(lambda x: guarded(x * 1))
    for _ in range(2):
        torch.testing.assert_close(compiled(X), X)
