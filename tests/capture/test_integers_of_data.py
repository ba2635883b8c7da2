"""Integers read from tensors, as sizes."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near

pytestmark = pytest.mark.usefixtures("without_gradients")


# -- integers read from tensors, as sizes ----------------------------------------------------------


def pooled(x: Tensor, index: Tensor) -> Any:
    return torch.zeros(int(index.max()) + 1, 3).index_add(0, index, x) * 2


def sliced(x: Tensor, index: Tensor) -> Any:
    n = index[1].item()
    return x[:n] * 2, x[: n + 1].sum(0), x[n].sin(), n * n - 1


def filled(x: Tensor, index: Tensor) -> Any:
    return torch.arange(index.sum().item()) * 2, x * (2 * int(index[0]) - 1)


@pytest.mark.parametrize("program", [pooled, sliced, filled], ids=lambda f: f.__name__)
def test_integers_are_sizes_that_the_data_decide(program: Any) -> None:
    compiled = ingot.compile(program, fullgraph=True)
    for index in ([0, 2, 1, 2, 0, 3, 1], [0, 3, 1, 1, 0, 4, 1], [1, 5, 6, 0, 2, 2, 2]):
        x, given = torch.randn(7, 3), torch.tensor(index)
        assert_near(compiled(x, given), program(x, given))


def test_integers_that_are_no_sizes() -> None:
    """Negative, zero, beyond the end, and too large to be a size: eager's results all the same."""
    compiled = ingot.compile(sliced)
    x = torch.randn(7, 3)
    for n in (3, -2, 0, 1, 6, 7, 1 << 40):
        given = torch.tensor([0, n])
        try:
            expected = sliced(x, given)
        except IndexError as error:
            with pytest.raises(IndexError, match=str(error)):
                compiled(x, given)
        else:
            assert_near(compiled(x, given), expected)


class Scale(float):
    pass


class Count(int):
    pass


@pytest.mark.parametrize(
    "operation", [operator.or_, operator.matmul, operator.lshift, operator.and_]
)
@pytest.mark.parametrize("cls", [Scale, Count])
def test_a_number_of_the_datas_in_a_subclass_knows_no_other_operators(
    cls: Any, operation: Any
) -> None:
    """The error is Python's, where what the instance holds is only known when the graph runs."""

    def program(x: torch.Tensor) -> Any:
        number = cls(x.sum() * 2)
        said = []
        for other in (number, 1.5, None, [1]):
            for pair in ((number, other), (other, number)):
                try:
                    said.append(operation(*pair))
                except TypeError as error:
                    said.append(str(error))
        return x + 1, said

    compiled = ingot.compile(program)
    with torch.no_grad():
        for x in (torch.ones(2), torch.ones(2), torch.zeros(2)):
            assert str(compiled(x)) == str(program(x))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert not [c.skipped for c in compiler.compilations if "internal error" in str(c.skipped)]
