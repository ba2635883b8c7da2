"""Constant right operands in panels: the same bits as packed at each call, read by every target and
by the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ingot
from ingot.codegen.llvm.prepack import prepack
from ingot.codegen.llvm.target import host, named
from ingot.codegen.reference import run_plan
from ingot.schedule.kernel import Kernel


class Product(nn.Module):
    """x @ weight, the weight as it lies."""

    def __init__(self, inner: int, columns: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Tied(nn.Module):
    """A weight that is looked up in as well, and two products that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(70, 33))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (x @ self.weight.t()).relu() @ self.weight
        return hidden @ self.weight.t() + self.weight[3, 5]


def images(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "linear": lambda: (nn.Linear(40, 100), images(37, 40)),
    "deep": lambda: (nn.Linear(300, 17), images(5, 7, 300)),
    "few rows": lambda: (nn.Linear(130, 64), images(3, 130)),
    "columns adjacent": lambda: (Product(130, 95), images(50, 130)),
    "columns adjacent, few rows": lambda: (Product(30, 95), images(4, 30)),
    "float64": lambda: (Product(30, 50, torch.float64), images(40, 30).double()),
    "1x1": lambda: (nn.Sequential(nn.Conv2d(20, 40, 1), nn.Conv2d(40, 33, 1)), images(2, 20, 7, 9)),
    "3x3": lambda: (
        nn.Sequential(nn.Conv2d(20, 40, 3, padding=1), nn.Conv2d(40, 33, 3, 2)),
        images(2, 20, 9, 9),
    ),
    "few channels": lambda: (
        nn.Sequential(nn.Conv2d(3, 24, 5), nn.Conv2d(24, 16, 3)),
        images(1, 3, 17, 19),
    ),
    "patches": lambda: (
        nn.Sequential(nn.Conv2d(3, 40, 4, 4), *(nn.Conv2d(40, 40, 1) for _ in range(3))),
        images(2, 3, 8, 8),
    ),
    "tied": lambda: (Tied(), images(20, 33)),
}


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def plan_of(model: nn.Module, x: torch.Tensor, **options: bool):
    (compilation,) = ingot.explain(ingot.compile(model, options=options))(x).compilations
    return compilation.log.plan


def products(plan) -> list:
    return [k.product for k in plan.kernels if isinstance(k, Kernel) and k.product is not None]


@pytest.mark.parametrize("target", ["", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_without(name, target, monkeypatch):
    if target and host().vector_bytes < named(target).vector_bytes:
        pytest.skip(f"this machine has no {target}")
    monkeypatch.setenv("INGOT_TARGET", target)
    model, x = CASES[name]()
    for rows in (x, torch.cat([x] * 9)):
        expected = ingot.compile(model)(rows)
        found = ingot.compile(model, options={"freeze": True})(rows)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    plan = plan_of(model, x, freeze=True)
    assert products(plan) and all(product.panel for product in products(plan))


@pytest.mark.parametrize("name", ["linear", "columns adjacent", "3x3", "tied"])
def test_the_oracle_reads_panels(name):
    model, x = CASES[name]()
    plan = plan_of(model, x, freeze=True)
    assert all(product.panel for product in products(plan))
    sizes = [
        tuple(s.constant for s in plan.graph.buffers[name].sizes) for name in plan.graph.inputs
    ]
    # no frozen one is read
    inputs = [x if size == x.shape else torch.full(size, torch.nan) for size in sizes]
    (found,) = run_plan(plan, inputs)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)


def test_what_nothing_reads_any_more_is_not_kept():
    # the panels and the bias
    assert len(plan_of(*CASES["linear"](), freeze=True).graph.constants) == 2
    model, x = CASES["tied"]()
    constants = plan_of(model, x, freeze=True).graph.constants
    assert len(constants) == 3  # the weight, and panels of it and of its transpose
    assert (
        sum(
            torch.equal(value, model.weight)
            for value in constants.values()
            if value.shape == (70, 33)
        )
        == 1
    )


def test_only_constants_are_packed():
    model, x = CASES["linear"]()
    plan = plan_of(model, x, freeze=False)
    steps = list(plan.steps)
    prepack(plan)
    assert plan.steps == steps
    assert products(plan) and not any(product.panel for product in products(plan))


def test_sizes_that_vary():
    model = nn.Sequential(nn.Linear(30, 50), nn.GELU(), nn.Linear(50, 20))
    compiled = ingot.compile(model, dynamic=True, options={"freeze": True})
    for rows in (5, 40, 300):
        x = torch.randn(rows, 30)
        torch.testing.assert_close(compiled(x), model(x))
