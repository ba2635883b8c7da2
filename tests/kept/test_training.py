"""Programs that record gradients: forwards and backwards that one process keeps are found by
another, which traces nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot import pipeline
from ingot.compiler import Compiler
from ingot.graph.shape_context import ShapeContext
from ingot.kept.contracts import told, understood
from ingot.kept.programs import FOUND
from ingot.kept.sizes import Sizes
from ingot.runtime.training import TrainingProgram
from tests.oracle import tensors_in


@pytest.fixture(autouse=True)
def folder(cache: Path) -> Path:
    """A folder for programs, in which there is none yet."""
    return cache / "programs"


def compiled(function: Callable[..., Any]) -> Any:
    """A function, compiled as in a new process."""
    ingot.reset()
    return ingot.compile(function, fullgraph=True)


def kept(function: Any) -> str:
    compiler = Compiler.of(function)
    assert compiler is not None
    return compiler.compilations[0].log.kept


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a graph is compiled")

    return lambda: monkeypatch.setattr(pipeline, "compile_graph", refuse)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()


MODULE = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()
CONVOLUTION = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU()).double()
GRU = nn.GRU(6, 5, batch_first=True).double()
Make = Callable[[], list[Tensor]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {
    "pointwise": (lambda x: (x.sin() * x).sum(), lambda: [leaf(4, 6)]),
    "a module": (lambda x: MODULE(x).pow(2), lambda: [leaf(4, 6)]),
    "images": (CONVOLUTION, lambda: [leaf(2, 3, 8, 8)]),
    "a loss": (
        lambda x: F.cross_entropy(MODULE(x), torch.tensor([0, 2, 1, 1])), lambda: [leaf(4, 6)],
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: [leaf(2, 2, 9, 4), leaf(2, 2, 9, 4), leaf(2, 2, 9, 4)],
    ),
    "recurrent": (lambda x: GRU(x)[0], lambda: [leaf(2, 7, 6)]),
    "an argument without a gradient": (lambda x, y: x * y, lambda: [leaf(3), torch.ones(3)]),
    "not a leaf": (lambda x: x.exp(), lambda: [leaf(3) * 2]),
    "several results": (lambda x: {"a": x.sin(), "b": [x.cos(), 3]}, lambda: [leaf(3)]),
    "a result without a gradient": (lambda x: (x.sin(), x.argmax()), lambda: [leaf(5)]),
    "float32": (lambda x: x.softmax(-1), lambda: [leaf(5, 7, dtype=torch.float32)]),
    "a write": (lambda x: (x * 2).add_(1).mul_(x), lambda: [leaf(5)]),
    "random numbers": (lambda x: F.dropout(x, 0.5), lambda: [leaf(50)]),
    "results that share memory": (lambda x: [y := x * 2, y.view(2, 3), y[1:]], lambda: [leaf(6)]),
    "a view of an argument": (lambda x: [x.view(2, 3), x * 2], lambda: [leaf(6)]),
    "views without a gradient": (lambda x: [y := x * 2, y.detach()[1:]], lambda: [leaf(6)]),
}  # fmt: skip


def step(function: Callable[..., Any], args: list[Tensor]) -> list[Tensor]:
    """The results and the gradients."""
    torch.manual_seed(7)
    results = list(tensors_in(function(*args)))
    outputs = [t for t in results if t.requires_grad]
    weights = [torch.linspace(1, 2, t.numel(), dtype=t.dtype).view_as(t) for t in outputs]
    wanted = [*filter(lambda t: t.requires_grad, args), *parameters(function)]
    gradients = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
    return [*results, *(g for g in gradients if g is not None)]


def parameters(function: Any) -> list[Tensor]:
    if isinstance(function, nn.Module):
        return list(function.parameters())
    return []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_is_found(name: str, nothing_is_compiled: Callable[[], None]) -> None:
    function, make = PROGRAMS[name]
    expected = step(function, make())
    cold = compiled(function)
    results = [step(cold, make())]
    assert kept(cold) == ""
    nothing_is_compiled()
    found = compiled(function)
    results += [step(found, make()), step(found, make())]
    assert kept(found) == FOUND
    for result in results:
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y).sin(), (x.exp() * y).sum()


DEMANDS: dict[str, Callable[[Any, list[Tensor]], Any]] = {
    "the first result": lambda results, args: torch.autograd.grad(results[0].sum(), args),
    "the second": lambda results, args: torch.autograd.grad(results[1], args),
    "one argument": lambda results, args: torch.autograd.grad(results[0].sum(), args[1:]),
    "one after the other": lambda results, args: [
        *torch.autograd.grad(results[1], args, retain_graph=True),
        *torch.autograd.grad(results[0].sum(), args),
    ],
    "twice": lambda results, args: [
        *torch.autograd.grad(results[1], args, retain_graph=True),
        *torch.autograd.grad(results[1], args),
    ],
}


@pytest.mark.parametrize("name", DEMANDS)
def test_a_part_of_the_gradients(name: str, nothing_is_compiled: Callable[[], None]) -> None:
    demand, made = DEMANDS[name], [leaf(3, 4), leaf(3, 4)]
    expected = demand(two(*made), made)
    cold = compiled(two)
    results = [demand(cold(*made), made)]
    nothing_is_compiled()
    found = compiled(two)
    results.append(demand(found(*made), made))
    assert kept(found) == FOUND
    for result in results:
        torch.testing.assert_close(tuple(result), tuple(expected))


def test_what_was_never_asked_for_is_compiled_then() -> None:
    """Another part of the gradients, gradients of gradients, and gradients that are wrapped."""
    made = [leaf(3, 4), leaf(3, 4)]
    cold = compiled(two)
    torch.autograd.grad(cold(*made)[1], made)
    found = compiled(two)
    others: list[Callable[[Any], Any]] = [
        lambda function: torch.autograd.grad(function(*made)[0].sum(), made),
        lambda function: torch.autograd.grad(
            torch.autograd.grad(function(*made)[1], made, create_graph=True)[0].sum(), made
        ),
        lambda function: torch.autograd.grad(
            function(*made)[0], made[:1], torch.ones(2, 3, 4).double(), is_grads_batched=True
        ),
    ]
    for other in others:
        torch.testing.assert_close(other(found), other(two))
    assert kept(found) == FOUND
    again = compiled(two)
    torch.testing.assert_close(others[0](again), others[0](two))


def test_hooks_see_gradients_of_what_is_found() -> None:
    seen: list[Tensor] = []
    for _ in range(2):
        x = leaf(5)
        y = compiled(lambda x: x.sin() * 2)(x)
        y.register_hook(seen.append)
        x.register_hook(seen.append)
        y.sum().backward()
    torch.testing.assert_close(seen[:2], seen[2:])


def test_errors_of_autograd_are_eagers() -> None:
    x = leaf(5)
    messages = []
    for function in (torch.exp, compiled(torch.exp), compiled(torch.exp)):
        y = function(x)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(RuntimeError) as twice:
            y.sum().backward()
        y = function(x)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError) as written:
            y.sum().backward()
        messages.append((str(twice.value)[:60], str(written.value)[:60]))
    assert messages[0] == messages[1] == messages[2]


def test_steps_of_training() -> None:
    """The same losses, with the gradients of a module that is trained."""

    def trained(wrap: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer, losses = torch.optim.Adam(model.parameters(), 0.05), []
        run = wrap(model)
        for _ in range(5):
            loss = (run(torch.ones(4, 6)) - 1).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = trained(lambda model: model)
    for _ in range(2):
        assert trained(compiled) == pytest.approx(expected, rel=1e-4)


def test_a_report_shows_a_step_that_was_found() -> None:
    for _ in range(2):
        function = compiled(lambda x: (x.sin() * x).sum())
        function(leaf(4, 6)).backward()
    assert kept(function) == FOUND
    report = ingot.explain(function)(leaf(4, 6))
    assert FOUND in str(report) and report.kernels


def summed(x: Tensor) -> Tensor:
    return x.sin().sum()


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b""])
def test_a_damaged_backward_is_made_again(
    folder: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    function = compiled(summed)
    function(leaf(5)).backward()
    (forward,) = [p for p in folder.glob("*.code") if b"backward" not in p.read_bytes()]
    for file in folder.glob("*.code"):
        if file != forward:
            file.write_bytes(damage(file.read_bytes()))
    x = leaf(5)
    found = compiled(summed)
    found(x).backward()
    assert kept(found) == FOUND
    torch.testing.assert_close(x.grad, x.detach().cos())


NOT_KEPT: dict[str, tuple[Callable[..., Any], str]] = {
    "a function of the program's own": (lambda x: Twice.apply(x), "cannot be found again"),
}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_is_not_kept_says_why(name: str) -> None:
    function, reason = NOT_KEPT[name]
    for _ in range(2):
        run = compiled(function)
        x = leaf(6)
        result = run(x)
        torch.testing.assert_close(result, function(x))
        assert kept(run).startswith("not kept: ") and reason in kept(run)


def test_contracts_are_told_whole() -> None:
    """Each slot of a contract, as it was."""
    for function, make in PROGRAMS.values():
        ingot.reset()
        run = ingot.compile(function, fullgraph=True)
        run(*make())
        compiler = Compiler.of(run)
        assert compiler is not None
        for entry in compiler.compilations:
            assert entry.log.program is not None
        sizes = Sizes(ShapeContext())
        for program in programs_of(compiler):
            assert understood(told(program.contract, sizes), sizes) == program.contract


def programs_of(compiler: Compiler) -> list[TrainingProgram]:
    import gc

    found = []
    for thing in gc.get_objects():
        if isinstance(thing, TrainingProgram):
            found.append(thing)
    assert found
    return found
