"""Custom ops that write their arguments are part of the graph, and do what they do in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import ingot
from tests.writing_ops import DIFFERENTIATED_INSIDE, OPS, Op, listed, nested, ops, scale, several


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
    memory: list[Any] = []
    if differentiable:
        total = sum(r.square().sum() for r in differentiable)
        try:
            found += torch.autograd.grad(total, [leaf], allow_unused=True)
        except RuntimeError as error:  # it has no formula
            memory.append(str(error))
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
    if name not in DIFFERENTIATED_INSIDE or use is _without_gradients:
        _same(program, [x, x + 1], True)


def _views_of_a_list(x: Tensor) -> Tensor:
    listed(list(x.unbind(0)), 3)
    return x * 1


def _the_same_in_a_list(x: Tensor) -> Tensor:
    y = x * 1
    listed([y, y], 2)
    return y


def _an_overlapping_view(x: Tensor) -> Tensor:
    y = x.reshape(-1) * 1
    listed([y.unfold(0, 4, 2), y.as_strided((2, 3), (7, 1), 2)], 2)
    return y


def _another_dtype(x: Tensor) -> Tensor:
    y = x.detach() * 1
    ops.grow_(y.view(torch.int32))
    return y


def _complex_numbers(x: Tensor) -> Tensor:
    y = torch.complex(x.detach(), x.detach() * 2)
    scale(y)
    scale(torch.view_as_real(y))
    return torch.view_as_real(y * 1)


def _written_with_itself(x: Tensor) -> Tensor:
    y = x * 1
    several(y, y, y)
    return y


def _of_halves(x: Tensor) -> Tensor:
    y = x.bfloat16()
    scale(y)
    return y


def _of_nothing(x: Tensor) -> Tensor:
    y = x[:0] * 1
    scale(y)
    listed([], 1)
    return y


def _in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        scale(y)
    return y


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        scale(y, 3.0)
        return y

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        scale(gradient, 3.0)
        return gradient


def _in_forward_and_backward(x: Tensor) -> Tensor:
    return _Both.apply(x.sin()).sum()


def _in_a_checkpoint(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        y = x.sin()
        z = y * 1
        scale(z)
        return z * y.detach()

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


PROGRAMS = (
    _views_of_a_list, _the_same_in_a_list, _an_overlapping_view, _another_dtype, _complex_numbers,
    _written_with_itself, _of_halves, _of_nothing, _in_autocast, _in_forward_and_backward,
    _in_a_checkpoint,
)  # fmt: skip


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__[1:])
def test_memory_and_places(program, gradients):
    x = torch.linspace(-1, 2, 20).view(4, 5)
    _same(program, [x, x + 1], gradients)


def test_tensors_that_outlive_the_call():
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 4, 5))
            self.register_buffer("values", torch.zeros(4, 5))

        def forward(self, x):
            several(self.keys[1], x, self.values)
            return self.keys.sum(0) + self.values

    eager, module, x = Cache(), Cache(), torch.rand(4, 5)
    compiled = ingot.compile(module, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(x), eager(x))
        assert torch.equal(module.keys, eager.keys) and torch.equal(module.values, eager.values)


def test_what_eager_refuses_or_differentiates_breaks_the_graph():
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(ingot.GraphBreakError, match="register_autograd"):
        ingot.compile(lambda x: ops.scale_(x * 1, 2.0), fullgraph=True)(x)
    with pytest.raises(ingot.GraphBreakError, match="a view of an argument"):
        ingot.compile(lambda x: ops.first(x), fullgraph=True)(x.detach())
    for function in (lambda x: ops.scale_(x * 1, 2.0), lambda x: ops.first(x * 2).exp()):
        (expected,) = torch.autograd.grad(function(x).sum(), x)
        (found,) = torch.autograd.grad(ingot.compile(function)(x).sum(), x)
        torch.testing.assert_close(found, expected)


def test_an_input_that_overlaps_another_is_left_to_eager():
    def program(x, y):
        scale(x)
        return x + y

    with pytest.raises(ingot.GraphBreakError, match="overlaps"):
        x = torch.rand(6)
        ingot.compile(program, fullgraph=True)(x[:4], x[2:])
    x, other = torch.arange(6.0), torch.arange(6.0)
    expected, found = program(x[:4], x[2:]), ingot.compile(program)(other[:4], other[2:])
    assert torch.equal(expected, found) and torch.equal(x, other)


def test_ops_pass_opcheck_around_a_compilation():
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    ingot.compile(lambda x, y: OPS["nested results"](x, y), fullgraph=True)(x.clone(), y)
    for op, args in ((scale, (x,)), (several, (x, y, y.clone())), (nested, (x, y.sum()))):
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    "tag", ["needs_fixed_stride_order", "needs_exact_strides", "flexible_layout", "no tag"]
)
def test_strides_are_eagers_whatever_the_tag(tag):
    tags = (getattr(torch.Tag, tag),) if hasattr(torch.Tag, tag) else ()
    name, seen = f"ingot_writes::strides_{tag.replace(' ', '_')}", []

    @torch.library.custom_op(name, mutates_args=("out",), tags=tags)
    def strides(x: Tensor, out: Tensor) -> None:
        seen.append((x.stride(), out.stride()))
        out.copy_(x)

    def program(x, weight):
        y = torch.nn.functional.conv2d(x, weight)
        out = torch.empty_like(y.mT)
        strides(y.mT, out)
        return out

    x, weight = torch.rand(2, 3, 5, 6), torch.rand(4, 3, 3, 3)
    torch.testing.assert_close(
        ingot.compile(program, fullgraph=True)(x, weight), program(x, weight)
    )
    assert seen[0] == seen[1]
