"""The stance of the process towards compilation: `set_stance`.

It says whether compiled functions may run compiled, and whether they may be recompiled. There is
one stance at a time, for all threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ingot.native import set_eager
from ingot.options import unknown

DEFAULT, EAGER, FAIL, KEEP, LATER = STANCES = (
    "default",
    "eager",
    "fail_on_recompile",
    "eager_on_recompile",
    "eager_then_compile",
)
COMPILING = (DEFAULT, LATER)
"""The stances under which functions are compiled."""

_TORCHS = {"force_eager": EAGER, "aot_eager_then_compile": LATER}
"""What torch.compile calls them, where it has another name."""

_current = DEFAULT


def current_stance() -> str:
    """The stance that holds now."""
    return _current


def _take(stance: str) -> str:
    """Take a stance; returns the one before."""
    global _current
    before, _current = _current, stance
    set_eager(stance == EAGER)
    return before


class set_stance:  # noqa: N801 - it is called like a function
    """Say how all compiled functions behave from now on, those that are compiled already included.

    "default": compile what has not been compiled, run what has. "eager": run the original
    functions. "fail_on_recompile": raise `RecompileError` where a call would have to be compiled.
    "eager_on_recompile": run such a call in eager. For these two a function's first compilation
    counts as well. "eager_then_compile": run a function's first call in eager, compile from the
    second one on. torch.compile's names, "force_eager" and "aot_eager_then_compile", are taken too.

    `set_stance(stance)` holds until the next; `with set_stance(stance):` for a block;
    `@set_stance(stance)` for each call of a function. It is the stance of the whole process: all
    threads share it. Raises ValueError for a stance that is none.
    """

    def __init__(self, stance: str = DEFAULT) -> None:
        if not (isinstance(stance, str) and stance in (*STANCES, *_TORCHS)):
            raise ValueError(f"ingot.set_stance: unknown stance {unknown(stance, STANCES)}")
        self.stance = _TORCHS.get(stance, stance)
        self._before = _take(self.stance)

    def __enter__(self) -> None:
        _take(self.stance)

    def __exit__(self, *raised: Any) -> None:
        _take(self._before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _take(self._before)  # the constructor took the stance

        @functools.wraps(fn)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return fn(*args, **kwargs)

        return with_stance

    def __repr__(self) -> str:
        return f"set_stance({self.stance!r})"
