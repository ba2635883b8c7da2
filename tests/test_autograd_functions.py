"""torch.autograd.Function inside compiled functions, where gradients are wanted: forward and
backward are captured."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import ingot
from tests.test_differentiation import both, wanted


class Cube(Function):
    """x^3 times a number; its gradient is wrong by a factor of 2, which tells whether it is
    used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 6 * gradient * x * x * ctx.factor, None


class Exp(Function):
    """Keeps its result; with setup_context."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * 3


class Parts(Function):
    """Several arguments and results, some of which have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, names: list[str], y: Tensor) -> Any:
        largest, where = x.max(0)
        ctx.mark_non_differentiable(where)
        product, masked = x * y, y.relu()
        ctx.save_for_backward(x, y, largest, product)
        return largest, where, masked, product, len(names)

    @staticmethod
    def backward(
        ctx: Any,
        of_largest: Tensor,
        of_where: Tensor,
        of_masked: Tensor,
        of_product: Tensor,
        _: None,
    ) -> Any:
        x, y, largest, product = ctx.saved_tensors
        of_x = (
            of_largest * (x == largest) + of_product * y + product
            if ctx.needs_input_grad[0]
            else None
        )
        of_y = of_masked * (y > 0) + of_product * x if ctx.needs_input_grad[2] else None
        return of_x, None, of_y


class Reversed(Function):
    """The gradient is turned around; returns its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Straight(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 2


class Recomputed(Function):
    """What a reversible layer does: the backward runs the forward again, and differentiates it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x @ w).tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, w = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            y = (x @ w).tanh()
        return torch.autograd.grad(y, (x, w), gradient)


