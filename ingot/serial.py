"""Compilation is serial in a process: it runs torch's own tracing state. The call path takes no lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


def _renew() -> None:
    """In the child of a fork, where the thread that held the lock may not exist."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, no other thread compiles."""
    with _lock:
        yield
