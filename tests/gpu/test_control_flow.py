"""Branches, loops and scans on a GPU: one graph, with eager's values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over

import ingot
from tests.test_control_flow import BRANCHES, INPUTS, LOOPS, outcome, python_cond, python_loop

ELSEWHERE = frozenset({"of a module", "of a global", "of no operand"})
"""Branches that read tensors on the CPU."""
ON_THE_CPU = frozenset({"of known length", "trees", "a branch in a loop", "Newton", "swapped"})
"""Loops with a counter there."""


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", sorted(BRANCHES.keys() - ELSEWHERE))
def test_branches(name: str, with_gradients: bool, mode: str) -> None:
    compiled = ingot.compile(BRANCHES[name], fullgraph=True, mode=mode)
    for x in (*INPUTS, *INPUTS):
        x = x.cuda()
        found = outcome_there(compiled, x, with_gradients, torch.cond, while_loop)
        close(found, outcome_there(BRANCHES[name], x, with_gradients, python_cond, python_loop))


def outcome_there(
    function: Callable[..., Any], x: Tensor, with_gradients: bool, *forms: Any
) -> Any:
    """Values, strides and the gradient of the input."""
    given = x.clone().requires_grad_(with_gradients)
    values = torch.utils._pytree.tree_leaves(function(given, *forms))
    followed = []
    for value in values:
        weights = torch.linspace(1, 2, value.numel(), device=value.device).view(value.shape)
        if value.requires_grad:
            followed.append((value * weights).sum())
    gradient = torch.zeros_like(given)
    if followed:
        (gradient,) = torch.autograd.grad(sum(followed), given)
    return values, [v.stride() for v in values], gradient


@pytest.mark.parametrize("name", sorted(LOOPS.keys() - ON_THE_CPU))
def test_loops(name: str) -> None:
    compiled = ingot.compile(LOOPS[name], fullgraph=True)
    for x in INPUTS:
        x = x.cuda()
        found = outcome_there(compiled, x, False, torch.cond, while_loop)
        close(found, outcome_there(LOOPS[name], x, False, python_cond, python_loop))


@pytest.mark.parametrize("name", sorted(ON_THE_CPU))
def test_loops_with_a_counter_elsewhere_are_eagers(name: str) -> None:
    compiled = ingot.compile(LOOPS[name])
    for x in INPUTS[:2]:
        x = x.cuda()
        found = outcome_there(compiled, x, False, torch.cond, while_loop)
        close(found, outcome_there(LOOPS[name], x, False, python_cond, python_loop))


def test_a_predicate_on_the_host_decides() -> None:
    def chosen(p: Tensor, x: Tensor) -> Any:
        return torch.cond(p, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))

    compiled = ingot.compile(chosen, fullgraph=True)
    for p in (True, False):
        x = torch.randn(64, device="cuda")
        close(compiled(torch.tensor(p), x), chosen(torch.tensor(p), x))


SCANS: dict[str, Callable[[Tensor], Any]] = {
    "scan": lambda x: scan(lambda c, row: (c * 0.5 + row, c * row), x[0] * 0, x),
    "reversed": lambda x: scan(lambda c, row: (c * 0.5 + row, c * row), x[0] * 0, x, reverse=True),
    "of integers": lambda x: scan(
        lambda c, row: (c + row, (c * 2 > row) & (row > 0)), x[0].long() * 0, (x * 9).long()
    ),
    "map": lambda x: map_over(lambda row, y: row.sin() * y, x, x[0]),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_scans(name: str, with_gradients: bool) -> None:
    rows = torch.linspace(-1, 1, 280).view(70, 4)
    on_gpu = ingot.compile(SCANS[name], fullgraph=True)
    on_cpu = ingot.compile(SCANS[name], fullgraph=True)
    found = outcome_there(on_gpu, rows.cuda(), with_gradients)
    expected = outcome(on_cpu, rows, with_gradients)
    for mine, its in zip(found[0], expected[0]):
        assert mine.is_cuda
        close(mine.cpu(), its)
    if with_gradients:
        close(found[2].cpu(), expected[2][0])
