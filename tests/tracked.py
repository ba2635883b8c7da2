"""Compiled functions beside their eager selves: every call compares the two and counts what was
compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

import ingot
from ingot.compiler import Compiler


def assert_same(actual: Any, expected: Any, rtol: float = 2e-5, atol: float = 1e-5) -> None:
    """Equal structure and types; tensors equal in dtype, shape, strides, requires_grad and (to
    rounding) value."""
    flat_actual, spec_actual = tree_flatten(actual)
    flat_expected, spec_expected = tree_flatten(expected)
    assert spec_actual == spec_expected
    for a, e in zip(flat_actual, flat_expected):
        assert type(a) is type(e)
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(
                a, e, rtol=rtol, atol=atol, equal_nan=True, check_stride=e.numel() > 1
            )
            assert a.requires_grad == e.requires_grad
        else:
            assert a == e or (a != a and e != e)


class Tracked:
    """`t(*args)` calls the function compiled, compares with eager, and returns how many
    compilations the call took.

    Tensor arguments are cloned for eager (with one memo, so that aliasing among them is kept) and
    compared afterwards, so that mutation is checked too. A callable argument list (`make`) is
    needed when arguments cannot be deep-copied.
    """

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.eager = fn
        self.compiled = ingot.compile(fn, **options)
        self.compiler = Compiler.of(self.compiled)

    @property
    def count(self) -> int:
        return len(self.compiler.compilations)

    @property
    def skips(self) -> list[str]:
        return [c.skipped.reason for c in self.compiler.compilations if c.skipped is not None]

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        before = self.count
        eager_args, eager_kwargs = copy.deepcopy((args, kwargs))
        expected = self.eager(*eager_args, **eager_kwargs)
        actual = self.compiled(*args, **kwargs)
        assert_same(actual, expected)
        assert_same((args, kwargs), (eager_args, eager_kwargs))
        return self.count - before
