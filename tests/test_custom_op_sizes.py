"""Custom ops whose results have sizes that the data decide (`new_dynamic_size`): one graph, eager's
results for none, one and many elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from tests.writing_ops import scale

RUNS: list[str] = []


def _size(**bounds: Any) -> Any:
    return torch.library.get_ctx().new_dynamic_size(**bounds)


@torch.library.custom_op("ingot_sizes::places", mutates_args=())
def places(x: Tensor) -> Tensor:
    RUNS.append("places")
    return (x > 0).nonzero().contiguous()


@places.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([_size(), x.dim()], dtype=torch.int64)


@torch.library.custom_op("ingot_sizes::columns", mutates_args=())
def columns(x: Tensor) -> Tensor:
    return (x > 0).nonzero().t().contiguous()


@columns.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([x.dim(), _size()], dtype=torch.int64)


@torch.library.custom_op("ingot_sizes::selected", mutates_args=())
def selected(x: Tensor) -> Tensor:
    RUNS.append("selected")
    return x[x > 0]


@selected.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([_size()])


@torch.library.custom_op("ingot_sizes::rows", mutates_args=())
def rows(x: Tensor) -> tuple[Tensor, Tensor]:
    mask = x[:, 0] > 0
    return x[mask].contiguous(), mask.nonzero().flatten()


@rows.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    count = _size(max=x.shape[0])
    return x.new_empty([count, x.shape[1]]), x.new_empty([count], dtype=torch.int64)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[1])
    ctx.count = inputs[0].shape[0]


def _backward_of_rows(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
    (places,) = ctx.saved_tensors
    return gradient.new_zeros(ctx.count, gradient.shape[1]).index_add(0, places, gradient)


rows.register_autograd(_backward_of_rows, setup_context=_remember)


def _checked(x: Tensor) -> Tensor:
    y = selected(x)
    torch._check(y.shape[0] >= 0)
    return y * 2


def _with_a_range(x: Tensor) -> Tensor:
    y = selected(x)
    return y + torch.arange(y.shape[0])


def _written_afterwards(x: Tensor) -> Tensor:
    y = selected(x)
    scale(y)
    return y.flip(0)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "as it is": places,
    "last": columns,
    "last, used": lambda x: columns(x) * 2,
    "reduced": lambda x: (selected(x).sum(), selected(x).mean()),
    "a number": lambda x: x * selected(x).shape[0],
    "numel": lambda x: selected(x).numel() * x,
    "flat": lambda x: (places(x).view(-1), places(x).flatten(), places(x).reshape(-1, 1)),
    "joined": lambda x: torch.cat([selected(x), selected(x) * 2, x.flatten()]),
    "stacked": lambda x: torch.stack([selected(x), selected(x) + 1]),
    "a slice": lambda x: selected(x)[:2],
    "an index": lambda x: x[places(x)[:, 0]],
    "two results": lambda x: x[rows(x)[1]] * rows(x)[0],
    "a product": lambda x: rows(x)[0] @ x.t(),
    "a batch": lambda x: torch.bmm(rows(x)[0][None], x.t()[None]),
    "a linear layer": lambda x: F.linear(rows(x)[0], torch.ones(3, x.shape[1])),
    "softmax": lambda x: torch.softmax(rows(x)[0], -1),
    "a norm": lambda x: F.layer_norm(rows(x)[0], (5,)),
    "scattered": lambda x: torch.zeros_like(x).index_add(0, rows(x)[1], rows(x)[0]),
    "transposed": lambda x: (rows(x)[0].t() * 2, rows(x)[0].t().contiguous()),
    "another dimension": lambda x: selected(x)[None] * 2,
    "expanded": lambda x: selected(x).unsqueeze(0).expand(3, -1) + 1,
    "padded": lambda x: F.pad(selected(x), (0, 2)),
    "sorted": lambda x: selected(x).sort()[0],
    "a scan": lambda x: torch.relu(selected(x)).cumsum(0),
    "zeros": lambda x: torch.zeros(selected(x).shape[0], 3),
    "of another": lambda x: selected(selected(x) - 0.5),
    "checked": _checked,
    "with a range": _with_a_range,
    "written afterwards": _written_afterwards,
}


BROKEN = frozenset(
    """last, used|stacked|two results|a product|a batch|a linear layer|softmax|last|sorted|
    scattered|transposed|another dimension|expanded""".replace("\n    ", "").split("|")
)
"""Those in which a size is compared behind the op: where that does not come out as assumed, the op
would have to run again."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_are_eagers(name):
    program = PROGRAMS[name]
    compiled = ingot.compile(program, fullgraph=name not in BROKEN)
    x = torch.linspace(-1, 2, 20).view(4, 5)
    for shift in (0.0, 0.5, 5.0, -1.9, -5.0):  # the last two: one element, and none
        RUNS.clear()
        expected, runs = program(x + shift), list(RUNS)
        RUNS.clear()
        found = compiled(x + shift)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert runs == RUNS


def test_gradients():
    def program(x):
        values, index = rows(x * 1.5)
        return (values * values).sum() + values.sin().sum() * index.numel()

    compiled = ingot.compile(program)
    for shift in (0.0, 0.5, 5.0):
        x = (torch.linspace(-1, 2, 20).view(4, 5) + shift).requires_grad_()
        (found,), (expected,) = (torch.autograd.grad(f(x), x) for f in (compiled, program))
        torch.testing.assert_close(found, expected)


def test_a_check_behind_an_op_breaks_the_graph():
    """One that does not hold would make eager begin anew."""

    def program(x):
        return selected(x)[None] * 2

    with pytest.raises(ingot.GraphBreakError, match="could not go on"):
        ingot.compile(program, fullgraph=True)(torch.ones(4))
    compiled = ingot.compile(program)
    for x in (torch.ones(4), -torch.ones(4)):
        RUNS.clear()
        assert torch.equal(compiled(x), torch.ones(1, max(0, int(x.sum()))) * 2)
        assert RUNS == ["selected"]
