"""`max(t, 0.5)` and `min(t, 0.5)`, of a tensor of rank 0 and a number: eager gives one of them."""

# ruff: noqa: FURB136  (the programs are written as users may write them)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import ingot
from tests.oracle import assert_same, outcome

NAN = float("nan")
NUMBERS = ((0.25, 3.0), (0.75, -2.0), (NAN, 1.0), (0.5, NAN), (-0.0, 2.0), (float("inf"), 0.1))
pytestmark = pytest.mark.usefixtures("without_gradients")


def scaled(x: Tensor) -> Any:
    return x * max(x[0], 0.5), min(x[1], 1) * x, x / max(x.abs().max(), 1e-5)


def by_all_operators(x: Tensor) -> Any:
    m = max(x[0], 0.1)
    return x + m, m + x, x - m, m - x, x * m, x / m, x < m, m < x, x == m, m != x, x >= m


def of_other_types(x: Tensor) -> Any:
    h, d = x.half(), x.double()
    return (
        *(h * max(x[0], 0.3), h - max(d[0], 0.3), x * max(h[0], 0.3), d + max(x[0], 0.3)),
        *(d * max(h[1], 1), x * min(d[1], 0.1), x.bfloat16() / max(x[0], 0.7)),
    )


def bounded_by_the_number(x: Tensor) -> Any:
    return x * max(0.5, x[0]), x * min(2, x[1]), x * max([x[0], 0.5]), x * max((0.0, x[1]))


def in_a_container(x: Tensor) -> Any:
    scales = {"a": max(x[0], 0.5)}
    return [x * s for s in scales.values()]


WHOLE = [scaled, by_all_operators, of_other_types, bounded_by_the_number, in_a_container]


@pytest.mark.parametrize("function", WHOLE)
def test_operators_of_tensors_are_in_the_graph(function: Callable[[Tensor], Any]) -> None:
    compiled = ingot.compile(function, fullgraph=True)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        assert_same(outcome(compiled, x.clone()), outcome(function, x.clone()))


def given_away(x: Tensor) -> Any:
    return max(x[0], 0.5)


def asked_what_it_is(x: Tensor) -> Any:
    m = max(x[0], 0.5)
    return isinstance(m, Tensor), type(m), m is x, x + 1


def given_to_a_function(x: Tensor) -> Any:
    return torch.clamp(x, max=max(x[0], 0.5)), torch.mul(x, max(x[0], 0.5))


def with_a_number(x: Tensor) -> Any:
    return x * (max(x[0], 0.5) * 2 + 1)


def with_a_tensor_of_rank_0(x: Tensor) -> Any:
    return max(x.double()[0], 0.5) * x[1], max(x[0], 0.5) + x.sum()


def with_integers(x: Tensor) -> Any:
    return x.nan_to_num().clamp(-9, 9).long() * max(x[0], 0.5)


def divided(x: Tensor) -> Any:
    return max(x[0], 0.5) / x


def in_place(x: Tensor) -> Any:
    y = x.clone()
    y *= max(x[0], 0.5)
    return y


def in_place_of_itself(x: Tensor) -> Any:
    m = max(x[0], 0.5)
    m *= 2
    return m, x


def branched(x: Tensor) -> Any:
    return x + 1 if max(x[0], 0.5) else x


def of_three(x: Tensor) -> Any:
    return x * max(x[0], 0.5, x[1])


def a_key(x: Tensor) -> Any:
    return len({max(x[0], 0.5): 1}), x * 2


def in_text(x: Tensor) -> Any:
    return f"{max(x[0], 0.5)}", x * 2


def written_before_its_use(x: Tensor) -> Any:
    m = max(x[0], 0.5)
    x.add_(1)
    return x * m


def an_attribute(x: Tensor) -> Any:
    m = max(x[0], 0.5)
    return getattr(m, "shape", None), x


OTHERS = [
    *(given_away, asked_what_it_is, given_to_a_function, with_a_number, with_a_tensor_of_rank_0),
    *(with_integers, divided, in_place, in_place_of_itself, branched, of_three, a_key, in_text),
    *(written_before_its_use, an_attribute),
]


@pytest.mark.parametrize("function", OTHERS)
def test_what_tells_one_from_the_other_is_eagers(function: Callable[[Tensor], Any]) -> None:
    compiled = ingot.compile(function)
    for numbers in NUMBERS:
        x = torch.tensor(numbers)
        assert_same(outcome(compiled, x.clone()), outcome(function, x.clone()))


def test_the_graph_breaks_before_the_choice() -> None:
    report = ingot.explain(lambda x: given_away(x.sin()))(torch.ones(2))
    [found] = report.breaks
    assert report.graph_count == 1 and "whether max() or min() gives a tensor" in found.reason


def test_gradients_are_eagers() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * max(x[0], 0.5)).sum()

    def beside(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = max(x.abs().max(), 0.5)
        return (x / scale).sum()

    for fn, fullgraph in ((function, False), (beside, True)):
        compiled = ingot.compile(fn, fullgraph=fullgraph)
        for numbers in ((0.25, 3.0), (0.75, 0.1), (0.1, 0.2)):
            with torch.enable_grad():
                gradients = []
                for f in (fn, compiled):
                    x = torch.tensor(numbers, requires_grad=True)
                    gradients += torch.autograd.grad(f(x), x)
            torch.testing.assert_close(*gradients)


def test_under_vmap_it_is_eagers_error() -> None:
    def function(x: Tensor) -> Tensor:
        return vmap(lambda row: row * max(row[0], 0.5))(x)

    for f in (function, ingot.compile(function)):
        with pytest.raises(RuntimeError, match="data-dependent control flow"):
            f(torch.ones(2, 2))
