"""`ingot.compiled_backward` over torch.autograd.Function: the user's backward is part of the graph,
or eager's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import ingot
from tests.test_compiled_backward import fresh, graphs, reasons

__all__ = ["fresh"]


class Between(Function):
    """Keeps a tensor and numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * g * ((x >= ctx.low) & (x <= ctx.high)), None, None


class Several(Function):
    """Some arguments need no gradient, one result has none."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, scale: int = 2) -> Any:
        ctx.save_for_backward(a, b)
        ctx.scale = scale
        positive = (a > 0).long()
        ctx.mark_non_differentiable(positive)
        return a * b * scale, positive, a + b

    @staticmethod
    def backward(ctx: Any, of_product: Tensor, of_positive: Tensor, of_sum: Tensor) -> Any:
        assert of_positive.dtype == torch.int64
        a, b = ctx.saved_tensors
        of_a = of_product * b * ctx.scale + of_sum if ctx.needs_input_grad[0] else None
        of_b = of_product * a * ctx.scale - of_sum if ctx.needs_input_grad[1] else None
        return of_a, of_b, None


class Sparing(Function):
    """Gradients that do not come in stay None."""

    @staticmethod
    def forward(x: Tensor) -> Any:
        return x.round(), x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        return (0 if a is None else a * 2) + (0 if b is None else b * 5)


class Again(Function):
    """Computes again with a graph of its own, and writes what it has made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.enable_grad():
            x, w = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            y = torch.tanh(x @ w)
        of_x, of_w = torch.autograd.grad(y, (x, w), g)
        of_x = of_x.clone()
        of_x[0] = 0
        return of_x, of_w.mul_(2)


class Once(Function):
    """Keeps a tensor as an attribute; differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, names: list[str]) -> Tensor:
        ctx.x, ctx.count = x.detach(), len(names)
        return x * ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.count + ctx.x, None


def compared(make, *tensors, repeats=2, inside=True):
    """The gradients that .backward() of what `make` gives leaves in the tensors, which are
    eager's."""
    found = []
    for compiled in (True, False):
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        for _ in range(repeats):
            with ingot.compiled_backward() if compiled and inside else contextlib.nullcontext():
                make(*leaves).backward()
        found.append([t.grad for t in leaves])
    assert [g is None for g in found[0]] == [g is None for g in found[1]]
    torch.testing.assert_close(*[[g for g in grads if g is not None] for grads in found])
    return found[0]


def leaf(*sizes):
    return torch.randn(sizes, requires_grad=True)


def test_numbers_that_the_context_keeps():
    x = leaf(4, 3)
    for high in (0.5, 0.5, 0.9):
        compared(lambda x: Between.apply(x * 2, -0.5, high).sum(), x)  # noqa: B023
    assert graphs() == 4  # that sets and that adds to gradients, for each number


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("taken", [(0, 2), (0,), (2,)])
def test_several_results(needed, taken):
    a, b = [torch.randn(3, 4, requires_grad=need) for need in needed]
    compared(
        lambda a, b: sum(Several.apply(a.sin(), b.cos(), 3)[k].square().sum() for k in taken), a, b
    )
    assert graphs() == 2


@pytest.mark.parametrize("taken", [(0, 1), (0,), (1,)])
def test_gradients_that_stay_none(taken):
    compared(lambda x: sum(Sparing.apply(x * 3)[k].sum() for k in taken), leaf(5))
    assert graphs() == 2


def test_what_becomes_of_missing_gradients_is_told_apart():
    class Chosen(Function):
        @staticmethod
        def forward(ctx, x, zeros):
            ctx.set_materialize_grads(zeros)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 if b is None else a + b + 1, None

    for zeros in (True, False, True):
        (g,) = compared(lambda x: Chosen.apply(x, zeros)[0].sum(), leaf(5), repeats=1)  # noqa: B023
        assert torch.equal(g, torch.full((5,), 2.0))
    (g,) = compared(
        lambda x: Chosen.apply(x, True)[0].square().sum(),
        torch.ones(5, requires_grad=True),
        repeats=1,
    )
    assert torch.equal(g, torch.full((5,), 3.0))
    assert graphs() == 3


def test_a_graph_of_its_own_and_writes_to_what_it_made():
    compared(lambda x, w: Again.apply(x.sin(), w).square().sum(), leaf(4, 3), leaf(3, 2))
    assert graphs() == 2


def test_tensors_that_are_attributes():
    x = leaf(4)
    for _ in range(2):
        compared(lambda x: Once.apply(x.sin(), ["a", "b"]).sum(), x, repeats=1)
        with torch.no_grad():
            x.add_(1)
    assert graphs() == 1


