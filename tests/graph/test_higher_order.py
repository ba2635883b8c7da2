"""Branches and loops in the graphs that other backends get: torch's higher-order operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.fx import GraphModule

import ingot
from tests.test_control_flow import (
    BRANCHES,
    INPUTS,
    LOOPS,
    outcome,
    python_cond,
    python_loop,
)

hops: Any = torch.ops.higher_order


class Recording:
    """A backend that runs the graph, and counts its higher-order operators."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, gm: GraphModule, inputs: Any) -> Callable[..., Any]:
        self._count(gm)
        return gm.forward

    def _count(self, gm: GraphModule) -> None:
        for node in gm.graph.nodes:
            if isinstance(node.target, type(hops.cond).__mro__[1]):
                self.counts[node.target.name()] += 1
        for module in gm.children():
            assert isinstance(module, GraphModule)
            self._count(module)


DIFFERENTIATES = "differentiated inside"
"""Which torch's operators do not take."""


def does_as_eager(
    function: Callable[..., Any], backend: Any, with_gradients: bool, dynamic: bool | None = None
) -> None:
    compiled = ingot.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    for x in INPUTS:
        found = outcome(compiled, x, with_gradients, torch.cond, while_loop)
        expected = outcome(function, x, with_gradients, python_cond, python_loop)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", [name for name in BRANCHES if name != DIFFERENTIATES])
def test_branches(name: str, with_gradients: bool, dynamic: bool) -> None:
    backend = Recording()
    does_as_eager(BRANCHES[name], backend, with_gradients, dynamic)
    assert backend.counts["cond"] >= 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, dynamic: bool) -> None:
    backend = Recording()
    does_as_eager(LOOPS[name], backend, False, dynamic)
    assert backend.counts["while_loop"] >= 1


LONG = torch.linspace(-1, 1, 280).view(70, 4)
SCANS: dict[str, Callable[[Tensor], Any]] = {
    "scan": lambda x: scan(lambda c, row: (c * 0.5 + row, c * row), x[0] * 0, x),
    "scan, reversed": lambda x: scan(
        lambda c, row: (c * 0.5 + row, c * row), x[0] * 0, x, reverse=True
    ),
    "scan of what is outside": lambda x: scan(lambda c, row: (c + row * x[1], c * 1), x[0] * 0, x),
    "map_impl": lambda x: map_over(lambda row, y: row.sin() * y, x, x[0]),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_scans(name: str, with_gradients: bool) -> None:
    backend = Recording()
    compiled = ingot.compile(SCANS[name], backend=backend, fullgraph=True)
    own = ingot.compile(SCANS[name], fullgraph=True)
    found = outcome(compiled, LONG, with_gradients)
    torch.testing.assert_close(found, outcome(own, LONG, with_gradients), rtol=1e-5, atol=1e-5)
    assert backend.counts[name.partition(",")[0].partition(" ")[0]] == 1


def test_what_torchs_operators_do_not_take_breaks_the_graph() -> None:
    function = BRANCHES[DIFFERENTIATES]
    with pytest.raises(ingot.GraphBreakError, match="differentiates"):
        ingot.compile(function, backend="eager", fullgraph=True)(INPUTS[0], torch.cond, None)
    compiled = ingot.compile(function, backend="eager")
    for x in INPUTS:
        found = compiled(x, torch.cond, None)
        torch.testing.assert_close(found, function(x, python_cond, None))


@pytest.mark.parametrize("name", ["two", "closed over", "trees", "one in another"])
def test_a_backend_of_torchs_takes_branches(name: str) -> None:
    does_as_eager(BRANCHES[name], "aot_eager", True)


@pytest.mark.parametrize("name", ["until a value", "Newton", "one in another"])
def test_a_backend_of_torchs_takes_loops(name: str) -> None:
    does_as_eager(LOOPS[name], "aot_eager", False)
