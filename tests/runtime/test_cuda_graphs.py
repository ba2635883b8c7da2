"""When a recording is replayed, and what is copied, with a machine that spoils what a replay may
overwrite."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
import ingot.pipeline
from ingot.compiler import Compiler
from ingot.schedule.plan import LibraryStep, Plan
from tests.runtime.fake_graphs import FakeGraphs


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    made = FakeGraphs()
    monkeypatch.setattr(ingot.pipeline, "machine_of", lambda device: made)
    return made


def compiled(fn: Any, **options: Any) -> Any:
    return ingot.compile(fn, mode="reduce-overhead", **options)


def replayed(fn: Any) -> Any:
    found = [c.log.replayed for c in Compiler.of(fn).compilations]  # type: ignore[union-attr]
    return found[-1]


def layers(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1) @ w + x.sin()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_replays_after_two_calls(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    for k in range(8):
        x.copy_(draw(8, 8, seed=k))
        torch.testing.assert_close(fn(x, w), layers(x, w))
    assert machine.captures == 1 and machine.replays == 6
    assert replayed(fn).describe() == "1 recorded, 6 of 8 calls replayed"


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs", "default"])
def test_modes_that_replay(machine: FakeGraphs, mode: str) -> None:
    fn, x, w = ingot.compile(layers, mode=mode), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(4):
        torch.testing.assert_close(fn(x, w), layers(x, w))
    assert machine.captures == (mode == "max-autotune")


def test_an_input_that_moves_is_copied(machine: FakeGraphs) -> None:
    fn, w, kept = compiled(layers), draw(8, 8, seed=1), []
    for k in range(9):
        kept.append(draw(8, 8, seed=k))  # alive, so that the next lies elsewhere
        torch.testing.assert_close(fn(kept[-1], w), layers(kept[-1], w))
    (sizes,) = replayed(fn).known.values()
    assert sizes.moving == (0,) and machine.captures == 1 and machine.replays == 7


def test_a_parameter_that_moved_is_read_where_it_is(machine: FakeGraphs) -> None:
    fn, x, first, second = compiled(layers), draw(8, 8), draw(8, 8, seed=1), draw(8, 8, seed=2)
    for w in [first] * 5 + [second] * 5 + [first] * 5:
        torch.testing.assert_close(fn(x, w), layers(x, w))
    (sizes,) = replayed(fn).known.values()
    assert not sizes.moving and len(sizes.recordings) == 2 and machine.replays >= 10


def test_results_that_are_held_stay(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    held, expected = [], []
    for k in range(20):
        x.copy_(draw(8, 8, seed=k))
        held.append(fn(x, w))
        expected.append(layers(x, w))
    for a, b in zip(held, expected):
        torch.testing.assert_close(a, b)
    before = machine.replays
    del held
    for _ in range(6):
        torch.testing.assert_close(fn(x, w), layers(x, w))
    assert machine.replays == before + 6


def test_what_is_held_by_a_view_a_list_or_a_history_stays(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    v = draw(8, 8, seed=3).requires_grad_()
    for hold in (
        lambda t: t[1:, ::2],
        lambda t: t.detach(),
        lambda t: t.untyped_storage(),
        lambda t: (t * v).sum(),
    ):
        for _ in range(4):
            fn(x, w)
        result = fn(x, w)
        value, kept = result.clone(), hold(result)
        del result
        for k in range(6):
            x.copy_(draw(8, 8, seed=k + 5))
            again = fn(x, w)
        del again
        if isinstance(kept, torch.UntypedStorage):
            assert bytes(kept) == bytes(value.untyped_storage())
        elif kept.requires_grad:
            torch.testing.assert_close(torch.autograd.grad(kept, v)[0], value)
        else:
            torch.testing.assert_close(kept, hold(value))


def test_a_storage_that_was_looked_at_is_not_held(machine: FakeGraphs) -> None:
    """torch keeps the Python object of a storage as long as the storage."""
    machine.costs = replace(machine.costs, twin_bytes=0)
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(8):
        fn(x, w).untyped_storage()
    assert machine.captures == 1 and machine.replays == 6


def test_what_a_backward_would_borrow_is_not_held_afterwards(machine: FakeGraphs) -> None:
    """It looks who owns what a recording has written, as long as it is not replayed itself."""
    machine.costs = replace(machine.costs, twin_bytes=0, launch_seconds=1.0)
    run, x, target = compiled(F.cross_entropy), draw(64, 1000).requires_grad_(), torch.arange(64)
    for k in range(10):
        x.grad = None
        loss = run(x, target)
        backward = Compiler.of(run).compilations[-1].backward  # type: ignore[union-attr]
        if backward is not None and backward.log.replayed is not None:
            backward.log.replayed.paused = k < 4
        loss.backward()
        del loss
    assert replayed(run).describe() == "1 recorded, 8 of 10 calls replayed"


def test_the_last_result_in_a_loop_takes_a_second_recording(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(12):
        result = fn(x, w)
    torch.testing.assert_close(result, layers(x, w))
    assert machine.captures == 2 and machine.replays == 10


def test_large_results_have_no_second_recording(machine: FakeGraphs) -> None:
    machine.costs = replace(machine.costs, twin_bytes=0)

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = layers(x, w)
        return y, y.sum()

    run, x, w = compiled(fn), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(12):
        total = run(x, w)[1]
        torch.testing.assert_close(total, fn(x, w)[1])
    (sizes,) = replayed(run).known.values()
    assert sizes.copied == {1} and machine.captures == 1 and machine.replays == 9


def test_programs_share_a_pool(machine: FakeGraphs) -> None:
    """And one that is recorded later has its results where the first has its temporaries."""
    first, second = compiled(layers), compiled(lambda x, w: (x @ w).cos() @ w)
    x, w = draw(8, 8), draw(8, 8, seed=1)
    for _ in range(4):
        first(x, w)
    for _ in range(4):
        second(x, w)
    assert len(machine.pools) == 1 and machine.captures == 2
    for k in range(8):
        x.copy_(draw(8, 8, seed=k))
        held = second(x, w)
        expected = held.clone()
        torch.testing.assert_close(first(x, w), layers(x, w))
        torch.testing.assert_close(held, expected)
        del held
    assert len(machine.pools) == 2 and machine.captures == 3


def test_results_outlive_their_program(machine: FakeGraphs) -> None:
    first, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    second = compiled(lambda x, w: (x @ w).cos() @ w)
    for _ in range(4):
        first(x, w)
    for _ in range(4):
        held = second(x, w)
    held = second(x, w)
    expected = held.clone()
    del second
    ingot.reset()
    for _ in range(5):
        first(x, w)
    torch.testing.assert_close(held, expected)


def test_what_a_user_does_to_a_result(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    changes: list[Callable[[Tensor], Any]] = [
        lambda t: t.zero_(), lambda t: t.t_(), lambda t: t.set_(), lambda t: t.requires_grad_(),
        lambda t: t.squeeze_(), lambda t: t.resize_(100, 100), lambda t: t.resize_(1),
        lambda t: t.untyped_storage().resize_(0), lambda t: t.add_(1).share_memory_(),
    ]  # fmt: skip
    for change in changes * 2:
        for _ in range(4):
            result = fn(x, w)
            torch.testing.assert_close(result, layers(x, w))
            assert not result._is_view() and result.is_leaf
            change(result)
            del result
    assert machine.replays > 2 * len(changes)


def test_inputs_that_are_written(machine: FakeGraphs) -> None:
    def fn(x: Tensor, total: Tensor) -> Tensor:
        # stays small: the slope of a large number's cosine makes much of its rounding
        total += (x @ x).mean(0)
        return total.cos() @ x

    run, x, total, expected = compiled(fn), draw(8, 8), torch.zeros(8), torch.zeros(8)
    for k in range(9):
        x.copy_(draw(8, 8, seed=k))
        version = total._version
        torch.testing.assert_close(run(x, total), fn(x, expected))
        torch.testing.assert_close(total, expected)
        assert total._version > version
    assert machine.replays == 7
    for k in range(6):
        kept = [torch.zeros(8) for _ in range(k + 1)]
        expected = torch.zeros(8)
        torch.testing.assert_close(run(x, kept[-1]), fn(x, expected))
        torch.testing.assert_close(kept[-1], expected)


def test_results_that_are_inputs(machine: FakeGraphs) -> None:
    fn = compiled(lambda x, w: (x.t()[1:], x @ w @ w, x, x.shape[0]))
    w = draw(8, 8, seed=1)
    for k in range(8):
        x = draw(8, 8, seed=k)
        for _ in range(2):
            window, product, same, size = fn(x, w)
            assert same is x and size == 8
            assert (
                window.data_ptr() == x.t()[1:].data_ptr() and window.stride() == x.t()[1:].stride()
            )
            torch.testing.assert_close(product, x @ w @ w)
    assert machine.replays


def test_sizes_that_vary(machine: FakeGraphs) -> None:
    fn, w = compiled(layers, dynamic=True), draw(8, 8, seed=1)
    inputs = [draw(n, 8) for n in (3, 5, 9)]
    for k in range(7):
        for x in inputs:
            x.copy_(draw(*x.shape, seed=k))
            torch.testing.assert_close(fn(x, w), layers(x, w))
    assert len(replayed(fn).known) == 3 and machine.captures == 3 and machine.replays == 15


def test_each_stream_has_its_own(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    for stream in (0, 1, 0, None):
        machine.current = stream
        for _ in range(4):
            torch.testing.assert_close(fn(x, w), layers(x, w))
    assert machine.captures == 2 and len(machine.pools) == 2 and machine.replays == 8


def test_threads(machine: FakeGraphs) -> None:
    fn, w, wrong = compiled(layers), draw(8, 8, seed=1), []
    inputs = [draw(8, 8, seed=k) for k in range(4)]

    def work(x: Tensor) -> None:
        for _ in range(40):
            result = fn(x, w)
            if not torch.allclose(result, layers(x, w), atol=1e-5):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and machine.replays


def network() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    made = [
        nn.Sequential(
            nn.Linear(8, 16),
            nn.LayerNorm(16),
            nn.GELU(),
            nn.Linear(16, 16),
            nn.Tanh(),
            nn.Linear(16, 4),
        )
        for _ in range(2)
    ]
    made[1].load_state_dict(made[0].state_dict())
    return made[0], made[1]


@pytest.mark.parametrize(
    "style", ["zeroed before", "zeroed late", "zeroed in place", "accumulated", "losses kept"]
)
def test_training(machine: FakeGraphs, style: str) -> None:
    model, oracle = network()
    run = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, oracle)]
    losses: list[list[Tensor]] = [[], []]
    for step in range(12):
        x, y = draw(16, 8, seed=step), draw(16, 4, seed=100 + step)
        for call, optimizer, found in zip((run, oracle), optimizers, losses):
            if style == "zeroed before" or style == "losses kept":
                optimizer.zero_grad()
            loss = F.mse_loss(call(x), y)
            if style == "zeroed late":
                optimizer.zero_grad()
            if style == "zeroed in place":
                optimizer.zero_grad(set_to_none=False)
            loss.backward()
            if style != "accumulated" or step % 3 == 2:
                optimizer.step()
            if style == "accumulated" and step % 3 == 2:
                optimizer.zero_grad()
            found.append(loss if style == "losses kept" else loss.detach().clone())
        for a, b in zip(model.parameters(), oracle.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.stack(losses[0]), torch.stack(losses[1]), rtol=1e-4, atol=1e-5)
    assert replayed(run).replays >= 5
    backward = Compiler.of(run).compilations[-1].backward.log.replayed  # type: ignore[union-attr]
    assert backward.replays >= (0 if style == "zeroed in place" else 3)


def test_a_graph_that_is_kept(machine: FakeGraphs) -> None:
    model, oracle = network()
    run = compiled(model)
    for k in range(10):
        x = draw(16, 8, seed=k)
        results = []
        for call in (run, oracle):
            parameters = list((model if call is run else oracle).parameters())
            out = call(x)
            total = out.square().sum()
            first = torch.autograd.grad(total, parameters, retain_graph=True)
            call(x * 2)
            results.append([out, *first, *torch.autograd.grad(total, parameters)])
        for a, b in zip(*results):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert replayed(run).replays >= 5


class TestBackwardsBorrowFromRecordings:
    """What a forward keeps lies where it is recorded. A backward that is not recorded is lent it
    nonetheless."""

    @pytest.fixture(autouse=True)
    def copies_take_long(self, machine: FakeGraphs) -> None:
        machine.costs = replace(machine.costs, copied_per_second=1000.0)

    @staticmethod
    def scores() -> tuple[Tensor, Tensor]:
        return draw(64, 1000).requires_grad_(), torch.randint(
            1000, (64,), generator=torch.Generator().manual_seed(0)
        )

    def test_a_gradient_lies_there(self, machine: FakeGraphs) -> None:
        run, (x, target), found = compiled(F.cross_entropy), self.scores(), set()
        for k in range(8):
            x.grad = None
            run(x, target).backward()
            if k > 2:
                assert x.grad is not None
                found.add(x.grad.data_ptr())
        (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
        torch.testing.assert_close(x.grad, expected)
        assert machine.captures == 1 and machine.replays == 6 and len(found) == 1
        backward = Compiler.of(run).compilations[-1].backward.log.replayed  # type: ignore[union-attr]
        assert "to scale 256000 bytes elsewhere than in their place" in backward.describe()

    @pytest.mark.parametrize("factor", [1.0, 3.0])
    def test_gradients_that_are_held_stay(self, machine: FakeGraphs, factor: float) -> None:
        run, (x, target), held = compiled(F.cross_entropy), self.scores(), []
        for k in range(12):
            with torch.no_grad():
                x.mul_(0.9)
            (found,) = torch.autograd.grad(run(x, target) * factor, x)
            held = [*held, (found, torch.autograd.grad(F.cross_entropy(x, target) * factor, x)[0])][
                -(k % 3) :
            ]
            for gradient, expected in held:
                torch.testing.assert_close(gradient, expected)
        assert machine.replays >= 3

    def test_what_somebody_holds_stays(self, machine: FakeGraphs) -> None:
        run, (x, target) = compiled(F.cross_entropy), self.scores()
        for k in range(9):
            with torch.no_grad():
                x.mul_(0.9)
            loss = run(x, target)
            kept = (
                [t for t in loss.grad_fn.saved_tensors if t.is_floating_point()]
                if k % 3 == 1
                else []
            )
            before = [t.clone() for t in kept]
            first = torch.autograd.grad(loss * 3, x, retain_graph=k % 3 == 0)[0]
            (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
            torch.testing.assert_close(first, expected * 3)
            if k % 3 == 0:
                torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
                torch.testing.assert_close(first, expected * 3)
            assert all(map(torch.equal, kept, before))
        assert machine.replays >= 3

    def test_a_recording_dies_before_what_it_lent(self, machine: FakeGraphs) -> None:
        run, (x, target) = compiled(F.cross_entropy), self.scores()
        for _ in range(5):
            x.grad = None
            loss = run(x, target)
            loss.backward()
        (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
        del run, loss
        ingot.reset()
        others = [draw(64, 1000, seed=k) for k in range(4)]
        torch.testing.assert_close(x.grad, expected)
        del others


REASONS: dict[str, tuple[Callable[..., Any], str]] = {
    "sizes of data": (lambda x: x[x > 0] * 2, "sizes depend on data"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_not_recorded(machine: FakeGraphs, name: str) -> None:
    fn, reason = REASONS[name]
    run = compiled(fn)
    for _ in range(4):
        run(draw(8, 8))
    assert machine.captures == 0
    assert reason in str(ingot.explain(run)(draw(8, 8)))


def draws_beside(x: Tensor, w: Tensor) -> Tensor:
    torch.rand([])
    return layers(x, w)


def test_what_the_cpu_does_beside_the_device_is_done_at_each_call(
    machine: FakeGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split_by_device(plan: Plan) -> tuple[Plan, Plan]:
        """As if the random numbers were on another device than the rest."""
        draws = [isinstance(s, LibraryStep) and "rand" in str(s.node.function) for s in plan.steps]
        assert draws.count(True) == 1
        beside = plan._of(lambda k: draws[k])
        return plan._of(lambda k: not draws[k]), replace(
            beside, graph=replace(plan.graph, outputs=[])
        )

    monkeypatch.setattr(Plan, "split_by_device", split_by_device)
    run, x, w = compiled(draws_beside), draw(16, 16), draw(16, 16, seed=1)
    torch.manual_seed(0)
    for _ in range(6):
        torch.testing.assert_close(run(x, w), layers(x, w))
    drawn = torch.rand(())
    torch.manual_seed(0)
    for _ in range(6):
        torch.rand(())
    assert torch.equal(drawn, torch.rand(()))
    assert replayed(run).replays == 4


def test_few_launches_are_not_recorded(machine: FakeGraphs) -> None:
    machine.costs = replace(machine.costs, least_launches=3)
    run = compiled(lambda x: x.sin() * 2)
    for _ in range(4):
        run(draw(8))
    assert "launches take no longer" in replayed(run)


def test_a_recording_that_fails(machine: FakeGraphs) -> None:
    machine.error = RuntimeError("operation not permitted when stream is capturing")
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(5):
        torch.testing.assert_close(fn(x, w), layers(x, w))
    assert "recording failed: operation not permitted" in replayed(fn).describe()


def test_copies_of_large_inputs_do_not_pay(machine: FakeGraphs) -> None:
    machine.costs = replace(machine.costs, copied_per_second=1.0)
    fn, w = compiled(layers), draw(8, 8, seed=1)
    kept = [draw(8, 8, seed=k) for k in range(6)]
    for x in kept:
        torch.testing.assert_close(fn(x, w), layers(x, w))
    assert machine.captures == 0 and "copy of 256 bytes" in replayed(fn).describe()


def test_steps_are_measured_in_calls_that_are_not_replayed(machine: FakeGraphs) -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(5):
        fn(x, w)
    report, before = ingot.explain(fn)(x, w), machine.replays
    report.measure(lambda: fn(x, w))
    assert all(kernel.seconds for kernel in report.kernels) and machine.replays == before
    fn(x, w)
    assert machine.replays == before + 1


def test_a_result_that_becomes_the_input(machine: FakeGraphs) -> None:
    fn, w = compiled(layers), draw(8, 8, seed=1) / 8
    x = expected = draw(8, 8)
    for _ in range(12):
        x, expected = fn(x, w), layers(expected, w)
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)
    assert machine.captures == 2 and machine.replays >= 9


def test_nothing_is_recorded_unless_asked_for(machine: FakeGraphs) -> None:
    fn, x, w = ingot.compile(layers), draw(8, 8), draw(8, 8, seed=1)
    for _ in range(4):
        fn(x, w)
    assert machine.captures == 0 and replayed(fn) is None


def test_a_cpu_has_none() -> None:
    fn, x, w = compiled(layers), draw(8, 8), draw(8, 8, seed=1)
    fn(x, w)
    assert replayed(fn) == "there are none on a CPU"
