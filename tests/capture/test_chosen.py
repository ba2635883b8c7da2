"""`max` and `min` of tensors of rank 0, whose numbers decide which of them is the result."""

# ruff: noqa: E711, FURB136  (the programs are written as users may write them)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import ingot
from tests.oracle import Close, assert_call, assert_same, outcome
from tests.tracked import Tracked

NAN, INF = float("nan"), float("inf")
NUMBERS = (
    (1.0, 2.0, 3.0),
    (3.0, 2.0, 1.0),
    (2.0, 2.0, 2.0),
    (NAN, 1.0, 2.0),
    (1.0, NAN, 2.0),
    (2.0, 1.0, NAN),
    (NAN, NAN, NAN),
    (-0.0, 0.0, -0.0),
    (0.0, -0.0, 0.0),
    (INF, -INF, INF),
    (-INF, NAN, INF),
)


def of_two(x: Tensor) -> Any:
    return x * max(x[0], x[1])


def of_three(x: Tensor) -> Any:
    return min(x[0], x[1], x[2]) + 1, max(x[2], x[0], x[1]) - 1


def of_a_list(x: Tensor) -> Any:
    return max([x[0], x[1]]) * 2, min((x[1], x[0])) * 2


def of_the_tensor(x: Tensor) -> Any:
    return max(x) * 2, min(x) * 2


def of_a_generator(x: Tensor) -> Any:
    return max(v for v in x.unbind()) * 2, max(iter([x[2], x[1]])) + x


def of_an_argument_of_its_own(x: Tensor) -> Any:
    return max(x[0], x[0]) + x[0], min(*x[1:], x[0]) * 1


def of_each_other(x: Tensor) -> Any:
    return max(min(x[0], x[1]), min(x[1], x[2])) * x


def clamped(x: Tensor) -> Any:
    y = x.sqrt()
    return min(max(y[0], y[1]), y[2]) * 3


def of_operators(x: Tensor) -> Any:
    m = max(x[0], x[1])
    return m.sin(), m - x, x / m, -m, m**2, m[None] + 1, m.reshape(1, 1) + x, m.dtype, m.shape


def inside_a_helper(x: Tensor) -> Any:
    def largest(*values: Tensor) -> Tensor:
        result = values[0]
        for value in values[1:]:
            result = max(result, value)
        return result

    return largest(*x) + largest(x[1], x[2])


def with_a_default(x: Tensor) -> Any:
    return max([x[0], x[2]], default=None) + 1, max([], default=x[0]) + 1, max([x[1]]) + 1


def asked(x: Tensor) -> Any:
    m = max(x[0], x[1])
    return (m is None, m is not None, m == None, isinstance(m, Tensor), m.ndim, m is m), m + 1


WHOLE = (
    of_two,
    of_three,
    of_a_list,
    of_the_tensor,
    of_a_generator,
    of_an_argument_of_its_own,
    of_each_other,
    clamped,
    of_operators,
    inside_a_helper,
    with_a_default,
    asked,
)


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(function: Callable[..., Any], gradients: bool) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for numbers in NUMBERS:
        assert_call(compiled, function, torch.tensor(numbers, requires_grad=gradients))


@pytest.mark.parametrize("dtype", (torch.int64, torch.uint8, torch.bool, torch.float64, torch.half))
def test_dtypes(dtype: torch.dtype) -> None:
    compiled = Tracked(of_three if dtype is not torch.bool else of_a_list, fullgraph=True)
    for numbers in ((1, 2, 0), (2, 1, 1), (0, 0, 0), (0, 1, 1)):
        compiled(torch.tensor(numbers).to(dtype))
    assert compiled.skips == []


def results(x: Tensor) -> Any:
    y = x * 2
    return max(y[0], y[1])


def results_of_their_own(x: Tensor) -> Any:
    y = x.exp()
    z = x.sin()
    return {"a": max(y[0].sum(), z.sum())}, [min(z.sum(), y.sum())]


