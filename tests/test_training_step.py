"""A whole training step in one function: forward, backward, optimizer, gradients reset; one graph,
eager's numbers."""

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
    """The results of some steps on batches that are drawn alike each time, and what the generator
    gives then."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    found = [
        step(torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator))
        for _ in range(steps)
    ]
    return [*found, torch.rand(2)]


def compiled(world: World, step: Callable[..., Any]) -> Any:
    return ingot.compile(lambda x, y: step(world, x, y), fullgraph=True)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    "step", [reset_first, reset_to_zero, accumulated, clipped, clipped_by_value]
)
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
    assert (
        ours.optimizer.param_groups[0]["lr"]
        == eager.optimizer.param_groups[0]["lr"]
        == 0.01 * 0.5**5
    )


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
@pytest.mark.parametrize(
    "train_on", [plain, with_clipping, with_a_scale_that_is_set], ids=lambda f: f.__name__
)
def test_a_scaler_of_gradients(train_on, enabled, name):
    """A step is one graph for any scale once the optimizer has its state; what makes that is left
    to eager where a gradient is not finite, so the first step is two."""

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
    torch.testing.assert_close(
        list(ours.model.parameters()), list(eager.model.parameters()), rtol=1e-4, atol=1e-5
    )
    gradients = [[p.grad for p in world.model.parameters()] for world in (ours, eager)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert scales[:9] == scales[9:]
    graphs = [c for c in Compiler.of(function).compilations if c.skipped is None]
    report = ingot.explain(function)(torch.ones(6, 8), torch.ones(6, 4))
    last = [c for c in Compiler.of(function).compilations if not c.is_continuation][-1]
    assert last.break_ is None and report.break_count <= enabled
    # the optimizer's first step, which breaks where it may be none, and the others
    assert len(graphs) <= 2 + 2 * enabled


SCALED = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.1},
    "NAdam": {"lr": 0.01},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1},
    "Adadelta": {"lr": 0.1, "foreach": False},
    "ASGD": {"lr": 0.1},
    "Adam with hooks": {"lr": 0.01},
    "AdamW fused": {"lr": 0.01, "fused": True},
    "SGD fused": {"lr": 0.1, "fused": True},
    "Adagrad fused": {"lr": 0.1, "fused": True},
}


@pytest.mark.parametrize("name", SCALED)
def test_a_step_that_is_not_taken(name):
    """Parameters, gradients and state are as they were; a scheduler counts, and changes the
    learning rate."""

    def train(compile: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4))
        optimizer = getattr(torch.optim, name.split()[0])(model.parameters(), **SCALED[name])
        steps: list[int] = []
        if "hooks" in name:
            optimizer.register_step_post_hook(lambda *_: steps.append(1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

        @compile
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        found: list[Any] = []
        for k in range(8):
            loss = step(torch.randn(3, 8) * (float("inf") if k in (0, 3, 6) else 1.0))
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found.append(
                (loss, gradients, scaler.get_scale(), optimizer.param_groups[0]["lr"], len(steps))
            )
            scheduler.step()
        state = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
        return found, list(model.parameters()), state, step

    ours, theirs = train(ingot.compile), train(lambda f: f)
    torch.testing.assert_close(ours[:3], theirs[:3], rtol=1e-4, atol=1e-6, equal_nan=True)
    last = [c for c in Compiler.of(ours[-1]).compilations if not c.is_continuation][-1]
    assert (last.break_ is None) == ("hooks" not in name)


def test_scaled_steps_of_an_optimizer_whose_step_is_the_users():
    """It is called where gradients are finite alone."""
    p = nn.Parameter(torch.ones(3))
    optimizer, scaler, steps = (
        torch.optim.Adam([p]),
        torch.amp.GradScaler("cpu", init_scale=4.0),
        [],
    )
    taken = optimizer.step

    def counted() -> None:
        steps.append(1)
        taken()

    optimizer.step = counted

    @ingot.compile
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale((p * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    found = []
    for number in (1.0, 2.0, float("inf"), 3.0, float("inf")):
        step(torch.full((3,), number))
        found.append(len(steps))
    assert found == [1, 2, 2, 3, 3]


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
                ([values.clone(), torch.ones(2, 3, dtype=dtype).t(), values[0].clone()],
                    torch.tensor(before),
                 torch.tensor([0.3])) for _ in range(2)
            ]  # fmt: skip
            unscale(*worlds[0])
            compiled[0](*worlds[1])
            torch.testing.assert_close(*worlds, rtol=0, atol=0, equal_nan=True)
    for scale, steps, found in itertools.product(
        (1024.0, 3e38, 1e-45), (0, 1, 2, 7), (0.0, 1.0, 2.0, float("nan"))
    ):
        states = [
            (torch.tensor(scale), torch.tensor(steps, dtype=torch.int32), torch.tensor([found]))
            for _ in range(2)
        ]
        assert update(*states[0]) and compiled[1](*states[1])
        torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
