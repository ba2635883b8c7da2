"""Garbage collection kept out of the first call."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_pausing: set[int] = set()
"""The threads that will turn collection on again."""


def _after_fork_in_child() -> None:
    if _pausing - {threading.get_ident()}:
        _pausing.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def paused_collection() -> Iterator[None]:
    """No automatic collection inside.

    Importing and compiling make many small objects that live on; a collection that they trigger
    walks all of torch's modules, which takes longer than either.
    """
    enabled, thread = gc.isenabled(), threading.get_ident()
    if enabled:
        _pausing.add(thread)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            _pausing.discard(thread)
