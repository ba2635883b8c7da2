"""A whole training step in one function: forward, backward, optimizer, gradients reset; one graph, eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, weight_decay=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, foreach=True),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class World:
    """A model with its optimizer, made alike each time."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())

    def values(self) -> list[torch.Tensor]:
        states = [self.optimizer.state[p] for p in self.model.parameters()]
        kept = [v for state in states for v in state.values() if isinstance(v, torch.Tensor)]
        return [*self.model.parameters(), *self.model.buffers(), *kept]

    def gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.model.parameters()]


def reset_first(world: World, x: torch.Tensor, y: torch.Tensor) -> Any:
    world.optimizer.zero_grad()
    loss = nn.functional.mse_loss(world.model(x), y)
    loss.backward()
    world.optimizer.step()
    return loss.detach()


def reset_to_zero(world: World, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = nn.functional.mse_loss(world.model(x), y)
    loss.backward()
    world.optimizer.step()
    world.optimizer.zero_grad(set_to_none=False)
    return loss.detach()


def accumulated(world: World, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = nn.functional.mse_loss(world.model(x), y)
    loss.backward()
    world.optimizer.step()
    return loss.detach()


def clipped(world: World, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = nn.functional.mse_loss(world.model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(world.model.parameters(), 0.1)
    world.optimizer.step()
    world.optimizer.zero_grad()
    return loss.detach(), norm


def clipped_by_value(world: World, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = nn.functional.mse_loss(world.model(x), y)
    loss.backward()
    nn.utils.clip_grad_value_(world.model.parameters(), 0.01)
    world.optimizer.step()
    world.optimizer.zero_grad()
    return loss.detach()


def train(world: World, step: Callable[..., Any], steps: int = 5) -> list[Any]:
    """The results of some steps on batches that are drawn alike each time, and what the generator gives then."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    found = [step(torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)) for _ in range(steps)]
    return [*found, torch.rand(2)]


def compiled(world: World, step: Callable[..., Any]) -> Any:
    return ingot.compile(lambda x, y: step(world, x, y), fullgraph=True)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("step", [reset_first, reset_to_zero, accumulated, clipped, clipped_by_value])
def test_a_step_is_one_graph(kind, step):
    ours, eager = World(kind), World(kind)
    function = compiled(ours, step)
    found = train(ours, function)
    expected = train(eager, lambda x, y: step(eager, x, y))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.values(), eager.values(), rtol=1e-4, atol=1e-5)
    assert [g is None for g in ours.gradients()] == [g is None for g in eager.gradients()]
    for mine, its in zip(ours.gradients(), eager.gradients(), strict=True):
        if its is not None:
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    report = ingot.explain(function)(torch.randn(6, 8), torch.randn(6, 4))
    assert report.break_count == 0 and len(report.recompiles) == 1


def test_a_schedule_inside_the_function():
    def step(world: World, x: torch.Tensor, y: torch.Tensor) -> Any:
        world.optimizer.param_groups[0]["lr"] *= 0.5
        return reset_first(world, x, y)

    ours, eager = World("adam"), World("adam")
    found = train(ours, compiled(ours, step))
    expected = train(eager, lambda x, y: step(eager, x, y))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert ours.optimizer.param_groups[0]["lr"] == eager.optimizer.param_groups[0]["lr"] == 0.01 * 0.5**5


def test_parameters_stay_where_they_are():
    world = World("adamw")
    function = compiled(world, reset_first)
    train(world, function, 2)
    places, objects = [p.data_ptr() for p in world.values()], list(world.model.parameters())
    train(world, function, 2)
    assert [p.data_ptr() for p in world.values()] == places
    assert all(a is b for a, b in zip(world.model.parameters(), objects, strict=True))


def test_a_scaler_of_gradients():
    """Its methods read whether all gradients are finite: there is a break, and the same steps are taken and skipped."""

    def make() -> tuple[World, Any]:
        return World("sgd"), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    def step(world: World, scaler: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        world.optimizer.zero_grad()
        loss = nn.functional.mse_loss(world.model(x), y)
        scaler.scale(loss).backward()
        scaler.step(world.optimizer)
        scaler.update()
        return loss.detach()

    (ours, scaler), (eager, its_scaler) = make(), make()
    function = ingot.compile(lambda x, y: step(ours, scaler, x, y))

    def batches(do: Callable[..., Any]) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(2)
        found = []
        for k in range(5):
            x = torch.randn(6, 8, generator=generator) * (1e38 if k == 2 else 1.0)
            found.append(do(x, torch.randn(6, 4, generator=generator)))
        return found

    found = batches(function)
    expected = batches(lambda x, y: step(eager, its_scaler, x, y))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(list(ours.model.parameters()), list(eager.model.parameters()), rtol=1e-4, atol=1e-5)
    assert scaler.get_scale() == its_scaler.get_scale()
