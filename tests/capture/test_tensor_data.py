"""Tensors made of Python numbers that vary: eager's, and one program for all of the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tracked import Tracked

X = torch.randn(64, generator=torch.Generator().manual_seed(0))
INTEGERS, FLOATS = (40, 32, 24, 1 << 40, 0, -3), (0.5, 0.1, float("inf"), -0.0, 1e300)


def rows(x: Tensor, n: Any) -> Tensor:
    return x[:4].view(2, 2) * torch.tensor([[n, 0], (True, 2.5)])


OF_NUMBERS: list[Callable[[Tensor, Any], Any]] = [
    lambda x, n: torch.tensor(n),
    lambda x, n: x * torch.tensor([n]),
    lambda x, n: torch.as_tensor([n, n + 1, 2]),
    lambda x, n: torch.tensor([n, 7], dtype=torch.float32),
    lambda x, n: torch.tensor((n, 1), dtype=torch.bfloat16, device="cpu"),
    lambda x, n: torch.tensor(n, dtype=torch.float64),
    lambda x, n: x.new_tensor([n]),
    rows,
]


@pytest.mark.parametrize("numbers", [INTEGERS, FLOATS], ids=["integers", "floats"])
@pytest.mark.parametrize("function", OF_NUMBERS)
def test_one_program_for_all_numbers(
    function: Callable[[Tensor, Any], Any], numbers: tuple[Any, ...]
) -> None:
    tracked = Tracked(function, fullgraph=True)
    first = [1, 0] if numbers is FLOATS else [1, 1]  # floats are inputs from the first call on
    assert [tracked(X, n) for n in numbers] == first + [0] * (len(numbers) - 2)


OF_INTEGERS: list[Callable[[Tensor, int], Any]] = [
    lambda x, n: torch.tensor([n, 3], dtype=torch.int32),
    lambda x, n: x[torch.tensor([n])],
    lambda x, n: x[: torch.tensor(n).item()],
    lambda x, n: torch.arange(torch.tensor(n)),
    lambda x, n: x[:n].sum() / torch.tensor(x[:n].shape[0], dtype=torch.float32),
]


@pytest.mark.parametrize("function", OF_INTEGERS)
def test_integers_that_are_indices_and_sizes_too(function: Callable[[Tensor, int], Any]) -> None:
    tracked = Tracked(function, fullgraph=True)
    assert [tracked(X, n) for n in (40, 32, 24, 5)] == [1, 1, 0, 0]


def test_what_is_read_again_is_compiled_for() -> None:
    """Where the graph would break for the numbers' sake."""

    def pieces(x: Tensor, n: int) -> Tensor:
        return torch.cat([x[:height].sin() for height in torch.tensor([n, 2]).tolist()])

    tracked = Tracked(pieces, fullgraph=True)
    assert [tracked(X, n) for n in (5, 6, 7)] == [1, 1, 1]


def test_what_does_not_fit_is_eagers_error() -> None:
    def narrow(x: Tensor, n: int) -> Tensor:
        return x[:2] * torch.tensor([n, 1], dtype=torch.int32)

    tracked = Tracked(narrow)
    assert [tracked(X, n) for n in (5, 6)] == [1, 1]
    with pytest.raises(RuntimeError, match="overflow"):
        tracked.compiled(X, 1 << 40)
    assert tracked(X, 7) == 0