def test_over_breaks_of_a_compiled_forward():
    @ingot.disable
    def pause():
        pass

    @ingot.compile
    def forward(x, w):
        h = x @ w
        pause()
        h = Between.apply(h, -1, 1)
        pause()
        return Again.apply(h, w).sum()

    def by_hand(x, w):
        product = Several.apply(forward(x, w) * torch.ones(3), torch.ones(3))[0]
        return product.sum()

    compared(by_hand, leaf(5, 4), leaf(4, 4))
    assert graphs() == 2


def test_new_classes_of_the_same_code():
    def make(scale):
        class Scaled(Function):
            @staticmethod
            def forward(ctx, x):
                return x * scale

            @staticmethod
            def backward(ctx, g):
                return g * scale

        return Scaled

    for scale in (2.0, 2.0, 3.0):
        (g,) = compared(lambda x: make(scale).apply(x).sum(), leaf(4), repeats=1)  # noqa: B023
        assert torch.equal(g, torch.full((4,), scale))
    assert graphs() == 2


def test_a_second_backward_raises_as_in_eager():
    x = leaf(4)
    y = Between.apply(x * 1, -1, 1).sum()
    with ingot.compiled_backward():
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()
    y = Between.apply(z := x * 1, -1, 1).sum()
    with torch.no_grad():
        z.add_(1)
    with (
        ingot.compiled_backward(),
        pytest.raises(RuntimeError, match="modified by an inplace operation"),
    ):
        y.backward()


seen: list[Any] = []


class Noting(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        seen.append(g.clone())
        return g, None, None


class WritesGradient(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.mul_(2), None, None


class WritesKept(Once):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        ctx.x.add_(1)
        return g * ctx.x, None


class Counting(Once):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        ctx.count += 1
        return g * ctx.count, None


class Drawing(Once):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.rand_like(g), None


class Branching(Once):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g if g.sum() > 0 else -g), None


EAGERS = [
    (Noting, "Noting.backward has effects"),
    (WritesGradient, "WritesGradient.backward has effects"),
    (WritesKept, "WritesKept.backward has effects"),
    (Counting, "Counting.backward has effects"),
    (Drawing, "draws random numbers"),
    (Branching, "a branch on the values"),
]


@pytest.mark.parametrize("cls,reason", EAGERS, ids=lambda v: getattr(v, "__name__", None))
def test_what_is_left_to_eager(cls, reason):
    seen.clear()
    x = leaf(4)
    more = (-1, 1) if issubclass(cls, Between) else (["a"],)
    found = []
    for compiled in (True, False):
        torch.manual_seed(1)
        with ingot.compiled_backward() if compiled else contextlib.nullcontext():
            (g,) = torch.autograd.grad(cls.apply(x.sin(), *more).square().sum(), x)
        found.append((g, torch.get_rng_state()))
    torch.testing.assert_close(*found)
    assert len(reasons()) == 1 and reason in reasons()[0]
    if cls is Noting:
        assert len(seen) == 2 and all(type(g) is Tensor for g in seen)


class TooMany(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g, None


class TooFew(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class OtherShape(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g[:1].expand(2), None, None


class NoTensor(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 1.0, None, None


class Raising(Between):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise ValueError("not today")


@pytest.mark.parametrize("cls", [TooMany, TooFew, OtherShape, NoTensor, Raising])
def test_errors_are_eagers(cls):
    x, texts = leaf(4), []
    for compiled in (True, False):
        with (
            ingot.compiled_backward() if compiled else contextlib.nullcontext(),
            pytest.raises(Exception) as info,
        ):
            cls.apply(x.sin(), -1, 1).sum().backward()
        texts.append((type(info.value), str(info.value)))
    assert texts[0] == texts[1]
    assert x.grad is None and len(reasons()) == 1 and "internal error" not in reasons()[0]


def test_a_gradient_of_more_dimensions_is_summed():
    class Wide(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g.expand(3, 4)

    compared(lambda x: Wide.apply(x).square().sum(), leaf(4))
    assert graphs() == 2


def test_no_gradient_comes_in():
    """The node is called with zeros, as in eager."""

    class Nothing(Between):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, None, None

    (g,) = compared(
        lambda x: Nothing.apply(Between.apply(x, -1, 1), -1, 1).sum() + 0 * x.sum(),
        leaf(4),
        repeats=1,
    )
    assert torch.equal(g, torch.zeros(4))
    assert len(reasons()) == 1 and "no gradient comes to" in reasons()[0]
