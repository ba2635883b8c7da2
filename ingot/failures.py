"""Compilations that failed by an error of Ingot's own, or for want of memory or stack.

In: an error, and a check whether the facts of its call hold for another. Out: whether a call waits
for the next attempt. Entries that exist stay, and the intervals between attempts grow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ingot.errors import Unsupported, unsupported
from ingot.reasons import INTERNAL_ERROR
from ingot.sequences import Args

PASSING = (MemoryError, RecursionError, torch.OutOfMemoryError)
"""Errors that depend on the moment, and not on what is compiled."""

ATTEMPTS = 3
"""How often the same facts may lead to an internal error until they are left to eager as long as
they hold."""

Holds = Callable[[tuple[Any, ...]], bool]


def explained(error: Exception) -> Unsupported:
    """The reason why a call ran in eager."""
    if isinstance(error, RecursionError):
        return unsupported("recursion", "the calls are nested too deeply, or little stack is left")
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, PASSING):
        return unsupported("out-of-memory", text)
    return unsupported(INTERNAL_ERROR, f"internal error: {text}")


@dataclass
class Failure:
    """The failures of calls for which `holds`, and how many such calls wait."""

    holds: Holds
    count: int = 0
    left: int = 0  # such calls that run in eager until the next attempt

    def again(self) -> str:
        """When it is tried again, for reports."""
        if self.left:
            return f"tried again after {self.left} such calls"
        return "tried again at the next such call"

    def note(self) -> None:
        self.count += 1
        self.left = (1 << min(self.count - 1, 16)) - 1


class Failures:
    """The failures of one compiled function."""

    def __init__(self) -> None:
        self._known: list[Failure] = []

    def put_off(self, slots: Args) -> bool:
        """Whether a call is one of those that wait for the next attempt."""
        for failure in self._known:
            if failure.left and failure.holds(slots):
                failure.left -= 1
                return True
        return False

    def note(self, holds: Holds, slots: Args) -> Failure:
        """Take note of a failure for the facts that `holds` checks."""
        for failure in self._known:
            if failure.holds(slots):
                break
        else:
            failure = Failure(holds)
            self._known.append(failure)
        failure.note()
        return failure

    def forget(self, slots: Args) -> None:
        """Forget what failed for a call: it is compiled, or left to eager."""
        self._known = [failure for failure in self._known if not failure.holds(slots)]

    def clear(self) -> None:
        self._known.clear()
