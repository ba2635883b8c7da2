"""`slice.indices` and ranges of sizes that vary, beside eager."""

from __future__ import annotations

import pytest
from torch import Tensor, arange

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_same, outcome

SLICES = [
    slice(None), slice(2, None), slice(None, 4), slice(1, 100), slice(-3, None), slice(-100, -2),
    slice(None, None, 2), slice(None, None, -1), slice(5, 1, -2), slice(100, None, -3),
    slice(-2, -100, -1), slice(3, 3),
]  # fmt: skip


@pytest.mark.parametrize("bounds", SLICES, ids=str)
def test_bounds_of_a_length_that_varies(bounds: slice) -> None:
    def fn(x: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
        return x[len(x) // 4 :] * 2, bounds.indices(x.shape[0])

    compiled = ingot.compile(fn, fullgraph=True)
    for n in (12, 15, 18, 21, 9):
        assert_same(compiled(arange(n)), fn(arange(n)))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2


def test_lengths_of_what_is_sliced() -> None:
    """As containers of tensors compute the sizes of a part."""

    def fn(x: Tensor) -> Tensor:
        count = len(range(*slice(1, None).indices(x.shape[0])))
        return x[1:].reshape(count, 1) + len(range(2, x.shape[0], 1))

    compiled = ingot.compile(fn, fullgraph=True)
    for n in (5, 7, 9, 11, 3, 2, 4):
        assert_same(compiled(arange(n)), fn(arange(n)))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) <= 4


@pytest.mark.parametrize("bounds", [slice(None, None, 0), slice(1.5), slice("a")], ids=str)
def test_errors_are_eagers(bounds: slice) -> None:
    def fn(x: Tensor) -> tuple[int, int, int]:
        return bounds.indices(x.shape[0])

    compiled = ingot.compile(fn)
    for n in (4, 6, 8):
        x = arange(n)
        assert_same(outcome(compiled, x), outcome(fn, x))
