"""`torch.tensor` of lists that hold tensors of rank 0: their numbers are elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.oracle import assert_same, outcome

NUMBERS = ((1.5, -2.0, 3.0), (0.1, float("nan"), 1e9))


def of_floats(x: Tensor) -> Any:
    h, d = x.half(), x.double()
    return (
        *(torch.tensor([x[0], x[1], 1.0]), torch.tensor((x[0], 2)), torch.as_tensor([x[2]])),
        *(torch.tensor([h[0], 1.0]), torch.tensor([h[0], h[1]]), torch.tensor([h[0], True])),
        *(torch.tensor([d[0], 1.0]), torch.tensor([x.bfloat16()[0], h[0]])),
        *(torch.tensor([x[0], d[1]], dtype=torch.float16), torch.Tensor([x[0], x[1]])),
    )


def of_integers(x: Tensor) -> Any:
    n, b = x.nan_to_num().long(), x > 0
    return (
        *(torch.tensor([n[0], 1]), torch.tensor([n[0], 1.5]), torch.tensor([n[0].int(), n[1]])),
        *(torch.tensor([b[0], b[1]]), torch.tensor([b[0], 3]), torch.tensor([b[0], x[0]])),
        *(torch.LongTensor([n[0], b[1]]), torch.tensor([n[0].int(), n[1].int()])),
        *(torch.tensor([n[0], b[0]], dtype=torch.float64), n.new_tensor([n[1], 2])),
    )


def nested(x: Tensor) -> Any:
    n = x.nan_to_num().long()
    return (
        torch.tensor([[x[0], n[1]], [x.sum(), 2]]),
        torch.tensor([[[n[0]]]]),
        x.new_tensor([x[0]]),
    )


def written(x: Tensor) -> Any:
    y, z = torch.as_tensor([x[0], x[1]]), torch.tensor([x[0]])
    y += 1
    z.zero_()
    return y, z, x


@pytest.mark.parametrize("function", [of_floats, of_integers, nested, written])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_their_numbers_are_elements(
    function: Callable[[Tensor], Any], numbers: tuple[float, ...]
) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for _ in range(2):
        expected = outcome(function, torch.tensor(numbers))
        assert_same(outcome(compiled, torch.tensor(numbers)), expected)


def of_one_element(x: Tensor) -> Any:
    return torch.tensor([x[:1], x[1:2]])


def of_too_narrow_a_type(x: Tensor) -> Any:
    return torch.tensor([x[0], 1], dtype=torch.int64)


def of_another_integer_type(x: Tensor) -> Any:
    return torch.tensor([x.nan_to_num().long()[0], 1], dtype=torch.int32)


@pytest.mark.parametrize(
    "function", [of_one_element, of_too_narrow_a_type, of_another_integer_type]
)
def test_others_are_eagers(function: Callable[[Tensor], Any]) -> None:
    x = torch.tensor(NUMBERS[0])
    assert_same(outcome(ingot.compile(function), x), outcome(function, x))


def test_of_one_that_requires_a_gradient_torch_warns() -> None:
    def function(x: Tensor) -> Any:
        return torch.tensor([x.sum(), 1.0]) * 2

    x = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="requires_grad=True to a scalar"):
        result = ingot.compile(function)(x)
    assert torch.equal(result, torch.tensor([6.0, 2.0])) and not result.requires_grad
