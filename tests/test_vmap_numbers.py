"""Inside of torch.vmap, a tensor without dimensions meets Python numbers, which eager converts."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot

BINARY = "add sub mul truediv floordiv mod pow eq ne lt le gt ge and_ or_ xor lshift rshift"
FUNCTIONS = (
    "add sub mul div true_divide floor_divide remainder fmod pow eq ne lt le gt ge float_power "
    "rsub "
    "bitwise_and bitwise_or bitwise_xor xlogy"
)
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in BINARY.split()},
    **{f"torch.{name}": getattr(torch, name) for name in FUNCTIONS.split()},
    "torch.where": lambda a, b: torch.where(torch.ones((), dtype=torch.bool), a, b),
    "clamp": lambda a, b: a.clamp(min=b) if isinstance(a, Tensor) else b.clamp(max=a),
    "masked_fill": lambda a, b: a.masked_fill(a == a, b),
    "in place": lambda a, b: a.clone().mul_(b),
    "lerp": lambda a, b: torch.lerp(a, a * 2, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, a, value=b),
}
NUMBERS = 2, 2.5, True, 1 + 2j, 0, -1.0
DTYPES = torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64


def rows(dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(1.0, 13.0).reshape(3, 4)
    return (numbers % 2 == 0) if dtype is torch.bool else numbers.to(dtype)


def folded(row: Tensor) -> Tensor:
    return row.any() if row.dtype is torch.bool else row.sum()


def calls(operation: Callable[..., Any]) -> Iterator[tuple[torch.dtype, Callable[[Tensor], Any]]]:
    """What eager accepts: over all numbers, in both orders, with tensors of several types."""
    for dtype in DTYPES:
        for number in NUMBERS:
            for call in (
                lambda row, n=number: operation(folded(row), n),
                lambda row, n=number: operation(n, folded(row)),
            ):
                with_rows = functools.partial(torch.func.vmap, call)
                try:
                    with_rows()(rows(dtype))
                except (RuntimeError, TypeError, AttributeError):
                    continue
                yield dtype, call


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_beside_tensors_without_dimensions(name: str) -> None:
    accepted = list(calls(OPERATIONS[name]))

    def program(*tensors: Tensor) -> list[Tensor]:
        return [torch.func.vmap(call)(x) for (_, call), x in zip(accepted, tensors)]

    given = [rows(dtype) for dtype, _ in accepted]
    found = ingot.compile(program, fullgraph=True)(*given)
    torch.testing.assert_close(found, program(*given), equal_nan=True)
    assert accepted


@pytest.mark.parametrize("name", ["add", "mul", "truediv", "pow", "eq", "lt"])
@pytest.mark.parametrize("number", [2, 2.5, True, 1 + 2j])
def test_levels_within_levels(name: str, number: Any) -> None:
    operation = OPERATIONS[name]
    if name == "lt" and isinstance(number, complex):
        number = 3.0

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.func.vmap(torch.func.vmap(lambda a: operation(a, number)))(x)
        outer = torch.func.vmap(
            lambda row: torch.func.vmap(lambda a: operation(a, folded(row)))(row)
        )
        return each, outer(x)

    x = rows(torch.float32)
    found = ingot.compile(program, fullgraph=True)(x)
    torch.testing.assert_close(found, program(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
def test_real_tensors_compared_with_complex_numbers(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x == 1 + 2j, x != 1 + 2j, torch.eq(x, 3 + 0j), x.sum() == 1j

    x = rows(dtype)
    torch.testing.assert_close(ingot.compile(program, fullgraph=True)(x), program(x))