@pytest.mark.parametrize("function", (results, results_of_their_own), ids=lambda f: f.__name__)
def test_a_result_whose_arguments_nobody_sees(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        assert_same(outcome(compiled, x), outcome(function, x))


def returned(x: Tensor) -> Any:
    return max(x[0], x[1])


def returned_beside(x: Tensor) -> Any:
    y = x * 2
    return max(y[0], y[1]), y


def returned_before(x: Tensor) -> Any:
    y = x * 2
    return y, [max(y[0], y[1]).view(1)]


def written(x: Tensor) -> Any:
    y = x * 2
    max(y[0], y[1]).add_(1)
    return y + 1


def written_behind(x: Tensor) -> Any:
    y = x * 2
    m = max(y[0], y[1])
    y[0] = 7
    return m + 1


def compared(x: Tensor) -> Any:
    a, b = x[0], x[1]
    m = max(a, b)
    return (m is a, b is m), m + 1


def a_key(x: Tensor) -> Any:
    a, b = x[0], x[1]
    return {a: "a", b: "b"}[max(a, b)], len({a, b, min(a, b)})


def by_id(x: Tensor) -> Any:
    a, b = x[0], x[1]
    return id(max(a, b)) == id(a)


def an_attribute(x: Tensor) -> Any:
    a, b = x[0], x[1]
    a.name, b.name = "a", "b"
    return max(a, b).name


def set_an_attribute(x: Tensor) -> Any:
    a, b = x[0], x[1]
    max(a, b).name = 1
    return hasattr(a, "name"), hasattr(b, "name")


def place_in_memory(x: Tensor) -> Any:
    m = max(x[0], x[1])
    return m.storage_offset(), m.data_ptr() == x.data_ptr()


def of_a_number(x: Tensor) -> Any:
    return max(x[0], 1.5), min(1.5, x[0])


def of_two_dtypes(x: Tensor) -> Any:
    return max(x[0], x[1].double()) + 1


def of_more_elements(x: Tensor) -> Any:
    return max(x[:1], x[1:2]) + 1


def by_a_key(x: Tensor) -> Any:
    return max(x, key=lambda v: -v) + 1


def of_a_complex_number(x: Tensor) -> Any:
    return max(x[0] + 1j, x[1] + 1j) + 1


def of_many(x: Tensor) -> Any:
    return max(x, x + 1)


BROKEN = (
    returned,
    returned_beside,
    returned_before,
    written,
    written_behind,
    compared,
    a_key,
    by_id,
    an_attribute,
    set_an_attribute,
    place_in_memory,
    of_a_number,
    of_two_dtypes,
    of_more_elements,
    by_a_key,
    of_a_complex_number,
    of_many,
)


@pytest.mark.parametrize("function", BROKEN, ids=lambda f: f.__name__)
def test_what_tells_the_tensors_apart(function: Callable[..., Any]) -> None:
    """Eager's meaning, in more than one graph."""
    compiled = ingot.compile(function)
    for numbers in NUMBERS:
        expected = outcome(function, torch.tensor(numbers))
        assert_same(outcome(compiled, torch.tensor(numbers)), expected)
    with pytest.raises((ingot.GraphBreakError, RuntimeError)):
        ingot.compile(function, fullgraph=True)(torch.tensor(NUMBERS[0]))


def a_sum_and_another(x: Tensor, y: Tensor) -> Tensor:
    return max(x.sum(), y.sum()) * 2


def of_two_leaves(x: Tensor, y: Tensor) -> Tensor:
    return max(x[0], y[0]) * 2


def of_a_root(x: Tensor, y: Tensor) -> Tensor:
    return max(x[0].sqrt(), x[1]) * 2


def of_a_detached(x: Tensor, y: Tensor) -> Tensor:
    z = x.detach().requires_grad_()
    return max(x[0], z[1]) * 2


@pytest.mark.parametrize(
    "function",
    (a_sum_and_another, of_two_leaves, of_a_root, of_a_detached),
    ids=lambda f: f.__name__,
)
def test_who_gets_no_gradient(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    for first, second in ((0.0, 2.0), (3.0, 2.0), (NAN, 1.0)):
        gradients = []
        for f in (compiled, function):
            x = torch.tensor([first, second], requires_grad=True)
            y = torch.tensor([second, first], requires_grad=True)
            result = f(x, y)
            if result.requires_grad:
                result.backward()
            gradients.append((result.detach(), x.grad, y.grad))
        assert_same(*gradients)


def a_hook_before(x: Tensor, log: list[Tensor]) -> Tensor:
    a, b = x[0], x[1]
    a.register_hook(lambda g: g * 3)
    return max(a, b) * a


def a_hook_behind(x: Tensor, log: list[Tensor]) -> Tensor:
    a, b = x[0], x[1]
    m = max(a, b) * 2
    b.register_hook(lambda g: g + 1)
    return m + a


def a_hook_on_it(x: Tensor, log: list[Tensor]) -> Tensor:
    a, b = x[0], x[1]
    m = max(a, b)
    m.register_hook(lambda g: g + 1)
    return m * 2 + a


def a_gradient_inside(x: Tensor, log: list[Tensor]) -> Tensor:
    a, b = x[0], x[1]
    m = max(a, b)
    (g,) = torch.autograd.grad(m * a, m, create_graph=True)
    return m * g


def a_gradient_of_an_argument(x: Tensor, log: list[Tensor]) -> Tensor:
    a, b = x[0], x[1]
    m = max(a, b)
    (g,) = torch.autograd.grad(m * 2, a, allow_unused=True)
    return m * (1 if g is None else 5)


def a_gradient_of_the_tensor(x: Tensor, log: list[Tensor]) -> Tensor:
    (g,) = torch.autograd.grad(max(x[0], x[1]) * 2, x)
    return (g * x).sum()


@pytest.mark.parametrize(
    "function",
    (
        a_hook_before,
        a_hook_behind,
        a_hook_on_it,
        a_gradient_inside,
        a_gradient_of_an_argument,
        a_gradient_of_the_tensor,
    ),
    ids=lambda f: f.__name__,
)
def test_gradients_that_are_watched(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    for numbers in NUMBERS[:4]:
        found = []
        for f in (compiled, function):
            x = torch.tensor(numbers, requires_grad=True)
            result = f(x, [])
            result.backward()
            found.append((result.detach(), x.grad))
        assert_same(*found)


def test_under_no_grad_of_what_requires_a_gradient() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            m = max(x, y)
        return m * 2

    compiled = ingot.compile(function)
    for first, second in ((1.0, 2.0), (2.0, 1.0)):
        gradients = []
        for f in (compiled, function):
            x, y = (torch.tensor(v, requires_grad=True) for v in (first, second))
            f(x, y).backward()
            gradients.append((x.grad, y.grad))
        assert_same(*gradients)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: max(vmap(torch.sin)(x)) * 2,
        lambda x: min(vmap(torch.sum)(x.expand(3, 3))) * 2,
        lambda x: max(grad(lambda row: (row * row).sum())(x)) * 2,
        lambda x: max(x[0], vmap(torch.neg)(x)[1], grad(torch.sum)(x)[2]) * 2,
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_beside_transforms(function: Callable[..., Any], requires_grad: bool) -> None:
    """A tensor that a transform wraps is no view of what is outside of it."""
    x = torch.tensor([1.0, 3.0, 2.0], requires_grad=requires_grad)
    assert_call(ingot.compile(function), function, x, numbers=Close(1e-6, 1e-6))
    assert "internal error" not in str(ingot.explain(function)(x))
