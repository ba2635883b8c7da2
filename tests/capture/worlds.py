"""Two equal worlds, one changed by a function in eager, the other by the same function compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_same, outcome


def same_world(
    fn: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    calls: int = 3,
    compiled: Any = None,
    **options: Any,
) -> Any:
    """Asserts that `fn(*make())`, called several times on the same arguments, gives and leaves what
    it does in eager. Gives the compiler."""
    if compiled is None:
        compiled = ingot.compile(fn, **{"fullgraph": True, "backend": "eager", **options})
    ours, theirs = make(), make()
    with torch.no_grad():
        for call in range(calls):
            expected = outcome(fn, *theirs)
            assert_same(outcome(compiled, *ours), expected, f"call {call + 1}")
    return Compiler.of(compiled)


def compilations(compiler: Any) -> int:
    return len(compiler.compilations)