class Writes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Counts(Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Counts.calls += 1
        return gradient * 2


class NoGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


class Optional(Function):
    """Tells gradients that are not there from zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        where = x > y
        ctx.mark_non_differentiable(where)
        return x * y, where, x + y

    @staticmethod
    def backward(ctx: Any, of_product: Tensor | None, of_where: None, of_sum: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        assert of_where is None
        if of_product is None and of_sum is None:
            return torch.full_like(x, 7), None
        if of_product is None:
            return of_sum * 3, None
        if of_sum is None:
            return of_product * y * 5, of_product * x * x
        return of_product * y + of_sum, of_product * x + of_sum


class Unhandled(Function):
    """Does not expect that a gradient is not there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        if second is None:
            raise LookupError("no second gradient")
        return 2 * first + 3 * second


class Many(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(x * k for k in range(6))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return sum(gradient for gradient in gradients if gradient is not None)


class Listed(Function):
    """Takes the gradients as a list, where torch knows of that (since 2.14)."""

    boxed_grads_call = True

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        of_product, of_sum = gradients if len(gradients) == 2 else gradients[0]
        if isinstance(gradients[0], list):
            of_product = of_product * 2
        x, y = ctx.saved_tensors
        return of_product * y + of_sum, of_product * x + of_sum


class Accumulates(Function):
    """Adds its gradient to what autograd has of it already, where torch tells (since 2.15)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
        (there,) = getattr(ctx, "input_grad_buffers", (None,))
        if there is None:
            return gradient * 3
        there.add_(gradient, alpha=3)
        return None


class Inherited(Exp):
    """`apply` of its base's base, called through `super()`."""

    @classmethod
    def apply(cls, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().apply(x * 2) + 1


APPLY = Exp.apply  # each time it is read, it is another object


class Holds:
    def __init__(self) -> None:
        self.function = Cube.apply


def cube(x: Tensor, y: Tensor) -> Any:
    return Cube.apply(x.sin(), 2.0).exp() * y


def exponential(x: Tensor, y: Tensor) -> Any:
    return Exp.apply(x * y)


def parts(x: Tensor, y: Tensor) -> Any:
    return Parts.apply(x.sin(), ["a", "b"], y)


def parts_of_one(x: Tensor, y: Tensor) -> Any:
    return Parts.apply(x.detach(), ["a", "b"], y)[:1]


def turned(x: Tensor, y: Tensor) -> Any:
    return Reversed.apply(x) * y, Straight.apply(x * 3) + y


def recomputed(x: Tensor, y: Tensor) -> Any:
    return Recomputed.apply(x, y.t())


def once(x: Tensor, y: Tensor) -> Any:
    return Once.apply(x) * y


def no_gradient(x: Tensor, y: Tensor) -> Any:
    return NoGradient.apply(x) * y


def nested(x: Tensor, y: Tensor) -> Any:
    return Exp.apply(Cube.apply(Reversed.apply(x), 0.1) * y).sum()


def optional_both(x: Tensor, y: Tensor) -> Any:
    product, _, total = Optional.apply(x, y)
    return product * total


def optional_first(x: Tensor, y: Tensor) -> Any:
    return Optional.apply(x.sin(), y)[0]


def optional_last(x: Tensor, y: Tensor) -> Any:
    return Optional.apply(x.sin(), y)[2] * y


def optional_none(x: Tensor, y: Tensor) -> Any:
    return NoGradient.apply(Optional.apply(x.sin(), y)[2])


def listed(x: Tensor, y: Tensor) -> Any:
    product, total = Listed.apply(x.sin(), y)
    return product * 2, total * y


def accumulates(x: Tensor, y: Tensor) -> Any:
    x = x.sin()
    return Accumulates.apply(x) * y + x.exp() + Accumulates.apply(x)


def inherited(x: Tensor, y: Tensor) -> Any:
    return Inherited.apply(x * y)


HELD = Holds()


def held(x: Tensor, y: Tensor) -> Any:
    apply = Exp.apply
    return APPLY(x) * HELD.function(y, 2.0) + apply(y) + functools.partial(Cube.apply, x)(3.0)


def mapped(x: Tensor, y: Tensor) -> Any:
    return sum(map(Exp.apply, [x, y]))


FUNCTIONS = [cube, exponential, parts, parts_of_one, turned, recomputed, once, no_gradient, nested,
             optional_both, optional_first, optional_last, optional_none, listed, accumulates,
             inherited,
             held, mapped]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients(function: Any) -> None:
    def program(wrap: Any) -> Any:
        x, y = wanted(3, 4), wanted(3, 4)
        compiled = wrap(function)
        for _ in range(2):
            results = compiled(x, y)
            heads = [r for r in (results if isinstance(results, tuple) else [results])
                     if isinstance(r, Tensor) and r.requires_grad]  # fmt: skip
            if heads:
                torch.autograd.backward(heads, [torch.randn_like(h) for h in heads])
        return results, x.grad, y.grad

    both(program)


@pytest.mark.parametrize(
    "function", [cube, exponential, listed, accumulates, inherited, held, mapped]
)
def test_functions_do_not_break_the_graph(function: Any) -> None:
    report = ingot.explain(function)(wanted(3, 4), wanted(3, 4))
    assert (report.graph_count, report.break_count) == (1, 0)


def test_apply_as_a_value() -> None:
    """As a result, and across a graph break."""

    def f(x: Tensor) -> Any:
        apply, seen = Exp.apply, {Cube.apply: 1}
        torch._dynamo.graph_break()
        return apply(x), apply, apply == Exp.apply, seen[Cube.apply]

    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)  # whose exponential is exact
    result, apply, same, seen = ingot.compile(f)(x)
    assert apply == Exp.apply and same and seen == 1
    assert type(apply) is type(Exp.apply) and torch.equal(result, x.exp())


@pytest.mark.parametrize("function", [cube, exponential, turned, nested], ids=lambda f: f.__name__)
def test_second_derivatives(function: Any) -> None:
    def program(wrap: Any) -> Any:
        x, y = wanted(3, 4), wanted(3, 4)
        results = wrap(function)(x, y)
        results = results if isinstance(results, tuple) else (results,)
        first = torch.autograd.grad([r.sum() for r in results], (x, y), create_graph=True)
        sizes = [g.square().sum() for g in first if g.requires_grad]
        return results, first, torch.autograd.grad(sizes, (x, y)) if sizes else None

    both(program)


@pytest.mark.parametrize("again", [False, True])
def test_gradients_that_are_not_there(again: bool) -> None:
    """Of some of the outputs alone; the whole backward keeps less than those of its parts need."""

    def program(wrap: Any) -> Any:
        found = []
        compiled = wrap(lambda x, y: Optional.apply(x.sin(), y))
        for chosen in ([0], [2], [0, 2]):
            x, y = wanted(3, 4), wanted(3, 4)
            results = compiled(x, y)
            heads = [results[k] for k in chosen]
            found += torch.autograd.grad(
                heads, (x, y), [torch.ones_like(h) for h in heads], again, allow_unused=True
            )
            if again:
                found += torch.autograd.grad(results[0].sum(), (x, y), create_graph=True)
        return found

    both(program)


def test_a_part_that_reads_more_than_the_whole() -> None:
    class Reads(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
            (x,) = ctx.saved_tensors
            if first is None or second is None:
                return x * x * (second if first is None else first)
            return first + second

    def program(wrap: Any) -> Any:
        x = torch.tensor(3.0, requires_grad=True)
        compiled = wrap(lambda x: Reads.apply(x + 1))
        return [torch.autograd.grad(compiled(x)[k], x) for k in (0, 1)], torch.autograd.grad(
            sum(compiled(x)), x
        )

    both(program)


def test_a_backward_that_refuses_none() -> None:
    def unhandled(x: Tensor) -> Any:
        return Unhandled.apply(x)

    def first(x: Tensor) -> Tensor:
        return Unhandled.apply(x)[0]

    for function in (unhandled, first):
        for f in (function, ingot.compile(function)):
            x = wanted(3)
            head = f(x)[0] if function is unhandled else f(x)
            with pytest.raises(LookupError, match="no second gradient"):
                head.sum().backward()

    def program(wrap: Any) -> Any:
        x = wanted(3)
        sum(wrap(unhandled)(x)).sum().backward()
        return x.grad

    both(program)


def test_gradients_inside() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor, y: Tensor) -> Any:
            z = cube(x, y)
            (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
            return z, first

        x, y = wanted(3, 4), wanted(3, 4)
        z, first = wrap(function)(x, y)
        (z.sum() + first.square().sum()).backward()
        return z, first, x.grad, y.grad

    both(program)


def test_a_loss_that_is_returned_after_its_backward() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor, y: Tensor) -> Any:
            loss = cube(x, y).sum()
            loss.backward()
            return loss

        x, y = wanted(3, 4), wanted(3, 4)
        loss = wrap(function)(x, y)
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        return loss, x.grad, y.grad

    both(program)


def test_differentiable_once() -> None:
    for f in (once, ingot.compile(once)):
        x = wanted(3)
        (first,) = torch.autograd.grad(f(x, x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@pytest.mark.parametrize("function", [Writes, Counts, Many], ids=lambda f: f.__name__)
def test_left_to_eager(function: Any) -> None:
    def program(wrap: Any) -> Any:
        Counts.calls = 0
        x = wanted(3)

        def compute(x: Tensor) -> Tensor:
            result = function.apply(x * 1)
            return (result[4] if isinstance(result, tuple) else result).sin()

        y = wrap(compute)(x)
        y.sum().backward()
        return y, x.grad, Counts.calls

    both(program, ingot.compile)


def test_under_autocast() -> None:
    class Product(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, gradient: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return gradient @ w.t(), x.t() @ gradient

    def program(wrap: Any) -> Any:
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = wrap(lambda x, w: Product.apply(x, w))(x, w)
        y.float().sum().backward()
        return y, x.grad, w.grad

    both(program, ingot.compile)


def test_a_module_with_one() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return Exp.apply(self.inner(Straight.apply(x) + x).tanh())

    def program(wrap: Any) -> Any:
        layer = wrap(Layer())
        x = wanted(3, 4)
        layer(x).sum().backward()
        return [p.grad for p in layer.parameters()], x.grad

    both(program)
