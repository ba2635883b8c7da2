"""Whether something that is done many times keeps memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

ROUNDS = 4


def blocks_kept(once: Callable[[], object], times: int) -> int:
    """The blocks of Python's allocator that `times` calls of `once` keep.

    Of several rounds the one that kept fewest counts: a leak is in each of them, while caches and
    tables grow in some round or other, whoever fills them.
    """
    kept = []
    before = _blocks()
    for _ in range(ROUNDS):
        for _ in range(times):
            once()
        after = _blocks()
        kept.append(after - before)
        before = after
    return min(kept[1:])


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()
