"""What a training step holds: at most what eager's holds. (What is held between steps:
tests/native/test_heap.py.)"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from examples import gpt2
from ingot import devices
from ingot.compiler import Compiler
from ingot.explain.measure import peak_bytes

CPU = torch.device("cpu")


def perceptron() -> tuple[nn.Module, Tensor]:
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(2048, 64)


def images() -> tuple[nn.Module, Tensor]:
    layers = [
        part
        for _ in range(3)
        for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ]
    return nn.Sequential(*layers), torch.randn(4, 8, 32, 32)


def language() -> tuple[nn.Module, Tensor]:
    model = gpt2.gpt2(gpt2.Config(layers=3, heads=2, width=64, positions=64, vocabulary=256))
    return model.requires_grad_(), torch.randint(256, (4, 64))


class Recurrence(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for part in x.unbind():
            state = self.cell(part, state)
        return state[0] if isinstance(state, tuple) else state


def lstm() -> tuple[nn.Module, Tensor]:
    return Recurrence(nn.LSTMCell(64, 64)), torch.randn(8, 32, 64)


def gru() -> tuple[nn.Module, Tensor]:
    return Recurrence(nn.GRUCell(64, 64)), torch.randn(16, 32, 64)


class Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight / 3 * x).exp() / x.shape[0]


def step(model: Callable[..., Tensor], parameters: list[Tensor], x: Tensor) -> None:
    for parameter in parameters:
        parameter.grad = None
    model(x).square().mean().backward()


@pytest.mark.parametrize("make", [perceptron, images, language, lstm, gru])
def test_a_step_holds_no_more_than_eagers(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    parameters = list(model.parameters())
    eager = peak_bytes(partial(step, model, parameters, x), (parameters, x), CPU, before=1)
    compiled = ingot.compile(model, fullgraph=True)
    assert (
        peak_bytes(partial(step, compiled, parameters, x), (parameters, x), CPU, before=2) <= eager
    )


def test_what_is_kept_dies_with_its_last_use() -> None:
    """The plan of the backward lets each kept tensor go."""
    model, x = perceptron()
    compiled: Any = ingot.compile(model, fullgraph=True)
    step(compiled, list(model.parameters()), x)
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    plan = compilation.backward.log.plan
    dead_after = {name: k for k, names in plan.last_use.items() for name in names}
    kept = [name for name in plan.graph.inputs if name in dead_after]
    assert len({dead_after[name] for name in kept}) >= 6
    assert plan.frugal and plan.arena_bytes.constant == 0
    assert plan.peak_bytes.constant < sum(
        plan.graph.buffers[name].length.constant * 4
        for name in {*plan.graph.inputs, *plan.graph.buffers}
    )


def scores() -> tuple[Tensor, Tensor]:
    return torch.randn(64, 1000, requires_grad=True), torch.randint(1000, (64,))


def made_of(loss: Callable[..., Tensor], *inputs: Tensor) -> Any:
    """The compilation of a loss, of which a step has been made."""
    compiled: Any = ingot.compile(loss, fullgraph=True)
    compiled(*inputs).sum().backward()
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    return compiled, compilation


class TestWhatIsKeptLendsItsMemory:
    """To a gradient that is written where it is read for the last time, if nobody else holds it."""

    def test_a_loss_holds_its_scores_once(self) -> None:
        x, target = scores()
        compiled, compilation = made_of(F.cross_entropy, x, target)
        assert compilation.backward.log.plan.lenders
        assert compilation.backward.log.plan.peak_bytes.constant < 1.1 * x.nbytes

        def held(loss: Callable[..., Tensor]) -> int:  # the scores too
            x.grad = None
            return peak_bytes(lambda: loss(x, target).backward(), (x, target), CPU)

        assert held(compiled) < 2.1 * x.nbytes
        assert held(F.cross_entropy) > 3.9 * x.nbytes

    @pytest.mark.parametrize("retained", [False, True])
    def test_gradients_are_eagers(self, retained: bool) -> None:
        x, target = scores()
        compiled, _ = made_of(F.cross_entropy, x, target)
        (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
        loss = compiled(x, target)
        found = [
            torch.autograd.grad(loss, x, retain_graph=retained)[0]
            for _ in range(2 if retained else 1)
        ]
        found += torch.autograd.grad(loss, x) if retained else ()
        for gradient in found:
            torch.testing.assert_close(gradient, expected)
        assert len({gradient.data_ptr() for gradient in found}) == len(found)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, x)

    def test_what_somebody_looks_at_stays(self) -> None:
        x, target = scores()
        compiled, _ = made_of(F.cross_entropy, x, target)
        loss = compiled(x, target)
        held = [t for t in loss.grad_fn.saved_tensors if t.is_floating_point()]
        before = [t.clone() for t in held]
        loss.backward()
        assert all(map(torch.equal, held, before))

    def test_what_shares_memory_stays(self) -> None:
        x, target = scores()
        compiled, _ = made_of(F.cross_entropy, x, target)
        loss = compiled(x, target)
        held = [t.detach() for t in loss.grad_fn.saved_tensors if t.is_floating_point()]
        before = [t.clone() for t in held]
        loss.backward()
        assert all(map(torch.equal, held, before))

    @pytest.mark.parametrize("where", ["tensors", "arrays", "copies"])
    def test_what_hooks_hold_stays(self, where: str) -> None:
        x, target = scores()
        compiled, _ = made_of(F.cross_entropy, x, target)
        (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
        held: list[Any] = []

        def pack(t: Tensor) -> int:
            held.append(
                {"tensors": t, "arrays": t.detach().numpy(), "copies": t.detach().numpy().copy()}[
                    where
                ]
            )
            return len(held) - 1

        def unpack(k: int) -> Tensor:
            return held[k] if where == "tensors" else torch.from_numpy(held[k])

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = compiled(x, target)
        before = [torch.as_tensor(t).clone() for t in held]
        assert before
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
        assert all(torch.equal(torch.as_tensor(t), b) for t, b in zip(held, before))

    def test_hooks_may_give_back_other_strides(self) -> None:
        x = torch.randn(40, 64, dtype=torch.float64, requires_grad=True)

        def fn(x: Tensor) -> Tensor:
            return x.t().exp().softmax(-1)

        def gradient(of: Callable[[Tensor], Tensor]) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.contiguous()):
                y = of(x)
            return torch.autograd.grad((y * y).sum(), x)[0]

        compiled = ingot.compile(fn, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(gradient(compiled), gradient(fn))

    @pytest.mark.parametrize("kind", ["negated", "wider", "narrower"])
    def test_hooks_may_give_back_other_forms(self, kind: str) -> None:
        x = torch.randn(40, 64, dtype=torch.float64, requires_grad=True)
        given = {
            "negated": lambda t: torch._neg_view(-t),
            "wider": lambda t: t.double(),
            "narrower": lambda t: t.float(),
        }[kind]
        kept = torch.float32 if kind == "wider" else torch.float64

        def fn(x: Tensor) -> Tensor:
            return x.to(kept).exp().softmax(-1)

        def gradient(of: Callable[[Tensor], Tensor], unpack: Callable[[Tensor], Tensor]) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
                y = of(x)
            return torch.autograd.grad((y * y).sum(), x)[0]

        close = {"rtol": 1e-5, "atol": 1e-5} if kind in ("wider", "narrower") else {}
        compiled = ingot.compile(fn, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(
                gradient(compiled, given), gradient(fn, lambda t: t), **close
            )

    def test_hooks_may_give_back_conjugate_views(self) -> None:
        x = torch.randn(8, 8, dtype=torch.complex64, requires_grad=True)

        def fn(x: Tensor) -> Tensor:
            return (x * x).exp().real

        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t, lambda t: t.conj().resolve_conj().conj()
        ):
            y = ingot.compile(fn)(x)
        (found,), (expected,) = torch.autograd.grad(y.sum(), x), torch.autograd.grad(fn(x).sum(), x)
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("by_eager", [False, True])
    @pytest.mark.parametrize("given", [lambda t: t[:-1], lambda t: t.flatten(), lambda t: t[:1]])
    def test_hooks_that_give_back_other_sizes_are_refused(
        self, given: Callable[[Tensor], Tensor], by_eager: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = torch.randn(40, 64, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, given):
            y = ingot.compile(lambda x: x.exp().softmax(-1))(x)
        if by_eager:  # the backward's program cannot be made
            monkeypatch.setattr(devices, "compile_kernels", None)
        with pytest.raises(RuntimeError, match="other sizes than it was given"):
            y.sum().backward()

    def test_tangents_stay(self) -> None:
        x = torch.randn(256, 256, requires_grad=True)
        compiled, compilation = made_of(lambda x: x.exp(), x)
        tangent = torch.randn(256, 256)
        before = tangent.clone()
        compiled(x).backward(tangent)
        assert torch.equal(tangent, before) and not compilation.backward.log.plan.lenders

    def test_a_result_that_is_kept_stays(self) -> None:
        x = torch.randn(256, 256, requires_grad=True)
        compiled, _ = made_of(lambda x: x.exp(), x)
        y = compiled(x)
        before = y.detach().clone()
        y.backward(torch.ones_like(y))
        assert torch.equal(y, before)

    def test_another_thread_may_go_back(self) -> None:
        x, target = scores()
        compiled, _ = made_of(F.cross_entropy, x, target)
        (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
        losses = [compiled(x, target) for _ in range(8)]
        found: list[Tensor] = []

        def go(loss: Tensor) -> None:
            found.append(torch.autograd.grad(loss, x)[0])

        threads = [threading.Thread(target=go, args=(loss,)) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        for gradient in found:
            torch.testing.assert_close(gradient, expected)


def test_histories_of_the_compilation_are_forgotten() -> None:
    """Autograd's nodes of a capture would hold its fakes and numbers for good."""
    compiled: Any = ingot.compile(Divided(), fullgraph=True)
    x = torch.randn(16)
    compiled(x).sum().backward()
    (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    nodes = compilation.captured.graph_module.graph.nodes
    assert [n.meta["val"].shape for n in nodes if n.target in (torch.exp, "exp")] == [x.shape]
    assert not [
        n
        for n in nodes
        if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].grad_fn is not None
    ]
    (loss,) = torch.autograd.grad(compiled(x).sum(), compiled.weight, create_graph=True)
    expected = (compiled.weight / 3 * x).exp() * x * x / 9 / 16
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), compiled.weight)[0], expected)


def test_the_graph_may_be_kept_and_used_again() -> None:
    model, x = perceptron()
    compiled = ingot.compile(model, fullgraph=True)
    loss = compiled(x).square().mean()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, list(model.parameters()))
