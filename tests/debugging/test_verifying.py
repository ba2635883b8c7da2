"""`options={"verify": n}`: calls are compared with eager; the first op that differs is named."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.debugging.verifying import Verified
from tests.debugging.faults import Fault, faults, planted

SIZE = 24
FAULTS = {fault.name: fault for fault in faults()}


def around(call: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """A program with a call in the middle of it."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.atan(x @ w)
        called = call(hidden)
        turned = called.view(SIZE, SIZE).t()
        return torch.erf(turned).abs(), called

    return program


def operands(gradient: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    return x.requires_grad_(gradient), w.requires_grad_(gradient)


def differences(call: Callable[[], Any]) -> tuple[Any, list[ingot.DifferenceWarning]]:
    """The result of a call, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    found = [w.message for w in caught if isinstance(w.message, ingot.DifferenceWarning)]
    return result, found


def verified_of(compiled: Any) -> list[Verified]:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    targets = [entry.target for entry in compiler.entries]
    return [target for target in targets if isinstance(target, Verified)]


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_the_op_is_named(name: str) -> None:
    fault: Fault = FAULTS[name]
    program, (x, w) = around(fault.call), operands(fault.gradient)
    expected = program(x, w)
    with planted(fault):
        compiled = ingot.compile(program, options={"verify": 1})
        results, [warning] = differences(lambda: compiled(x, w))
        later, silent = differences(lambda: compiled(x, w))
    assert warning.op.rpartition(".")[2] == fault.shows
    assert warning.where.partition(":")[0].endswith(("faults.py", "test_verifying.py"))
    assert not silent
    for result, again, eager in zip(results, later, expected):
        assert torch.equal(result, eager) and torch.equal(again, eager)


def test_gradients_are_eagers_where_those_of_the_program_are_wrong() -> None:
    fault = FAULTS["of tanh"]
    program, (x, w) = around(fault.call), operands(gradient=True)
    expected = torch.autograd.grad(program(x, w)[0].sum(), (x, w))
    with planted(fault):
        (result, _), [warning] = differences(
            lambda: ingot.compile(program, options={"verify": 1})(x, w)
        )
        gradients = torch.autograd.grad(result.sum(), (x, w))
    assert "gradient of input" in str(warning)
    assert all(map(torch.equal, gradients, expected))


def test_the_message_has_both_values_and_the_users_line() -> None:
    program, (x, w) = around(lambda x: torch.tanh(x)), operands()
    with planted(FAULTS["tanh is scaled"]):
        _, [warning] = differences(lambda: ingot.compile(program, options={"verify": 1})(x, w))
    first, *rest = str(warning).splitlines()
    assert first.startswith("around.<locals>.program (") and "call 1" in first
    assert "first op that differs: torch.tanh" in rest[0]
    assert "test_verifying.py:" in rest[0] and "torch.tanh(x)" in rest[0]
    assert "float32[24, 24] at [" in rest[1] and "in eager" in rest[1]
    assert "largest difference 0.0009" in rest[1]
    assert "eager from now on" in rest[-1]


def test_a_difference_may_be_an_error() -> None:
    program, (x, w) = around(torch.tanh), operands()
    with planted(FAULTS["tanh is scaled"]), warnings.catch_warnings():
        warnings.simplefilter("error", ingot.DifferenceWarning)
        with pytest.raises(ingot.DifferenceWarning, match=r"torch\.tanh"):
            ingot.compile(program, options={"verify": 1})(x, w)


def test_what_is_written_to_an_input_is_eagers() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(torch.tanh(w))
        return x.t()

    x, w = operands()
    expected = x * torch.tanh(w)
    with planted(FAULTS["tanh is scaled"]):
        compiled = ingot.compile(program, options={"verify": 1})
        result, [warning] = differences(lambda: compiled(x, w))
    assert warning.op == "torch.tanh"
    assert torch.equal(x, expected)
    assert result.data_ptr() == x.data_ptr() and torch.equal(result, expected.t())


def test_only_the_first_calls_are_compared() -> None:
    program, (x, w) = around(torch.tanh), operands()
    compiled = ingot.compile(program, options={"verify": 2})
    for _ in range(4):
        _, found = differences(lambda: compiled(x, w))
        assert not found
    [verified] = verified_of(compiled)
    assert verified.count == 2
    assert not verified_of(ingot.compile(program))  # without the option nothing stands between


def test_each_program_has_calls_of_its_own() -> None:
    compiled = ingot.compile(lambda x: x.sin(), options={"verify": 1}, dynamic=False)
    for size in (3, 4, 3, 4):
        compiled(torch.randn(size))
    assert [verified.count for verified in verified_of(compiled)] == [1, 1]


# -- what is no difference -------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.gelu(self.norm(self.first(x))), 0.3, self.training)
        return torch.softmax(self.second(hidden), -1)


def test_a_model_with_state_and_random_numbers_trains_as_without() -> None:
    results = []
    for options in ({}, {"verify": 2}):
        torch.manual_seed(0)
        model, x = Model(), torch.randn(16, 32)
        compiled = ingot.compile(model, options=options)
        for _ in range(3):
            result, found = differences(lambda: compiled(x))  # noqa: B023
            result.square().sum().backward()
            assert not found
        state = [result, torch.get_rng_state(), model.norm.running_mean]
        results.append([*state, *(p.grad for p in model.parameters())])
        assert model.norm.num_batches_tracked == 3
    for plain, verified in zip(*results):
        assert torch.equal(plain, verified)


def test_an_error_is_raised_once_and_before_anything_is_written() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        y = x[index] * 2
        x.add_(1)
        return y

    x, index = torch.zeros(4), torch.tensor([1, 9])
    compiled = ingot.compile(program, options={"verify": 3})
    for k in range(2):
        with pytest.raises(IndexError):
            differences(lambda: compiled(x, index))
        assert torch.equal(x, torch.zeros(4)), k
    assert not differences(lambda: compiled(x, torch.tensor([0, 1])))[1]
    assert torch.equal(x, torch.ones(4))


def test_inputs_that_share_memory_share_it_in_copies() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    x = torch.zeros(6)
    result, found = differences(lambda: ingot.compile(program, options={"verify": 1})(x, x[2:4]))
    assert not found and torch.equal(result, torch.full((2,), 2.0))


def test_sizes_that_vary() -> None:
    compiled = ingot.compile(lambda x: x.softmax(-1) * x.shape[0], options={"verify": 9})
    for size in (3, 4, 5):
        _, found = differences(lambda: compiled(torch.randn(size, 7)))  # noqa: B023
        assert not found
    with planted(FAULTS["a sine's code"]):
        varying = ingot.compile(lambda x: x.sin() * 2, options={"verify": 9}, dynamic=True)
        _, [warning] = differences(lambda: varying(torch.randn(5, 7)))
    assert warning.op == ".sin"


def test_rounding_that_the_program_magnifies() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        nearly = x.softmax(-1).sum(-1) - 1
        return nearly * 1e9, nearly > 0

    for _ in range(5):
        x = torch.randn(64, 32)
        _, found = differences(lambda: ingot.compile(program, options={"verify": 1})(x))  # noqa: B023
        assert not found


@pytest.mark.parametrize("kind", ["draws", "leaf in place"])
def test_what_is_not_compared_runs(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def draws(x: Tensor) -> Tensor:
        return x * random.random()

    def writes(x: Tensor) -> Tensor:
        return x.detach().mul_(2)

    with caplog.at_level(logging.WARNING, "ingot"):
        if kind == "draws":
            random.seed(3)
            once = random.random()
            random.seed(3)
            result = ingot.compile(draws, options={"verify": 1})(torch.ones(2))
            assert torch.equal(result, torch.ones(2) * once)
            assert "is not verified: an op in it has effects" in caplog.text
        else:
            x = torch.ones(3, requires_grad=True)
            result, found = differences(lambda: ingot.compile(writes, options={"verify": 1})(x))
            assert not found and torch.equal(result, torch.full((3,), 2.0))
            assert torch.equal(x, result)


@pytest.mark.parametrize("value", [-1, True, 1.5, "all"])
def test_the_option_is_a_number_of_calls(value: Any) -> None:
    with pytest.raises(ValueError, match="verify may not be"):
        ingot.compile(torch.sin, options={"verify": value})
