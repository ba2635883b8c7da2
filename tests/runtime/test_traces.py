"""Which inputs a GPU's kernels may take to begin at multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.runtime.traces import unaligned_inputs

Make = Callable[[int], Tensor]
DENSE: dict[str, Make] = {
    "rows": lambda n: torch.randn(n, 8),
    "columns": lambda n: torch.randn(8, n),
    "both": lambda n: torch.randn(n, n + 1),
    "transposed": lambda n: torch.randn(n, n + 1).t(),
    "permuted": lambda n: torch.randn(3, n, 4, n + 2).permute(2, 0, 3, 1),
    "with a size of 1": lambda n: torch.randn(n, 1, 4),
}
OTHERS: dict[str, Make] = {
    "rows apart": lambda n: torch.randn(n, 9)[:, :8],
    "columns apart": lambda n: torch.randn(n, 16)[:, ::2],
    "expanded": lambda n: torch.randn(1, n).expand(4, n),
    "overlapping": lambda n: torch.randn(2 * n).as_strided((n, 4), (1, 1)),
}


def unaligned(function: Callable[[Tensor], Any], make: Make) -> int:
    compiled = ingot.compile(function, fullgraph=True)
    for n in (6, 9):  # the second entry has sizes that vary
        compiled(make(n))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    plan = compiler.compilations[-1].log.plan
    assert plan is not None and plan.graph.symbols
    return len(unaligned_inputs(plan))


@pytest.mark.parametrize("name", DENSE)
def test_dense_inputs_of_sizes_that_vary(name: str) -> None:
    assert unaligned(torch.sin, DENSE[name]) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_inputs_of_which_no_copy_can_be_made(name: str) -> None:
    assert unaligned(torch.sin, OTHERS[name]) == 1


def test_an_input_that_is_written() -> None:
    assert unaligned(lambda x: x.sin_(), DENSE["rows"]) == 1
