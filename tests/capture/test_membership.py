"""`item in container` where tensors are compared: in the graph where the answer is a result or only
leads to an error, a graph break where it is branched on."""

# ruff: noqa: PLR6201
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.oracle import assert_same, outcome

NAN = float("nan")
NUMBERS = ((1.0, 2.0, 3.0), (2.0, 1.0, 1.0), (NAN, 1.0, 0.0), (0.5, 0.25, 7.0), (-0.0, 0.0, NAN))
T = torch.tensor(1.0)


def a_number_in_a_list(x: Tensor) -> Any:
    return 1 in [x[0]], 1.0 in [x[0], x[1]], 7 not in [x[2]], True in (x[0], x[1])


def a_tensor_in_a_tuple(x: Tensor) -> Any:
    a, b, c = x
    return a in (b, c), a in [1, 2], c not in (a, b), a in [a, b], b in [c, b], a not in []


def beside_others(x: Tensor) -> Any:
    return x[0] in [None, "a", 1], None in [x[0]], "a" in [x[0], "a"], "b" in [x[0], "a"]


def read_numbers(x: Tensor) -> Any:
    return x[0].item() in [1, 2], 1 in [x[0].item(), x[1]], x[0] in [x[1].item()]


def in_a_tensor(x: Tensor) -> Any:
    return 1 in x, x[0] in x[1:], 7.0 not in x, x[:1] in x.view(3, 1)


def in_a_known_tensor(x: Tensor) -> Any:
    return 2 in torch.tensor([1, 2]), torch.tensor(3) in [torch.tensor(3), 4], x + 1


def outside_tensors(x: Tensor) -> Any:
    return T in [x[0]], x[0] in [T], T in [T], x in [x], x[0] in TENSORS


def by_the_operator(x: Tensor) -> Any:
    return operator.contains([x[0], x[1]], 1), operator.contains(x, 1)


def used_in_the_graph(x: Tensor) -> Any:
    found = 1 in [x[0], x[1]]
    return x + 1, found, found is True, not found


TENSORS = [torch.tensor(0.5), torch.tensor(0.25)]
WHOLE = (
    a_number_in_a_list,
    a_tensor_in_a_tuple,
    beside_others,
    read_numbers,
    in_a_tensor,
    in_a_known_tensor,
    outside_tensors,
    by_the_operator,
    used_in_the_graph,
)


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64))
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(function: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        if dtype is torch.int64:
            x = x.nan_to_num(4.0).to(dtype)
        assert_same(outcome(compiled, x), outcome(function, x))


def asserted(x: Tensor) -> Any:
    if 1 not in [x[0], x[1]]:
        raise ValueError(f"no 1: {x}")
    return x * 2


def raised(x: Tensor) -> Any:
    if 7 in x:
        raise ValueError("7")
    return x + 1


@pytest.mark.parametrize("function", (asserted, raised), ids=lambda f: f.__name__)
def test_what_only_leads_to_an_error(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        assert_same(outcome(compiled, x), outcome(function, x))


def branched(x: Tensor) -> Any:
    return x * (2 if 1 in [x[0]] else 3)


def removed(x: Tensor) -> Any:
    items = [x[0], x[1]]
    items.remove(1)
    return len(items)


def counted(x: Tensor) -> Any:
    return [x[0], x[1]].count(1), x + 1


def many_elements(x: Tensor) -> Any:
    return 1 in [x]


def of_other_sizes(x: Tensor) -> Any:
    return x[:2] in x, x


def a_text_in_a_tensor(x: Tensor) -> Any:
    return "a" in x


class Equal:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def of_an_object(x: Tensor) -> Any:
    return Equal() in [x[0]], x[0] in [Equal()], x


def in_a_set(x: Tensor) -> Any:
    return 1 in {x[0], x[1]}, x[0] in {1: 2}, x


BROKEN = (
    branched,
    removed,
    counted,
    many_elements,
    of_other_sizes,
    a_text_in_a_tensor,
    of_an_object,
    in_a_set,
)


@pytest.mark.parametrize("function", BROKEN, ids=lambda f: f.__name__)
def test_eagers_meaning(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        assert_same(outcome(compiled, x), outcome(function, x))


def times_a_bool(x: Tensor) -> Any:
    found, n, h = 1 in x, x.nan_to_num().long(), x.half()
    return (
        *(x * found, found * x, x + found, x / found, found / (x + 9), found > x),
        *(n * found, n + found, found + n.int(), n.short() / 2 * found, n / (found + x)),
        *(h * found, found / h, x[0] * found, found / x[1], x > found, n == found),
    )


def changed_by_a_bool(x: Tensor) -> Any:
    y, z = x.clone(), x[0].clone()
    y *= 1 in x
    y += x[0] in [x[1]]
    z += 2 in x
    return y, z


def with_a_gradient(x: Tensor) -> Any:
    w = x.nan_to_num().detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(((w * (1 in x)).square() + (2 in w)).sum(), w)
    return gradient


@pytest.mark.parametrize("function", [times_a_bool, changed_by_a_bool, with_a_gradient])
def test_a_bool_meets_tensors(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        assert_same(outcome(compiled, x.clone()), outcome(function, x.clone()))


def test_a_bool_is_not_subtracted() -> None:
    for fn in (lambda x: x - (1 in x), lambda x: (1 in x) - x):
        for call in (fn, ingot.compile(fn)):
            with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
                call(torch.ones(3))


def test_the_reason_of_a_branch() -> None:
    with pytest.raises(ingot.GraphBreakError, match="a branch on the number"):
        ingot.compile(branched, fullgraph=True)(torch.ones(3))
