"""The first op that differs, where the compiler itself is replaced by one that is wrong."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.debugging.cases import case_from
from ingot.debugging.comparing import Comparison
from ingot.debugging.locating import Apart, locate, recorded

TEXT = """
import torch
def graph(x):
    a = torch.sin(x)
    b = torch.exp(a)  # model.py:7
    c = torch.max(b, -1)
    d = c[0]
    e = torch.cos(d)
    f = e * 2
    return (f,)
"""


def wrong_if(*words: str, but: str = "?") -> Callable[[Any], Any]:
    """A compiler whose code is wrong where the text has all of these words."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        text = "".join(linecache.getlines(function.__code__.co_filename))
        is_wrong = all(word in text for word in words) and but not in text

        def compiled(*inputs: Any) -> Any:
            results = function(*inputs)
            return tuple(result + 0.1 for result in results) if is_wrong else results

        return compiled

    return compile


def test_a_fault_that_needs_several_ops_is_found_by_bisection() -> None:
    case, x = case_from(TEXT), torch.randn(4, 5)
    compile = wrong_if("torch.exp(a)", "torch.cos(d)", but="clone")
    found = locate(case, [x], compile, gradients=False)
    assert found is not None and found.in_company
    assert found.statement.callee == "torch.cos"
    assert "largest difference 0.1" in found.what


def test_nothing_is_found_where_nothing_differs() -> None:
    case, x = case_from(TEXT), torch.randn(4, 5)
    assert locate(case, [x], lambda function: function, gradients=False) is None


def test_ops_apart_are_of_eagers_values() -> None:
    case, x = case_from(TEXT), torch.randn(4, 5)
    apart = Apart(case, recorded(case, [x]))
    results = apart.case(*apart.inputs)
    expected = [x.sin(), x.sin().exp(), x.sin().exp().amax(-1), case([x][0])[0]]
    assert [s.callee for s in apart.of_results] == [
        "torch.sin",
        "torch.exp",
        "c[0]",
        "torch.cos",
        "e * 2",
    ]
    for result, eager in zip(results, expected):
        assert torch.equal(result, eager) or eager is expected[-1]
    assert torch.equal(results[-1], expected[-1])


def test_results_that_share_memory_with_another_tensor_differ() -> None:
    def eager(x: Tensor) -> tuple[Tensor]:
        return (x[1:],)

    comparison = Comparison(eager, [torch.zeros(3)])
    assert comparison.difference(eager) is None
    found = comparison.difference(lambda x: (x[1:].clone(),))
    assert found is not None and "shares memory" in found.what


def test_errors_are_compared_by_type() -> None:
    def raises(x: Tensor) -> tuple[Tensor]:
        return (x[x.long()],)

    def other(x: Tensor) -> tuple[Tensor]:
        raise ValueError("no")

    comparison = Comparison(raises, [torch.full((2,), 7.0)])
    assert isinstance(comparison.expected.raised, IndexError)
    assert comparison.difference(raises) is None
    found = comparison.difference(other)
    assert found is not None and found.is_error
    assert "raises ValueError: no, eager raises IndexError" in str(found)


def test_what_differs_by_more_than_rounding() -> None:
    def total(x: Tensor) -> tuple[Tensor]:
        return (x.sum(-1),)

    comparison = Comparison(total, [torch.randn(8, 1000)])
    backwards = comparison.difference(lambda x: (x.flip(-1).cumsum(-1)[:, -1].clone(),))
    assert backwards is None
    found = comparison.difference(lambda x: (x.sum(-1) * (1 + 1e-4),))
    assert found is not None and (found.kind, found.number) == ("result", 0)
    other = comparison.difference(lambda x: (x.sum(-1).double(),))
    assert other is not None and "dtype is torch.float64" in other.what


def test_an_item_of_a_tuple_is_named_by_what_made_the_tuple() -> None:
    case, x = case_from(TEXT), torch.randn(4, 5)
    found = locate(case, [x], wrong_if("torch.max("), gradients=False)
    assert found is not None and found.statement.callee == "torch.sin"  # all values are wrong

    def one_off(function: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(*inputs: Any) -> Any:
            results = list(function(*inputs))
            if len(results) > 3:
                results[2] = results[2] + 0.1  # d, an item of c
            return tuple(results)

        return compiled

    found = locate(case, [x], one_off, gradients=False)
    assert found is not None and found.statement.callee == "torch.max"


def test_gradients_of_views_are_those_of_the_compiled_program() -> None:
    """A result that is a view of an input has eager's gradient, so that views are copied."""
    text = "import torch\ndef graph(x):\n    a = x.t()\n    b = a.sin()\n    return (b,)\n"
    x = torch.randn(4, 5, requires_grad=True)
    case = case_from(text)
    apart = Apart(case, recorded(case, [x]))
    results = apart.case(*apart.inputs)
    assert all(result._base is None for result in results)


def test_rounding_leaves_dense_what_some_kernels_take_for_dense() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    weight, bias = (torch.randn(16, requires_grad=True) for _ in range(2))

    def normed(*inputs: Tensor) -> tuple[Tensor]:
        return (torch.nn.functional.layer_norm(inputs[0], (16,), *inputs[1:]),)

    def wrong(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
        return normed(x, weight * 1.001 - weight.detach() * 0.001, bias)

    found = Comparison(normed, [x, weight, bias]).difference(wrong)
    assert found is not None and (found.kind, found.number) == ("gradient of input", 1)
