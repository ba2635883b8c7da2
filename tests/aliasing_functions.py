"""Custom backwards whose results share memory with an argument or with another result, and eager as
the oracle: a table of what a Function's forward returns, where the Function sits in the program,
and which gradients are asked for.

`python -m tests.aliasing_functions` goes through all of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import ingot
from tests.oracle import alike, tensors_in
from tests.test_differentiation import EAGER

SHAPE = (3, 4)


class Form(NamedTuple):
    """What a forward returns, and the gradient of its argument by those of its results."""

    forward: Callable[[Tensor], Any]
    backward: Callable[..., Tensor]
    materialize: bool = True
    constant: tuple[int, ...] = ()


FORMS = {
    "itself": Form(lambda x: x, lambda g: g),
    "view_as": Form(lambda x: x.view_as(x), lambda g: g),
    "view": Form(lambda x: x.view(-1), lambda g: g.view(SHAPE)),
    "reshape": Form(lambda x: x.reshape(2, 6), lambda g: g.reshape(SHAPE)),
    "t": Form(lambda x: x.t(), lambda g: g.t()),
    "permute": Form(lambda x: x.permute(1, 0), lambda g: g.permute(1, 0)),
    "rows": Form(lambda x: x[:2], lambda g: F.pad(g, (0, 0, 0, 1))),
    "row": Form(lambda x: x[1], lambda g: F.pad(g[None], (0, 0, 1, 1))),
    "columns": Form(lambda x: x[:, 1:], lambda g: F.pad(g, (1, 0))),
    "narrow": Form(lambda x: x.narrow(1, 0, 2), lambda g: F.pad(g, (0, 2))),
    "diagonal": Form(lambda x: x.diagonal(), lambda g: F.pad(torch.diag_embed(g), (0, 1))),
    "unsqueeze": Form(lambda x: x.unsqueeze(0), lambda g: g.squeeze(0)),
    "expand": Form(lambda x: x.expand(2, 3, 4), lambda g: g.sum(0)),
    "detach": Form(lambda x: x.detach(), lambda g: g),
    "data": Form(lambda x: x.data, lambda g: g),
    "contiguous": Form(lambda x: x.contiguous(), lambda g: g),
    "to": Form(lambda x: x.to(torch.float64), lambda g: g),
    "dots": Form(lambda x: x[...], lambda g: g),
    "as_strided": Form(lambda x: x.as_strided((3, 2), (4, 1), 1), lambda g: F.pad(g, (1, 1))),
    "unbind": Form(lambda x: x.unbind(), lambda *g: torch.stack(g)),
    "split": Form(lambda x: x.split([1, 2]), lambda a, b: torch.cat([a, b])),
    "itself, product": Form(lambda x: (x, x * 2), lambda a, b: a + 2 * b),
    "product, view": Form(lambda x: (x * 2, x.view(-1)), lambda a, b: 2 * a + b.view(SHAPE)),
    "itself, view": Form(lambda x: (x, x.view(-1)), lambda a, b: a + b.view(SHAPE)),
    "two of one": Form(lambda x: _with_view(x * 3), lambda a, b: 3 * (a + b.view(SHAPE))),
    "itself, constant": Form(lambda x: (x, x.view(-1)), lambda a, b: a, constant=(1,)),
    "no zeros": Form(
        lambda x: (x, x.t()), lambda a, b: _sum(a, None if b is None else b.t()), False
    ),
    "clone": Form(lambda x: x.clone(), lambda g: g),
}


def _with_view(y: Tensor) -> Any:
    return y, y.view(-1)


def _sum(a: Tensor | None, b: Tensor | None) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def function_of(form: Form) -> Callable[[Tensor], Any]:
    """A Function whose gradient is twice the right one."""

    class Doubled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.set_materialize_grads(form.materialize)
            made = form.forward(x)
            if form.constant:
                ctx.mark_non_differentiable(*[made[k] for k in form.constant])
            return made

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return 2 * form.backward(*gradients)

    return Doubled.apply


class Scale(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 5


def first(results: Any) -> Tensor:
    return results[0] if isinstance(results, tuple) else results


class Layer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        return self.function(x), x * self.scale


@ingot.disable
def outside(*tensors: Any) -> None:
    """Breaks the graph."""


def without_gradients(f: Any, x: Tensor) -> Any:
    with torch.no_grad():
        a = f(x)
    return a, f(x)


def alive_at_a_break(f: Any, x: Tensor) -> Any:
    r = f(x)
    outside()
    return r, first(r).sin()


def used_behind_a_break(f: Any, x: Tensor) -> Any:
    h = x * 3
    r = first(f(h))
    outside()
    return (r * 2).sum() + h.sum()


def with_a_hook(f: Any, x: Tensor) -> Any:
    r = first(f(x))
    r.register_hook(lambda g: g * 7)
    return r.view_as(r)


Place = Callable[[Any, Tensor], Any]
PLACES: dict[str, Place] = {
    "the whole program": lambda f, x: f(x),
    "first": lambda f, x: first(f(x)).sin(),
    "last": lambda f, x: f(x.sin()),
    "between": lambda f, x: first(f(x.sin())).cos(),
    "returned twice": lambda f, x: (lambda r: (r, r))(f(x)),
    "argument and result": lambda f, x: (x, f(x)),
    "computed argument and result": lambda f, x: (lambda h: (h, f(h)))(x * 3),
    "result and computed argument": lambda f, x: (lambda h: (f(h), h.view(-1), h))(x * 3),
    "result and a view of it": lambda f, x: (lambda r: (first(r).view_as(first(r)), r))(f(x)),
    "a view of the result": lambda f, x: first(f(x * 3)).unsqueeze(0),
    "of a view": lambda f, x: f(x.view(4, 3).view(3, 4)),
    "of a view that is returned": lambda f, x: (lambda v: (v, f(v)))(x[...]),
    "one behind another": lambda f, x: Scale.apply(first(f(Scale.apply(x)))),
    "one behind another, all returned": lambda f, x: (lambda a: (a, f(a), Scale.apply(a)))(
        Scale.apply(x)
    ),
    "the result detached": lambda f, x: (lambda r: (r, first(r).detach()))(f(x)),
    "result and what is computed": lambda f, x: (lambda r: (r, first(r) * 2))(f(x)),
    "in a module": lambda f, x: Layer(f)(x),
    "without gradients": without_gradients,
    "alive at a break": alive_at_a_break,
    "used behind a break": used_behind_a_break,
    "with a hook": with_a_hook,
    "in a checkpoint": lambda f, x: checkpoint(lambda x: f(x.sin()), x, use_reentrant=False),
    "a checkpoint": lambda f, x: checkpoint(f, x, use_reentrant=False),
    "a reentrant checkpoint": lambda f, x: checkpoint(f, x, use_reentrant=True),
}


def facts_of(x: Tensor, results: Sequence[Tensor]) -> Any:
    """What shares memory with what, and what autograd says of it."""
    all_tensors = [x, *results]
    memory = [t.untyped_storage().data_ptr() for t in all_tensors]
    distances = [[(a.data_ptr() - b.data_ptr()) if p == q else None for a,
        p in zip(all_tensors, memory)]
                 for b, q in zip(all_tensors, memory)]  # fmt: skip
    identical = [[a is b for a in all_tensors] for b in all_tensors]
    flags = [(t.requires_grad, t.is_leaf, t.shape, t.stride()) for t in results]
    others = {id(t): place for t, place in zip(all_tensors, memory)}
    shared = [t for t, place in zip(results, memory[1:]) if [*others.values()].count(place) > 1]
    return (
        distances,
        identical,
        flags,
        [t._is_view() for t in shared],
        [t.detach().clone() for t in results],
    )


def gradients_of(run: Any, x: Tensor, asked: str, retain: bool = False) -> Any:
    """The gradients that are `asked` for of a call."""
    heads = [t for t in tensors_in(run(x)) if t.requires_grad and t is not x]
    weights = [torch.arange(1.0, h.numel() + 1, dtype=h.dtype).reshape(h.shape) for h in heads]
    if asked == "second derivatives":
        loss = sum(((h * w).sin().sum() for h, w in zip(heads, weights)), x.sum() * 0)
        (found,) = torch.autograd.grad(loss, x, create_graph=True)
        return found, torch.autograd.grad(found.square().sum(), x)
    if asked == "all":
        return torch.autograd.grad(heads, x, weights)
    return [
        torch.autograd.grad(h, x, w, retain_graph=True, allow_unused=True)
        for h, w in zip(heads, weights)
    ]


ASKED = ("all", "some", "second derivatives")


def outcome(wrap: Any, form: Form, place: Place, leaf: bool, found: dict[str, Any]) -> None:
    """Puts into `found` all that is compared."""
    function = function_of(form)
    run = wrap(lambda x: place(function, x))

    def argument() -> Tensor:
        torch.manual_seed(0)
        x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
        return x if leaf else x * 1

    for call in range(2):
        x = argument()
        results = list(tensors_in(run(x)))
        found[f"facts {call}"] = facts_of(x, results)
        with torch.no_grad():
            x.add_(1)
        found[f"written {call}"] = [t.detach().clone() for t in results]
    for asked in ASKED:
        if asked == "second derivatives" and place is with_a_hook:  # an error that says so
            continue
        for call in range(2):
            try:
                found[f"{asked} {call}"] = gradients_of(run, argument(), asked)
            except RuntimeError as error:
                found[f"{asked} {call}"] = type(error)


def differences(form: Form, place: Place, leaf: bool) -> list[str]:
    eager: dict[str, Any] = {}
    compiled: dict[str, Any] = {}
    outcome(EAGER, form, place, leaf, eager)
    outcome(ingot.compile, form, place, leaf, compiled)
    return [name for name in eager if not alike(compiled[name], eager[name])]


def main() -> None:
    counts = {"right": 0, "wrong": 0}
    for (form, place), leaf in itertools.product(itertools.product(FORMS, PLACES), (True, False)):
        found = differences(FORMS[form], PLACES[place], leaf)
        counts["wrong" if found else "right"] += 1
        if found:
            print(
                f"{form} | {place} | {'leaf' if leaf else 'computed'}: {', '.join(found)}",
                flush=True,
            )
        ingot.reset()
    print(counts)
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()
