"""What lies around autograd in a training loop: random numbers, autocast, scaled losses, default
dtypes, hooks on saved tensors, checkpoints, accumulation."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import ingot
from tests.test_differentiation import EAGER, both, wanted, whole


def noisy(x: Tensor, layer: nn.Module) -> Tensor:
    """All kinds of random numbers, some of which the backward needs."""
    h = F.dropout(layer(x), 0.3)
    h = h + torch.randn_like(h) * torch.rand(h.shape[-1])
    kept = torch.bernoulli(torch.full_like(h, 0.7))
    chosen = torch.multinomial(torch.ones(6), 3)
    return (h * kept)[chosen].tanh() * torch.randint(1, 4, (3, 1)) + torch.normal(
        0.0, 1.0, (3, 4)
    ) * h[:3]


def test_ten_steps_draw_the_same_numbers() -> None:
    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        layer, x = nn.Linear(5, 4), torch.randn(6, 5)
        step = wrap(noisy)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        torch.manual_seed(1)
        for _ in range(10):
            optimizer.zero_grad()
            step(x, layer).square().mean().backward()
            optimizer.step()
        found.append((torch.get_rng_state(), [p.detach() for p in layer.parameters()]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_ten_steps_with_the_backward_inside() -> None:
    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        layer, x = nn.Linear(5, 4), torch.randn(6, 5)

        def step(x: Tensor, layer: nn.Module = layer) -> Tensor:
            loss = noisy(x, layer).square().mean()
            loss.backward()
            return loss.detach()

        compiled = wrap(step)
        torch.manual_seed(1)
        losses = [compiled(x) for _ in range(10)]
        found.append((torch.get_rng_state(), losses, [p.grad for p in layer.parameters()]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1:], found[1][1:])


def test_autocast_with_a_scaled_loss() -> None:
    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
        compiled, x = wrap(model), torch.randn(12, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=2)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                y = compiled(x)
                loss = F.mse_loss(y.float(), x[:, :1])
            assert y.dtype is torch.bfloat16
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        found.append(
            (torch.stack(losses), scaler.get_scale(), [p.dtype for p in model.parameters()])
        )
    torch.testing.assert_close(found[1][0], found[0][0], rtol=2e-2, atol=2e-2)
    assert found[0][1:] == found[1][1:]


def test_autocast_inside_with_the_backward() -> None:
    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        model, x = nn.Linear(8, 4), torch.randn(5, 8)

        def step(x: Tensor, model: nn.Module = model) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = model(x)
            y.float().square().mean().backward()
            return y

        y = wrap(step)(x)
        found.append((y.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


def test_default_dtype() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * torch.linspace(0, 1, 4) + torch.ones(4)).exp()

    compiled = whole(function)
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            x = torch.randn(3, 4, requires_grad=True)
            gradients = [torch.autograd.grad(f(x).sum(), x) for f in (function, compiled)]
            assert gradients[1][0].dtype is dtype
            torch.testing.assert_close(*gradients)
    finally:
        torch.set_default_dtype(torch.float32)


def test_saved_tensors_in_other_hands() -> None:
    def program(wrap: Any) -> Any:
        x, w = wanted(4, 4), wanted(4, 4)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.numpy(force=True).copy(), torch.from_numpy
        ):
            y = wrap(lambda x, w: (x @ w).tanh().exp())(x, w)
        y.sum().backward()
        return y, x.grad, w.grad

    both(program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    def program(wrap: Any) -> Any:
        block = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4)).double()
        x = wanted(3, 4)
        function = wrap(lambda x: checkpoint(block, x.sin(), use_reentrant=reentrant).exp())
        for _ in range(2):
            function(x).sum().backward()
        return x.grad, [p.grad for p in block.parameters()], torch.rand(2)

    both(program, ingot.compile)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_around_compiled_functions(reentrant: bool) -> None:
    """Where the hooks of a checkpoint end its second run of the function, nobody runs it again."""

    def program(wrap: Any) -> Any:
        block = wrap(
            nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4)).double()
        )
        x = wanted(3, 4)
        for function in (block, lambda x: block(x).sin(), lambda x: block(block(x))):
            checkpoint(function, x, use_reentrant=reentrant).sum().backward()
        return x.grad, [p.grad for p in block.parameters()], torch.rand(2)

    both(program)


def test_hooks_that_raise_an_error() -> None:
    def refuse(tensor: Tensor) -> None:
        raise ValueError("not to be kept")

    compiled, x, ran = whole(lambda x: (ran.append(1), (x * x).exp())[1]), wanted(3), list[int]()
    compiled(x)
    with (
        torch.autograd.graph.saved_tensors_hooks(refuse, refuse),
        pytest.raises(ValueError, match="not to be kept"),
    ):
        compiled(x)
    assert len(ran) == 1


def test_forward_mode() -> None:
    def program(wrap: Any) -> Any:
        compiled, x = wrap(lambda x: x.sin() * 2), wanted(3)
        compiled(x)
        with forward_ad.dual_level():
            dual = compiled(forward_ad.make_dual(x.detach(), torch.ones_like(x)))
            tangent = forward_ad.unpack_dual(dual).tangent
        compiled(x).sum().backward()
        return tangent, x.grad

    both(program, ingot.compile)


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * y, x.exp() * x.sum()


@pytest.mark.parametrize("create_graph", [False, True])
def test_batches_of_gradients(create_graph: bool) -> None:
    def program(wrap: Any) -> Any:
        x, y, rows = wanted(3), wanted(3), torch.eye(3, dtype=torch.float64)
        results = []
        for result in wrap(several)(x, y):
            found = torch.autograd.grad(
                result,
                [x, y],
                rows,
                create_graph=create_graph,
                is_grads_batched=True,
                allow_unused=True,
            )
            results.append(found)
        (results[0][0].square().sum() if create_graph else several(x, y)[0].sum()).backward()
        return results, x.grad

    both(program)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_jacobians_of_compiled_modules(rows: int) -> None:
    def program(wrap: Any) -> Any:
        layer = wrap(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh()).double())
        layer(wanted(5, 4))
        x = torch.randn(rows, 4, dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(
            lambda x: layer(x).exp().sum(), x, vectorize=True
        )
        return torch.autograd.functional.jacobian(layer, x, vectorize=True), hessian

    both(program)


def test_inputs_in_containers() -> None:
    def program(wrap: Any) -> Any:
        inputs = {"a": [wanted(3), wanted(3)], "b": (wanted(3), 2.0)}

        def function(given: Any) -> Any:
            first, second = given["a"]
            return {
                "sum": first * second,
                "last": [given["b"][0] ** given["b"][1], given["a"][0].detach()],
            }

        result = wrap(function)(inputs)
        (result["sum"] + result["last"][0]).sum().backward()
        return [inputs["a"][0].grad, inputs["a"][1].grad, inputs["b"][0].grad]

    both(program)


def test_an_output_whose_history_was_let_go() -> None:
    """An input that a result does not depend on is not differentiated, whatever has become of its
    history."""

    def program(wrap: Any) -> Any:
        x, w = wanted(3), wanted(3)
        loss = x.exp().sum()
        loss.backward()
        shown, y = wrap(lambda loss, w: (loss.detach() * 2, w.sin()))(loss, w)
        y.sum().backward()
        return shown, x.grad, w.grad

    both(program)


def test_parts_of_complex_results() -> None:
    """Floats in the memory of complex numbers that lie in any order."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both(lambda wrap: wrap(lambda x: torch.fft.fft2(x.t()).real)(torch.randn(3, 4)))
        both(
            lambda wrap: torch.autograd.grad(wrap(torch.fft.hfft2)(x := wanted(2, 2)).sum(), x),
            ingot.compile,
        )
