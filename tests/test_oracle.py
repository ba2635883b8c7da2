"""The oracle notices each way in which a call can differ from eager's, and allows rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import (
    AGAINST_FLOAT64,
    CLOSE,
    EXACT,
    AgainstFloat64,
    Close,
    Exact,
    Norm,
    Numbers,
    alike,
    assert_call,
    assert_near,
    assert_results,
    assert_same,
    assert_tensors,
    copies,
    outcome,
    relative_error,
    sharing,
)

X = torch.linspace(-2, 2, 12).view(3, 4)


def eager(x: Tensor) -> Any:
    x[0] += 1
    return x * 2, x[1:]


def written_elsewhere(x: Tensor) -> Any:
    x[1] += 1
    return eager(x)[0], x[1:]


def seen_elsewhere(x: Tensor) -> Any:
    y = eager(x)[0]
    return y, x[:2].clone()


def of_another_dtype(x: Tensor) -> Any:
    y, part = eager(x)
    return y.double(), part


def turned(x: Tensor) -> Any:
    y, part = eager(x)
    return y.t().contiguous().t(), part


def in_a_list(x: Tensor) -> Any:
    return list(eager(x))


def one_short(x: Tensor) -> Any:
    return eager(x)[:1]


def without_history(x: Tensor) -> Any:
    y, part = eager(x)
    return y.requires_grad_(), part


def copied_result(x: Tensor) -> Any:
    y, part = eager(x)
    return y, part.clone()


WRONG = [written_elsewhere, seen_elsewhere, of_another_dtype, turned, in_a_list, one_short]
WRONG += [without_history, copied_result]
POLICIES = [EXACT, CLOSE, Norm(1e-6), AGAINST_FLOAT64]


@pytest.mark.parametrize("numbers", POLICIES, ids=str)
def test_what_is_right_passes(numbers: Numbers) -> None:
    assert_call(eager, eager, X, numbers=numbers)


@pytest.mark.parametrize("numbers", POLICIES, ids=str)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_what_is_wrong_fails(wrong: Callable[..., Any], numbers: Numbers) -> None:
    with pytest.raises(AssertionError):
        assert_call(wrong, eager, X, numbers=numbers)


def test_options_leave_out_one_thing() -> None:
    assert_call(in_a_list, eager, X, structure=False)
    assert_call(turned, eager, X, strides="none")
    row = torch.ones(1, 4)
    assert_call(lambda x: x.as_strided((1, 4), (9, 1)), lambda x: x, row, strides="that matter")
    assert_results([X, X.clone()], [X, X], aliasing=False)


def test_gradients() -> None:
    x = X.clone().requires_grad_()
    assert_call(torch.sin, torch.sin, x, gradients=True)
    with pytest.raises(AssertionError):
        assert_call(lambda x: x.detach().sin() + (x - x.detach()), torch.sin, x, gradients=True)


def passes(numbers: Exact | Close | Norm, actual: Tensor, expected: Tensor) -> bool:
    return not numbers.difference(actual, expected)


def test_equal_numbers() -> None:
    nan, inf = torch.tensor([torch.nan, 1]), torch.tensor([torch.inf, 1])
    zero = torch.tensor([0.0, 1])
    for numbers in (EXACT, CLOSE, Norm(1e-6)):
        assert passes(numbers, nan, nan) and passes(numbers, inf, inf)
        assert not passes(numbers, zero, nan) and not passes(numbers, nan, zero)
        assert not passes(numbers, inf, zero)
        assert not passes(numbers, torch.tensor([-torch.inf, 1]), inf)
        assert not passes(numbers, torch.tensor([3]), torch.tensor([4]))
    near = X * (1 + 3e-7)
    assert not passes(EXACT, near, X) and passes(CLOSE, near, X) and passes(Norm(1e-6), near, X)
    assert not passes(Close(1e-8, 0), near, X) and not passes(Norm(1e-8), near, X)
    zeros = torch.zeros(2)
    assert passes(EXACT, -zeros, zeros) and not passes(Exact(zeros=True), -zeros, zeros)
    assert passes(Close(half=0.1), X.half() * 1.05, X.half())
    assert not passes(Close(half=0.1), X * 1.05, X)


def test_against_float64() -> None:
    exact = [X.double() / 3]
    eagers = [exact[0].float()]
    assert relative_error(eagers, exact) < 1e-7
    assert AGAINST_FLOAT64.difference_of(eagers, eagers, exact) == ""
    worse = [eagers[0] * (1 + 1e-5)]
    assert "error" in AGAINST_FLOAT64.difference_of(worse, eagers, exact)
    assert AgainstFloat64(epsilons=1000).difference_of(worse, eagers, exact) == ""
    # as bad as eager is right; together, a small error beside a large one is none
    assert AGAINST_FLOAT64.difference_of(worse, worse, exact) == ""
    apart = [worse[0], eagers[0] * 1e6], [eagers[0], eagers[0] * 1e6], [*exact, exact[0] * 1e6]
    assert AGAINST_FLOAT64.difference_of(*apart)
    assert AgainstFloat64(together=True).difference_of(*apart) == ""
    assert "NaN" in AGAINST_FLOAT64.difference_of([eagers[0] * torch.nan], eagers, exact)


def test_objects() -> None:
    one, other = [1], [1]
    assert_same([one, one], [other, other])
    for a, b in (
        ([one, one], [[1], [1]]),
        ([[1], [1]], [one, one]),
        (True, 1),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (ValueError("a"), ValueError("b")),
        (X, X.double()),
        (X, X + 1),
    ):
        with pytest.raises(AssertionError):
            assert_same(a, b)


def test_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: list[int]) -> int:
        print("now")
        x.append(1)
        return x[5]

    found = outcome(function, [])
    assert isinstance(found.raised, IndexError) and found.arguments == ([1],)
    assert found.output == capsys.readouterr().out == "now\n"
    assert_same(found, outcome(function, []))
    with pytest.raises(AssertionError):
        assert_same(found, outcome(function, [2]))


def test_copies_share_as_their_originals_do() -> None:
    base = torch.arange(12.0)
    args = [base[2:8], base.view(3, 4).t(), torch.ones(2, requires_grad=True)]
    own = copies(args)
    assert sharing(own) == sharing(args)
    assert sharing([*args, *own])[3:] == [(3, 0), (3, sharing(args)[1][1]), (5, 0)]
    for a, b in zip(own, args):
        assert_tensors(a, b)
    assert sharing([base, base[:0], base[1:]]) == [(0, 0), (1, 0), (0, 4)]


def test_near_and_alike() -> None:
    assert_near([X, 3], [X + 1e-6, 3])
    for wrong in ([X + 1e-3, 3], [X, 4], [X, 3.0], [X], (X, 3)):
        with pytest.raises(AssertionError):
            assert_near(wrong, [X, 3])
    assert alike([X, (ValueError("a"), None)], (X + 1e-9, [ValueError("b"), None]))
    assert not alike([X], [X + 1e-6]) and not alike([ValueError()], [KeyError()])
    assert not alike([1], [True])
