"""Scans and maps of many slices are one node of the graph, and what plain Python gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_over

import ingot
from tests.test_control_flow import outcome


def python_scan(body: Any, init: Any, xs: Any, *, reverse: bool = False) -> Any:
    leaves, spec = torch.utils._pytree.tree_flatten(xs)
    rows, state = [], init
    steps = range(leaves[0].shape[0])
    for k in reversed(steps) if reverse else steps:
        state, row = body(state, torch.utils._pytree.tree_unflatten([x[k] for x in leaves], spec))
        rows.append(row)
    if reverse:
        rows.reverse()
    return state, torch.utils._pytree.tree_map(lambda *rows: torch.stack(rows), *rows)


def python_map(function: Any, xs: Any, *args: Any) -> Any:
    return torch.stack([function(x, *args) for x in xs])


def recurrent(x: Tensor, w: Tensor, scan: Any, map: Any) -> Any:
    def cell(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h @ w + x)
        return h, h * 2

    return scan(cell, x[0] * 0, x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 2


def with_a_function_of_its_own(x: Tensor, w: Tensor, scan: Any, map: Any) -> Any:
    return scan(lambda c, x: (Doubled.apply(c * 0.5 + x), c + x), x[0] * 0, x)


SCANS: dict[str, Callable[..., Any]] = {
    "sums": lambda x, w, s, m: s(lambda c, x: (c + x, c * x), torch.zeros(4), x),
    "reversed": lambda x, w, s, m: s(
        lambda c, x: (c * 0.9 + x, c * x), torch.zeros(4), x, reverse=True
    ),
    "trees": lambda x, w, s, m: s(
        lambda c, p: ({"s": c["s"] * 0.5 + p["a"]}, [c["s"] * p["b"], (p["a"].sum(),)]),
        {"s": torch.zeros(4)},
        {"a": x, "b": x * 2},
    ),
    "counted": lambda x, w, s, m: s(
        lambda c, x: ((c[0] + 1, c[1] * 0.5 + x), x * c[0]), (torch.tensor(0), x[0] * 0), x
    ),
    "of another layout": lambda x, w, s, m: s(
        lambda c, x: (c * 0.5 + x, c * x), torch.zeros(4), (x * 1).t().contiguous().t()
    ),
    "of the state alone": lambda x, w, s, m: s(lambda c, x: (c @ w * 0.1 + x, x + 1), x[0] * 1, x),
    "recurrent": recurrent,
    "a function of its own": with_a_function_of_its_own,
    "a branch inside": lambda x, w, s, m: s(
        lambda c, x: (torch.where(x.sum() > 0, c * 0.5 + x, c - 1), c * x), torch.zeros(4), x
    ),
    "map": lambda x, w, s, m: m(lambda row: row @ w, x),
    "map with others": lambda x, w, s, m: m(lambda row, w, k: (row @ w).sin() * k, x, w, w[0, 0]),
    "one in another": lambda x, w, s, m: s(
        lambda c, x: (c + x, s(lambda d, y: (d + y, d * y), c.sum(), x)[1]), torch.zeros(4), x
    ),
}  # fmt: skip

W = torch.linspace(-1, 1, 16).view(4, 4)
LONG = torch.linspace(-1, 1, 280).view(70, 4).sin()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_long_scans_are_one_node(name: str, with_gradients: bool, dynamic: bool) -> None:
    def called(x: Tensor, scan: Any, map: Any) -> Any:
        return SCANS[name](x, weight, scan, map)

    weight = W.clone().requires_grad_(with_gradients)
    compiled = ingot.compile(called, fullgraph=True, dynamic=dynamic)
    lengths = (70, 90) if dynamic else (70,)
    for n in lengths:
        found, expected = [], []
        for function, forms, results in (
            (compiled, (scan, map_over), found),
            (called, (python_scan, python_map), expected),
        ):
            weight.grad = None
            results.extend(outcome(function, LONG.repeat(2, 1)[:n], with_gradients, *forms))
            if with_gradients:
                given = LONG.repeat(2, 1)[:n].requires_grad_()
                values = torch.utils._pytree.tree_leaves(function(given, *forms))
                sum((v * v).sum() for v in values if v.requires_grad).backward()
                results.append(weight.grad)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(ingot.explain(called)(LONG[:70], scan, map_over).kernels) < 12


def test_second_derivatives_of_a_scan() -> None:
    def last(x: Tensor, scan: Any) -> Tensor:
        result: Tensor = scan(lambda c, x: (torch.sin(c) * 0.5 + x * x, c * x), x[0] * 1, x)[0]
        return result

    compiled = ingot.compile(last, fullgraph=True)
    found = []
    for function, form in ((compiled, scan), (last, python_scan)):
        given = LONG.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(given, form).sum(), given, create_graph=True)
        found.append(torch.autograd.grad((first * LONG).sum(), given))
    torch.testing.assert_close(*found)


def adds_in_place(c: Tensor, x: Tensor) -> Any:
    return c.add_(x) * 1, c * x


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (adds_in_place, "writes what was there|raises an error"),
        (lambda c, x: (c, c * x), "gives back"),
        (lambda c, x: (c.double() + x, c * x), "other sizes, strides or types"),
        (lambda c, x: (c + torch.rand(4), c * x), "draws random numbers"),
    ],
)
def test_bodies_that_are_refused(body: Any, reason: str) -> None:
    with pytest.raises(ingot.GraphBreakError, match=reason):
        ingot.compile(lambda x: scan(body, torch.zeros(4), x), fullgraph=True)(LONG)
