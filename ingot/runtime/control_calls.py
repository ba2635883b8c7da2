"""What native code calls for a branch or a loop: its programs, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ingot.native import _native
from ingot.runtime.program import Program

_TYPES: dict[str, Any] = {
    "cond": _native.Conditional,
    "while_loop": _native.Loop,
    "scan": _native.Scan,
}

CONTROL = tuple(_TYPES.values())
"""What is called for branches and loops."""


def control_call(
    name: str, programs: Sequence[Program], parameters: Sequence[Any]
) -> Callable[..., Any]:
    """What takes a predicate and the inputs of two branches, for a `cond`.

    For a `while_loop` and a `scan`, it takes the inputs of a body, of which the first are the
    state.
    """
    native = map(attrgetter("native"), programs)
    call: Callable[..., Any] = _TYPES[name](*native, *parameters)
    return call
