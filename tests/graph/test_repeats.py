"""Calls that are alike are recorded once and written down after that: each must do what it does in
eager."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.graph import repeats
from tests.graph.tracing import assert_traced


def chain(x, y):
    for _ in range(3):
        x = (x * 2.0 + y).relu()
    return x


def written(x, y):
    for t in (x, y, x):
        t.mul_(0.5).add_(y, alpha=2)
    return x + y


def aliased(x, y):
    a, b = x.clone(), y.clone()
    for t in (a, b):
        other = t.detach()
        t.add_(1)
        other.mul_(3.0)
        t.add_(other)
    return a, b


def views(x, y):
    a, b = x.clone(), y.clone()
    for t in (a, b):
        t[0].mul_(2.0)
        t.view(-1).add_(1.0)
        t.t().sub_(0.25)
    return a, b


def made(x, y):
    totals = [torch.zeros_like(t) for t in (x, y)] + [torch.tensor(0.0), torch.tensor(0.0)]
    for k, total in enumerate(totals):
        total += k
        total += k
    return totals


def one_or_two(x, y):
    return x + x, x + y, y + y, x * y, x * x


def numbers(x, y):
    return x * 0.0, x * -0.0, x + 1, x + True, x + 1.0, x.sum(0), x.sum((0,)), x.sum(dim=0)


def lists(x, y):
    return (
        torch.cat([x, y]),
        torch.cat([x, x]),
        torch.cat([x, y], 1),
        torch.stack([y, x]),
        torch.stack((y, x)),
    )


def casts(x, y):
    first = x @ y
    with torch.autocast("cpu", torch.bfloat16):
        second = x @ y
    return first, second, x @ y


def copied(x, y):
    a, b = x.clone(), y.clone()
    a.copy_(b)
    first = a + b
    b.add_(1)
    return first, a + b


def drawn(x, y):
    return torch.rand_like(x), torch.rand_like(x), torch.rand_like(y)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn", [chain, written, aliased, views, made, one_or_two, numbers, lists, casts, copied]
)
@torch.no_grad()
def test_what_is_repeated_is_as_eager_has_it(fn, dynamic):
    torch.manual_seed(0)
    compiled = ingot.compile(fn, fullgraph=True, dynamic=dynamic)
    for size in (4, 6):
        given = [torch.randn(size, size) for _ in range(2)]
        ours, eager = [[t.clone() for t in given] for _ in range(2)]
        result, expected = compiled(*ours), fn(*eager)
        torch.testing.assert_close((ours, result), (eager, expected))


@torch.no_grad()
def test_what_is_repeated_has_symbols_of_its_own():
    """Tensors of unlike symbols are told apart, also where these are equal in the first call."""

    def fn(x, y):
        return [t.exp().sum(0) * t.shape[0] for t in (x, y, x)]

    compiled = ingot.compile(fn, fullgraph=True, dynamic=True)
    for shapes in (((4, 4), (4, 4)), ((5, 3), (2, 7))):
        given = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(compiled(*given), fn(*given))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 1


@torch.no_grad()
def test_draws_that_are_repeated_draw_anew():
    given = [torch.randn(4, 4) for _ in range(2)]
    torch.manual_seed(1)
    expected = drawn(*given)
    compiled = ingot.compile(drawn, fullgraph=True)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(*given), expected, rtol=0, atol=0)


@torch.no_grad()
def test_signs_of_zeros_are_told_apart():
    x = torch.ones(3)
    positive, negative = ingot.compile(lambda x: (x * 0.0, x * -0.0), fullgraph=True)(x)
    assert not positive.signbit().any()
    assert negative.signbit().all()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_call_is_run_once(monkeypatch, dynamic):
    runs = []
    learnt = repeats.Repeats._learnt

    def counted(self, *args):
        runs.append(args)
        return learnt(self, *args)

    monkeypatch.setattr(repeats.Repeats, "_learnt", counted)

    def steps(x):
        for _ in range(20):
            x = (x * 0.5).sin_().add(1.0)
        return x

    if dynamic:
        ingot.compile(steps, dynamic=True)(torch.randn(5))
    else:
        assert_traced(steps, torch.randn(5))
    assert 3 <= len(runs) <= 4  # the input is told apart from what is made


@torch.no_grad()
def test_written_values_are_seen_by_later_gradients():
    def fn(w, x):
        with torch.enable_grad():
            loss = (w * x).sum()
            (grad,) = torch.autograd.grad(loss, w)
        w.sub_(grad, alpha=0.1)
        w.sub_(grad, alpha=0.1)
        return loss.detach()

    x = torch.randn(6)
    weights = [torch.nn.Parameter(torch.ones(6)) for _ in range(2)]
    results = [call(w, x) for call, w in zip((fn, ingot.compile(fn)), weights)]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(weights[1], weights[0])
