"""torch.func.rearrange in the graph: eager's values, strides, memory and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func

import ingot

X = torch.arange(720.0).view(2, 3, 4, 5, 6)
pytestmark = pytest.mark.skipif(not hasattr(func, "rearrange"), reason="torch 2.11 has none")
TENSORS: dict[str, Any] = {"dense": X, "transposed": X.transpose(1, 3), "a list": [X[0], X[1]]}

PATTERNS: list[tuple[str, dict[str, int]]] = [
    ("a b c d e -> e d c b a", {}),
    ("a b c d e->a b c d e", {}),
    ("a b c d e -> (a b) c (d e)", {}),
    ("... -> ...", {}),
    ("... e -> e ...", {}),
    ("a ... e -> (a ...) e", {}),
    ("a ... -> (a ...)", {}),
    ("a b ... -> a b (...)", {}),
    ("a b ... -> (... a) b", {}),
    ("a b c d e ... -> a (...) b c d e", {}),
    ("a b c d e ... -> a b ... c d e", {}),
    ("a b c d (e1 e2) -> e1 a b c d e2", {"e1": 2}),
    ("a b c d (e1 e2) -> e1 a b c d e2", {"e2": 2}),
    ("a b c d (e1 e2) -> e1 a b c d e2", {"e1": 2, "e2": 3}),
    ("a b (c1 c2) d (e1 e2) -> a (b c1 e2) d (c2 e1)", {"c1": 2, "e1": 3}),
    ("a b c d e -> a 1 b c d e 1", {}),
    ("a b c d e -> a b c d e", {"a": 2}),
]
REFUSED: list[tuple[str, dict[str, int]]] = [
    ("a b c d (e1 e2) -> e1 a b c d e2", {}),
    ("a b c d (e1 e2) -> e1 a b c d e2", {"e2": 4}),
    ("a b c d (e1 e2) -> e1 a b c d e2", {"e1": 2, "e2": 2}),
    ("a b c d e -> a b c d", {}),
    ("a a c d e -> a c d e", {}),
    ("a b c d e", {}),
    ("a b c d e f -> a b c d e f", {}),
    ("a b c d e f ... -> a b ... c d f e", {}),
    ("(a b c d e -> a b c d e", {}),
    ("a ((b c) d e -> a b c d e", {}),
    ("a b (...) -> a b ...", {}),
    ("... ... -> ...", {}),
    ("a b c d 6 -> a b c d 6", {}),
    ("_a b c d e -> b c d e _a", {}),
    ("a b c d e -> a b c d e", {"z": 3}),
    ("a b c d e -> a b c d e", {"a": 3}),
]


def rearranging(pattern: str, lengths: dict[str, int]) -> Callable[[Any], Any]:
    def rearranged(x: Any) -> tuple[Tensor, Tensor]:
        result = func.rearrange(x, pattern, **lengths)
        return result, result * 2

    return rearranged


def outcome(function: Callable[[Any], Any], given: Any) -> Any:
    try:
        view, doubled = function(given)
    except Exception as error:
        return type(error), str(error)
    shares = isinstance(given, Tensor) and view.data_ptr() == given.data_ptr()
    return view.stride(), shares, doubled.shape, doubled.flatten().tolist()


@pytest.mark.parametrize("given", TENSORS)
@pytest.mark.parametrize(("pattern", "lengths"), PATTERNS)
def test_patterns(pattern: str, lengths: dict[str, int], given: str) -> None:
    function = rearranging(pattern, lengths)
    expected = outcome(function, TENSORS[given])
    assert len(expected) == 4
    assert outcome(ingot.compile(function, fullgraph=True), TENSORS[given]) == expected


@pytest.mark.parametrize(("pattern", "lengths"), REFUSED)
def test_errors_are_eagers(pattern: str, lengths: dict[str, int]) -> None:
    function = rearranging(pattern, lengths)
    expected = outcome(function, X)
    assert len(expected) == 2
    assert outcome(ingot.compile(function), X) == expected


@pytest.mark.parametrize("pattern", ["1 b 1 c -> c b", "1 b 1 c -> (c 1) b", "a b 1 c -> c a b"])
def test_dimensions_of_one(pattern: str) -> None:
    function, x = rearranging(pattern, {}), torch.randn(1, 3, 1, 4)
    expected = outcome(function, x)
    assert outcome(ingot.compile(function, fullgraph=True), x) == expected


@pytest.mark.parametrize("pattern", ["1 b 1 c -> 1 c b", "1 b 1 c -> c b 1", "a b 1 1 -> a b"])
def test_what_torch_does_not_get_right_is_eagers(pattern: str) -> None:
    function, x = rearranging(pattern, {}), torch.randn(1, 3, 1, 4)
    assert outcome(ingot.compile(function), x) == outcome(function, x)


def test_nothing_to_rearrange() -> None:
    x = torch.tensor(3.0)
    assert ingot.compile(lambda x: func.rearrange(x, "->"), fullgraph=True)(x) is x


def test_sizes_that_vary_and_gradients() -> None:
    def heads(x: Tensor) -> Tensor:
        result: Tensor = func.rearrange(x, "b n (h d) -> b h n d", h=2)
        return result.sin()

    compiled = ingot.compile(heads, fullgraph=True, dynamic=True)
    for n in (3, 5, 8):
        x = torch.randn(2, n, 6, requires_grad=True)
        found = [torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, heads)]
        torch.testing.assert_close(*found)


def test_a_keyword_is_warned_of() -> None:
    compiled = ingot.compile(rearranging("a b c d class -> class a b c d", {}))
    with pytest.warns(RuntimeWarning, match="axes names that are keywords"):
        compiled(X)
