"""What a program says to torch.compile that Ingot heeds as well: stances, resets, limits.

In: calls of `torch.compiler.set_stance` and `reset`, and the settings of `torch._dynamo.config`
and `torch._functorch.config`.
Out: the same for what Ingot has compiled. Nothing here imports torch.compile: where the program has
not, it has said nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ingot.stance import set_stance

_USUAL_LIMIT = 8
"""torch.compile's own `recompile_limit`. It is stricter than Ingot's, which counts where the
program has not set another."""


class _Stances:
    """A stance of torch.compile's and Ingot's: what `torch.compiler.set_stance` gives."""

    def __init__(self, torchs: Any, stance: str) -> None:
        self._torchs, self._ingots = torchs, set_stance(stance)

    def __enter__(self) -> None:
        self._torchs.__enter__()
        self._ingots.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._ingots.__exit__(*raised)
        self._torchs.__exit__(*raised)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return self._ingots(self._torchs(fn))


def _setting_both(torchs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(torchs)
    def set_both(stance: str = "default", **settings: Any) -> Any:
        return _Stances(torchs(stance, **settings), stance)

    return set_both


def _resetting_both(reset: Callable[[], None]) -> Callable[..., Any]:
    def resetting(torchs: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(torchs)
        def reset_both() -> Any:
            reset()
            return torchs()

        return reset_both

    return resetting


def follow(reset: Callable[[], None]) -> None:
    """From now on a stance that the program takes with torch.compile, and a reset of that, are
    Ingot's as well. `reset` forgets what Ingot has compiled.

    `torch._dynamo.reset` is followed once the program has imported it, and compiles something by
    Ingot after that.
    """
    _follow(torch.compiler, "set_stance", _setting_both)
    _follow(torch.compiler, "reset", _resetting_both(reset))
    if "torch._dynamo" in sys.modules:
        _follow(sys.modules["torch._dynamo"], "reset", _resetting_both(reset))


def _follow(module: ModuleType, name: str, both: Callable[[Any], Any]) -> None:
    torchs = getattr(module, name)
    if not hasattr(torchs, "__ingot_follows__"):
        following = both(torchs)
        following.__ingot_follows__ = True
        setattr(module, name, following)


# -- settings --------------------------------------------------------------------------------------


def _setting(name: str, usual: Any, module: str = "torch._dynamo.config") -> Any:
    """A setting of torch.compile's; `usual` where the program has not imported that."""
    return getattr(sys.modules.get(module), name, usual)


def is_disabled() -> bool:
    """Whether the program has set `torch._dynamo.config.disable`."""
    return bool(_setting("disable", False))


def recompiling_is_error() -> bool:
    """Whether it has set `torch._dynamo.config.error_on_recompile`."""
    return bool(_setting("error_on_recompile", False))


def recompile_limit() -> int | None:
    """The `torch._dynamo.config.recompile_limit` that it has set; None where it has set none."""
    limit = _setting("recompile_limit", _USUAL_LIMIT)
    if limit == _USUAL_LIMIT:
        return None
    return int(limit)


def memory_budget() -> float:
    """The share of the usual bytes that a forward may save: that which it has set as
    `torch._functorch.config.activation_memory_budget`."""
    return float(_setting("activation_memory_budget", 1.0, "torch._functorch.config"))
