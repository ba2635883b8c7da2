"""Compiled code belongs to a code: what was compiled for one function, closure or instance serves
others for which its guards hold."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler

from .oracle import assert_near

X = torch.randn(4, 8)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    ingot.reset()


def compilations(functions: list[Any]) -> list[Any]:
    """All that were made for these functions, once each."""
    found: dict[int, Any] = {}
    for function in functions:
        compiler = Compiler.of(function)
        assert compiler is not None
        found |= {id(c): c for c in compiler.compilations}
    return list(found.values())


def global_function(x: Tensor) -> Tensor:
    return x.relu() + 1


def test_a_function_compiled_again() -> None:
    compiled = [ingot.compile(global_function) for _ in range(3)]
    for function in compiled:
        assert_near(function(X), global_function(X))
    assert len(compilations(compiled)) == 1


def test_other_options_share_nothing() -> None:
    compiled = [ingot.compile(global_function), ingot.compile(global_function, dynamic=True)]
    for function in compiled:
        assert_near(function(X), global_function(X))
    assert len(compilations(compiled)) == 2


class Scaled(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(8, size)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x).relu()


WAYS: dict[str, Callable[[Scaled], Any]] = {
    "module": ingot.compile,
    "method": lambda module: ingot.compile(module.forward),
    "forward of a compiled module": lambda module: ingot.compile(module).forward,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_ten_instances(way: str, training: bool) -> None:
    modules = [Scaled() for _ in range(10)]
    compiled = [WAYS[way](module) for module in modules]
    with torch.set_grad_enabled(training):
        for module, function in zip(modules, compiled):
            result = function(X)
            assert module.calls == 1
            assert_near(result, module.linear(X).relu())
            if training:
                result.sum().backward()
                weight = module.linear.weight
                (expected,) = torch.autograd.grad(module.linear(X).relu().sum(), weight)
                assert_near(weight.grad, expected)
    assert len(compilations(compiled)) == 1


def test_instances_of_other_sizes_are_compiled_for() -> None:
    modules = [Scaled(size) for size in (8, 3, 8, 3)]
    compiled = [ingot.compile(module) for module in modules]
    with torch.no_grad():
        for module, function in zip(modules, compiled):
            assert_near(function(X), module(X))
    made = compilations(compiled)
    assert len(made) == 2
    assert not any(c.captured.guards.symbols for c in made)


def closures_over(held: Any) -> tuple[Any, Any]:
    """A closure over a value, and a function that says what the closure holds."""
    count = 0

    def function(x: Tensor) -> Any:
        nonlocal count
        count += 1
        if isinstance(held, list):
            held.append(count)
            return x * len(held)
        if isinstance(held, dict):
            held["count"] = count
            return x + held["n"]
        if isinstance(held, torch.dtype):
            return x.to(held)
        if callable(held):
            return held(x)
        if held is None:
            return x
        return x * held

    return function, lambda: (count, held)


HELD: dict[str, list[Callable[[], Any]]] = {
    "floats": [lambda: 0.5, lambda: 1.5, lambda: 2.5, lambda: 0.5],
    "integers": [lambda: 1, lambda: 2, lambda: 3, lambda: 2],
    "tensors": [lambda: torch.full((8,), 2.0), lambda: torch.full((8,), 3.0)],
    "tensors of other shapes": [lambda: torch.full((8,), 2.0), lambda: torch.full((4, 1), 3.0)],
    "lists": [lambda: [1], lambda: [1, 2], lambda: [1]],
    "dicts": [lambda: {"n": 1.0}, lambda: {"n": 2.0}, lambda: {"n": 1, "m": 2}],
    "dtypes": [lambda: torch.float64, lambda: torch.float16, lambda: torch.float64],
    "functions": [lambda: torch.sin, lambda: torch.cos, lambda: lambda x: x * 3],
    "modules": [lambda: nn.Linear(8, 3), lambda: nn.Linear(8, 3), lambda: nn.ReLU()],
    "other types": [lambda: None, lambda: 2.0, lambda: True, lambda: [1], lambda: torch.ones(8)],
}


@pytest.mark.parametrize("kind", HELD)
def test_closures_do_what_each_holds(kind: str) -> None:
    for make in HELD[kind] * 2:
        torch.manual_seed(1)
        function, state = closures_over(make())
        torch.manual_seed(1)
        expected, expected_state = closures_over(make())
        compiled = ingot.compile(function)
        for _ in range(2):
            result, reference = compiled(X), expected(X)
            assert result.dtype is reference.dtype
            assert_near(result, reference)
            if kind != "modules":
                assert str(state()).split(" at ")[0] == str(expected_state()).split(" at ")[0]


def test_closures_made_anew_are_compiled_once() -> None:
    made = []
    for k in range(6):
        compiled = ingot.compile(closures_over(torch.full((8,), float(k)))[0])
        assert_near(compiled(X), X * k)
        made += compilations([compiled])
        del compiled
        gc.collect()
    assert len({id(c) for c in made}) == 1


def test_floats_of_closures_become_inputs() -> None:
    compiled = [ingot.compile(closures_over(k / 2)[0]) for k in range(3, 10)]
    for k, function in enumerate(compiled):
        assert_near(function(X), X * (k + 3) / 2)
    assert len(compilations(compiled)) == 2


def test_defaults_are_each_functions_own() -> None:
    def make(k: float) -> Any:
        added = torch.full((8,), k)

        def function(x: Tensor, k: float = k, *, more: Tensor = added) -> Tensor:
            return x * k + more

        return function

    for k in (1.0, 2.0, 3.0, 1.0):
        assert_near(ingot.compile(make(k))(X), X * k + k)


def test_a_closure_that_calls_itself() -> None:
    def make(step: float) -> Any:
        def power(x: Tensor, n: int) -> Tensor:
            return x if n == 0 else power(x, n - 1) * step

        return power

    for step in (2.0, 3.0, 2.0):
        assert_near(ingot.compile(make(step))(X, 3), X * step**3)


def test_code_in_other_globals() -> None:
    text = "def function(x):\n    return x * SCALE\n"
    spaces: list[dict[str, Any]] = [{"SCALE": 2.0}, {"SCALE": 3.0}]
    code = compile(text, "<text>", "exec")
    for space in spaces:
        exec(code, space)
        assert_near(ingot.compile(space["function"])(X), X * space["SCALE"])


def test_behind_a_graph_break() -> None:
    said = []

    def make(k: Tensor) -> Any:
        def function(x: Tensor) -> Tensor:
            y = x * k
            said.append(float(y.sum()))
            return y + k

        return function

    compiled = []
    for number in (2.0, 3.0, 4.0):
        k = torch.full((8,), number)
        compiled.append(ingot.compile(make(k)))
        assert_near(compiled[-1](X), X * k + k)
        assert said[-1] == pytest.approx(float((X * k).sum()), rel=1e-5, abs=1e-4)
    graphs = [len(ingot.explain(function)(X).graphs) for function in compiled]
    assert graphs == graphs[:1] * 3


def test_a_disabled_function_of_the_same_code() -> None:
    def make() -> Any:
        def function(x: Tensor) -> Tensor:
            return x * 2

        return function

    ingot.compile(make())(X)
    disabled = ingot.compile(torch.compiler.disable(make()))
    assert_near(disabled(X), X * 2)
    assert [c.skipped is None for c in compilations([disabled])] == [False]


def test_marked_sizes_are_compiled_for() -> None:
    ingot.compile(global_function)(X)
    x = torch.randn(4, 8)
    ingot.mark_dynamic(x, 0)
    marked = ingot.compile(global_function)
    assert_near(marked(x), global_function(x))
    (compilation,) = compilations([marked])
    assert {size.name for size in compilation.captured.guards.symbols.values()} == {"x.shape[0]"}


def test_reset_forgets_what_is_shared() -> None:
    first = ingot.compile(global_function)
    first(X)
    before = compilations([first])
    ingot.reset()
    second = ingot.compile(global_function)
    second(X)
    assert len(compilations([second])) == 1
    assert compilations([second])[0] is not before[0]


def test_instances_are_not_kept_alive() -> None:
    module = Scaled()
    compiled = ingot.compile(module)
    compiled(X)
    other = ingot.compile(Scaled())
    other(X)
    gone = weakref.ref(module)
    del module, compiled
    gc.collect()
    assert gone() is None
    assert other(X).shape == (4, 8)
