"""Sizes that the user marks as dynamic or static, and what the report says of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.test_dynamic_shapes import softmax_of_sum
from tests.tracked import Tracked

# -- marks -----------------------------------------------------------------------------------------


def marked(shape: tuple[int, ...], mark: Callable[..., None], *args: Any, **kwargs: Any) -> Tensor:
    tensor = torch.randn(shape)
    mark(tensor, *args, **kwargs)
    return tensor


def calls(tracked: Tracked, *tensors: Tensor) -> list[int]:
    with torch.no_grad():
        return [tracked(tensor) for tensor in tensors]


@pytest.mark.parametrize(
    "mark", [ingot.mark_dynamic, torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic]
)
def test_a_marked_size_is_a_symbol_from_the_first_call(mark):
    tracked = Tracked(softmax_of_sum)
    assert calls(tracked, marked((4, 6), mark, 0), *map(torch.randn, [(7, 6), (9, 6)])) == [1, 0, 0]
    assert calls(tracked, torch.randn(9, 5)) == [1]


def test_dimensions_from_the_back_and_several():
    tracked = Tracked(softmax_of_sum)
    assert calls(tracked, marked((4, 6), ingot.mark_dynamic, (-1, 0)), torch.randn(7, 3)) == [1, 0]


@pytest.mark.parametrize("mark", [ingot.mark_dynamic, torch._dynamo.mark_dynamic])
def test_bounds_of_a_marked_size(mark):
    tracked = Tracked(softmax_of_sum)
    first = marked((8, 6), mark, 0, min=8, max=64)
    assert calls(tracked, first, torch.randn(64, 6), torch.randn(8, 6)) == [1, 0, 0]
    assert calls(tracked, torch.randn(65, 6)) == [1]
    (symbol,) = tracked.compiler.compilations[0].captured.guards.symbols
    assert (symbol.lower, symbol.upper) == (8, 64)


@pytest.mark.parametrize("mark", [ingot.mark_static, torch._dynamo.mark_static])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_static_size_is_compiled_for(mark, dynamic):
    tracked = Tracked(softmax_of_sum, dynamic=dynamic)
    tensors = [marked((n, 6), mark, 0) for n in (4, 7, 9)]
    assert calls(tracked, *tensors) == [1, 1, 1]


def test_all_sizes_are_static():
    tracked = Tracked(softmax_of_sum, dynamic=True)
    assert calls(tracked, marked((4, 6), ingot.mark_static), marked((4, 7), ingot.mark_static)) == [
        1,
        1,
    ]


def test_dynamic_false_knows_no_marks():
    tracked = Tracked(softmax_of_sum, dynamic=False)
    assert calls(tracked, marked((4, 6), ingot.mark_dynamic, 0), torch.randn(7, 6)) == [1, 1]


def test_marks_of_what_lists_hold():
    tracked = Tracked(lambda tensors: tensors[0] * 2 + tensors[1].sum())
    first = [marked((4,), ingot.mark_dynamic, 0), marked((3,), ingot.mark_dynamic, 0)]
    with torch.no_grad():
        assert [tracked(x) for x in (first, [torch.randn(9), torch.randn(5)])] == [1, 0]


def test_the_report_says_who_fixed_a_marked_size():
    def function(x: Tensor) -> Tensor:
        y = x * 2
        return y + torch.ones(4, 6)

    def pins(x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs()

    report = ingot.explain(function)(marked((4, 6), ingot.mark_dynamic, 0))
    (line,) = report.fixed_sizes
    where = function.__code__.co_firstlineno + 2
    assert line == f"x.shape[0] is marked as dynamic, and is always 4  ({__file__}:{where})"
    assert "fixed sizes" in str(report) and "x.shape[0] is marked as dynamic" in str(report)
    (line,) = ingot.explain(pins)(marked((4, 6), ingot.mark_dynamic, (0, 1))).fixed_sizes
    assert line.startswith("all sizes and integers are those of the call: ")
    assert ingot.explain(softmax_of_sum)(marked((4, 6), ingot.mark_dynamic, 0)).fixed_sizes == []


def unrolled(x: Tensor) -> Tensor:
    n = x.shape[0]
    rows = [x[k] * k for k in range(n)]
    return torch.stack(rows)


def compared(x: Tensor) -> Tensor:
    y = x * 2
    if x.shape[0] == 4:
        return y
    return x


def as_text(x: Tensor) -> Tensor:
    rows = x.shape[0]
    return x * len("a" * rows)


def viewed(x: Tensor) -> Tensor:
    return x.view(4, 6)


def inlined(x: Tensor) -> Tensor:
    y = x + x.t().t()
    return viewed(y)


FIXED_BY = [
    (unrolled, unrolled, 2),
    (compared, compared, 2),
    (as_text, as_text, 2),
    (inlined, viewed, 1),
]


@pytest.mark.parametrize(("function", "at", "line"), FIXED_BY)
def test_the_report_says_which_line_fixed_a_marked_size(function: Any, at: Any, line: int) -> None:
    """The user's line that made it a number, also where no operation does."""
    report = ingot.explain(function)(marked((4, 6), ingot.mark_dynamic, 0))
    (text,) = report.fixed_sizes
    assert text == (
        "x.shape[0] is marked as dynamic, and is always 4  "
        f"({__file__}:{at.__code__.co_firstlineno + line})"
    )


def test_of_sizes_that_fix_one_another_the_report_names_the_line_that_made_them_a_number() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x + y
        return z.view(4, 6)

    report = ingot.explain(function)(*[marked((4, 6), ingot.mark_dynamic, 0) for _ in range(2)])
    place = f"({__file__}:{function.__code__.co_firstlineno + 2})"
    assert report.fixed_sizes == [
        f"{n}.shape[0] is marked as dynamic, and is always 4  {place}" for n in "xy"
    ]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: ingot.mark_dynamic([1], 0),
            TypeError,
            r"ingot.mark_dynamic: expected a tensor, not \[1\]",
        ),
        (
            lambda x: ingot.mark_dynamic(x, 2),
            IndexError,
            "a tensor of 2 dimensions has no dimension 2",
        ),
        (lambda x: ingot.mark_static(x, -3), IndexError, "has no dimension -3"),
        (
            lambda x: ingot.mark_dynamic(x, 0, min=5),
            ValueError,
            "dimension 0 is 4, which is not from 5 to any size",
        ),
        (
            lambda x: ingot.mark_dynamic(x, 0, max=3),
            ValueError,
            "dimension 0 is 4, which is not from 0 to 3",
        ),
        (lambda x: ingot.mark_dynamic(x, "0"), TypeError, "expected dimensions, not '0'"),
    ],
)
def test_errors_of_marks(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(4, 6))


def test_a_mark_keeps_nothing_alive_and_is_not_saved():
    tensor = marked((4, 6), ingot.mark_dynamic, 0)
    assert vars(tensor) == {}
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None
