"""A whole training step in one function: forward, backward, optimizer, gradients reset; one graph, eager's numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import Compiler

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


def plain(world: World, scaler: Any, loss: torch.Tensor) -> None:
    scaler.scale(loss).backward()
    scaler.step(world.optimizer)
    scaler.update()


def with_clipping(world: World, scaler: Any, loss: torch.Tensor) -> None:
    scaler.scale(loss).backward()
    scaler.unscale_(world.optimizer)
    nn.utils.clip_grad_norm_(world.model.parameters(), 0.05)
    scaler.step(world.optimizer)
    scaler.update()


def with_a_scale_that_is_set(world: World, scaler: Any, loss: torch.Tensor) -> None:
    scaled, _ = scaler.scale([loss, loss])
    scaled.backward()
    scaler.step(world.optimizer)
    scaler.update(64.0)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("train_on", [plain, with_clipping, with_a_scale_that_is_set], ids=lambda f: f.__name__)
def test_a_scaler_of_gradients(train_on, enabled, name):
    """A step is two graphs, as whether the gradients are finite decides what comes, for any scale."""

    def make() -> tuple[World, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=enabled)
        return World(name), scaler

    def step(world: World, scaler: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        world.optimizer.zero_grad()
        loss = nn.functional.mse_loss(world.model(x), y)
        train_on(world, scaler, loss)
        return loss.detach()

    (ours, scaler), (eager, its_scaler) = make(), make()
    function = ingot.compile(lambda x, y: step(ours, scaler, x, y))
    scales: list[Any] = []

    def batches(do: Callable[..., Any], scaler: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(2)
        found, much = [], 1e38 if train_on is plain else float("inf")
        for k in range(9):
            x = torch.randn(6, 8, generator=generator) * (much if k == 2 and enabled else 1.0)
            found.append(do(x, torch.randn(6, 4, generator=generator)))
            scales.append((scaler.get_scale(), scaler._get_growth_tracker()))
        return found

    found = batches(function, scaler)
    expected = batches(lambda x, y: step(eager, its_scaler, x, y), its_scaler)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(list(ours.model.parameters()), list(eager.model.parameters()), rtol=1e-4, atol=1e-5)
    gradients = [[p.grad for p in world.model.parameters()] for world in (ours, eager)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert scales[:9] == scales[9:]
    graphs = [c for c in Compiler.of(function).compilations if c.skipped is None]
    report = ingot.explain(function)(torch.ones(6, 8), torch.ones(6, 4))
    assert report.break_count == enabled
    # without a scale and with one; one behind the break to each side; the optimizer's first step and the others
    assert len(graphs) <= 2 + 2 * enabled + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_operations_of_a_scaler(dtype):
    def unscale(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> Any:
        return torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)

    def update(scale: Any, tracker: Any, found: Any) -> Any:
        return torch._amp_update_scale_(scale, tracker, found, 2.0, 0.3, 3) is scale

    compiled = [ingot.compile(f, fullgraph=True) for f in (unscale, update)]
    for worst in (1.0, float("inf"), float("nan"), -float("inf")):
        for before in (0.0, 1.0):
            values = torch.tensor([3.0, worst, -0.0]).to(dtype)
            worlds = [
                ([values.clone(), torch.ones(2, 3, dtype=dtype).t(), values[0].clone()], torch.tensor(before),
                 torch.tensor([0.3])) for _ in range(2)
            ]  # fmt: skip
            unscale(*worlds[0])
            compiled[0](*worlds[1])
            torch.testing.assert_close(*worlds, rtol=0, atol=0, equal_nan=True)
    for scale, steps, found in itertools.product((1024.0, 3e38, 1e-45), (0, 1, 2, 7), (0.0, 1.0, 2.0, float("nan"))):
        states = [
            (torch.tensor(scale), torch.tensor(steps, dtype=torch.int32), torch.tensor([found])) for _ in range(2)
        ]
        assert update(*states[0]) and compiled[1](*states[1])
        torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
