"""Garbage collection kept out of the first call."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """No automatic collection inside.

    Importing and compiling make many small objects that live on; a collection that they trigger walks all of torch's
    modules, which takes longer than either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
