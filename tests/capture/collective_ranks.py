"""What one rank of several finds of functions that communicate, in eager and compiled: see
test_torchs_collectives.py."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ingot
from tests.capture.collective_programs import REFUSED, ROWS, Row, make_groups

Outcome = list[Any]


def outcome(function: Any, x: Tensor, gradients: bool) -> Outcome:
    """What a function gives, its argument afterwards, and its gradient."""
    x = x.clone().requires_grad_(gradients)
    result = function(x)
    found = [x.detach()]
    if result is not None:
        found.append(result.detach())
        found.append(result.requires_grad)
        if result.requires_grad:
            found.append(torch.autograd.grad((result * result).sum(), x)[0])
    return found


def is_same(one: Outcome, other: Outcome) -> bool:
    if len(one) != len(other):
        return False
    for a, b in zip(one, other):
        if not isinstance(a, Tensor):
            if a is not b:
                return False
        elif a.dtype != b.dtype or not torch.allclose(a, b, rtol=1e-5, atol=1e-6):
            return False
    return True


def facts(row: Row) -> dict[str, Any]:
    function, rank = row.function, dist.get_rank()
    inputs = [torch.randn(4, 3) + rank for _ in range(2)]
    compiled = ingot.compile(function)
    # ranks that run different programs communicate the same
    mixed = compiled if rank == 0 else function
    equal = beside = True
    for gradients in (False, True)[: 1 + row.gradients]:
        for x in inputs:
            eager = outcome(function, x, gradients)
            equal = equal and is_same(outcome(compiled, x, gradients), eager)
        beside = beside and is_same(outcome(mixed, x, gradients), eager)
    report = ingot.explain(ingot.compile(function))(x.detach())
    return {
        "equal": equal,
        "beside eager": beside,
        "graphs": report.graph_count,
        "reasons": [str(one.reason) for one in report.breaks],
    }


def error(function: Any, x: Tensor) -> str:
    try:
        function(x.clone())
    except Exception as problem:
        return type(problem).__name__
    return ""


def is_whole_to_torch(row: Row) -> bool:
    """Whether torch.compile has one graph of a function, which gives what eager does."""
    torch._dynamo.reset()
    x = torch.randn(4, 3)
    expected = outcome(row.function, x, False)
    try:
        compiled = torch.compile(row.function, backend="eager", fullgraph=True)
        result = outcome(compiled, x, False)
    except Exception:
        return False
    return is_same(result, expected)


def find_all(which: str) -> dict[str, Any]:
    """By the name of each function, what it does: of all of them, or of the "quick" ones."""
    _begin()
    found: dict[str, Any] = {}
    for row in ROWS:
        if row.quick or which == "all":
            found[row.function.__name__] = facts(row)
    x = torch.ones(4, 3)
    for function in REFUSED:
        found[function.__name__] = error(function, x), error(ingot.compile(function), x)
    return found


def find_whole_to_torch() -> dict[str, bool]:
    """By name: whether torch.compile has one graph of a function."""
    _begin()
    return {row.function.__name__: is_whole_to_torch(row) for row in ROWS}


def _begin() -> None:
    warnings.simplefilter("ignore")
    make_groups()
    torch.manual_seed(dist.get_rank())
