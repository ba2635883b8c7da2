"""What native code calls for a branch or a loop that data decide: its programs, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot.native import _native
from ingot.runtime.program import Program

_TYPES: dict[str, Any] = {"cond": _native.Conditional, "while_loop": _native.Loop}


def control_call(name: str, programs: Sequence[Program]) -> Callable[..., Any]:
    """What takes a predicate and the inputs of two branches, for a `cond`.

    For a `while_loop`, it takes those of a condition and a body, of which the first are the state.
    """
    first, second = programs
    call: Callable[..., Any] = _TYPES[name](first.native, second.native)
    return call
