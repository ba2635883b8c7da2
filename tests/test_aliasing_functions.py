"""Custom backwards whose results share memory with an argument or with another result: gradients,
and what shares memory with what, are those of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import ingot
from tests.aliasing_functions import FORMS, PLACES, differences
from tests.oracle import tensors_in
from tests.test_differentiation import both, wanted

PAIRS = [
    (form, place)
    for k, form in enumerate(FORMS)
    for j, place in enumerate(PLACES)
    if (k + j) % 4 == 0
]


@pytest.mark.parametrize("form, place", PAIRS)
def test_eager_is_the_oracle(form: str, place: str) -> None:
    assert differences(FORMS[form], PLACES[place], leaf=form > place) == []


class Second(Function):
    """Returns an argument that has no gradient; that of the other one depends on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient * ctx.saved_tensors[0]


class Keeps(Function):
    """Saves what it returns, which is a view of what it saves as well."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, x = ctx.saved_tensors
        return (gradient * y).t() * x


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 7


class NoGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_non_differentiable(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 7


class Swap(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        return y, x

    @staticmethod
    def backward(ctx: Any, of_y: Tensor, of_x: Tensor) -> Any:
        return of_x * 2, of_y * 3


class Integers(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n: Tensor) -> Any:
        return x.view_as(x), n.view(-1)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, _: Any) -> Any:
        return of_x * 2, None


def of_itself(function: Any, x: Tensor) -> Any:
    h = x * 2
    return h, function.apply(h)


PROGRAMS: dict[str, Any] = {
    "second": lambda x, b: Second.apply(b, x),
    "second, and its first": lambda x, b: (b, Second.apply(b, x)),
    "second of a computed tensor": lambda x, b: (lambda h: (h, Second.apply(h, x)))(b * 2),
    "second of a tensor that was written": lambda x, b: (b.add_(x.detach()), Second.apply(b, x)),
    "keeps": lambda x, b: Keeps.apply(x),
    "keeps, of a computed tensor": lambda x, b: of_itself(Keeps, x),
    "dirty": lambda x, b: (lambda h: (Dirty.apply(h), h))(x * 1),
    "no gradient": lambda x, b: (NoGradient.apply(x), x * 2),
    "no gradient, of a computed tensor": lambda x, b: of_itself(NoGradient, x),
    "swapped": lambda x, b: Swap.apply(x, b),
    "swapped, one computed": lambda x, b: Swap.apply(x, x * 2),
    "swapped, the same": lambda x, b: Swap.apply(x, x),
    "swapped, both computed": lambda x, b: Swap.apply(x * 2, b * 2),
    "integers": lambda x, b: Integers.apply(x, torch.arange(3)),
    "of an expanded tensor": lambda x, b: Swap.apply(x[:1].expand(3, 4), b),
    "of what was written": lambda x, b: (lambda h: (h.mul_(2), Swap.apply(h, b)))(x * 1),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_several_arguments(name: str, dynamic: bool | None) -> None:
    def program(wrap: Any) -> Any:
        run, found = wrap(PROGRAMS[name]), list[Any]()
        for _ in range(2):
            x, b = wanted(3, 4), torch.randn(3, 4, dtype=torch.float64)
            results = list(tensors_in(run(x, b)))
            heads = [r for r in results if r.requires_grad]
            loss = sum(((h * h).sin().sum() for h in heads), (x * x).sum() * 0)
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            memory = [t.untyped_storage().data_ptr() for t in (x, b, *results)]
            found += [[memory.index(m) for m in memory], results, b, [r.is_leaf for r in results]]
            found += [first, torch.autograd.grad(first.square().sum(), x)]
        return found

    both(program, lambda f: ingot.compile(f, dynamic=dynamic))
