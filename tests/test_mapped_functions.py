"""torch.autograd.Function inside of torch.vmap and the other transforms of torch.func: values and
gradients are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import grad, jacrev, jvp, vjp, vmap

import ingot
from tests.oracle import tensors_in
from tests.test_differentiation import both, wanted


class Cube(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 7


class Scale(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 7


class Several(Function):
    """Several arguments and results, one of them without a gradient; saves a result; what it is
    given may be in no batch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, n: int) -> Any:
        return x * y * n, x > y, (x + y).exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.n = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, y, output[2])

    @staticmethod
    def backward(ctx: Any, of_product: Tensor, _: Any, of_sum: Tensor) -> Any:
        x, y, total = ctx.saved_tensors
        return of_product * y * ctx.n * 2 + of_sum * total, of_product * x * 3 + of_sum, None


class Rows(Function):
    """Gradients lie in another order than the argument; the batches as well."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.t()[1:]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.nn.functional.pad(gradient, (0, 0, 1, 0)).t() * 3


class Constant(Function):
    """The gradient does not depend on the example."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.arange(4.0, dtype=torch.float64)


class Own(Function):
    """With a rule that gives something else than the forward does."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0] * 7

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Own.apply(x) * info.batch_size, in_dims[0]


class OwnOfTwo(Function):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Any:
        return x * y, x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, of_product: Tensor, of_sum: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return of_product * y + of_sum, of_product * x * 5

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        x = x.movedim(in_dims[0], -1) if in_dims[0] is not None else x.unsqueeze(-1)
        y = y.movedim(in_dims[1], -1) if in_dims[1] is not None else y.unsqueeze(-1)
        return (x * y * (info.randomness == "error"), Cube.apply(x).sum()), (x.dim() - 1, None)


CAPTURED: dict[str, Callable[[Tensor], Any]] = {
    "generated": lambda x: vmap(Cube.apply)(x),
    "generated, and more": lambda x: vmap(lambda row: Cube.apply(row.sin()).sum() * row)(x),
    "generated, at the last dimension": lambda x: vmap(Cube.apply, 1, 1)(x),
    "generated, moved": lambda x: vmap(Cube.apply, 1, 0)(x),
    "generated, in chunks": lambda x: vmap(Cube.apply, chunk_size=2)(x),
    "generated, nested": lambda x: vmap(vmap(Cube.apply))(x),
    "generated, nested, moved": lambda x: vmap(vmap(Cube.apply, 1, 1), 2, 1)(x.view(3, 2, 2)),
    "generated, outside alone": lambda x: vmap(lambda a: vmap(lambda b: Cube.apply(a) * b)(x))(x),
    "generated, in no batch": lambda x: vmap(lambda row: Cube.apply(x[0]) * row)(x.detach()),
    "a view": lambda x: vmap(Scale.apply)(x),
    "a view, and its argument": lambda x: (lambda h: (h, vmap(Scale.apply)(h)))(x * 3),
    "one behind another": lambda x: vmap(lambda row: Cube.apply(Scale.apply(Cube.apply(row))))(x),
    "several": lambda x: vmap(lambda row: Several.apply(row, row.sin(), 3))(x),
    "several, one in no batch": lambda x: vmap(Several.apply, (0, None, None))(x, x[0], 2),
    "several, another in no batch": lambda x: vmap(Several.apply, (None, 0, None))(x[0], x, 2),
    "several, at other dimensions": lambda x: vmap(Several.apply, (0, 1, None))(x, x.t() * 2, 2),
    "several, nested": lambda x: vmap(lambda a: vmap(lambda b: Several.apply(a, b, 2))(x))(x),
    "rows": lambda x: vmap(Rows.apply)(x.view(3, 2, 2)),
    "rows, at the last dimension": lambda x: vmap(Rows.apply, 2, 1)(x.view(2, 2, 3)),
    "constant": lambda x: vmap(Constant.apply)(x),
    "own": lambda x: vmap(Own.apply)(x),
    "own, at the last dimension": lambda x: vmap(Own.apply, 1)(x),
    "own, nested": lambda x: vmap(vmap(Own.apply))(x),
    "own, in no batch": lambda x: vmap(lambda row: Own.apply(x[0]) * row)(x),
    "own, outside alone": lambda x: vmap(lambda a: vmap(lambda b: Own.apply(a) * b)(x))(x),
    "own and generated": lambda x: vmap(lambda row: Own.apply(Cube.apply(row)))(x),
    "own of two": lambda x: vmap(OwnOfTwo.apply)(x, x.sin()),
    "own of two, one in no batch": lambda x: vmap(OwnOfTwo.apply, (None, 0), (0, None))(x[0], x),
}


def differentiated(run: Any) -> Any:
    """Results, gradients and gradients of gradients, of two calls, one of which records none."""
    found: list[Any] = []
    for _ in range(2):
        x = wanted(3, 4)
        results = list(tensors_in(run(x)))
        heads = [r for r in results if r.requires_grad]
        weights = [torch.arange(1.0, h.numel() + 1, dtype=h.dtype).reshape(h.shape) for h in heads]
        loss = sum(((h * w).sin().sum() for h, w in zip(heads, weights)), (x * x).sum() * 0)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found += [results, first, torch.autograd.grad(first.square().sum(), x)]
    with torch.no_grad():
        found.append(run(wanted(3, 4)))
    found.append(run(wanted(3, 4).detach()))
    return found


@pytest.mark.parametrize(
    "wrap", [ingot.compile, lambda f: ingot.compile(f, fullgraph=True)], ids=["plain", "whole"]
)
@pytest.mark.parametrize("name", CAPTURED)
def test_under_vmap(name: str, wrap: Any) -> None:
    both(lambda wrap: differentiated(wrap(CAPTURED[name])), wrap)


def test_the_level_is_left_and_entered_again() -> None:
    """What comes behind a call in the same level is mapped as what comes before it."""

    def program(wrap: Any) -> Any:
        def example(a: Tensor, b: Tensor) -> Tensor:
            a = a - a.mean()
            c = Several.apply(a, b, 2)[0]
            return (c / c.norm()).cumsum(0) + Own.apply(b).max()

        run = wrap(lambda x: vmap(vmap(example, (0, None)), (0, 0))(x.view(3, 2, 2), x[:, :2]))
        return differentiated(run)

    both(program)


class Unmapped(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Ambiguous(Own):
    generate_vmap_rule = True


class Older(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("function", [Unmapped, Ambiguous, Older], ids=lambda f: f.__name__)
def test_what_eager_refuses(function: Any, requires_grad: bool) -> None:
    errors = []
    for wrap in (lambda f: f, ingot.compile):
        with pytest.raises(RuntimeError) as raised:
            wrap(lambda x: vmap(function.apply)(x))(torch.randn(3, 4, requires_grad=requires_grad))
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


class Forward(Cube):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0] * 9


DIFFERENTIATED: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(lambda t: Cube.apply(t).sum())(x),
    "grad of own": lambda x: grad(lambda t: Own.apply(t).sum())(x),
    "grad of a view": lambda x: grad(lambda t: Scale.apply(t).sum())(x),
    "grad of vmap": lambda x: grad(lambda t: vmap(Cube.apply)(t).sum())(x),
    "grad of own in vmap": lambda x: grad(lambda t: vmap(Own.apply)(t).sum())(x),
    "vmap of grad": lambda x: vmap(grad(lambda t: Cube.apply(t).sum()))(x),
    "vmap of grad of own": lambda x: vmap(grad(lambda t: Own.apply(t).sum()))(x),
    "grad of grad": lambda x: grad(lambda t: grad(lambda s: Cube.apply(s).sum())(t).sum())(x),
    "vjp": lambda x: vjp(Cube.apply, x)[1](x.detach())[0],
    "vjp of several": lambda x: vjp(lambda t: Several.apply(t, t * 2, 2)[0], x)[1](x)[0],
    "jvp": lambda x: jvp(Forward.apply, (x,), (x.detach(),)),
    "jacrev": lambda x: jacrev(Cube.apply)(x[0]),
    "jacrev of vmap": lambda x: jacrev(lambda t: vmap(Scale.apply)(t))(x),
    "grad, in another variable": lambda x: grad(lambda t: (t * Cube.apply(x)).sum())(x.detach()),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_under_transforms_that_differentiate(name: str) -> None:
    both(lambda wrap: differentiated(wrap(DIFFERENTIATED[name])), ingot.compile)
