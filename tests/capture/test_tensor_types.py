"""torch.Tensor, torch.LongTensor and their kin as constructors, and checks of what the data are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot

X = torch.arange(4.0) + 0.5

WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "integers": lambda x: x + torch.LongTensor([1, 2, 3, 4]),
    "nested": lambda x: x + torch.FloatTensor([[1, 2, 3, 4]]),
    "default type": lambda x: x + torch.Tensor([1, 2, 3, 4]),
    "a tuple": lambda x: torch.IntTensor((1, 2)),
    "floats cut": lambda x: torch.LongTensor([1.7, -2.2]),
    "truth values": lambda x: torch.BoolTensor([1, 0]),
    "doubles": lambda x: torch.DoubleTensor([1.5]) * x,
    "halves": lambda x: (torch.HalfTensor([1, 2]), torch.BFloat16Tensor([1, 2])),
    "bytes": lambda x: (torch.ByteTensor([255]), torch.CharTensor([-3]), torch.ShortTensor([7])),
    "nothing": lambda x: (torch.FloatTensor(), torch.LongTensor([])),
    "sizes": lambda x: torch.LongTensor(2, 3).fill_(1),
    "a shape": lambda x: torch.IntTensor(x.shape).fill_(2),
    "a size that varies": lambda x: torch.LongTensor([x.shape[0], 1]),
    "too large": lambda x: torch.ByteTensor([300]),
    "ragged": lambda x: torch.LongTensor([[1], [1, 2]]),
    "a negative size": lambda x: torch.LongTensor(-1),
}
BROKEN: dict[str, Callable[[Tensor], Any]] = {
    "of a tensor": lambda x: torch.FloatTensor(x) + 1,
    "the same memory": lambda x: torch.Tensor(x).zero_() + x,
    "a device": lambda x: torch.FloatTensor([1], device="cpu"),
    "text": lambda x: torch.FloatTensor("a"),
}


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> tuple[str, Any]:
    try:
        return "", function(x.clone())
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        text = str(error).partition(" (Could this error message")[0]
        return type(error).__name__, text.partition("\n")[0]


@pytest.mark.parametrize("name", [*WHOLE, *BROKEN])
def test_constructors(name: str) -> None:
    function = (WHOLE | BROKEN)[name]
    compiled = ingot.compile(function, fullgraph=name in WHOLE)
    assert str(outcome(compiled, X)) == str(outcome(function, X))


CHECKED: dict[str, Callable[[Tensor], Any]] = {}


def checked(function: Callable[[Tensor], Any]) -> None:
    CHECKED[function.__name__] = function


@checked
def a_size_that_is_not_negative(x: Tensor) -> Tensor:
    size = x.sum().to(torch.int64).item()
    torch._check(size >= 0)
    return torch.arange(size)


@checked
def a_size_between_bounds(x: Tensor) -> Tensor:
    size = x.sum().to(torch.int64).item()
    torch._check(size >= 0)
    torch._check(size < 12, lambda: "too many")
    return torch.zeros(size) + 1


@checked
def what_is_a_size(x: Tensor) -> Tensor:
    size = x.sum().to(torch.int64).item()
    torch._check_is_size(size)
    return torch.zeros(size) + 1


@checked
def a_float(x: Tensor) -> Tensor:
    number = x.sum().item()
    torch._check(number >= 0)
    return x * number


@checked
def a_truth_value(x: Tensor) -> Tensor:
    torch._check(bool((x > 0).all()))
    return x * 2


@checked
def an_integer_of_a_float(x: Tensor) -> Tensor:
    return x.new_ones(int(x.max()) + 2)


@checked
def an_integer_beside_a_tensor(x: Tensor) -> Tensor:
    return x * int(x.sum())


@checked
def an_integer_of_a_truth_value(x: Tensor) -> Tensor:
    return int(x.max() > 1) + x


NUMBERS = {
    "positive": X, "negative": -X, "large": X + 1e30, "many": X * 4,
    "infinite": X + float("inf"), "nan": X * float("nan"), "halves": X.half(),
}  # fmt: skip


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("name", CHECKED)
def test_checks_of_data(name: str, numbers: str) -> None:
    compiled = ingot.compile(CHECKED[name], fullgraph=True)
    for x in (X, NUMBERS[numbers], X * 0.5):
        assert str(outcome(compiled, x)) == str(outcome(CHECKED[name], x))
