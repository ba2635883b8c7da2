"""torch.cond and its kin: what they give is what eager gives; what depends on Python numbers alone,
and the loops of map and scan, are one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import (
    InvokeQuant,
    foreach_map,
    hints_wrapper,
    out_dtype,
    scan,
    strict_mode,
    while_loop,
)
from torch._higher_order_ops import print as print_op
from torch._higher_order_ops.map import map as map_over

import ingot

X = torch.arange(4.0) + 0.5
hops: Any = torch.ops.higher_order

WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "cond on a size": lambda x: torch.cond(
        x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,)
    ),
    "while_loop": lambda x: while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
    ),
    "while_loop that never runs": lambda x: while_loop(
        lambda i, x: i < -1, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
    ),
    "scan": lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(()), x),
    "scan, reversed": lambda x: scan(
        lambda c, x: (c + x, c * x), torch.zeros(4), x.repeat(4, 1).tril(), reverse=True
    ),
    "scan of trees": lambda x: scan(
        lambda c, x: ({"sum": c["sum"] + x["u"]}, [c["sum"] * x["u"]]),
        {"sum": torch.zeros(())},
        {"u": x},
    ),
    "map": lambda x: map_over(lambda row: row * 2, x[:, None]),
    "map of trees": lambda x: map_over(
        lambda rows, k: (rows[0] * 2 + k, rows[1] * 1),
        [x[:, None].clone(), x.clone()],
        x[0].clone(),
    ),
    "foreach_map": lambda x: foreach_map(lambda a, b: a * b + 1, [x, x + 1], [x, x]),
    "foreach_map, a list and a number": lambda x: foreach_map(torch.add, [x, x + 1], 2),
    "strict_mode": lambda x: strict_mode(lambda a, b: (a + b, a), (x, x * 2)),
    "hints_wrapper": lambda x: hints_wrapper(lambda a: a.sin(), (x,), {}, hints={"a": 1}),
    "out_dtype": lambda x: out_dtype(
        torch.ops.aten.mul.Tensor, torch.int32, x.to(torch.int8), x.to(torch.int8) * 100
    ),
    "out_dtype, a product": lambda x: out_dtype(
        torch.ops.aten.mm.default, torch.int32, x[:, None].to(torch.int8), x[None].to(torch.int8)
    ),
    "wrap": lambda x: hops.wrap(lambda a, b: (a + b, x * 2), x, b=x + 1),
    "wrap_with_set_grad_enabled": lambda x: hops.wrap_with_set_grad_enabled(
        False, lambda a: a.sin() + torch.is_grad_enabled(), x
    ),
    "wrap_with_autocast": lambda x: hops.wrap_with_autocast(
        "cpu", torch.bfloat16, True, None, lambda a: a[:, None] @ a[None], x
    ),
    "dynamo_bypassing_wrapper": lambda x: hops.dynamo_bypassing_wrapper(
        lambda function: lambda a: function(a) + 1, torch.sin, x
    ),
    "map_impl": lambda x: hops.map_impl(lambda a, b, c: (a * c, b * 1), [x, x + 1], [x]),
    "cond operator": lambda x: hops.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)),
    "InvokeQuant": lambda x: InvokeQuant()(lambda a, b: a * b, x, x, scheme="int4"),
}  # fmt: skip


def test_hints_that_are_refused() -> None:
    for given in ((X, [1]), (X, "text")):
        compiled = ingot.compile(lambda *args: hints_wrapper(torch.mul, args, {}, hints={"a": 1}))
        with pytest.raises(RuntimeError, match="args must be a tuple"):
            compiled(*given)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(x: Tensor) -> Tensor:
        y = x + 1
        print_op("{} of {size}", "a tensor", size=x.shape[0])
        return y

    assert torch.equal(ingot.compile(shown, fullgraph=True)(X), X + 1)
    assert capsys.readouterr().out == "a tensor of 4\n"


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str) -> None:
    torch.testing.assert_close(ingot.compile(WHOLE[name], fullgraph=True)(X), WHOLE[name](X))


def choose(x: Tensor) -> Tensor:
    y = x * 2
    return torch.cond(y.sum() > 0, lambda y: y + 1, lambda y: y - 1, (y,)) * 3


def double_until_large(x: Tensor) -> Any:
    return while_loop(lambda x: x.sum() < 100, lambda x: (x * 2,), (x,))


def scan_columns(x: Tensor) -> Any:
    rows = x.repeat(4, 1).tril()
    return scan(lambda c, x: (c + x, c * x), torch.zeros(4), rows, dim=1)


@pytest.mark.parametrize("function", [choose, double_until_large, scan_columns])
def test_other_calls_break_the_graph(function: Callable[[Tensor], Any]) -> None:
    compiled = ingot.compile(function)
    for x in (X, X * 3, X * 200):
        torch.testing.assert_close(compiled(x), function(x))


def test_gradients_of_the_branch_that_is_taken() -> None:
    compiled = ingot.compile(choose)
    for x in (X, -X):
        given = x.clone().requires_grad_()
        compiled(given).sum().backward()
        torch.testing.assert_close(given.grad, torch.full((4,), 6.0))
