"""Compiled functions beside their eager selves: every call compares the two and counts what was
compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near


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
        assert_near((actual, args, kwargs), (expected, eager_args, eager_kwargs))
        return self.count - before
