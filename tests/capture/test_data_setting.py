"""`tensor.data = other`, of tensors made inside and of those from outside, as in eager: what others
see, and which memory is shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError
from tests.capture.language import Table
from tests.test_differentiation import both

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


@whole(fresh=True)
def of_a_tensor_made_inside(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    row = z[0]
    z.data = y * 2
    z.add_(1)
    return z, row, x, y


@whole(fresh=True)
def memory_is_shared(x: Tensor, y: Tensor) -> Any:
    z, w = x.clone(), y * 2
    z.data = w
    w.add_(1)
    z.mul_(3)
    return z, w, z is not w


@whole(fresh=True)
def memory_of_an_input_is_shared(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    z.data = y[1:]
    z.mul_(3)
    return z, x, y


@whole(fresh=True)
def another_size_and_type(x: Tensor, y: Tensor) -> Any:
    z, w = x.clone(), x.clone()
    z.data = y[0]
    w.data = y.double()
    return z, z.shape, w, w.dtype, w.sum() + z.sum()


@whole(fresh=True)
def an_attribute_stays(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    z.name_of_it = "z"  # type: ignore[attr-defined]
    alias = z
    z.data = y + 1
    return alias.name_of_it, alias * 2, z  # type: ignore[attr-defined]


@whole(fresh=True)
def of_an_input(x: Tensor, y: Tensor) -> Any:
    x.data = y * 2
    return y + 1, x.shape, x


@whole(fresh=True)
def inputs_are_exchanged(x: Tensor, y: Tensor) -> Any:
    x.data, y.data = y.data * 1, x.data * 1
    return x, y


@whole(fresh=True)
def an_input_shares_memory_with_a_result(x: Tensor, y: Tensor) -> Any:
    w = y * 2
    x.data = w
    return w, x


@whole(fresh=True)
def an_input_shares_memory_with_another(x: Tensor, y: Tensor) -> Any:
    x.data = y.data
    return x, y


@whole(fresh=True)
def what_was_seen_before_stays(x: Tensor, y: Tensor) -> Any:
    row, flat = x[0], x.view(-1)
    x.mul_(2)
    x.data = y * 3
    flat.add_(1)
    return row, flat, x


@whole(fresh=True)
def reads_and_writes_of_data(x: Tensor, y: Tensor) -> Any:
    x.data.add_(1)
    x.data[0] = 3
    return x, x.data, y.data * 2


@broken("Tensor.data of tensor x is set, which is read", fresh=True)
def an_input_is_read_behind_it(x: Tensor, y: Tensor) -> Any:
    x.data = y * 2
    return x + 1, x


@broken("Tensor.data of tensor x is set, which is read", fresh=True)
def an_input_is_set_twice(x: Tensor, y: Tensor) -> Any:
    x.data = x.data * 0.5
    x.data = x.data + y
    return x


@broken("Tensor.data is set", fresh=True)
def an_input_of_another_size(x: Tensor, y: Tensor) -> Any:
    x.data = y[1:] * 2
    return x.shape


test_program = TABLE.test()


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_a_step_on_parameters(backend: str) -> None:
    def program(wrap: Any) -> Any:
        layer = nn.Linear(3, 2).double()

        @torch.no_grad()
        def step(rate: float) -> None:
            for p in layer.parameters():
                if p.grad is not None:
                    p.data = p.data - rate * p.grad

        wrapped, x = wrap(step), torch.randn(4, 3, dtype=torch.float64)
        for _ in range(3):
            layer.zero_grad()
            layer(x).square().sum().backward()
            wrapped(0.1)
        return layer(x), list(layer.parameters())

    both(program, lambda f: ingot.compile(f, fullgraph=True, backend=backend))


def test_which_inputs_are_one_is_guarded() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        x.data = y + 1
        return y * 2

    compiled = ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        x, y = torch.zeros(3), torch.ones(3)
        assert torch.equal(compiled(x, y), torch.full((3,), 2.0))
        assert torch.equal(x, torch.full((3,), 2.0))
    assert len(Compiler.of(compiled).compilations) == 1  # type: ignore[union-attr]
    x = torch.ones(3)
    expected = fn(x.clone(), torch.ones(3)), fn(*[torch.ones(3)] * 2)
    assert torch.equal(ingot.compile(fn)(x, x), expected[1])
    assert torch.equal(x, torch.full((3,), 2.0))


def test_a_backward_reads_the_new_data() -> None:
    def program(wrap: Any) -> Any:
        def fn(weight: Tensor, x: Tensor) -> Tensor:
            loss = (weight * x).sum()
            x.data = x.data * 5
            return loss

        weight, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
        wrap(fn)(weight, x).backward()
        return weight.grad, x

    with pytest.raises(GraphBreakError, match="which a backward may read"):
        program(lambda f: ingot.compile(f, fullgraph=True))
    both(program, ingot.compile)
