"""Writes by way of `.data`: autograd does not count them, so a backward that reads what was written
reads what is there then, and raises no error. Values, gradients and versions are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import ingot
from tests.test_differentiation import both, wanted


class Assign(Function):
    """What solvers of differential equations keep their stages with."""

    @staticmethod
    def forward(ctx: Any, stages: Tensor, value: Tensor, index: Any) -> Tensor:
        ctx.index = index
        stages.data[index] = value
        return stages

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, gradient[ctx.index], None


def nothing() -> None:
    """In place of a graph break."""


@ingot.disable
def outside() -> None:
    """Breaks the graph."""


def an_argument(x: Tensor, w: Tensor, between: Any) -> Any:
    y = x * w
    between()
    w.data.mul_(2)
    between()
    return y.sin()


def a_part_of_an_argument(x: Tensor, w: Tensor, between: Any) -> Any:
    y = (x * w[1:2]).exp()
    between()
    w.data[1] = 3.0
    return y * w


def a_computed_tensor(x: Tensor, w: Tensor, between: Any) -> Any:
    h = w * 1
    y = x * h
    between()
    h.data[0] = 5.0
    return y * h


def a_result(x: Tensor, w: Tensor, between: Any) -> Any:
    y = x.exp()
    z = y * w
    between()
    y.data.zero_()
    return z + y, y


def a_view(x: Tensor, w: Tensor, between: Any) -> Any:
    h = (w * 1).t()
    y = x * h
    h.data[:, 1].add_(1)
    between()
    return y.sin()


def data_of_a_view(x: Tensor, w: Tensor, between: Any) -> Any:
    y = x * w
    w[0].data.copy_(x[1])
    between()
    return y * y


def data_that_is_kept(x: Tensor, w: Tensor, between: Any) -> Any:
    data = w.data
    y = x * w
    between()
    data.view(-1)[2:5].mul_(3)
    between()
    data += 1
    return y.sin()


def data_that_is_returned(x: Tensor, w: Tensor, between: Any) -> Any:
    data = w.data
    y = x * w
    between()
    data.neg_()
    return y.sin(), data, data.view(-1)


def a_loss_scaled_in_place(x: Tensor, w: Tensor, between: Any) -> Any:
    y = (x @ w).tanh()
    between()
    y.data *= 2
    return y.sum()


def stages(x: Tensor, w: Tensor, between: Any) -> Any:
    k = torch.empty(3, 3, dtype=x.dtype)
    k = Assign.apply(k, x[0] * w[0], 0)
    between()
    k = Assign.apply(k, (k[:1] * w[:1]).sum(0).sin(), 1)
    between()
    k = Assign.apply(k, (k[:2] * w[:2]).sum(0).sin(), 2)
    return (k * w).sum(0), k[-1]


def stages_at_the_end(x: Tensor, w: Tensor, between: Any) -> Any:
    k = torch.empty(3, 3, dtype=x.dtype)
    for stage in range(3):
        k = Assign.apply(k, x[stage] * w[stage], (..., stage))
        between()
        x = x + k[..., : stage + 1].sum(-1, keepdim=True)
    return x * k, k


def written_twice(x: Tensor, w: Tensor, between: Any) -> Any:
    """Autograd knows of one of the writes, which comes before what reads the tensor."""
    h = w * 1
    h.mul_(2)
    y = x * h
    between()
    h.data.add_(1)
    return y * h


PROGRAMS: list[Callable[..., Any]] = [
    an_argument, a_part_of_an_argument, a_computed_tensor, a_result, a_view, data_of_a_view,
    data_that_is_kept, data_that_is_returned, a_loss_scaled_in_place, stages, stages_at_the_end,
    written_twice,
]  # fmt: skip


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "computed"])
@pytest.mark.parametrize("between", [nothing, outside], ids=["whole", "breaks"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_eager_is_the_oracle(program: Any, between: Any, leaf: bool) -> None:
    def run(wrap: Any) -> Any:
        compiled, found = wrap(lambda x, w: program(x, w, between)), list[Any]()
        for _ in range(2):
            x, w = wanted(3, 3), wanted(3, 3)
            given = w if leaf else w * 1
            results = compiled(x, given)
            results = results if isinstance(results, tuple) else (results,)
            found += [results, given, given._version, [r._version for r in results[:1]]]
            heads = [r for r in results if r.requires_grad]
            found.append(
                torch.autograd.grad(
                    heads, (x, w), [torch.ones_like(h) for h in heads], retain_graph=True
                )
            )
        return found

    both(run, ingot.compile)


def test_a_write_that_autograd_counts_is_refused() -> None:
    """detach() shares the count of writes; data does not."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        w.data.mul_(2)
        w.detach().mul_(2)
        return y

    for run in (program, ingot.compile(program)):
        x, w = wanted(3), wanted(3)
        y = run(x, w)
        assert w._version == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_loop_that_trains_by_data() -> None:
    def run(wrap: Any) -> Any:
        x, w = wanted(4, 3), wanted(3)

        def step(x: Tensor, w: Tensor) -> Tensor:
            loss = (x @ w).square().mean()
            (gradient,) = torch.autograd.grad(loss, w)
            w.data -= 0.1 * gradient
            return loss.detach()

        compiled = wrap(step)
        return [compiled(x, w) for _ in range(4)], w, w._version

    both(run)
