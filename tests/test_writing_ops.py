"""Custom ops that write their arguments are part of the graph, and do what they do in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.writing_ops import OPS, WITHOUT_GRADIENTS, Op


def _local(op: Op, x: Tensor) -> Any:
    y = x + 1
    return op(y, x), y * 2


def _returned(op: Op, x: Tensor) -> Any:
    y = x + 1
    return y, op(y, x), y.t()


def _argument(op: Op, x: Tensor) -> Any:
    return op(x, x * 2), x + 1


def _only(op: Op, x: Tensor) -> Any:
    op(x, x.clone())


def _argument_returned(op: Op, x: Tensor) -> Any:
    op(x, x * 2)
    return x


def _read_before(op: Op, x: Tensor) -> Any:
    y = x + 1
    before = y * 3
    op(y, x)
    return before, y, before + y


def _argument_read_before(op: Op, x: Tensor) -> Any:
    total = x.detach().sum()
    op(x, x * 2)
    return total, x * 2


def _row(op: Op, x: Tensor) -> Any:
    op(x[0], x[1] * 1)
    return x * 1


def _columns(op: Op, x: Tensor) -> Any:
    y = x + 0
    op(y[:, 1:3], x[:, :2])
    return y


def _transposed(op: Op, x: Tensor) -> Any:
    op(x.t(), (x * 2).t())
    return x.t()


def _piece_of_another(op: Op, x: Tensor) -> Any:
    """It reads memory of the tensor that it writes."""
    y = x * 1
    a, b = y[0], y[1]
    op(a, b)
    return y, a, b


def _twice(op: Op, x: Tensor) -> Any:
    op(x, x * 2)
    y = x * 1
    op(x, y)
    return x + y


def _in_a_loop(op: Op, x: Tensor) -> Any:
    for k in range(3):
        op(x[k], x[k] * 2)
    return x.sum()


def _detached(op: Op, x: Tensor) -> Any:
    y = x * 2
    op(y.detach(), x)
    return y


def _without_gradients(op: Op, x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        op(y, x)
    return y * 3


def _written_by_others(op: Op, x: Tensor) -> Any:
    y = x * 2
    y.add_(1)
    view = y.view(-1)[:8]
    op(view, x.reshape(-1)[:8])
    view.mul_(2)
    y[1].sub_(1)
    return y, view


USES = (
    _local, _returned, _argument, _only, _argument_returned, _read_before, _argument_read_before,
    _row, _columns, _transposed, _piece_of_another, _twice, _in_a_loop, _detached,
    _without_gradients, _written_by_others,
)  # fmt: skip


def _tensors(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    found = []
    for item in results or ():
        found += _tensors(item)
    return found


def _run(function: Any, x: Tensor, gradients: bool) -> Any:
    """What a call gives, and leaves, and how the results lie in memory."""
    leaf = x.clone().requires_grad_(gradients)
    given = leaf * 1 if gradients else leaf
    results = _tensors(function(given))
    differentiable = [r for r in results if r.requires_grad]
    found = []
    if differentiable:
        total = sum(r.square().sum() for r in differentiable)
        found += torch.autograd.grad(total, [leaf], allow_unused=True)
    memory = []
    for r in (given, *results):
        same = [r is other or r.untyped_storage()._cdata == other.untyped_storage()._cdata
                for other in (given, *results)]  # fmt: skip
        memory.append((same, r.stride(), r.requires_grad))
    values = [r.detach().clone() for r in (given, *results)]
    return values, found, memory


def _same(function: Any, inputs: list[Tensor], gradients: bool, **options: Any) -> None:
    compiled = ingot.compile(function, fullgraph=True, **options)
    for x in inputs:
        expected, found = _run(function, x, gradients), _run(compiled, x, gradients)
        for mine, its in zip(found[:2], expected[:2]):
            torch.testing.assert_close(mine, its)
        assert found[2] == expected[2]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__[1:])
@pytest.mark.parametrize("name", OPS)
def test_writes_are_eagers(name, use):
    op = OPS[name]

    def program(x):
        return use(op, x)

    x = torch.linspace(-1, 2, 20).view(4, 5)
    _same(program, [x, x + 1], False)
    _same(program, [x, torch.linspace(-1, 1, 42).view(6, 7)], False, dynamic=True)
    if name not in WITHOUT_GRADIENTS or use is _without_gradients:
        _same(program, [x, x + 1], True)
